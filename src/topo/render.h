/* topo/render.h -- what table and picture share: hosts and their parts, equal hosts shown once. Inside this room only.
 */
#ifndef SPTUNE_TOPO_RENDER_H
#define SPTUNE_TOPO_RENDER_H

#include "base/text.h"
#include "topo/build.h"

/* Where a host's parts are in the arrays of the topology, and which earlier host it equals. */
struct render_host {
    int first_numa, nnumas, first_core, ncores, first_gpu, ngpus, first_nic, nnics;
    int like;   /* lowest host that is equal but for its name; itself when none is */
    int equals; /* how many hosts are like this one, itself included; 0 when it is shown by another */
};

enum status render_hosts(const struct topo *topo, struct render_host **out); /* [nhosts], free() */

/* "nv18", "sys": a cell of the matrix of links. */
enum { RENDER_CELL = 16 };
void render_cell(const struct topo_link *link, char buf[RENDER_CELL]);
/* What that cell means: "18 NVLinks through switches". */
void render_cell_meaning(const struct topo_link *link, char *buf, size_t size);
/* Every kind of link among GPUs [first, first + n) once, nearest first, with the number of pairs it joins. */
enum { RENDER_KINDS = 32 };
struct render_kind {
    struct topo_link link;
    int64_t pairs;
};
int render_link_kinds(const struct topo *topo, int first, int n, struct render_kind kinds[RENDER_KINDS]);
/* "141 GiB", "?" when unknown. */
char *render_memory(int64_t bytes, char *buf);
/* "0-3,8" for ascending values. */
void render_ranges(struct text *text, const int *values, int n);

#endif
