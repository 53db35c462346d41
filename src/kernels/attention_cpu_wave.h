/* kernels/attention_cpu_wave.h -- how one call of the CPU attention is cut into what threads share.
 *
 * An item is one kv head of one segment, with the query heads that use it. A wave is as many items, in order, as the packed buffers
 * have room for: one when its blocks alone keep all threads busy, several when sequences are short. Threads first pack the keys of the
 * wave, each piece once, then share the blocks. Which thread computes a block changes nothing in it, so the bits of a result do not
 * depend on the number of threads.
 */
#ifndef SPTUNE_KERNELS_ATTENTION_CPU_WAVE_H
#define SPTUNE_KERNELS_ATTENTION_CPU_WAVE_H

#include "kernels/attention_cpu_block.h"

enum {
    WAVE_ITEMS = 64,
    WAVE_TASKS =
        8, /* per thread, at least, where there are as many: the last ones to end then wait for 1/8 of the work at most */
};

struct wave_item {
    struct attention_segment segment;
    int kv;
    struct attention_range heads; /* of this call that use it; may be empty */
    int64_t row;                  /* of its first key in the packed buffers */
    int64_t first[2];             /* task of each of two kinds */
};

struct wave {
    const struct attention_shape *shape;
    int64_t rows, step; /* room for keys; each item takes whole steps of it */
    int limit;          /* items */
    int64_t at, end;    /* items of the call done so far, and all */
    int n;
    struct wave_item item[WAVE_ITEMS];
};

SIMD_INLINE bool item_has_work(const struct wave_item *item)
{
    return item->heads.first < item->heads.end && item->segment.seq_q > 0;
}

/* Items that one wave should hold when one of the longest has `tasks` tasks. */
SIMD_INLINE int64_t wave_slots(const struct attention_shape *shape, int threads, int64_t tasks)
{
    int64_t all = attention_segment_count(shape) * shape->kv_heads, wanted = (int64_t)threads * WAVE_TASKS;
    if (threads == 1 || tasks >= wanted)
        return 1;
    return least(least((wanted + tasks - 1) / most(tasks, 1), most(all, 1)), WAVE_ITEMS);
}

/* Rows of keys to make room for. */
SIMD_INLINE int64_t wave_rows(const struct attention_shape *shape, int64_t slots, int64_t step)
{
    return slots * round_up(attention_longest_keys(shape), step);
}

static inline struct wave wave_begin(const struct attention_shape *shape, int64_t rows, int64_t step, int limit)
{
    return (struct wave){.shape = shape,
                         .rows = rows,
                         .step = step,
                         .limit = limit,
                         .end = attention_segment_count(shape) * shape->kv_heads};
}

/* The next items; false when none are left. */
static inline bool wave_next(struct wave *wave)
{
    const struct attention_shape *shape = wave->shape;
    int64_t row = 0;
    for (wave->n = 0; wave->at < wave->end && wave->n < wave->limit; wave->at++, wave->n++) {
        struct wave_item *item = &wave->item[wave->n];
        item->segment = attention_segment_get(shape, wave->at / shape->kv_heads);
        item->kv = (int)(wave->at % shape->kv_heads);
        item->heads = attention_heads_of(shape, item->kv);
        item->row = row;
        row += round_up(item->segment.seq_k, wave->step);
        if (wave->n > 0 && row > wave->rows)
            break;
    }
    return wave->n > 0;
}

/* Item of a task; *task becomes its number within the item. `kind` 0 or 1. */
static inline const struct wave_item *wave_find(const struct wave *wave, int kind, int64_t *task)
{
    int i = wave->n - 1;
    while (wave->item[i].first[kind] > *task)
        i--;
    *task -= wave->item[i].first[kind];
    return &wave->item[i];
}

/* K and V of an item as rows of their tensors. */
SIMD_INLINE struct rows item_k(const struct attention_shape *shape, const struct attention_args *args,
                               const struct wave_item *item)
{
    int64_t token = attention_k_token(shape, &item->segment, 0);
    return (struct rows){shape->dtype, args->k, token * shape->k_stride + (int64_t)item->kv * shape->head_dim,
                         shape->k_stride, shape->head_dim};
}

SIMD_INLINE struct rows item_v(const struct attention_shape *shape, const struct attention_args *args,
                               const struct wave_item *item)
{
    int64_t token = attention_k_token(shape, &item->segment, 0);
    return (struct rows){shape->dtype, args->v, token * shape->v_stride + (int64_t)item->kv * shape->head_dim_v,
                         shape->v_stride, shape->head_dim_v};
}

#endif
