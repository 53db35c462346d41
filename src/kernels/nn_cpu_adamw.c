/* kernels/nn_cpu_adamw.c -- the optimizer's step, and sums, on the CPU. A step moves 28 bytes per weight, and a square root and a division
 * per vector hide behind them.
 */
#include "kernels/nn_cpu.h"
#include "kernels/nn_simd.h"

struct adamw {
    int64_t n;
    const struct nn_adamw_step *step;
    enum dtype dtype;
    float *master, *m, *v;
    const float *grad;
    void *weight;
};

static void adamw_task(void *arg, int64_t task, int thread)
{
    const struct adamw *a = arg;
    const struct nn_adamw_step s = *a->step;
    int64_t at = task * NN_TASK, n = nn_least(NN_TASK, a->n - at);
    (void)thread;
    NN_EACH(i, left, n)
    {
        simd g = nn_take(a->grad + at + i, left) * s.grad_scale;
        simd m = nn_take(a->m + at + i, left) * s.beta1 + g * s.one_minus_beta1;
        simd v = nn_take(a->v + at + i, left) * s.beta2 + g * g * s.one_minus_beta2;
        simd w = nn_take(a->master + at + i, left) * s.keep - m * s.size / (simd_sqrt(v) * s.inv_root_bias + s.eps);
        nn_give(a->m + at + i, left, m);
        nn_give(a->v + at + i, left, v);
        nn_give(a->master + at + i, left, w);
    }
    if (a->weight != (void *)a->master)
        dtype_store(a->dtype, a->master + at, (char *)a->weight + at * dtype_bytes(a->dtype), n);
}

enum status NN_CPU_NAMED(adamw)(int64_t n, const struct nn_adamw_step *step, enum dtype dtype, float *master, float *m,
                                float *v, const float *grad, void *weight, struct dev_queue *queue)
{
    struct adamw a = {n, step, dtype, master, m, v, grad, weight};
    nn_run(queue, n, nn_parts(n, NN_TASK), adamw_task, &a);
    return STATUS_OK;
}

/* ---- sums ---- */

struct sum {
    int64_t n;
    const float *x;
    bool squares;
    double *parts;
};

enum { LANES = 16 };

/* A part is summed in LANES lanes, and those in order. */
static void sum_task(void *arg, int64_t task, int thread)
{
    const struct sum *sum = arg;
    const float *x = sum->x + task * NN_SUM_PART;
    int64_t n = nn_least(NN_SUM_PART, sum->n - task * NN_SUM_PART), whole = n / LANES * LANES;
    double lanes[LANES] = {0}, total = 0;
    (void)thread;
    if (sum->squares)
        for (int64_t i = 0; i < whole; i += LANES)
            for (int lane = 0; lane < LANES; lane++)
                lanes[lane] += (double)x[i + lane] * (double)x[i + lane];
    else
        for (int64_t i = 0; i < whole; i += LANES)
            for (int lane = 0; lane < LANES; lane++)
                lanes[lane] += (double)x[i + lane];
    for (int64_t i = whole; i < n; i++)
        lanes[i - whole] += sum->squares ? (double)x[i] * (double)x[i] : (double)x[i];
    for (int lane = 0; lane < LANES; lane++)
        total += lanes[lane];
    sum->parts[task] = total;
}

enum status NN_CPU_NAMED(sum)(int64_t n, const float *x, bool squares, double *out, void *scratch,
                              struct dev_queue *queue)
{
    struct sum sum = {n, x, squares, scratch};
    double total = 0;
    nn_run(queue, n, nn_parts(n, NN_SUM_PART), sum_task, &sum);
    for (int64_t part = 0; part < nn_parts(n, NN_SUM_PART); part++)
        total += sum.parts[part];
    *out = total;
    return STATUS_OK;
}
