/* kernels/attention_cudnn_pack.h -- what lies between attention.h's tensors and those that cuDNN takes; nobody else includes it. */
#ifndef SPTUNE_KERNELS_ATTENTION_CUDNN_PACK_H
#define SPTUNE_KERNELS_ATTENTION_CUDNN_PACK_H

#include "base/dev.h"
#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lengths and offsets of documents in device memory. Offsets are token * factor. */
struct cudnn_index {
    int32_t *len_q, *len_k;                        /* [places] */
    int64_t *at_q, *at_k, *at_v, *at_o, *at_stats; /* [places + 1] */
    int64_t q, k, v, o, stats;                     /* factors */
    int64_t places;                                /* documents, those that are empty at the end included */
};
/* Documents i of n: tokens [q[i], q[i + 1]) and [k[i], k[i + 1]), host memory. Places from n on are empty. Nothing of the host's is
 * read after this returns. */
enum status cudnn_pack_index(const struct cudnn_index *index, const int64_t *q, const int64_t *k, int64_t n,
                             struct dev_queue *queue);
/* lse [heads][tokens] <- stats [tokens][heads] inside [first, end), -inf outside */
enum status cudnn_pack_lse(const float *stats, float *lse, int heads, int64_t tokens, int64_t first, int64_t end,
                           struct dev_queue *queue);
/* stats <- lse inside [first, end) */
enum status cudnn_pack_stats(const float *lse, float *stats, int heads, int64_t tokens, int64_t first, int64_t end,
                             struct dev_queue *queue);
/* dst (fp32) = or += src, rows of `width` elements, `stride` between rows of both */
enum status cudnn_pack_widen(enum dtype dtype, const void *src, float *dst, int64_t rows, int64_t width, int64_t stride,
                             bool add, struct dev_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
