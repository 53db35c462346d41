/* kernels/attention_flash2_plan.h -- a call of flash2 laid out: tiles, packed documents, workspace. Host code; tests include it. */
#ifndef SPTUNE_KERNELS_ATTENTION_FLASH2_PLAN_H
#define SPTUNE_KERNELS_ATTENTION_FLASH2_PLAN_H

#include "kernels/attention_flash2.h"

struct flash2_plan {
    struct flash2_tiles tiles;
    int entries;              /* packed: documents, two hidden segments, the end; 0 otherwise */
    int parts;                /* blocks that share one key tile's columns */
    int splits;               /* blocks that share the query heads of a kv head: where there are few blocks */
    int64_t q_tiles, k_tiles; /* per head, over the segments of one batch item */
    /* workspace, bytes from its start */
    int64_t entry_at, ticket_at, turn_at, zeroed_bytes, delta_at, lse2_at, dq_sum_at, dk_part_at, dv_part_at, bytes;
};

/* tiles.columns divides head_dim. `sums`: the backward pass sums dQ in the workspace. */
struct flash2_plan flash2_plan_make(const struct attention_shape *shape, struct flash2_tiles tiles, bool backward,
                                    bool sums);
/* Order of work: by query tiles forward, by key tiles backward. */
struct flash2_call flash2_call_make(const struct attention_shape *shape, const struct attention_args *args,
                                    const struct flash2_plan *plan, bool backward);
/* Puts packed documents into the workspace. */
enum status flash2_documents_place(const struct attention_shape *shape, const struct attention_args *args,
                                   const struct flash2_plan *plan, struct dev_queue *queue);
#endif
