/* topo/draw.h -- the parts of a topology's picture. Inside this room only. */
#ifndef SPTUNE_TOPO_DRAW_H
#define SPTUNE_TOPO_DRAW_H

#include "topo/render.h"
#include "topo/svg.h"

enum {
    DRAW_PAD = 14,
    DRAW_GAP = 10,
    DRAW_HEAD = 26, /* of a box with a heading */
    DRAW_NIC_W = 124,
    DRAW_NIC_H = 24,
    DRAW_ISLANDS = 8, /* colours, classes i0 .. i7 */
};

/* What a host's drawing needs; `name` is its heading. */
struct draw {
    struct svg *svg;
    const struct topo *topo;
    const struct render_host *host;
    const int *island_of;
};

/* Each draws inside a host's frame at x, y and returns the height used; *out_w the width. */
int draw_gpu_host(struct draw *draw, int x, int y, int *out_w);
int draw_cpu_host(struct draw *draw, int x, int y, int *out_w);
/* The NICs of a NUMA node (-1: of none known) in rows of `columns`. Returns the height, 0 without NICs. */
int draw_nics(struct draw *draw, int numa, int x, int y, int columns);
int draw_count_nics(const struct draw *draw, int numa);

#endif
