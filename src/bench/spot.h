/* bench/spot.h -- outputs of attention at real sizes: a few rows against the oracle, and identities over all of them.
 *
 * Rows of O and dQ are computed again in double from inputs that are made again (bench/data.h), at any length. Rows of dK and dV need
 * every query of a document, so they are checked where a document is short. Over everything,
 *     <dV, V> = <dO, O>     (dV = P^T dO, O = P V)          and          <dQ, Q> = <dK, K>     (both are sum of dS * S)
 * hold whatever the mask, so that a gradient that is missing or doubled anywhere shows.
 */
#ifndef SPTUNE_BENCH_SPOT_H
#define SPTUNE_BENCH_SPOT_H

#include "bench/bench.h"
#include "bench/group.h"
#include "bench/oracle.h"
#include "sp/shard.h"

struct spot {
    const struct attention_shape *shape; /* every token that attention sees, every head of the tensors below */
    uint64_t seed;
    int64_t padded;        /* tokens of one row of the batch */
    int64_t batch_first;   /* of the data: batch items before this group's */
    int head_first, kv_first; /* of the data: head 0 of the shape */
    int threads;              /* that share the work, 0 is 1; nothing depends on how many */
    int copies;            /* ranks that share each kv head; 0 is 1 */
    struct shard shard;    /* tokens of each row that the tensors hold; heads contiguous */
    bool backward;
    const void *q, *k, *v, *o, *d_o, *dq, *dk, *dv; /* forward only: o, the rest may be NULL */
    const float *lse;      /* [batch][heads][seq] when every token is here, else NULL */
};

/* Where a token of the shape lies in the tensors here; -1: it is elsewhere. */
int64_t spot_here(const struct spot *spot, int64_t token);
/* At least eight rows here, document starts among them; `draw` makes the random ones. */
enum status spot_rows(const struct spot *spot, uint64_t draw, bool *ok, char why[256]);
/* group NULL: the tensors are complete here. Else collective over env->world: sums run over the group. */
enum status spot_identities(struct bench_env *env, const struct spot *spot, const struct group *group, bool *ok, char why[256]);
/* The data as an oracle's source. `spot` outlives it. */
struct oracle_source spot_source(const struct spot *spot);

#endif
