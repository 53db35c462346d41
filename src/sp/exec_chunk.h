/* sp/exec_chunk.h -- which heads a chunk of a rank computes, which KV heads that needs, and when each of those moves.
 *
 *     heads 8, kv_heads 2, sp 1, chunks 3     group of kv head 0      group of kv head 1
 *     query heads                             0   1   2   3           4   5   6   7
 *     chunks                                  [-0---) [-1---------------) [-2----)
 *     k, v travel with the first chunk        0 with chunk 0          1 with chunk 1
 *     that needs them
 *
 * Both groups are cut here, so that dk and dv collect over chunks in fp32 and leave, rounded once, after the last
 * chunk. Where no group is cut they leave with their chunk.
 *
 * rank: among plan_head_ranks, which exchange heads.
 *
 * Local indices count from the rank's first head, global ones over all heads. Pure; every number is brute-forced in a
 * test.
 */
#ifndef SPTUNE_SP_EXEC_CHUNK_H
#define SPTUNE_SP_EXEC_CHUNK_H

#include "sp/plan.h"
#include "sp/problem.h"

#include <stdbool.h>

struct exec_chunk {
    int first, count;         /* local query heads */
    int group_first;          /* position of the first one within its group */
    int kv_first, kv_count;   /* local kv heads that they read */
    int new_first, new_count; /* of those, the ones that no earlier chunk brought */
    int out_first, out_count; /* local kv heads whose dk, dv leave after this chunk */
};

void exec_chunk(const struct problem *problem, const struct plan *plan, int rank, int chunk, struct exec_chunk *out);
/* What all chunks after the first bring in, as one: first, count, new_first, new_count. heads and kv_heads are local. */
void exec_chunk_rest(const struct exec_chunk *first, int heads, int kv_heads, struct exec_chunk *out);
/* Is some kv head of this rank read by more than one chunk? Then dk and dv are kept in fp32 until the last chunk. */
bool exec_chunk_shared(const struct problem *problem, const struct plan *plan, int rank);
/* Elements per token and peer of the widest call of an exchange: q, k, v together, or o. */
int64_t exec_row_elems(const struct problem *problem, const struct plan *plan);

#endif
