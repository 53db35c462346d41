/* kernels/nn_cpu_each.c -- element by element on the CPU: swiglu, sums of tensors, conversions; and bias. */
#include "kernels/nn_cpu.h"
#include "kernels/nn_simd.h"

struct each {
    int64_t n;
    enum dtype dtype, to;
    const void *a, *b, *c;
    void *x, *y;
    /* of n elements from `at` on, at most NN_CHUNK */
    void (*chunk)(const struct each *each, int64_t at, int64_t n);
};

static void each_task(void *arg, int64_t task, int thread)
{
    const struct each *each = arg;
    int64_t end = nn_least((task + 1) * NN_TASK, each->n);
    (void)thread;
    for (int64_t at = task * NN_TASK; at < end; at += NN_CHUNK)
        each->chunk(each, at, nn_least(NN_CHUNK, end - at));
}

static enum status each_run(struct each each, struct dev_queue *queue)
{
    nn_run(queue, each.n, nn_parts(each.n, NN_TASK), each_task, &each);
    return STATUS_OK;
}

static void swiglu_chunk(const struct each *each, int64_t at, int64_t n)
{
    float gates[NN_CHUNK], ups[NN_CHUNK], outs[NN_CHUNK];
    const float *gate = nn_view(each->dtype, each->a, at, n, gates), *up = nn_view(each->dtype, each->b, at, n, ups);
    float *out = nn_place(each->dtype, each->x, at, outs);
    NN_EACH(i, left, n)
    {
        simd g = nn_take(gate + i, left);
        nn_give(out + i, left, g * nn_sigmoid(g) * nn_take(up + i, left));
    }
    nn_keep(each->dtype, out, each->x, at, n);
}

enum status NN_CPU_NAMED(swiglu_forward)(int64_t n, enum dtype dtype, const void *gate, const void *up, void *out,
                                         struct dev_queue *queue)
{
    return each_run((struct each){.n = n, .dtype = dtype, .a = gate, .b = up, .x = out, .chunk = swiglu_chunk}, queue);
}

/* With s = sigmoid(g): d silu(g) / dg = s + g s (1 - s). */
static void swiglu_backward_chunk(const struct each *each, int64_t at, int64_t n)
{
    float gates[NN_CHUNK], ups[NN_CHUNK], outs[NN_CHUNK], d_gates[NN_CHUNK], d_ups[NN_CHUNK];
    const float *gate = nn_view(each->dtype, each->a, at, n, gates), *up = nn_view(each->dtype, each->b, at, n, ups),
                *d_out = nn_view(each->dtype, each->c, at, n, outs);
    float *d_gate = nn_place(each->dtype, each->x, at, d_gates), *d_up = nn_place(each->dtype, each->y, at, d_ups);
    NN_EACH(i, left, n)
    {
        simd g = nn_take(gate + i, left), u = nn_take(up + i, left), d = nn_take(d_out + i, left), s = nn_sigmoid(g);
        nn_give(d_gate + i, left, d * u * (s + g * s * (1.0f - s)));
        nn_give(d_up + i, left, d * (g * s));
    }
    nn_keep(each->dtype, d_gate, each->x, at, n);
    nn_keep(each->dtype, d_up, each->y, at, n);
}

enum status NN_CPU_NAMED(swiglu_backward)(int64_t n, enum dtype dtype, const void *gate, const void *up,
                                          const void *d_out, void *d_gate, void *d_up, struct dev_queue *queue)
{
    return each_run((struct each){.n = n,
                                  .dtype = dtype,
                                  .a = gate,
                                  .b = up,
                                  .c = d_out,
                                  .x = d_gate,
                                  .y = d_up,
                                  .chunk = swiglu_backward_chunk},
                    queue);
}

/* n elements of x += those of y. */
static void add_elems(enum dtype dtype, void *x, int64_t x_at, const void *y, int64_t y_at, int64_t n)
{
    float xs[NN_CHUNK], ys[NN_CHUNK];
    const float *was = nn_view(dtype, x, x_at, n, xs), *by = nn_view(dtype, y, y_at, n, ys);
    float *to = nn_place(dtype, x, x_at, xs);
    NN_EACH(i, left, n)
    nn_give(to + i, left, nn_take(was + i, left) + nn_take(by + i, left));
    nn_keep(dtype, to, x, x_at, n);
}

static void add_chunk(const struct each *each, int64_t at, int64_t n)
{
    add_elems(each->dtype, each->x, at, each->a, at, n);
}

enum status NN_CPU_NAMED(add)(int64_t n, enum dtype dtype, void *x, const void *y, struct dev_queue *queue)
{
    return each_run((struct each){.n = n, .dtype = dtype, .a = y, .x = x, .chunk = add_chunk}, queue);
}

static void convert_chunk(const struct each *each, int64_t at, int64_t n)
{
    float buffer[NN_CHUNK];
    void *to = (char *)each->x + at * dtype_bytes(each->to);
    if (each->dtype == each->to)
        memcpy(to, nn_at(each->dtype, each->a, at), (size_t)n * (size_t)dtype_bytes(each->to));
    else
        dtype_store(each->to, nn_view(each->dtype, each->a, at, n, buffer), to, n);
}

enum status NN_CPU_NAMED(convert)(int64_t n, enum dtype from, const void *src, enum dtype to, void *dst,
                                  struct dev_queue *queue)
{
    return each_run((struct each){.n = n, .dtype = from, .to = to, .a = src, .x = dst, .chunk = convert_chunk}, queue);
}

/* ---- bias ---- */

struct bias {
    int64_t rows, n;
    enum dtype dtype;
    void *y;
    const void *bias, *dy;
    float *dbias;
};

static void bias_task(void *arg, int64_t task, int thread)
{
    const struct bias *b = arg;
    int64_t step = nn_task_rows(b->n), end = nn_least((task + 1) * step, b->rows);
    (void)thread;
    for (int64_t row = task * step; row < end; row++)
        for (int64_t at = 0; at < b->n; at += NN_CHUNK)
            add_elems(b->dtype, b->y, row * b->n + at, b->bias, at, nn_least(NN_CHUNK, b->n - at));
}

enum status NN_CPU_NAMED(bias)(int64_t rows, int64_t n, enum dtype dtype, void *y, const void *bias,
                               struct dev_queue *queue)
{
    struct bias b = {.rows = rows, .n = n, .dtype = dtype, .y = y, .bias = bias};
    nn_run(queue, rows * n, nn_parts(rows, nn_task_rows(n)), bias_task, &b);
    return STATUS_OK;
}

/* Rows in groups, so that rounding grows with the root of their number. */
static void bias_backward_task(void *arg, int64_t task, int thread)
{
    enum { GROUP = 64 };
    const struct bias *b = arg;
    int64_t at = task * NN_COLUMNS, n = nn_least(NN_COLUMNS, b->n - at);
    (void)thread;
    for (int64_t first = 0; first < b->rows; first += GROUP) {
        float dys[NN_COLUMNS], sums[NN_COLUMNS] = {0};
        for (int64_t row = first; row < nn_least(first + GROUP, b->rows); row++) {
            const float *dy = nn_view(b->dtype, b->dy, row * b->n + at, n, dys);
            NN_EACH(i, left, n)
            nn_give(sums + i, left, nn_take(sums + i, left) + nn_take(dy + i, left));
        }
        NN_EACH(i, left, n)
        nn_give(b->dbias + at + i, left, nn_take(b->dbias + at + i, left) + nn_take(sums + i, left));
    }
}

enum status NN_CPU_NAMED(bias_backward)(int64_t rows, int64_t n, enum dtype dtype, const void *dy, float *dbias,
                                        struct dev_queue *queue)
{
    struct bias b = {.rows = rows, .n = n, .dtype = dtype, .dy = dy, .dbias = dbias};
    nn_run(queue, rows * n, nn_parts(n, NN_COLUMNS), bias_backward_task, &b);
    return STATUS_OK;
}
