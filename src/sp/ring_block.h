/* sp/ring_block.h -- what a rank of a ring computes at each step: which of its queries, which of the keys that arrived, under
 * which mask.
 *
 * Rank r holds pieces r and 2R - 1 - r of the 2R that a row is cut into (sp/shard.h); at step s it has the keys of rank
 * (r - s) mod R. Under a causal mask:
 *
 *                      keys of a lower rank      its own (step 0)          keys of a higher rank
 *                      low      high             low      high             low      high
 *     queries low      all      .                causal   .                .        .
 *             high     all      .                all      causal           all      all
 *
 * So each step is one call: all queries on the first piece of keys; or causal over both pieces, one behind the other, as if they
 * were neighbours; or the second half of the queries on all keys. Steps after the first are half a square each, on every rank.
 * Without a causal mask all see all. A document, too, is one run of tokens here: its part in the first piece ends where the
 * piece ends when it has a part in the second.
 */
#ifndef SPTUNE_SP_RING_BLOCK_H
#define SPTUNE_SP_RING_BLOCK_H

#include "base/status.h"
#include "kernels/attention.h"

#include <stdint.h>

struct ring_row { /* a row of the batch, as a ring shares it */
    int ranks, rank;
    int64_t padded; /* tokens of all ranks, a multiple of 2 * ranks */
    bool causal;
    int docs;           /* 0: one sequence */
    const int64_t *cu;  /* [docs + 1] offsets in the row, borrowed */
};

struct ring_block {
    int from;                 /* the rank whose keys these are */
    int64_t q_first, q_count; /* tokens of this rank's */
    int64_t k_first, k_count; /* tokens of that rank's */
    enum attention_causal causal;
    int docs;                 /* those with a query or a key in the block; 0: one sequence */
    int64_t *cu_q, *cu_k;     /* [docs + 1], from q_first and k_first */
};

enum status ring_block_make(const struct ring_row *row, int step, struct ring_block *out);
void ring_block_free(struct ring_block *block); /* also after a failure */

#endif
