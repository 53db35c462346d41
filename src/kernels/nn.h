/* kernels/nn.h -- what a decoder computes beside attention and products, on one device, forward and backward.
 *
 * Row-major, a row is a token. Tensors have a storage type `dtype`, arithmetic is fp32; statistics, losses and gradients of weights are
 * stored as fp32. Gradients of weights are added to what is there. Deterministic: the same bits on any number of threads. Sizes may be
 * 0, then nothing is touched. The device is that of the queue; NULL: this thread alone, on the CPU. Sides of a call do not overlap but
 * where it says so. Fails: STATUS_USAGE for sizes, types and pointers that make no sense, STATUS_ABSENT, or as launches fail.
 *
 *     TRY(nn_norm_forward(tokens, hidden, dtype, x, weight, 1e-6f, y, rstd, queue));
 *     ...gradients of y arrive in dy...
 *     TRY(nn_norm_backward(tokens, hidden, dtype, x, weight, rstd, dy, true, dx, dweight, scratch, queue));
 */
#ifndef SPTUNE_KERNELS_NN_H
#define SPTUNE_KERNELS_NN_H

#include "base/dev.h"
#include "base/dtype.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- RMS norm ---- */

/* y = x * rstd * weight, rstd = 1/sqrt(mean(x^2) + eps). x, y [rows][dim]; weight [dim] of dtype; rstd [rows]. y may be x. */
enum status nn_norm_forward(int64_t rows, int64_t dim, enum dtype dtype, const void *x, const void *weight, float eps,
                            void *y, float *rstd, struct dev_queue *queue);
/* dx = rstd * weight * dy - x * rstd^3 * mean(x * weight * dy), added to what is there when `add`. dx may be dy when not.
 * dweight [dim] += sum over rows of x * rstd * dy. scratch: nn_norm_scratch bytes, on the device. */
enum status nn_norm_backward(int64_t rows, int64_t dim, enum dtype dtype, const void *x, const void *weight,
                             const float *rstd, const void *dy, bool add, void *dx, float *dweight, void *scratch,
                             struct dev_queue *queue);
size_t nn_norm_scratch(enum dev_kind dev, int64_t rows, int64_t dim);

/* ---- rotary positions ---- */

/* In place, in halves as HuggingFace's models have it: (x[i], x[i + dim/2]) is turned by the angle position * inv_freq[i], a product in
 * fp32, i < dim/2. inverse: turned back, which is the backward. x [rows][heads][dim]; positions [rows]; inv_freq [dim/2]. */
enum status nn_rope(int64_t rows, int heads, int dim, enum dtype dtype, void *x, const int32_t *positions,
                    const float *inv_freq, bool inverse, struct dev_queue *queue);

/* ---- element by element ---- */

/* out = silu(gate) * up, n elements each; out may be either. silu(x) = x / (1 + exp(-x)). */
enum status nn_swiglu_forward(int64_t n, enum dtype dtype, const void *gate, const void *up, void *out,
                              struct dev_queue *queue);
/* d_gate may be gate and d_up may be up. */
enum status nn_swiglu_backward(int64_t n, enum dtype dtype, const void *gate, const void *up, const void *d_out,
                               void *d_gate, void *d_up, struct dev_queue *queue);
/* x += y; y may be x. */
enum status nn_add(int64_t n, enum dtype dtype, void *x, const void *y, struct dev_queue *queue);
/* n elements from one type to another, rounded once. */
enum status nn_convert(int64_t n, enum dtype from, const void *src, enum dtype to, void *dst, struct dev_queue *queue);

/* ---- bias ---- */

/* y [rows][n] += bias [n]. */
enum status nn_bias(int64_t rows, int64_t n, enum dtype dtype, void *y, const void *bias, struct dev_queue *queue);
/* dbias [n] += column sums of dy. */
enum status nn_bias_backward(int64_t rows, int64_t n, enum dtype dtype, const void *dy, float *dbias,
                             struct dev_queue *queue);

/* ---- embedding ---- */

/* out [rows][dim] = table[ids[row]]. ids: each within the vocabulary, the caller has looked. */
enum status nn_embed_forward(int64_t rows, int64_t dim, enum dtype dtype, const int32_t *ids, const void *table,
                             void *out, struct dev_queue *queue);
/* dtable [vocab][dim] += rows of d_out, those of one id in row order. */
enum status nn_embed_backward(int64_t rows, int64_t vocab, int64_t dim, enum dtype dtype, const int32_t *ids,
                              const void *d_out, float *dtable, struct dev_queue *queue);

/* ---- loss ---- */

enum { NN_IGNORE = -100 }; /* the label of a row that counts nothing */

/* Cross-entropy of logits [rows][stride], of which the first vocab columns count: loss[row] = log(sum exp(logits)) - logits[label], 0
 * where the label is NN_IGNORE. Labels are that or within the vocabulary: the caller has looked.
 * gradient: logits become scale * d loss[row] / d logits, 0 in ignored rows and in the columns from vocab on; else they stay. */
enum status nn_loss(int64_t rows, int64_t vocab, int64_t stride, float *logits, const int32_t *labels, float scale,
                    bool gradient, float *loss, struct dev_queue *queue);

/* ---- optimizer ---- */

/* *out = the sum in double of n floats, or of their squares, in fixed order; 0 of none. out is memory of the device (ordinary memory on
 * the CPU); scratch: nn_sum_scratch bytes there. */
enum status nn_sum(int64_t n, const float *x, bool squares, double *out, void *scratch, struct dev_queue *queue);
size_t nn_sum_scratch(int64_t n);

struct nn_adamw {
    float lr, beta1, beta2, eps;
    float decay;      /* decoupled: master *= 1 - lr * decay */
    float grad_scale; /* the gradient is multiplied by it first: clipping, 1 / loss scale */
    int64_t step;     /* 1, 2, ... */
};

/* One step of AdamW (Loshchilov and Hutter 2019, as PyTorch has it) on n weights; m and v start as 0. weight = master rounded to dtype;
 * it may be master when fp32. */
enum status nn_adamw(int64_t n, const struct nn_adamw *adamw, enum dtype dtype, float *master, float *m, float *v,
                     const float *grad, void *weight, struct dev_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
