/* kernels/nn_cpu_norm.c -- RMS norm on the CPU. A row is read twice, the second time from the cache.
 *
 * The gradient of the weight is a sum over rows: each part of the rows has a sum of its own in the scratch, and those are added in order,
 * columns by columns.
 */
#include "kernels/nn_cpu.h"
#include "kernels/nn_simd.h"

#include <math.h>

struct norm {
    int64_t rows, dim, parts;
    enum dtype dtype;
    const void *x, *weight, *dy;
    void *y, *dx;
    float eps, *rstd, *dweight, *sums;
    const float *rstd_was;
    bool add;
};

static double squares(const float *x, int64_t n)
{
    simd sum = simd_set(0.0f), other = simd_set(0.0f); /* two: an addition takes several cycles */
    int64_t i = 0;
    for (; i + 2 * SIMD_FLOATS <= n; i += 2 * SIMD_FLOATS) {
        simd a = simd_load(x + i), b = simd_load(x + i + SIMD_FLOATS);
        sum += a * a;
        other += b * b;
    }
    for (; i < n; i += SIMD_FLOATS) {
        simd a = nn_take(x + i, n - i);
        sum += a * a;
    }
    return (double)simd_sum_lanes(sum + other);
}

static float row_rstd(const struct norm *g, int64_t row)
{
    float x[NN_CHUNK];
    double sum = 0;
    for (int64_t at = 0; at < g->dim; at += NN_CHUNK) {
        int64_t n = nn_least(NN_CHUNK, g->dim - at);
        sum += squares(nn_view(g->dtype, g->x, row * g->dim + at, n, x), n);
    }
    return (float)(1 / sqrt(sum / (double)g->dim + (double)g->eps));
}

static void row_forward(const struct norm *g, int64_t row)
{
    float xs[NN_CHUNK], ws[NN_CHUNK], ys[NN_CHUNK], rstd = row_rstd(g, row);
    for (int64_t at = 0; at < g->dim; at += NN_CHUNK) {
        int64_t n = nn_least(NN_CHUNK, g->dim - at), place = row * g->dim + at;
        const float *x = nn_view(g->dtype, g->x, place, n, xs), *w = nn_view(g->dtype, g->weight, at, n, ws);
        float *y = nn_place(g->dtype, g->y, place, ys);
        NN_EACH(i, left, n)
        nn_give(y + i, left, nn_take(x + i, left) * rstd * nn_take(w + i, left));
        nn_keep(g->dtype, y, g->y, place, n);
    }
    g->rstd[row] = rstd;
}

static void forward_task(void *arg, int64_t task, int thread)
{
    const struct norm *g = arg;
    int64_t step = nn_task_rows(g->dim), end = nn_least((task + 1) * step, g->rows);
    (void)thread;
    for (int64_t row = task * step; row < end; row++)
        row_forward(g, row);
}

enum status NN_CPU_NAMED(norm_forward)(int64_t rows, int64_t dim, enum dtype dtype, const void *x, const void *weight,
                                       float eps, void *y, float *rstd, struct dev_queue *queue)
{
    struct norm g = {
        .rows = rows, .dim = dim, .dtype = dtype, .x = x, .weight = weight, .y = y, .eps = eps, .rstd = rstd};
    nn_run(queue, rows * dim, nn_parts(rows, nn_task_rows(dim)), forward_task, &g);
    return STATUS_OK;
}

/* Sum of x * weight * dy. */
static double row_product(const struct norm *g, int64_t row)
{
    float xs[NN_CHUNK], ws[NN_CHUNK], ds[NN_CHUNK];
    double total = 0;
    for (int64_t at = 0; at < g->dim; at += NN_CHUNK) {
        int64_t n = nn_least(NN_CHUNK, g->dim - at), place = row * g->dim + at;
        const float *x = nn_view(g->dtype, g->x, place, n, xs), *w = nn_view(g->dtype, g->weight, at, n, ws),
                    *d = nn_view(g->dtype, g->dy, place, n, ds);
        simd sum = simd_set(0.0f);
        NN_EACH(i, left, n)
        sum += nn_take(x + i, left) * (nn_take(w + i, left) * nn_take(d + i, left));
        total += (double)simd_sum_lanes(sum);
    }
    return total;
}

static void row_backward(const struct norm *g, int64_t row, float *dweight)
{
    float xs[NN_CHUNK], ws[NN_CHUNK], ds[NN_CHUNK], outs[NN_CHUNK];
    float r = g->rstd_was[row], back = (float)((double)r * r * r * row_product(g, row) / (double)g->dim);
    for (int64_t at = 0; at < g->dim; at += NN_CHUNK) {
        int64_t n = nn_least(NN_CHUNK, g->dim - at), place = row * g->dim + at;
        const float *x = nn_view(g->dtype, g->x, place, n, xs), *w = nn_view(g->dtype, g->weight, at, n, ws),
                    *d = nn_view(g->dtype, g->dy, place, n, ds);
        const float *was = g->add ? nn_view(g->dtype, g->dx, place, n, outs) : NULL;
        float *dx = nn_place(g->dtype, g->dx, place, outs);
        NN_EACH(i, left, n)
        {
            simd xi = nn_take(x + i, left), scaled = nn_take(d + i, left) * r;
            simd value = scaled * nn_take(w + i, left) - xi * back;
            nn_give(dweight + at + i, left, nn_take(dweight + at + i, left) + xi * scaled);
            nn_give(dx + i, left, was != NULL ? value + nn_take(was + i, left) : value);
        }
        nn_keep(g->dtype, dx, g->dx, place, n);
    }
}

static void backward_task(void *arg, int64_t part, int thread)
{
    const struct norm *g = arg;
    float *sums = g->sums + part * g->dim;
    (void)thread;
    memset(sums, 0, (size_t)g->dim * sizeof *sums);
    for (int64_t row = part * g->rows / g->parts; row < (part + 1) * g->rows / g->parts; row++)
        row_backward(g, row, sums);
}

static void weight_task(void *arg, int64_t task, int thread)
{
    const struct norm *g = arg;
    int64_t at = task * NN_COLUMNS, n = nn_least(NN_COLUMNS, g->dim - at);
    (void)thread;
    for (int64_t part = 0; part < g->parts; part++) {
        const float *sums = g->sums + part * g->dim + at;
        NN_EACH(i, left, n)
        nn_give(g->dweight + at + i, left, nn_take(g->dweight + at + i, left) + nn_take(sums + i, left));
    }
}

enum status NN_CPU_NAMED(norm_backward)(int64_t rows, int64_t dim, enum dtype dtype, const void *x, const void *weight,
                                        const float *rstd, const void *dy, bool add, void *dx, float *dweight,
                                        void *scratch, struct dev_queue *queue)
{
    struct norm g = {.rows = rows,
                     .dim = dim,
                     .parts = nn_norm_parts(DEV_CPU, rows),
                     .dtype = dtype,
                     .x = x,
                     .weight = weight,
                     .dy = dy,
                     .dx = dx,
                     .dweight = dweight,
                     .sums = scratch,
                     .rstd_was = rstd,
                     .add = add};
    nn_run(queue, rows * dim, g.parts, backward_task, &g);
    nn_run(queue, g.parts * dim, nn_parts(dim, NN_COLUMNS), weight_task, &g);
    return STATUS_OK;
}
