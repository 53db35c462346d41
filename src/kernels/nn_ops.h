/* kernels/nn_ops.h -- the calls of nn.h as one kind of device computes them. nn.c has looked at the arguments: there is something to do,
 * pointers are there, types exist, and the queue is of that kind.
 */
#ifndef SPTUNE_KERNELS_NN_OPS_H
#define SPTUNE_KERNELS_NN_OPS_H

#include "kernels/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How much the optimizer moves: of one step, the same for all weights. */
struct nn_adamw_step {
    float beta1, beta2, one_minus_beta1, one_minus_beta2;
    float keep;          /* 1 - lr * decay */
    float size;          /* lr / (1 - beta1^step) */
    float inv_root_bias; /* 1 / sqrt(1 - beta2^step) */
    float eps, grad_scale;
};

struct nn_ops {
    enum status (*norm_forward)(int64_t rows, int64_t dim, enum dtype dtype, const void *x, const void *weight,
                                float eps, void *y, float *rstd, struct dev_queue *queue);
    enum status (*norm_backward)(int64_t rows, int64_t dim, enum dtype dtype, const void *x, const void *weight,
                                 const float *rstd, const void *dy, bool add, void *dx, float *dweight, void *scratch,
                                 struct dev_queue *queue);
    enum status (*rope)(int64_t rows, int heads, int dim, enum dtype dtype, void *x, const int32_t *positions,
                        const float *inv_freq, bool inverse, struct dev_queue *queue);
    enum status (*swiglu_forward)(int64_t n, enum dtype dtype, const void *gate, const void *up, void *out,
                                  struct dev_queue *queue);
    enum status (*swiglu_backward)(int64_t n, enum dtype dtype, const void *gate, const void *up, const void *d_out,
                                   void *d_gate, void *d_up, struct dev_queue *queue);
    enum status (*add)(int64_t n, enum dtype dtype, void *x, const void *y, struct dev_queue *queue);
    enum status (*convert)(int64_t n, enum dtype from, const void *src, enum dtype to, void *dst,
                           struct dev_queue *queue);
    enum status (*bias)(int64_t rows, int64_t n, enum dtype dtype, void *y, const void *bias, struct dev_queue *queue);
    enum status (*bias_backward)(int64_t rows, int64_t n, enum dtype dtype, const void *dy, float *dbias,
                                 struct dev_queue *queue);
    enum status (*embed_forward)(int64_t rows, int64_t dim, enum dtype dtype, const int32_t *ids, const void *table,
                                 void *out, struct dev_queue *queue);
    enum status (*embed_backward)(int64_t rows, int64_t dim, enum dtype dtype, const int32_t *ids, const void *d_out,
                                  float *dtable, struct dev_queue *queue);
    enum status (*loss)(int64_t rows, int64_t vocab, int64_t stride, float *logits, const int32_t *labels, float scale,
                        bool gradient, float *loss, struct dev_queue *queue);
    enum status (*sum)(int64_t n, const float *x, bool squares, double *out, void *scratch, struct dev_queue *queue);
    enum status (*adamw)(int64_t n, const struct nn_adamw_step *step, enum dtype dtype, float *master, float *m,
                         float *v, const float *grad, void *weight, struct dev_queue *queue);
};

/* Parts of a backward norm's rows whose sums for dweight are added in order, and of a sum's elements: the same for any number of
 * threads. */
int64_t nn_norm_parts(enum dev_kind dev, int64_t rows);
enum { NN_SUM_PART = 1 << 14 /* elements */ };

const struct nn_ops *nn_cpu(void); /* of the instruction set that attention_cpu.h has in use */
#if SPTUNE_CUDA
extern const struct nn_ops nn_cuda;
#endif

#ifdef __cplusplus
}
#endif
#endif
