/* topo/render_svg.c -- a picture of a topology: hosts below each other, the network beside them, a legend. */
#include "topo/draw.h"

#include "base/mem.h"
#include "base/units.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN_ALL = 4, SHOWN_KINDS = 6, LEFT = 20, NETWORK_W = 28, NETWORK_ROOM = 130, HOST_W = 520 };

static const char style[] =
    "text{font:13px "
    "system-ui,Helvetica,Arial,sans-serif;fill:#1f2933}.b{font-weight:600}.s{font-size:11px;fill:#52606d}"
    ".t{font-size:18px;font-weight:600}.m{text-anchor:middle}.page{fill:#fff}"
    ".host{fill:#f5f7fa;stroke:#9aa5b1;stroke-width:1.5}.package{fill:#e4e7eb;stroke:#9aa5b1}"
    ".numa{fill:#fff;stroke:#cbd2d9}.cache{fill:#fff3c4;stroke:#f0b429}.core{fill:#c1eac5;stroke:#57ae5b}"
    ".off{fill:#e4e7eb;stroke:#9aa5b1;stroke-dasharray:2 2}.nic{fill:#ffe8d9;stroke:#f9703e}"
    ".network{fill:#ffe8d9;stroke:#f9703e}.wire{stroke:#f9703e;stroke-width:2}"
    ".gpu{stroke-width:1.5}.unknown{stroke-dasharray:4 "
    "3}.nvlink{fill:none;stroke:#5b8c00;stroke-opacity:.75}.w3{stroke-width:3}"
    ".switch{fill:#e3f0c8;stroke:#5b8c00;stroke-width:1.5}.count{fill:#fff;stroke:#5b8c00}.warn{fill:#ab091e}"
    ".i0{fill:#d6e8ff;stroke:#2186eb}.i1{fill:#ffe0f0;stroke:#d64594}.i2{fill:#d8f5ec;stroke:#199473}"
    ".i3{fill:#ece1ff;stroke:#7c5cc4}.i4{fill:#fff0cc;stroke:#c99a06}.i5{fill:#d5f3fb;stroke:#1992b5}"
    ".i6{fill:#fbdfd9;stroke:#c65d43}.i7{fill:#e6ecd8;stroke:#7d8f45}.arc{fill:none}";

static void heading(struct draw *draw, const struct topo_host *host, int x, int y, int room)
{
    char memory[UNITS_BUF], quota[64] = "", more[48] = "";
    if (host->cpu_quota >= 0)
        text_print(quota, sizeof quota, " \xc2\xb7 quota %.4g CPUs", host->cpu_quota);
    if (draw->host->equals > 1)
        text_print(more, sizeof more, " and %d more like it", draw->host->equals - 1);
    svg_text(draw->svg, "b", x, y, room, "%s%s%s%s \xc2\xb7 %d cores, %d of %d CPUs allowed%s%s%s",
             host->name[0] ? host->name : "this machine", more, host->cpu_model[0] ? " \xc2\xb7 " : "", host->cpu_model,
             host->cores, host->pus_allowed, host->pus, quota, host->memory_bytes < 0 ? "" : " \xc2\xb7 ",
             host->memory_bytes < 0 ? "" : render_memory(host->memory_bytes, memory));
}

/* Frame and contents of one host; returns the height and raises *widest. */
static int draw_host(struct draw *draw, int index, int y, int *widest)
{
    struct svg *svg = draw->svg;
    struct text outside = svg->body;
    int w = 0, h, x = LEFT + DRAW_PAD;
    svg->body = (struct text){0};
    if (draw->host->ngpus)
        h = draw_gpu_host(draw, x, y + DRAW_HEAD + 8, &w);
    else
        h = draw_cpu_host(draw, x, y + DRAW_HEAD + 8, &w);
    struct text inside = svg->body;
    svg->body = outside;
    h += DRAW_HEAD + 8 + DRAW_PAD / 2;
    w = w > HOST_W ? w : HOST_W;
    svg_box(svg, "host", LEFT, y, w + 2 * DRAW_PAD, h);
    heading(draw, &draw->topo->hosts[index], x, y + 22, w * 7 / 8); /* bold is wider */
    text_add_raw(&svg->body, text_get(&inside), inside.len);
    svg->body.failed |= inside.failed;
    text_free(&inside);
    *widest = w + 2 * DRAW_PAD > *widest ? w + 2 * DRAW_PAD : *widest;
    return h;
}

/* "8 x 50 GB/s" for the host's NICs, when they are equal. */
static void wire(struct draw *draw, int from, int to, int y)
{
    const struct topo_nic *nics = draw->topo->nics + draw->host->first_nic;
    bool equal = draw->host->nnics > 0;
    char rate[UNITS_BUF];
    for (int i = 1; i < draw->host->nnics; i++)
        equal &= nics[i].GBps <= nics[0].GBps && nics[i].GBps >= nics[0].GBps;
    svg_line(draw->svg, "wire", from, y, to, y);
    if (equal && nics[0].GBps >= 0)
        svg_text(draw->svg, "s m", (from + to) / 2, y - 6, 0, "%d \xc3\x97 %s", draw->host->nnics,
                 units_format_rate(nics[0].GBps, rate));
    else if (draw->host->nnics)
        svg_text(draw->svg, "s m", (from + to) / 2, y - 6, 0, "%d NIC%s", draw->host->nnics,
                 draw->host->nnics == 1 ? "" : "s");
}

struct entry {
    const char *classes, *words;
};

static void legend(const struct topo *topo, struct svg *svg, int y)
{
    static const struct entry gpu_entries[] = {
        {"gpu i0", "GPU; one colour, one island"}, {"switch", "NVLink, links per GPU or pair"}, {"nic", "NIC"}};
    static const struct entry cpu_entries[] = {
        {"core", "core, first CPU"}, {"core off", "not allowed here"}, {"cache", "last-level cache"}, {"nic", "NIC"}};
    const struct entry *entries = topo->ngpus ? gpu_entries : cpu_entries;
    size_t n = topo->ngpus ? sizeof gpu_entries / sizeof *gpu_entries : sizeof cpu_entries / sizeof *cpu_entries;
    int x = LEFT;
    for (size_t i = 0; i < n; i++) {
        svg_box(svg, entries[i].classes, x, y, 18, 14);
        svg_text(svg, "s", x + 24, y + 11, 0, "%s", entries[i].words);
        x += 24 + 7 * (int)strlen(entries[i].words) + 20;
    }
    svg->right = x > svg->right ? x : svg->right;
}

static int warnings(const struct topo *topo, struct svg *svg, int y)
{
    enum { SHOWN = 6 };
    for (int i = 0; i < topo->nwarnings && i < SHOWN; i++, y += 18)
        svg_text(svg, "s warn", LEFT, y + 12, svg->right - LEFT, "%s", topo->warnings[i]);
    return y;
}

/* Which hosts are drawn: all of a few, else one of each kind. */
static bool is_shown(const struct topo *topo, const struct render_host *hosts, int host, int shown)
{
    return topo->nhosts <= SHOWN_ALL || (hosts[host].equals > 0 && shown < SHOWN_KINDS);
}

static int draw_hosts(struct svg *svg, const struct topo *topo, struct render_host *hosts, const int *island_of, int y)
{
    int middles[SHOWN_ALL + SHOWN_KINDS], drawn[SHOWN_ALL + SHOWN_KINDS], shown = 0, widest = 0, top = y;
    for (int i = 0; i < topo->nhosts; i++) {
        if (!is_shown(topo, hosts, i, shown))
            continue;
        if (topo->nhosts <= SHOWN_ALL)
            hosts[i].equals = 1;
        struct draw draw = {svg, topo, &hosts[i], island_of};
        int h = draw_host(&draw, i, y, &widest);
        middles[shown] = y + h / 2;
        drawn[shown++] = i;
        y += h + 2 * DRAW_GAP;
    }
    if (topo->nhosts == 1)
        return y;
    int x = LEFT + widest + NETWORK_ROOM;
    for (int k = 0; k < shown; k++) {
        struct draw draw = {svg, topo, &hosts[drawn[k]], island_of};
        wire(&draw, LEFT + widest, x, middles[k]);
    }
    svg_box(svg, "network", x, top, NETWORK_W, y - top - 2 * DRAW_GAP);
    svg_text_up(svg, "b m", x + NETWORK_W / 2 + 5, (top + y) / 2 - DRAW_GAP, "network");
    return y;
}

static enum status draw_page(struct svg *svg, const struct topo *topo, struct render_host *hosts, const int *island_of)
{
    int y = draw_hosts(svg, topo, hosts, island_of, 72);
    int room = svg->right - LEFT;
    svg_text(svg, "t", LEFT, 34, room * 5 / 7, "%s", topo->source); /* larger letters */
    svg_text(svg, "s", LEFT, 54, 0, "fingerprint %s", topo->fingerprint);
    y = warnings(topo, svg, y);
    legend(topo, svg, y);
    return STATUS_OK;
}

enum status topo_to_svg(const struct topo *topo, char **out)
{
    struct svg svg = {0};
    struct render_host *hosts = NULL;
    int *island_of = NULL, islands = 0;
    char description[128];
    enum status status;
    TRY_OUT(render_hosts(topo, &hosts));
    TRY_OUT(mem_alloc((size_t)topo->ngpus * sizeof *island_of, "islands", (void **)&island_of));
    TRY_OUT(topo_islands(topo, island_of, &islands));
    TRY_OUT(draw_page(&svg, topo, hosts, island_of));
    text_print(description, sizeof description, "%d hosts, %d GPUs in %d islands, fingerprint %s", topo->nhosts,
               topo->ngpus, islands, topo->fingerprint);
    status = svg_finish(&svg, style, topo->source, description, out);
out:
    text_free(&svg.body);
    free(hosts);
    free(island_of);
    return status;
}
