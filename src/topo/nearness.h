/* topo/nearness.h -- devices gathered from the nearest outwards. Inside this room only.
 *
 * Every pair of devices has a level: link class, then more links first, then the same NUMA node first. Level by level,
 * clusters merge when *all* pairs between them are at least that near, so a cluster is a clique and never a chain of
 * neighbours. A cluster is named by its lowest device.
 *
 *     struct nearness near;
 *     TRY(nearness_open(topo, &near));
 *     while (nearness_step(&near))                    // one level further out
 *         ... near.parent[c] is the cluster that cluster c is now part of (itself when nothing happened) ...
 *     nearness_close(&near);
 */
#ifndef SPTUNE_TOPO_NEARNESS_H
#define SPTUNE_TOPO_NEARNESS_H

#include "topo/topo.h"

struct nearness {
    int n, nlevels, next; /* next: the level that the next step will do */
    int64_t *keys;        /* of each level, nearest first */
    uint16_t *level;      /* [n][n] worst level between two clusters */
    int *parent;
    int *degree; /* partners that a cluster could merge with; -1: no longer a cluster of its own */
};

enum status nearness_open(const struct topo *topo, struct nearness *out);
bool nearness_step(struct nearness *near);                             /* false when every level was done */
enum topo_link_class nearness_next_class(const struct nearness *near); /* TOPO_LINK_COUNT when no level is left */
void nearness_close(struct nearness *near);

int64_t nearness_key(const struct topo *topo, int a, int b); /* smaller is nearer */

#endif
