/* bench/rotation.h -- how many copies of the buffers a case rotates over: one when hot or used; when cold, at least three last-level caches of them,
 * so that what an iteration touches has left every cache since it was last used. */
#ifndef SPTUNE_BENCH_ROTATION_H
#define SPTUNE_BENCH_ROTATION_H

#include "bench/bench.h"

struct rotation {
    int n;              /* copies; the same on every rank */
    int64_t bytes;      /* of one copy */
    int64_t cache_bytes; /* last-level cache that `cold` goes by */
    bool capped;        /* memory allowed fewer than cold needs */
    int last;           /* copy of the last iteration */
};

/* Collective. `bytes` of one copy on this rank. */
enum status rotation_open(struct bench_env *env, enum bench_buffers buffers, int64_t bytes, struct rotation *out);
int rotation_pick(struct rotation *rotation, int iteration); /* the copy of this iteration */
void rotation_note(const struct rotation *rotation, json_t *conditions);

#endif
