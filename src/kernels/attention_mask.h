/* kernels/attention_mask.h -- which keys a query sees, and where a call's sequences lie: the index arithmetic of every
 * kernel.
 *
 * A call is a list of segments: one per batch item, or one per packed document plus the tokens before the first and
 * after the last document, which see nothing and are seen by nobody (hidden). Within a segment the keys a query sees
 * are one range, whatever the mask:
 *
 *      key  0 1 2 3 4 5        window 3, bottom-right, 4 queries, 6 keys
 *   query 0 x x x . . .        [0, 3)   aligned position 2
 *         1 . x x x . .        [1, 4)
 *         2 . . x x x .        [2, 5)
 *         3 . . . x x x        [3, 6)
 *
 * Included by host code, device code and tests: valid C11, C++ and CUDA.
 */
#ifndef SPTUNE_KERNELS_ATTENTION_MASK_H
#define SPTUNE_KERNELS_ATTENTION_MASK_H

#include "kernels/attention.h"

#ifdef __CUDACC__
#define ATTENTION_INLINE static __host__ __device__ inline
#else
#define ATTENTION_INLINE static inline
#endif

struct attention_segment {
    int64_t batch;            /* which batch item; 0 when packed */
    int64_t q_first, k_first; /* first token within the batch item */
    int64_t seq_q, seq_k;
    bool hidden;
};

struct attention_range {
    int64_t first, end; /* [first, end); first == end: none */
};

ATTENTION_INLINE int64_t attention_segment_count(const struct attention_shape *shape)
{
    return shape->docs > 0 ? (int64_t)shape->docs + 2 : shape->batch;
}

ATTENTION_INLINE struct attention_segment attention_segment_get(const struct attention_shape *shape, int64_t index)
{
    struct attention_segment segment = {index, 0, 0, shape->seq_q, shape->seq_k, false};
    int64_t docs = shape->docs;
    if (docs == 0)
        return segment;
    segment.batch = 0;
    segment.hidden = index >= docs;
    if (index == docs) {
        segment.seq_q = shape->cu_q[0];
        segment.seq_k = shape->cu_k[0];
    } else if (index == docs + 1) {
        segment.q_first = shape->cu_q[docs];
        segment.k_first = shape->cu_k[docs];
        segment.seq_q = shape->seq_q - segment.q_first;
        segment.seq_k = shape->seq_k - segment.k_first;
    } else {
        segment.q_first = shape->cu_q[index];
        segment.k_first = shape->cu_k[index];
        segment.seq_q = shape->cu_q[index + 1] - segment.q_first;
        segment.seq_k = shape->cu_k[index + 1] - segment.k_first;
    }
    return segment;
}

/* Keys of the longest segment: what a workspace must hold at a time. */
ATTENTION_INLINE int64_t attention_longest_keys(const struct attention_shape *shape)
{
    int64_t longest = 0;
    if (shape->docs == 0)
        return shape->seq_k;
    for (int64_t i = 0; i < attention_segment_count(shape); i++) {
        struct attention_segment segment = attention_segment_get(shape, i);
        longest = segment.seq_k > longest ? segment.seq_k : longest;
    }
    return longest;
}

ATTENTION_INLINE int64_t attention_longest_queries(const struct attention_shape *shape)
{
    int64_t longest = 0;
    if (shape->docs == 0)
        return shape->seq_q;
    for (int64_t i = 0; i < attention_segment_count(shape); i++) {
        struct attention_segment segment = attention_segment_get(shape, i);
        longest = segment.seq_q > longest ? segment.seq_q : longest;
    }
    return longest;
}

ATTENTION_INLINE int64_t attention_clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Keys that query i (0 = the segment's first) sees, counted from the segment's first key. */
ATTENTION_INLINE struct attention_range attention_keys(const struct attention_shape *shape,
                                                       const struct attention_segment *segment, int64_t i)
{
    int64_t seq_k = segment->hidden ? 0 : segment->seq_k;
    int64_t position = shape->causal == ATTENTION_BOTTOM_RIGHT ? i + segment->seq_k - segment->seq_q : i;
    struct attention_range range = {0, seq_k};
    if (shape->causal != ATTENTION_FULL)
        range.end = attention_clamp(position + 1, 0, seq_k);
    if (shape->window > 0) /* seq_q + seq_k already shows everything: keeps position - window from overflowing */
        range.first = attention_clamp(position + 1 - attention_clamp(shape->window, 1, segment->seq_q + segment->seq_k),
                                      0, range.end);
    return range;
}

/* Token of query i or key j from the start of the tensor, to be multiplied with the stride. */
ATTENTION_INLINE int64_t attention_q_token(const struct attention_shape *shape, const struct attention_segment *segment,
                                           int64_t i)
{
    return segment->batch * shape->seq_q + segment->q_first + i;
}

ATTENTION_INLINE int64_t attention_k_token(const struct attention_shape *shape, const struct attention_segment *segment,
                                           int64_t j)
{
    return segment->batch * shape->seq_k + segment->k_first + j;
}

ATTENTION_INLINE int64_t attention_lse_index(const struct attention_shape *shape,
                                             const struct attention_segment *segment, int head, int64_t i)
{
    return (segment->batch * shape->heads + head) * shape->seq_q + segment->q_first + i;
}

ATTENTION_INLINE int attention_kv_head(const struct attention_shape *shape, int head)
{
    return (shape->group_first + head) / shape->group;
}

/* Query heads [first, end) of this call that use kv head `kv`. */
ATTENTION_INLINE struct attention_range attention_heads_of(const struct attention_shape *shape, int kv)
{
    int64_t first = (int64_t)kv * shape->group - shape->group_first;
    struct attention_range range = {attention_clamp(first, 0, shape->heads),
                                    attention_clamp(first + shape->group, 0, shape->heads)};
    return range;
}

#endif
