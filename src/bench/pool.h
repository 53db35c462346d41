/* bench/pool.h -- how many copies of the buffers a case rotates over: one when hot; when cold, at least three last-level caches of them,
 * so that what an iteration touches has left every cache since it was last used. */
#ifndef SPTUNE_BENCH_POOL_H
#define SPTUNE_BENCH_POOL_H

#include "bench/bench.h"

struct pool {
    int n;              /* copies; the same on every rank */
    int64_t bytes;      /* of one copy */
    int64_t cache_bytes; /* last-level cache that `cold` goes by */
    bool capped;        /* memory allowed fewer than cold needs */
    int last;           /* copy of the last iteration */
};

/* Collective. `bytes` of one copy on this rank. */
enum status pool_open(struct bench_env *env, enum bench_buffers buffers, int64_t bytes, struct pool *out);
int pool_pick(struct pool *pool, int iteration); /* the copy of this iteration */
void pool_note(const struct pool *pool, json_t *conditions);
int64_t pool_cache_bytes(void);

#endif
