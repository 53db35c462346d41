/* kernels/nn_cpu_loss.c -- both ends of a decoder on the CPU: embedding and cross-entropy.
 *
 * A row of logits is read once for its greatest value and the sum of exponentials together, chunk by chunk in the first-level cache, and
 * once more for the gradient.
 */
#include "kernels/nn_cpu.h"
#include "kernels/nn_simd.h"

#include <math.h>

/* ---- embedding ---- */

struct embed {
    int64_t rows, dim;
    enum dtype dtype;
    const int32_t *ids;
    const void *table, *d_out;
    void *out;
    float *dtable;
};

static void embed_task(void *arg, int64_t task, int thread)
{
    const struct embed *e = arg;
    int64_t step = nn_task_rows(e->dim), end = nn_least((task + 1) * step, e->rows);
    size_t bytes = (size_t)e->dim * (size_t)dtype_bytes(e->dtype);
    (void)thread;
    for (int64_t row = task * step; row < end; row++)
        memcpy((char *)e->out + (size_t)row * bytes, (const char *)e->table + (size_t)e->ids[row] * bytes, bytes);
}

enum status NN_CPU_NAMED(embed_forward)(int64_t rows, int64_t dim, enum dtype dtype, const int32_t *ids,
                                        const void *table, void *out, struct dev_queue *queue)
{
    struct embed e = {.rows = rows, .dim = dim, .dtype = dtype, .ids = ids, .table = table, .out = out};
    nn_run(queue, rows * dim, nn_parts(rows, nn_task_rows(dim)), embed_task, &e);
    return STATUS_OK;
}

/* A task owns columns of the whole table, so rows of one id meet in order. */
static void embed_backward_task(void *arg, int64_t task, int thread)
{
    const struct embed *e = arg;
    int64_t at = task * NN_COLUMNS, n = nn_least(NN_COLUMNS, e->dim - at);
    (void)thread;
    for (int64_t row = 0; row < e->rows; row++) {
        float buffer[NN_COLUMNS], *to = e->dtable + e->ids[row] * e->dim + at;
        const float *from = nn_view(e->dtype, e->d_out, row * e->dim + at, n, buffer);
        NN_EACH(i, left, n)
        nn_give(to + i, left, nn_take(to + i, left) + nn_take(from + i, left));
    }
}

enum status NN_CPU_NAMED(embed_backward)(int64_t rows, int64_t dim, enum dtype dtype, const int32_t *ids,
                                         const void *d_out, float *dtable, struct dev_queue *queue)
{
    struct embed e = {.rows = rows, .dim = dim, .dtype = dtype, .ids = ids, .d_out = d_out, .dtable = dtable};
    nn_run(queue, rows * dim, nn_parts(dim, NN_COLUMNS), embed_backward_task, &e);
    return STATUS_OK;
}

/* ---- loss ---- */

struct loss {
    int64_t rows, vocab, stride;
    float *logits, scale, *loss;
    const int32_t *labels;
    bool gradient;
};

static float greatest(const float *x, int64_t n)
{
    simd most = simd_set(-INFINITY);
    NN_EACH(i, left, n)
    most = simd_max(most, nn_take_or(x + i, left, -INFINITY));
    return simd_max_lanes(most);
}

/* Sum of exp(x - most). What fills up the last vector is exp(-infinity) = 0. */
static float exp_sum(const float *x, int64_t n, float most)
{
    simd sum = simd_set(0.0f);
    NN_EACH(i, left, n)
    sum += nn_exp_minus(most - nn_take_or(x + i, left, -INFINITY));
    return simd_sum_lanes(sum);
}

/* x = exp(x - most) * factor */
static void softmax(float *x, int64_t n, float most, float factor)
{
    NN_EACH(i, left, n)
    nn_give(x + i, left, nn_exp_minus(most - nn_take(x + i, left)) * factor);
}

static void row_loss(const struct loss *g, int64_t row)
{
    enum { CHUNK = 2048 };
    float *x = g->logits + row * g->stride, most = -INFINITY;
    double sum = 0;
    int32_t label = g->labels[row];
    if (label == NN_IGNORE) {
        g->loss[row] = 0;
        if (g->gradient)
            memset(x, 0, (size_t)g->stride * sizeof *x);
        return;
    }
    for (int64_t at = 0; at < g->vocab; at += CHUNK) {
        int64_t n = nn_least(CHUNK, g->vocab - at);
        float more = greatest(x + at, n);
        if (more > most) {
            sum *= exp((double)most - (double)more);
            most = more;
        }
        if (most > -INFINITY) /* else nothing but excluded columns so far */
            sum += (double)exp_sum(x + at, n, most);
    }
    g->loss[row] = (float)(log(sum) + ((double)most - (double)x[label]));
    if (!g->gradient)
        return;
    softmax(x, g->vocab, most, (float)((double)g->scale / sum));
    x[label] -= g->scale;
    memset(x + g->vocab, 0, (size_t)(g->stride - g->vocab) * sizeof *x);
}

static void loss_task(void *arg, int64_t task, int thread)
{
    const struct loss *g = arg;
    int64_t step = nn_task_rows(g->vocab), end = nn_least((task + 1) * step, g->rows);
    (void)thread;
    for (int64_t row = task * step; row < end; row++)
        row_loss(g, row);
}

enum status NN_CPU_NAMED(loss)(int64_t rows, int64_t vocab, int64_t stride, float *logits, const int32_t *labels,
                               float scale, bool gradient, float *loss, struct dev_queue *queue)
{
    struct loss g = {rows, vocab, stride, logits, scale, loss, labels, gradient};
    nn_run(queue, rows * vocab, nn_parts(rows, nn_task_rows(vocab)), loss_task, &g);
    return STATUS_OK;
}
