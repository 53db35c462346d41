/* kernels/nn_cuda.h -- nn on a CUDA GPU, for nn_cuda.c, which makes a table of it.
 *
 *   nn_cuda_norm.cu    RMS norm
 *   nn_cuda_each.cu    swiglu, sums of tensors, conversions, bias, rotary positions
 *   nn_cuda_loss.cu    embedding, cross-entropy
 *   nn_cuda_adamw.cu   optimizer step, sums
 */
#ifndef SPTUNE_KERNELS_NN_CUDA_H
#define SPTUNE_KERNELS_NN_CUDA_H

#include "kernels/nn_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum status nn_cuda_norm_forward(int64_t rows, int64_t dim, enum dtype dtype, const void *x, const void *weight,
                                 float eps, void *y, float *rstd, struct dev_queue *queue);
enum status nn_cuda_norm_backward(int64_t rows, int64_t dim, enum dtype dtype, const void *x, const void *weight,
                                  const float *rstd, const void *dy, bool add, void *dx, float *dweight, void *scratch,
                                  struct dev_queue *queue);
enum status nn_cuda_rope(int64_t rows, int heads, int dim, enum dtype dtype, void *x, const int32_t *positions,
                         const float *inv_freq, bool inverse, struct dev_queue *queue);
enum status nn_cuda_swiglu_forward(int64_t n, enum dtype dtype, const void *gate, const void *up, void *out,
                                   struct dev_queue *queue);
enum status nn_cuda_swiglu_backward(int64_t n, enum dtype dtype, const void *gate, const void *up, const void *d_out,
                                    void *d_gate, void *d_up, struct dev_queue *queue);
enum status nn_cuda_add(int64_t n, enum dtype dtype, void *x, const void *y, struct dev_queue *queue);
enum status nn_cuda_convert(int64_t n, enum dtype from, const void *src, enum dtype to, void *dst,
                            struct dev_queue *queue);
enum status nn_cuda_bias(int64_t rows, int64_t n, enum dtype dtype, void *y, const void *bias, struct dev_queue *queue);
enum status nn_cuda_bias_backward(int64_t rows, int64_t n, enum dtype dtype, const void *dy, float *dbias,
                                  struct dev_queue *queue);
enum status nn_cuda_embed_forward(int64_t rows, int64_t dim, enum dtype dtype, const int32_t *ids, const void *table,
                                  void *out, struct dev_queue *queue);
enum status nn_cuda_embed_backward(int64_t rows, int64_t dim, enum dtype dtype, const int32_t *ids, const void *d_out,
                                   float *dtable, struct dev_queue *queue);
enum status nn_cuda_loss(int64_t rows, int64_t vocab, int64_t stride, float *logits, const int32_t *labels, float scale,
                         bool gradient, float *loss, struct dev_queue *queue);
enum status nn_cuda_sum(int64_t n, const float *x, bool squares, double *out, void *scratch, struct dev_queue *queue);
enum status nn_cuda_adamw(int64_t n, const struct nn_adamw_step *step, enum dtype dtype, float *master, float *m,
                          float *v, const float *grad, void *weight, struct dev_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
