/* topo/render_table.c -- a topology for a terminal of 80 columns. Equal hosts are shown once. */
#include "topo/render.h"

#include "base/mem.h"
#include "base/units.h"

#include <libsmartcols.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 80, MATRIX_MAX = 12, LINES_MAX = 3, NICS_SHOWN = 16 };

struct column {
    const char *name;
    bool number; /* right-aligned, never cut */
    bool cut;    /* cut when the line is too long */
};

/* One table of libsmartcols under construction; the first failure is kept. */
struct sheet {
    struct libscols_table *table;
    struct libscols_line *line;
    size_t next;
    bool failed;
};

static void sheet_open(struct sheet *sheet, const struct column *columns, size_t n)
{
    *sheet = (struct sheet){.table = scols_new_table()};
    if (!sheet->table) {
        sheet->failed = true;
        return;
    }
    scols_table_set_termforce(sheet->table, SCOLS_TERMFORCE_ALWAYS);
    scols_table_set_termwidth(sheet->table, WIDTH);
    scols_table_enable_ascii(sheet->table, 1);
    for (size_t i = 0; i < n; i++) {
        int flags = (columns[i].number ? SCOLS_FL_RIGHT : 0) | (columns[i].cut ? SCOLS_FL_TRUNC : 0);
        if (!scols_table_new_column(sheet->table, columns[i].name, columns[i].cut ? 0.1 : 1.0, flags))
            sheet->failed = true;
    }
}

static void sheet_row(struct sheet *sheet)
{
    sheet->line = sheet->table ? scols_table_new_line(sheet->table, NULL) : NULL;
    sheet->next = 0;
    sheet->failed |= !sheet->line;
}

__attribute__((format(printf, 2, 3))) static void sheet_cell(struct sheet *sheet, const char *fmt, ...)
{
    char cell[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(cell, sizeof cell, fmt, args);
    va_end(args);
    if (sheet->line && scols_line_set_data(sheet->line, sheet->next++, cell) != 0)
        sheet->failed = true;
}

/* Appends the table to `text`. */
static void sheet_close(struct sheet *sheet, struct text *text)
{
    char *data = NULL;
    if (!sheet->failed && scols_print_table_to_string(sheet->table, &data) == 0 && data)
        text_add(text, "\n%s\n", data);
    else
        text->failed = true;
    free(data);
    scols_unref_table(sheet->table);
}

/* `body`, broken at blanks, behind `head`; at most LINES_MAX lines. */
static void add_wrapped(struct text *text, const char *head, const char *body)
{
    size_t indent = strlen(head), room = WIDTH - indent;
    text_add(text, "%s", head);
    for (int line = 1;; line++) {
        size_t len = strlen(body), take = len;
        bool last = line == LINES_MAX;
        if (len > room) {
            for (take = room; take > 0 && body[take] != ' ';)
                take--;
            take = take ? take : room;
            if (last && take > room - 4)
                for (take = room - 4; take > 0 && body[take] != ' ';)
                    take--;
        }
        text_add(text, "%.*s%s\n", (int)take, body, take < len && last ? " ..." : "");
        body += take + (body[take] == ' ');
        if (!*body || last)
            return;
        text_add(text, "%*s", (int)indent, "");
    }
}

static const char *quota_text(const struct topo_host *host, char buf[UNITS_BUF])
{
    if (host->cpu_quota < 0)
        return "-";
    text_print(buf, UNITS_BUF, "%.4g", host->cpu_quota);
    return buf;
}

static void add_hosts(struct text *text, const struct topo *topo, const struct render_host *hosts)
{
    static const struct column columns[] = {{"HOST", false, true},    {"CPU", false, true},   {"PKG", true, false},
                                            {"NUMA", true, false},    {"CORES", true, false}, {"CPUS", true, false},
                                            {"ALLOWED", true, false}, {"QUOTA", true, false}, {"MEMORY", true, false},
                                            {"LIMIT", true, false}};
    struct sheet sheet;
    char buf[UNITS_BUF];
    sheet_open(&sheet, columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < topo->nhosts; i++) {
        const struct topo_host *host = &topo->hosts[i];
        if (hosts[i].equals == 0)
            continue;
        sheet_row(&sheet);
        if (hosts[i].equals > 1)
            sheet_cell(&sheet, "%s x%d", host->name, hosts[i].equals);
        else
            sheet_cell(&sheet, "%s", host->name[0] ? host->name : "-");
        sheet_cell(&sheet, "%s", host->cpu_model[0] ? host->cpu_model : "?");
        sheet_cell(&sheet, "%d", host->packages);
        sheet_cell(&sheet, "%d", hosts[i].nnumas);
        sheet_cell(&sheet, "%d", host->cores);
        sheet_cell(&sheet, "%d", host->pus);
        sheet_cell(&sheet, "%d", host->pus_allowed);
        sheet_cell(&sheet, "%s", quota_text(host, buf));
        sheet_cell(&sheet, "%s", render_memory(host->memory_bytes, buf));
        sheet_cell(&sheet, "%s", host->memory_limit_bytes < 0 ? "-" : render_memory(host->memory_limit_bytes, buf));
    }
    sheet_close(&sheet, text);
}

static void add_caches(struct text *text, const struct topo_host *host)
{
    char l1[UNITS_BUF], l2[UNITS_BUF], l3[UNITS_BUF];
    if (host->l1d_bytes < 0 && host->l2_bytes < 0 && host->l3_bytes < 0)
        return;
    text_add(text, "caches  L1d %s, L2 %s", render_memory(host->l1d_bytes, l1), render_memory(host->l2_bytes, l2));
    if (host->l3_bytes >= 0)
        text_add(text, ", L3 %d x %s", host->l3_count, render_memory(host->l3_bytes, l3));
    text_add(text, "\n");
}

static void add_numas(struct text *text, const struct topo *topo, const struct render_host *host)
{
    static const struct column columns[] = {{"NUMA", true, false},
                                            {"MEMORY", true, false},
                                            {"CPUS", false, true},
                                            {"GPUS", false, true},
                                            {"NICS", false, true}};
    struct sheet sheet;
    char memory[UNITS_BUF];
    sheet_open(&sheet, columns, sizeof columns / sizeof *columns);
    for (int i = host->first_numa; i < host->first_numa + host->nnumas; i++) {
        struct text gpus = {0}, nics = {0};
        for (int k = host->first_gpu; k < host->first_gpu + host->ngpus; k++)
            if (topo->gpus[k].numa == i)
                text_add(&gpus, "%s%d", gpus.len ? "," : "", k);
        for (int k = host->first_nic; k < host->first_nic + host->nnics; k++)
            if (topo->nics[k].numa == i)
                text_add(&nics, "%s%s", nics.len ? "," : "", topo->nics[k].name);
        sheet_row(&sheet);
        sheet_cell(&sheet, "%d", topo->numas[i].os_index);
        sheet_cell(&sheet, "%s", render_memory(topo->numas[i].memory_bytes, memory));
        sheet_cell(&sheet, "%s", topo->numas[i].cpus);
        sheet_cell(&sheet, "%s", gpus.len ? gpus.s : "-");
        sheet_cell(&sheet, "%s", nics.len ? nics.s : "-");
        text->failed |= gpus.failed || nics.failed;
        text_free(&gpus);
        text_free(&nics);
    }
    sheet_close(&sheet, text);
}

static const char *count_text(int count, char buf[UNITS_BUF])
{
    text_print(buf, UNITS_BUF, count < 0 ? "?" : "%d", count);
    return buf;
}

static void add_gpus(struct text *text, const struct topo *topo, const struct render_host *host, const int *island_of)
{
    static const struct column columns[] = {{"GPU", true, false},    {"BUS ID", false, false}, {"NAME", false, true},
                                            {"MEMORY", true, false}, {"NUMA", true, false},    {"NVLINKS", true, false},
                                            {"ISLAND", true, false}};
    struct sheet sheet;
    char buf[UNITS_BUF];
    sheet_open(&sheet, columns, sizeof columns / sizeof *columns);
    for (int i = host->first_gpu; i < host->first_gpu + host->ngpus; i++) {
        const struct topo_gpu *gpu = &topo->gpus[i];
        sheet_row(&sheet);
        sheet_cell(&sheet, "%d", i);
        sheet_cell(&sheet, "%s", gpu->busid);
        sheet_cell(&sheet, "%s", gpu->name);
        sheet_cell(&sheet, "%s", render_memory(gpu->memory_bytes, buf));
        sheet_cell(&sheet, "%s", count_text(gpu->numa < 0 ? -1 : topo->numas[gpu->numa].os_index, buf));
        sheet_cell(&sheet, "%s", count_text(gpu->nvlinks, buf));
        sheet_cell(&sheet, "%d", island_of[i]);
    }
    sheet_close(&sheet, text);
}

static void add_matrix(struct text *text, const struct topo *topo, const struct render_host *host)
{
    struct column columns[MATRIX_MAX + 1] = {{"LINK", true, false}};
    char names[MATRIX_MAX][12], cell[RENDER_CELL];
    struct sheet sheet;
    if (host->ngpus < 2 || host->ngpus > MATRIX_MAX)
        return;
    for (int i = 0; i < host->ngpus; i++) {
        text_print(names[i], sizeof names[i], "%d", host->first_gpu + i);
        columns[i + 1] = (struct column){names[i], true, false};
    }
    sheet_open(&sheet, columns, (size_t)host->ngpus + 1);
    for (int a = host->first_gpu; a < host->first_gpu + host->ngpus; a++) {
        sheet_row(&sheet);
        sheet_cell(&sheet, "%d", a);
        for (int b = host->first_gpu; b < host->first_gpu + host->ngpus; b++) {
            render_cell(topo_link_at(topo, a, b), cell);
            sheet_cell(&sheet, "%s", cell);
        }
    }
    sheet_close(&sheet, text);
}

static void add_link_kinds(struct text *text, const struct topo *topo)
{
    struct render_kind kinds[RENDER_KINDS];
    int n = render_link_kinds(topo, 0, topo->ngpus, kinds);
    bool nvlinks = false;
    for (int i = 0; i < n; i++) {
        char cell[RENDER_CELL], meaning[96], pairs[UNITS_BUF];
        render_cell(&kinds[i].link, cell);
        render_cell_meaning(&kinds[i].link, meaning, sizeof meaning);
        text_add(text, "%-6s  %s pair%s: %s\n", cell, units_format_count(kinds[i].pairs, pairs),
                 kinds[i].pairs == 1 ? "" : "s", meaning);
        enum topo_link_class class = kinds[i].link.link;
        nvlinks |= (class == TOPO_LINK_NVSWITCH || class == TOPO_LINK_NVLINK) && kinds[i].link.GBps >= 0;
    }
    if (nvlinks)
        text_add(text, "        (each way; of NVLinks what NCCL counts on, which is below the raw rate)\n");
}

static void add_nics(struct text *text, const struct topo *topo, const struct render_host *host)
{
    static const struct column columns[] = {
        {"NIC", false, true}, {"BUS ID", false, false}, {"NUMA", true, false}, {"GB/S", true, false}};
    struct sheet sheet;
    char buf[UNITS_BUF];
    if (host->nnics == 0)
        return;
    sheet_open(&sheet, columns, sizeof columns / sizeof *columns);
    for (int i = host->first_nic; i < host->first_nic + host->nnics && i < host->first_nic + NICS_SHOWN; i++) {
        const struct topo_nic *nic = &topo->nics[i];
        sheet_row(&sheet);
        sheet_cell(&sheet, "%s", nic->name);
        sheet_cell(&sheet, "%s", nic->busid[0] ? nic->busid : "-");
        sheet_cell(&sheet, "%s", count_text(nic->numa < 0 ? -1 : topo->numas[nic->numa].os_index, buf));
        sheet_cell(&sheet, nic->GBps < 0 ? "?" : "%.4g", nic->GBps);
    }
    sheet_close(&sheet, text);
    if (host->nnics > NICS_SHOWN)
        text_add(text, "and %d more NICs\n", host->nnics - NICS_SHOWN);
}

static void add_islands(struct text *text, const struct topo *topo, const int *island_of, int count, int *scratch)
{
    struct text body = {0};
    for (int i = 0; i < count; i++) {
        int n = 0;
        for (int gpu = 0; gpu < topo->ngpus; gpu++)
            if (island_of[gpu] == i)
                scratch[n++] = gpu;
        text_add(&body, "%s{", i ? " " : "");
        render_ranges(&body, scratch, n);
        text_add(&body, "}");
    }
    text->failed |= body.failed;
    text_add(text, "\n");
    add_wrapped(text, "islands  ", text_get(&body));
    text_free(&body);
}

static enum status add_order(struct text *text, const struct topo *topo, int sp, int *order)
{
    int n = topo->ngpus;
    char head[48];
    struct text body = {0};
    TRY(topo_rank_order(topo, n, sp, order));
    text_print(head, sizeof head, "sp %-4d  %-8s  ", sp, topo_link_name(topo_group_link(topo, order, n, sp)));
    for (int r = 0; r < n; r += sp) {
        text_add(&body, "%s", r ? " | " : "");
        render_ranges(&body, order + r, sp);
    }
    text->failed |= body.failed;
    add_wrapped(text, head, text_get(&body));
    text_free(&body);
    return STATUS_OK;
}

static enum status add_orders(struct text *text, const struct topo *topo, int *scratch)
{
    text_add(text, "ranks in order, groups of sp, worst link inside a group:\n");
    for (int sp = 2; sp <= topo->ngpus; sp++)
        if (topo->ngpus % sp == 0)
            TRY(add_order(text, topo, sp, scratch));
    return STATUS_OK;
}

static void add_host_name(struct text *text, const struct topo *topo, const struct render_host *hosts, int host)
{
    text_add(text, "\n%s", topo->hosts[host].name);
    if (hosts[host].equals > 1)
        text_add(text, " and %d more hosts like it", hosts[host].equals - 1);
    text_add(text, "\n");
}

static enum status add_all(struct text *text, const struct topo *topo, const struct render_host *hosts, int *island_of,
                           int *scratch)
{
    int islands = 0;
    TRY(topo_islands(topo, island_of, &islands));
    add_wrapped(text, "topology     ", topo->source);
    text_add(text, "fingerprint  %s\n", topo->fingerprint);
    add_hosts(text, topo, hosts);
    for (int i = 0; i < topo->nhosts; i++) {
        if (hosts[i].equals == 0)
            continue;
        if (topo->nhosts > 1)
            add_host_name(text, topo, hosts, i);
        add_caches(text, &topo->hosts[i]);
        add_numas(text, topo, &hosts[i]);
        if (hosts[i].ngpus)
            add_gpus(text, topo, &hosts[i], island_of);
        add_matrix(text, topo, &hosts[i]);
        add_nics(text, topo, &hosts[i]);
    }
    if (topo->ngpus == 0)
        text_add(text, "\nno GPUs: ranks run on CPUs, %d usable here\n", topo_usable_cpus(topo));
    if (topo->ngpus) {
        text_add(text, "\n");
        add_link_kinds(text, topo);
        add_islands(text, topo, island_of, islands, scratch);
        TRY(topo->ngpus > 1 ? add_orders(text, topo, scratch) : STATUS_OK);
    }
    for (int i = 0; i < topo->nwarnings; i++)
        add_wrapped(text, "warning: ", topo->warnings[i]);
    return text_status(text);
}

enum status topo_to_table(const struct topo *topo, char **out)
{
    struct text text = {0};
    struct render_host *hosts = NULL;
    int *island_of = NULL, *scratch = NULL;
    enum status status;
    TRY_OUT(render_hosts(topo, &hosts));
    TRY_OUT(mem_alloc((size_t)topo->ngpus * sizeof *island_of, "islands", (void **)&island_of));
    TRY_OUT(mem_alloc((size_t)topo->ngpus * sizeof *scratch, "a rank order", (void **)&scratch));
    TRY_OUT(add_all(&text, topo, hosts, island_of, scratch));
    *out = text.s;
    text.s = NULL;
out:
    text_free(&text);
    free(hosts);
    free(island_of);
    free(scratch);
    return status;
}
