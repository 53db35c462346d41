/* topo/draw_gpus.c -- a host with GPUs: NUMA nodes side by side, NVLinks below them. */
#include "topo/draw.h"

#include "base/units.h"

#include <stdlib.h>

enum { GPU_W = 124, GPU_H = 70, SWITCH_H = 26, SWITCH_DROP = 42, ARC_FIRST = 34, ARC_STEP = 16, ARC_LANES = 16 };

static int max(int a, int b)
{
    return a > b ? a : b;
}

static int count_gpus(const struct draw *draw, int numa)
{
    int n = 0;
    for (int i = 0; i < draw->host->ngpus; i++)
        n += draw->topo->gpus[draw->host->first_gpu + i].numa == numa;
    return n;
}

/* Things side by side in a node's box. */
static int columns_of(const struct draw *draw, int numa)
{
    int nics = draw_count_nics(draw, numa);
    return max(max(count_gpus(draw, numa), nics < 4 ? nics : 4), 2);
}

static int width_of(int columns)
{
    return columns * (GPU_W + DRAW_GAP) - DRAW_GAP + 2 * DRAW_PAD;
}

/* GPUs stand in the order of their nodes, those of unknown node (-1) last. */
static void draw_gpu(struct draw *draw, int index, int x, int y)
{
    const struct topo_gpu *gpu = &draw->topo->gpus[index];
    char classes[32], memory[UNITS_BUF];
    text_print(classes, sizeof classes, "gpu i%d%s", draw->island_of[index] % DRAW_ISLANDS,
               gpu->driver ? "" : " unknown");
    svg_open(draw->svg, "GPU %d: %s, %s, bus %s, island %d", index, gpu->name, render_memory(gpu->memory_bytes, memory),
             gpu->busid, draw->island_of[index]);
    svg_box(draw->svg, classes, x, y, GPU_W, GPU_H);
    svg_text(draw->svg, "b m", x + GPU_W / 2, y + 21, GPU_W - 8, "GPU %d", index);
    svg_text(draw->svg, "m", x + GPU_W / 2, y + 39, GPU_W - 8, "%s", gpu->name);
    svg_text(draw->svg, "s m", x + GPU_W / 2, y + 57, GPU_W - 4, "%s",
             gpu->memory_bytes < 0 ? gpu->busid : render_memory(gpu->memory_bytes, memory));
    svg_close(draw->svg);
}

static int count_cores(const struct draw *draw, int numa)
{
    int n = 0;
    for (int i = 0; i < draw->host->ncores; i++)
        n += draw->topo->cores[draw->host->first_core + i].numa == numa;
    return n;
}

static void draw_node_heading(struct draw *draw, int numa, int x, int y, int room)
{
    char memory[UNITS_BUF];
    if (numa < 0) {
        svg_text(draw->svg, "b", x, y, room, "NUMA node not known");
        return;
    }
    const struct topo_numa *node = &draw->topo->numas[numa];
    svg_text(draw->svg, "", x, y, room, "NUMA %d \xc2\xb7 %d cores \xc2\xb7 CPUs %s%s%s", node->os_index,
             count_cores(draw, numa), node->cpus, node->memory_bytes < 0 ? "" : " \xc2\xb7 ",
             node->memory_bytes < 0 ? "" : render_memory(node->memory_bytes, memory));
}

/* Height of the NIC rows of the node with the most. */
static int nic_rows_height(const struct draw *draw)
{
    int most = 0;
    for (int i = -1; i < draw->host->nnumas; i++) {
        int numa = i < 0 ? -1 : draw->host->first_numa + i, nics = draw_count_nics(draw, numa);
        int rows = (nics + columns_of(draw, numa) - 1) / columns_of(draw, numa);
        most = max(most, rows);
    }
    return most * (DRAW_NIC_H + DRAW_GAP);
}

static void draw_node(struct draw *draw, int numa, int x, int y, int h, int *middles)
{
    int columns = columns_of(draw, numa), w = width_of(columns), at = 0;
    svg_box(draw->svg, "numa", x, y, w, h);
    draw_node_heading(draw, numa, x + DRAW_PAD, y + 19, w - 2 * DRAW_PAD);
    draw_nics(draw, numa, x + DRAW_PAD, y + DRAW_HEAD + 4, columns);
    int gpu_y = y + h - DRAW_PAD - GPU_H;
    for (int i = 0; i < draw->host->ngpus; i++) {
        int index = draw->host->first_gpu + i, gpu_x = x + DRAW_PAD + at * (GPU_W + DRAW_GAP);
        if (draw->topo->gpus[index].numa != numa)
            continue;
        draw_gpu(draw, index, gpu_x, gpu_y);
        middles[i] = gpu_x + GPU_W / 2;
        at++;
    }
}

static const struct topo_link *link_between(const struct draw *draw, int i, int k)
{
    return topo_link_at(draw->topo, draw->host->first_gpu + i, draw->host->first_gpu + k);
}

/* The switched peer that GPU i would show its count for: the one with the most links. */
static const struct topo_link *switched(const struct draw *draw, int i)
{
    const struct topo_link *best = NULL;
    for (int k = 0; k < draw->host->ngpus; k++) {
        const struct topo_link *link = link_between(draw, i, k);
        if (link->link == TOPO_LINK_NVSWITCH && (!best || link->count > best->count))
            best = link;
    }
    return best;
}

/* From the lower edge of the GPUs at y. */
static int draw_switch(struct draw *draw, const int *middles, int y)
{
    int left = 0, right = 0;
    for (int i = 0; i < draw->host->ngpus; i++) {
        const struct topo_link *link = switched(draw, i);
        if (!link)
            continue;
        left = left && left < middles[i] ? left : middles[i];
        right = max(right, middles[i]);
        svg_line(draw->svg, "nvlink w3", middles[i], y, middles[i], y + SWITCH_DROP);
        svg_text(draw->svg, "s", middles[i] + 6, y + SWITCH_DROP - 8, 0, "%d", link->count);
    }
    if (!right)
        return 0;
    svg_box(draw->svg, "switch", left - GPU_W / 2, y + SWITCH_DROP, right - left + GPU_W, SWITCH_H);
    svg_text(draw->svg, "b m", (left + right) / 2, y + SWITCH_DROP + 18, 0, "NVLink switches");
    return SWITCH_DROP + SWITCH_H;
}

/* A pair joined directly, drawn in a lane of its own depth so that arcs do not cover each other. */
struct arc {
    int a, b, left, right, lane;
};

static int compare_arcs(const void *x, const void *y)
{
    const struct arc *a = x, *b = y;
    int wide_a = a->right - a->left, wide_b = b->right - b->left;
    return wide_a != wide_b ? (wide_a > wide_b) - (wide_a < wide_b) : (a->left > b->left) - (a->left < b->left);
}

static int find_arcs(const struct draw *draw, const int *middles, struct arc *arcs)
{
    int n = 0;
    for (int i = 0; i < draw->host->ngpus; i++)
        for (int k = 0; k < i; k++)
            if (link_between(draw, i, k)->link == TOPO_LINK_NVLINK)
                arcs[n++] = (struct arc){.a = k,
                                         .b = i,
                                         .left = middles[i] < middles[k] ? middles[i] : middles[k],
                                         .right = max(middles[i], middles[k])};
    qsort(arcs, (size_t)n, sizeof *arcs, compare_arcs);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i;) {
            bool covers = arcs[k].lane == arcs[i].lane && arcs[k].left < arcs[i].right && arcs[i].left < arcs[k].right;
            arcs[i].lane += covers && arcs[i].lane < ARC_LANES;
            k = covers && arcs[i].lane < ARC_LANES ? 0 : k + 1; /* in the next lane, look at all again */
        }
    return n;
}

/* Counts go in a second pass, so that no arc crosses one. */
static int draw_arcs(struct draw *draw, const int *middles, int y)
{
    int deepest = 0, n = draw->host->ngpus;
    struct arc *arcs = calloc((size_t)n * (size_t)n, sizeof *arcs);
    if (!arcs) {
        draw->svg->body.failed = true;
        return 0;
    }
    n = find_arcs(draw, middles, arcs);
    for (int i = 0; i < 2 * n; i++) {
        const struct arc *arc = &arcs[i % n];
        const struct topo_link *link = link_between(draw, arc->a, arc->b);
        int depth = ARC_FIRST + ARC_STEP * arc->lane, middle = (arc->left + arc->right) / 2;
        int island = draw->island_of[draw->host->first_gpu + arc->a];
        char classes[32] = "nvlink";
        deepest = max(deepest, depth);
        if (i >= n) {
            svg_box(draw->svg, "count", middle - 11, y + depth - 9, 22, 18);
            svg_text(draw->svg, "s m", middle, y + depth + 4, 0, "%d", link->count);
            continue;
        }
        if (island == draw->island_of[draw->host->first_gpu + arc->b])
            text_print(classes, sizeof classes, "i%d arc", island % DRAW_ISLANDS);
        svg_arc(draw->svg, classes, arc->left, arc->right, y, depth, link->count > 4 ? 4 : max(link->count, 1));
    }
    free(arcs);
    return deepest ? deepest + 8 : 0;
}

/* One line that says what the table's matrix says. */
static int draw_kinds(struct draw *draw, int x, int y, int room)
{
    struct render_kind kinds[RENDER_KINDS];
    struct text line = {0};
    int n = render_link_kinds(draw->topo, draw->host->first_gpu, draw->host->ngpus, kinds);
    for (int i = 0; i < n && i < 4; i++) {
        char cell[RENDER_CELL], meaning[96];
        render_cell(&kinds[i].link, cell);
        render_cell_meaning(&kinds[i].link, meaning, sizeof meaning);
        text_add(&line, "%s%d pair%s %s (%s)", i ? " \xc2\xb7 " : "", (int)kinds[i].pairs,
                 kinds[i].pairs == 1 ? "" : "s", cell, meaning);
    }
    draw->svg->body.failed |= line.failed;
    if (line.len)
        svg_text(draw->svg, "s", x, y + 14, room, "%s", line.s);
    text_free(&line);
    return n ? 24 : 0;
}

int draw_gpu_host(struct draw *draw, int x, int y, int *out_w)
{
    int h = DRAW_HEAD + 4 + nic_rows_height(draw) + GPU_H + DRAW_PAD, at = x, used;
    int *middles = calloc((size_t)draw->host->ngpus, sizeof *middles);
    if (!middles) {
        draw->svg->body.failed = true;
        *out_w = 0;
        return 0;
    }
    for (int i = 0; i <= draw->host->nnumas; i++) {
        int numa = i < draw->host->nnumas ? draw->host->first_numa + i : -1;
        if (numa < 0 && count_gpus(draw, -1) + draw_count_nics(draw, -1) == 0)
            continue;
        draw_node(draw, numa, at, y, h, middles);
        at += width_of(columns_of(draw, numa)) + DRAW_PAD;
    }
    *out_w = max(at - DRAW_PAD - x, 2 * GPU_W);
    used = h - DRAW_PAD; /* the links begin at the GPUs, inside the boxes of the nodes */
    used += draw_switch(draw, middles, y + used);
    used += draw_arcs(draw, middles, y + used);
    used = max(used, h) + DRAW_GAP;
    used += draw_kinds(draw, x, y + used, *out_w);
    free(middles);
    return used;
}
