/* sp/shard.h -- which tokens of a padded sequence a rank of those that share it holds, in the order in which it holds them.
 *
 *   ulysses, split_gather   rank r holds [r S/P, (r + 1) S/P)
 *   ring                    2P pieces of equal length; rank r holds piece r and piece 2P - 1 - r, so that under a causal mask all
 *                           ranks have the same to do:      P = 3     0  1  2  2  1  0     (who holds pieces 0 .. 5)
 *   ulysses+ring            rings of R ranks, P/R ranks share each place of the ring: rank r is at place r / (P/R), whose two
 *                           pieces of 2R, one behind the other, are cut among its ranks in order
 *   with tp T               what rank s of sp holds is cut, in order, among ranks s T to s T + T - 1 of the P T that share the
 *                           sequence: gathered over them it is there again. The same as a place that T times as many ranks share
 *
 * The same rule whatever the mask: documents and full masks are not balanced by it, but are not made worse. Pure; nothing fails:
 * sizes are those that plan_check accepts.
 */
#ifndef SPTUNE_SP_SHARD_H
#define SPTUNE_SP_SHARD_H

#include "sp/plan.h"
#include "sp/problem.h"

enum { SHARD_RANGES_MAX = 2 };

struct shard {
    int n; /* ranges, ascending, none empty, none adjacent; 0 when nothing is here */
    struct {
        int64_t first, count;
    } range[SHARD_RANGES_MAX];
    int64_t local; /* tokens here */
};

/* places: of a ring, plan_ring; 1: there is none. A multiple of `ranks` is padded to; with a ring, of twice that. */
void shard_get(int places, int64_t padded, int ranks, int rank, struct shard *out);

/* The same of a plan, by its rings and plan_sequence_ranks: what a length is padded to a multiple of, the length then, tokens of each
 * rank, what rank `rank` of them holds. */
int shard_multiple(const struct plan *plan);
int64_t shard_padded(const struct problem *problem, const struct plan *plan);
int64_t shard_local(const struct problem *problem, const struct plan *plan);
/* Does attention see documents: those of the problem, or padding that a full mask would see, which is cut off as they are? */
bool shard_packed(const struct problem *problem, const struct plan *plan);
void shard_of(const struct plan *plan, int64_t padded, int rank, struct shard *out);

void shard_whole(int64_t seq, struct shard *out); /* all of it here */
int64_t shard_position(const struct shard *shard, int64_t index);    /* in the sequence, of the index-th token here */
int64_t shard_index(const struct shard *shard, int64_t position);    /* the other way; -1: it is elsewhere */
int64_t shard_below(const struct shard *shard, int64_t position);    /* how many tokens here come before it */

#endif
