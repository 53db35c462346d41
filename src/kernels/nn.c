/* kernels/nn.c -- looks at the arguments of nn.h's calls and hands them to the device of their queue. */
#include "kernels/nn_ops.h"

#include <math.h>

static const struct nn_ops *ops_of(const struct dev_queue *queue)
{
#if SPTUNE_CUDA
    if (queue != NULL && dev_kind_of(dev_queue_dev(queue)) == DEV_CUDA)
        return &nn_cuda;
#else
    (void)queue; /* devices of other kinds do not open in this build */
#endif
    return nn_cpu();
}

static enum status count_check(const char *what, int64_t count, const char *of)
{
    if (count >= 0)
        return STATUS_OK;
    return HINT(FAIL(STATUS_USAGE, "%s: %lld %s", what, (long long)count, of), "counts are 0 or more");
}

static enum status dtype_check(const char *what, enum dtype dtype)
{
    if ((int)dtype < 0 || dtype >= DTYPE_COUNT)
        return FAIL(STATUS_USAGE, "%s: dtype %d does not exist", what, (int)dtype);
    return STATUS_OK;
}

static enum status pointers_check(const char *what, bool all_there)
{
    return all_there ? STATUS_OK : FAIL(STATUS_USAGE, "%s: an input, the result or the scratch is missing", what);
}

/* *out_some: there is something to do. */
static enum status matrix_check(const char *what, int64_t rows, int64_t columns, enum dtype dtype, bool all_there,
                                bool *out_some)
{
    TRY(count_check(what, rows, "rows"));
    TRY(count_check(what, columns, "columns"));
    TRY(dtype_check(what, dtype));
    *out_some = rows > 0 && columns > 0;
    return *out_some ? pointers_check(what, all_there) : STATUS_OK;
}

int64_t nn_norm_parts(enum dev_kind dev, int64_t rows)
{
    const int64_t least_rows = dev == DEV_CPU ? 16 : 4, most_parts = dev == DEV_CPU ? 64 : 512;
    int64_t parts = (rows + least_rows - 1) / least_rows;
    return parts < most_parts ? parts : most_parts;
}

size_t nn_norm_scratch(enum dev_kind dev, int64_t rows, int64_t dim)
{
    return rows > 0 && dim > 0 ? (size_t)nn_norm_parts(dev, rows) * (size_t)dim * sizeof(float) : 0;
}

enum status nn_norm_forward(int64_t rows, int64_t dim, enum dtype dtype, const void *x, const void *weight, float eps,
                            void *y, float *rstd, struct dev_queue *queue)
{
    bool some = false, all_there = x != NULL && weight != NULL && y != NULL && rstd != NULL;
    TRY(matrix_check("norm", rows, dim, dtype, all_there, &some));
    return some ? ops_of(queue)->norm_forward(rows, dim, dtype, x, weight, eps, y, rstd, queue) : STATUS_OK;
}

enum status nn_norm_backward(int64_t rows, int64_t dim, enum dtype dtype, const void *x, const void *weight,
                             const float *rstd, const void *dy, bool add, void *dx, float *dweight, void *scratch,
                             struct dev_queue *queue)
{
    bool some = false, all_there = x != NULL && weight != NULL && rstd != NULL && dy != NULL && dx != NULL &&
                                   dweight != NULL && scratch != NULL;
    TRY(matrix_check("norm backward", rows, dim, dtype, all_there, &some));
    if (some && add && dx == dy)
        return FAIL(STATUS_USAGE, "norm backward: dx is dy and is to be added to");
    return some ? ops_of(queue)->norm_backward(rows, dim, dtype, x, weight, rstd, dy, add, dx, dweight, scratch, queue)
                : STATUS_OK;
}

enum status nn_rope(int64_t rows, int heads, int dim, enum dtype dtype, void *x, const int32_t *positions,
                    const float *inv_freq, bool inverse, struct dev_queue *queue)
{
    bool some = false, all_there = x != NULL && positions != NULL && inv_freq != NULL;
    TRY(count_check("rope", heads, "heads"));
    TRY(count_check("rope", dim, "dimensions"));
    if (dim % 2 != 0)
        return HINT(FAIL(STATUS_USAGE, "rope: %d dimensions have no halves", dim), "use an even number");
    TRY(matrix_check("rope", rows, (int64_t)heads * dim, dtype, all_there, &some));
    return some ? ops_of(queue)->rope(rows, heads, dim, dtype, x, positions, inv_freq, inverse, queue) : STATUS_OK;
}

enum status nn_swiglu_forward(int64_t n, enum dtype dtype, const void *gate, const void *up, void *out,
                              struct dev_queue *queue)
{
    bool some = false;
    TRY(matrix_check("swiglu", 1, n, dtype, gate != NULL && up != NULL && out != NULL, &some));
    return some ? ops_of(queue)->swiglu_forward(n, dtype, gate, up, out, queue) : STATUS_OK;
}

enum status nn_swiglu_backward(int64_t n, enum dtype dtype, const void *gate, const void *up, const void *d_out,
                               void *d_gate, void *d_up, struct dev_queue *queue)
{
    bool some = false, all_there = gate != NULL && up != NULL && d_out != NULL && d_gate != NULL && d_up != NULL;
    TRY(matrix_check("swiglu backward", 1, n, dtype, all_there, &some));
    return some ? ops_of(queue)->swiglu_backward(n, dtype, gate, up, d_out, d_gate, d_up, queue) : STATUS_OK;
}

enum status nn_add(int64_t n, enum dtype dtype, void *x, const void *y, struct dev_queue *queue)
{
    bool some = false;
    TRY(matrix_check("add", 1, n, dtype, x != NULL && y != NULL, &some));
    return some ? ops_of(queue)->add(n, dtype, x, y, queue) : STATUS_OK;
}

enum status nn_convert(int64_t n, enum dtype from, const void *src, enum dtype to, void *dst, struct dev_queue *queue)
{
    bool some = false;
    TRY(dtype_check("convert", from));
    TRY(matrix_check("convert", 1, n, to, src != NULL && dst != NULL, &some));
    return some ? ops_of(queue)->convert(n, from, src, to, dst, queue) : STATUS_OK;
}

enum status nn_bias(int64_t rows, int64_t n, enum dtype dtype, void *y, const void *bias, struct dev_queue *queue)
{
    bool some = false;
    TRY(matrix_check("bias", rows, n, dtype, y != NULL && bias != NULL, &some));
    return some ? ops_of(queue)->bias(rows, n, dtype, y, bias, queue) : STATUS_OK;
}

enum status nn_bias_backward(int64_t rows, int64_t n, enum dtype dtype, const void *dy, float *dbias,
                             struct dev_queue *queue)
{
    bool some = false;
    TRY(matrix_check("bias backward", rows, n, dtype, dy != NULL && dbias != NULL, &some));
    return some ? ops_of(queue)->bias_backward(rows, n, dtype, dy, dbias, queue) : STATUS_OK;
}

enum status nn_embed_forward(int64_t rows, int64_t dim, enum dtype dtype, const int32_t *ids, const void *table,
                             void *out, struct dev_queue *queue)
{
    bool some = false;
    TRY(matrix_check("embed", rows, dim, dtype, ids != NULL && table != NULL && out != NULL, &some));
    return some ? ops_of(queue)->embed_forward(rows, dim, dtype, ids, table, out, queue) : STATUS_OK;
}

enum status nn_embed_backward(int64_t rows, int64_t vocab, int64_t dim, enum dtype dtype, const int32_t *ids,
                              const void *d_out, float *dtable, struct dev_queue *queue)
{
    bool some = false;
    TRY(matrix_check("embed backward", rows, dim, dtype, ids != NULL && d_out != NULL && dtable != NULL, &some));
    if (some && vocab < 1)
        return FAIL(STATUS_USAGE, "embed backward: rows of a vocabulary of %lld", (long long)vocab);
    return some ? ops_of(queue)->embed_backward(rows, dim, dtype, ids, d_out, dtable, queue) : STATUS_OK;
}

enum status nn_loss(int64_t rows, int64_t vocab, int64_t stride, float *logits, const int32_t *labels, float scale,
                    bool gradient, float *loss, struct dev_queue *queue)
{
    bool some = false, all_there = logits != NULL && labels != NULL && loss != NULL;
    TRY(matrix_check("loss", rows, vocab, DTYPE_FP32, all_there, &some));
    if (stride < vocab)
        return FAIL(STATUS_USAGE, "loss: rows of %lld logits lie %lld apart", (long long)vocab, (long long)stride);
    return some ? ops_of(queue)->loss(rows, vocab, stride, logits, labels, scale, gradient, loss, queue) : STATUS_OK;
}

static int64_t sum_parts(int64_t n)
{
    return (n + NN_SUM_PART - 1) / NN_SUM_PART;
}

size_t nn_sum_scratch(int64_t n)
{
    return n > 0 ? (size_t)sum_parts(n) * sizeof(double) : 0;
}

enum status nn_sum(int64_t n, const float *x, bool squares, double *out, void *scratch, struct dev_queue *queue)
{
    TRY(count_check("sum", n, "elements"));
    TRY(pointers_check("sum", out != NULL && (n == 0 || (x != NULL && scratch != NULL))));
    return ops_of(queue)->sum(n, x, squares, out, scratch, queue);
}

enum status nn_adamw(int64_t n, const struct nn_adamw *adamw, enum dtype dtype, float *master, float *m, float *v,
                     const float *grad, void *weight, struct dev_queue *queue)
{
    bool some = false, all_there = master != NULL && m != NULL && v != NULL && grad != NULL && weight != NULL;
    TRY(matrix_check("adamw", 1, n, dtype, all_there, &some));
    if (adamw->step < 1)
        return HINT(FAIL(STATUS_USAGE, "adamw: step %lld", (long long)adamw->step), "the first step is 1");
    if (dtype != DTYPE_FP32 && weight == (void *)master)
        return FAIL(STATUS_USAGE, "adamw: weights in %s cannot lie where their masters do", dtype_name(dtype));
    double beta1 = (double)adamw->beta1, beta2 = (double)adamw->beta2, lr = (double)adamw->lr;
    const struct nn_adamw_step step = {
        .beta1 = adamw->beta1,
        .beta2 = adamw->beta2,
        .one_minus_beta1 = (float)(1 - beta1),
        .one_minus_beta2 = (float)(1 - beta2),
        .keep = (float)(1 - lr * (double)adamw->decay),
        .size = (float)(lr / (1 - pow(beta1, (double)adamw->step))),
        .inv_root_bias = (float)(1 / sqrt(1 - pow(beta2, (double)adamw->step))),
        .eps = adamw->eps,
        .grad_scale = adamw->grad_scale,
    };
    return some ? ops_of(queue)->adamw(n, &step, dtype, master, m, v, grad, weight, queue) : STATUS_OK;
}
