/* topo/draw_cpus.c -- a host without GPUs: packages, NUMA nodes, last-level caches, cores. NICs of any host. */
#include "topo/draw.h"

#include "base/units.h"

#include <string.h>

enum { CORE = 26, CORE_GAP = 4, CORES_ACROSS = 8, CACHES_ACROSS = 4, NODES_ACROSS = 2, PAGE_W = 1500, NICS_SHOWN = 16 };

static int max(int a, int b)
{
    return a > b ? a : b;
}

int draw_count_nics(const struct draw *draw, int numa)
{
    int n = 0;
    for (int i = 0; i < draw->host->nnics; i++)
        n += draw->topo->nics[draw->host->first_nic + i].numa == numa;
    return n < NICS_SHOWN ? n : NICS_SHOWN;
}

int draw_nics(struct draw *draw, int numa, int x, int y, int columns)
{
    int at = 0, shown = draw_count_nics(draw, numa);
    for (int i = 0; i < draw->host->nnics && at < shown; i++) {
        const struct topo_nic *nic = &draw->topo->nics[draw->host->first_nic + i];
        int left = x + at % columns * (DRAW_NIC_W + DRAW_GAP), top = y + at / columns * (DRAW_NIC_H + DRAW_GAP);
        char rate[UNITS_BUF];
        if (nic->numa != numa)
            continue;
        svg_open(draw->svg, "NIC %s, bus %s, %s", nic->name, nic->busid[0] ? nic->busid : "unknown",
                 nic->GBps < 0 ? "rate unknown" : units_format_rate(nic->GBps, rate));
        svg_box(draw->svg, "nic", left, top, DRAW_NIC_W, DRAW_NIC_H);
        svg_text(draw->svg, "s m", left + DRAW_NIC_W / 2, top + 16, DRAW_NIC_W - 4, "%s%s%s", nic->name,
                 nic->GBps < 0 ? "" : " ", nic->GBps < 0 ? "" : units_format_rate(nic->GBps, rate));
        svg_close(draw->svg);
        at++;
    }
    return (shown + columns - 1) / columns * (DRAW_NIC_H + DRAW_GAP);
}

/* Cores [first, first + n) of the topology that share package, node and last-level cache. */
struct block {
    int first, n;
};

static bool same_block(const struct topo_core *a, const struct topo_core *b)
{
    return a->package == b->package && a->numa == b->numa && a->l3 == b->l3;
}

static int block_end(const struct draw *draw, int first, int end)
{
    int i = first + 1;
    while (i < end && same_block(&draw->topo->cores[first], &draw->topo->cores[i]))
        i++;
    return i;
}

static void draw_core(struct draw *draw, int index, int x, int y)
{
    const struct topo_core *core = &draw->topo->cores[index];
    char first[12];
    svg_open(draw->svg, "core %d: %d hardware thread%s, CPUs %s", index - draw->host->first_core, core->pus,
             core->pus == 1 ? "" : "s", core->cpus[0] ? core->cpus : "not allowed here");
    svg_box(draw->svg, core->cpus[0] ? "core" : "core off", x, y, CORE, CORE);
    text_print(first, sizeof first, "%.*s", (int)strspn(core->cpus, "0123456789"), core->cpus);
    svg_text(draw->svg, "s m", x + CORE / 2, y + 17, 0, "%s", first);
    svg_close(draw->svg);
}

/* A cache with its cores below; without a known cache only the cores. Returns the height. */
static int draw_block(struct draw *draw, struct block block, int x, int y, int *out_w)
{
    const struct topo_host *host = &draw->topo->hosts[draw->topo->cores[block.first].host];
    int across = block.n < CORES_ACROSS ? block.n : CORES_ACROSS, rows = (block.n + CORES_ACROSS - 1) / CORES_ACROSS;
    int w = max(across * (CORE + CORE_GAP) - CORE_GAP, 84), top = y;
    char memory[UNITS_BUF];
    if (draw->topo->cores[block.first].l3 >= 0) {
        svg_box(draw->svg, "cache", x, y, w, 20);
        svg_text(draw->svg, "s m", x + w / 2, y + 14, w, "L3 %s", render_memory(host->l3_bytes, memory));
        top += 24;
    }
    for (int i = 0; i < block.n; i++)
        draw_core(draw, block.first + i, x + i % CORES_ACROSS * (CORE + CORE_GAP),
                  top + i / CORES_ACROSS * (CORE + CORE_GAP));
    *out_w = w;
    return top - y + rows * (CORE + CORE_GAP) - CORE_GAP;
}

/* Blocks of cores [first, end) in rows of CACHES_ACROSS. */
static int draw_blocks(struct draw *draw, int first, int end, int x, int y, int *out_w)
{
    int at_x = x, at_y = y, row_h = 0, in_row = 0;
    *out_w = 0;
    while (first < end) {
        int next = block_end(draw, first, end), w = 0;
        if (in_row == CACHES_ACROSS) {
            at_y += row_h + DRAW_GAP;
            at_x = x;
            row_h = in_row = 0;
        }
        row_h = max(row_h, draw_block(draw, (struct block){first, next - first}, at_x, at_y, &w));
        *out_w = max(*out_w, at_x + w - x);
        at_x += w + DRAW_GAP;
        in_row++;
        first = next;
    }
    return at_y - y + row_h;
}

/* Cores [first, end) of one NUMA node with its NICs. */
static int draw_node(struct draw *draw, int first, int end, int x, int y, int *out_w)
{
    int numa = draw->topo->cores[first].numa, w = 0, columns;
    struct svg *svg = draw->svg;
    struct text outside = svg->body; /* the frame must come before what it frames, and its size is known after */
    svg->body = (struct text){0};
    int h = draw_blocks(draw, first, end, x + DRAW_PAD, y + DRAW_HEAD + 4, &w);
    w = max(w, 2 * DRAW_NIC_W + DRAW_GAP);
    columns = (w + DRAW_GAP) / (DRAW_NIC_W + DRAW_GAP);
    int nics_y = y + DRAW_HEAD + 4 + h + DRAW_GAP;
    h += DRAW_HEAD + 4 + DRAW_PAD;
    if (draw_count_nics(draw, numa))
        h += draw_nics(draw, numa, x + DRAW_PAD, nics_y, columns);
    struct text inside = svg->body;
    svg->body = outside;
    *out_w = w + 2 * DRAW_PAD;
    svg_box(svg, "numa", x, y, *out_w, h);
    if (numa < 0)
        svg_text(svg, "", x + DRAW_PAD, y + 19, w, "NUMA node not known");
    else {
        const struct topo_numa *node = &draw->topo->numas[numa];
        char memory[UNITS_BUF];
        svg_text(svg, "", x + DRAW_PAD, y + 19, w, "NUMA %d%s%s \xc2\xb7 CPUs %s", node->os_index,
                 node->memory_bytes < 0 ? "" : " \xc2\xb7 ",
                 node->memory_bytes < 0 ? "" : render_memory(node->memory_bytes, memory), node->cpus);
    }
    text_add_raw(&svg->body, text_get(&inside), inside.len);
    svg->body.failed |= inside.failed;
    text_free(&inside);
    return h;
}

/* Nodes of one package in rows of NODES_ACROSS. */
static int draw_package(struct draw *draw, int first, int end, int x, int y, int *out_w)
{
    struct svg *svg = draw->svg;
    struct text outside = svg->body;
    int at_x = x + DRAW_PAD, at_y = y + DRAW_HEAD + 4, row_h = 0, in_row = 0,
        package = draw->topo->cores[first].package;
    const struct topo_host *host = &draw->topo->hosts[draw->topo->cores[first].host];
    svg->body = (struct text){0};
    *out_w = 0;
    while (first < end) {
        int next = first + 1, w = 0;
        while (next < end && draw->topo->cores[next].numa == draw->topo->cores[first].numa)
            next++;
        if (in_row == NODES_ACROSS) {
            at_y += row_h + DRAW_GAP;
            at_x = x + DRAW_PAD;
            row_h = in_row = 0;
        }
        row_h = max(row_h, draw_node(draw, first, next, at_x, at_y, &w));
        *out_w = max(*out_w, at_x + w + DRAW_PAD - x);
        at_x += w + DRAW_GAP;
        in_row++;
        first = next;
    }
    struct text inside = svg->body;
    int h = at_y + row_h + DRAW_PAD - y;
    svg->body = outside;
    svg_box(svg, "package", x, y, *out_w, h);
    svg_text(svg, "b", x + DRAW_PAD, y + 19, *out_w - 2 * DRAW_PAD, "package %d%s%s", package,
             host->cpu_model[0] ? " \xc2\xb7 " : "", host->cpu_model);
    text_add_raw(&svg->body, text_get(&inside), inside.len);
    svg->body.failed |= inside.failed;
    text_free(&inside);
    return h;
}

static int draw_caches(struct draw *draw, int x, int y, int room)
{
    const struct topo_host *host = &draw->topo->hosts[draw->topo->cores[draw->host->first_core].host];
    char l1[UNITS_BUF], l2[UNITS_BUF];
    if (host->l1d_bytes < 0 && host->l2_bytes < 0)
        return 0;
    svg_text(draw->svg, "s", x, y + 14, room, "each core: L1d %s, L2 %s", render_memory(host->l1d_bytes, l1),
             render_memory(host->l2_bytes, l2));
    return 24;
}

/* Packages side by side while the page is wide enough. */
static int draw_packages(struct draw *draw, int x, int y, int *out_w)
{
    int first = draw->host->first_core, end = first + draw->host->ncores, at_x = x, at_y = y, row_h = 0;
    *out_w = 0;
    while (first < end) {
        int next = first + 1, w = 0;
        while (next < end && draw->topo->cores[next].package == draw->topo->cores[first].package)
            next++;
        if (at_x > x && at_x - x + *out_w > PAGE_W) { /* the next package is about as wide as the widest so far */
            at_y += row_h + DRAW_PAD;
            at_x = x;
            row_h = 0;
        }
        row_h = max(row_h, draw_package(draw, first, next, at_x, at_y, &w));
        *out_w = max(*out_w, at_x + w - x);
        at_x += w + DRAW_PAD;
        first = next;
    }
    return at_y - y + row_h;
}

int draw_cpu_host(struct draw *draw, int x, int y, int *out_w)
{
    int used = draw_packages(draw, x, y, out_w) + DRAW_GAP;
    *out_w = max(*out_w, 2 * DRAW_NIC_W);
    if (draw_count_nics(draw, -1))
        used += draw_nics(draw, -1, x, y + used, max(1, *out_w / (DRAW_NIC_W + DRAW_GAP)));
    if (draw->host->ncores)
        used += draw_caches(draw, x, y + used, *out_w);
    return used;
}
