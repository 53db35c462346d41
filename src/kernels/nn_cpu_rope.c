/* kernels/nn_cpu_rope.c -- rotary positions on the CPU. Sine and cosine of a token's angles are taken once for all its heads: dim / 2 pairs
 * of some 15 ns, beside heads * dim elements to turn.
 */
#include "kernels/nn_cpu.h"
#include "kernels/nn_simd.h"

#include <math.h>

struct rope {
    int64_t rows;
    int heads, dim;
    enum dtype dtype;
    void *x;
    const int32_t *positions;
    const float *inv_freq;
    bool inverse;
};

/* Pairs (low[i], high[i]) of one head turned, n of them. */
static void turn(enum dtype dtype, void *x, int64_t low_at, int64_t high_at, const float *cosine, const float *sine,
                 int64_t n)
{
    float lows[NN_CHUNK], highs[NN_CHUNK];
    const float *low = nn_view(dtype, x, low_at, n, lows), *high = nn_view(dtype, x, high_at, n, highs);
    float *to_low = nn_place(dtype, x, low_at, lows), *to_high = nn_place(dtype, x, high_at, highs);
    NN_EACH(i, left, n)
    {
        simd a = nn_take(low + i, left), b = nn_take(high + i, left), c = nn_take(cosine + i, left),
             s = nn_take(sine + i, left);
        nn_give(to_low + i, left, a * c - b * s);
        nn_give(to_high + i, left, b * c + a * s);
    }
    nn_keep(dtype, to_low, x, low_at, n);
    nn_keep(dtype, to_high, x, high_at, n);
}

static void row_turn(const struct rope *r, int64_t row)
{
    float cosine[NN_CHUNK], sine[NN_CHUNK];
    int64_t half = r->dim / 2;
    for (int64_t at = 0; at < half; at += NN_CHUNK) {
        int64_t n = nn_least(NN_CHUNK, half - at);
        for (int64_t i = 0; i < n; i++) {
            float angle = (float)r->positions[row] * r->inv_freq[at + i];
            cosine[i] = cosf(angle);
            sine[i] = r->inverse ? -sinf(angle) : sinf(angle);
        }
        for (int64_t head = 0; head < r->heads; head++) {
            int64_t low = (row * r->heads + head) * r->dim + at;
            turn(r->dtype, r->x, low, low + half, cosine, sine, n);
        }
    }
}

static void rope_task(void *arg, int64_t task, int thread)
{
    const struct rope *r = arg;
    int64_t step = nn_task_rows((int64_t)r->heads * r->dim), end = nn_least((task + 1) * step, r->rows);
    (void)thread;
    for (int64_t row = task * step; row < end; row++)
        row_turn(r, row);
}

enum status NN_CPU_NAMED(rope)(int64_t rows, int heads, int dim, enum dtype dtype, void *x, const int32_t *positions,
                               const float *inv_freq, bool inverse, struct dev_queue *queue)
{
    struct rope r = {rows, heads, dim, dtype, x, positions, inv_freq, inverse};
    int64_t wide = (int64_t)heads * dim;
    nn_run(queue, rows * wide, nn_parts(rows, nn_task_rows(wide)), rope_task, &r);
    return STATUS_OK;
}
