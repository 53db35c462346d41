/* tests/kernels/test_nn_each.c -- rope, swiglu, sums, conversions and bias against formulas in double, on odd shapes. */
#include "kernels/nn_fixture.h"

static const int64_t lengths[] = {0, 1, 3, 7, 113, 1030};

/* ---- rope ---- */

struct rope {
    int64_t rows;
    int heads, dim;
    int32_t *positions;
    float *inv_freq;
};

static struct rope rope_make(struct rng *rng, int64_t rows, int heads, int dim)
{
    struct rope r = {rows, heads, dim, malloc((size_t)rows * sizeof(int32_t)), nn_blank(DTYPE_FP32, dim / 2)};
    for (int64_t i = 0; i < rows; i++)
        r.positions[i] = (int32_t)rng_below(rng, i % 2 == 0 ? 10 : 1000000);
    for (int i = 0; i < dim / 2; i++)
        r.inv_freq[i] = (float)pow(10000, -2.0 * i / dim);
    return r;
}

static void rope_free(struct rope *r)
{
    free(r->positions);
    free(r->inv_freq);
}

/* x * cos + rotate_half(x) * sin, where rotate_half(x) is (-high, low). */
static void rope_case(struct rng *rng, enum dtype dtype, int64_t rows, int heads, int dim)
{
    struct rope r = rope_make(rng, rows, heads, dim);
    int64_t n = rows * heads * dim, half = dim / 2;
    void *x = nn_random(rng, dtype, n, 1), *turned = nn_copy(x, dtype, n);
    CHECK_OK(nn_rope(rows, heads, dim, dtype, turned, r.positions, r.inv_freq, false, NULL));
    for (int64_t at = 0; at < n; at++) {
        int64_t i = at % dim;
        float angle = (float)r.positions[at / dim / heads] * r.inv_freq[i % half];
        double here = nn_get(dtype, x, at),
               there = i < half ? -nn_get(dtype, x, at + half) : nn_get(dtype, x, at - half);
        nn_near("rope", dtype, turned, at, here * cos((double)angle) + there * sin((double)angle),
                fabs(here) + fabs(there), 4);
    }
    CHECK_OK(nn_rope(rows, heads, dim, dtype, turned, r.positions, r.inv_freq, true, NULL));
    for (int64_t at = 0; at < n; at++) { /* there and back: each way rounds a pair once */
        int64_t other = at % dim < half ? at + half : at - half;
        double size = fabs(nn_get(dtype, x, at)) + fabs(nn_get(dtype, x, other));
        double rounding = dtype == DTYPE_FP32 ? 1 : dtype == DTYPE_BF16 ? 0x1p16 : 0x1p13;
        nn_near("rope and back", dtype, turned, at, nn_get(dtype, x, at), size, 4 + 2 * rounding);
    }
    free(x);
    free(turned);
    rope_free(&r);
}

static void rope_shapes(struct rng *rng, enum dtype dtype)
{
    static const int heads[] = {0, 1, 3, 7}, dims[] = {0, 2, 6, 64, 226};
    for (int i = 0; i < CHECK_COUNT(heads) * CHECK_COUNT(dims); i++)
        for (int rows = 0; rows < 6; rows += 1 + rows)
            rope_case(rng, dtype, rows, heads[i % CHECK_COUNT(heads)], dims[i / CHECK_COUNT(heads)]);
    rope_case(rng, dtype, 113, 2, 10);
    rope_case(rng, dtype, 1, 1, 1100);
}

static void rope(void **state)
{
    (void)state;
    nn_everywhere(rope_shapes);
    struct rng rng;
    rng_seed(&rng, 5, 0);
    float x[3] = {0};
    struct rope r = rope_make(&rng, 1, 1, 4);
    CHECK_FAILS(STATUS_USAGE, "3 dimensions", nn_rope(1, 1, 3, DTYPE_FP32, x, r.positions, r.inv_freq, false, NULL));
    CHECK_FAILS(STATUS_USAGE, "-1 heads", nn_rope(1, -1, 4, DTYPE_FP32, x, r.positions, r.inv_freq, false, NULL));
    rope_free(&r);
}

/* ---- swiglu ---- */

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double d_silu(double x)
{
    double s = 1 / (1 + exp(-x));
    return s + x * s * (1 - s);
}

static void swiglu_case(struct rng *rng, enum dtype dtype, int64_t n, double scale)
{
    void *gate = nn_random(rng, dtype, n, scale), *up = nn_random(rng, dtype, n, 1),
         *d_out = nn_random(rng, dtype, n, 1);
    void *out = nn_blank(dtype, n), *d_gate = nn_copy(gate, dtype, n), *d_up = nn_copy(up, dtype, n);
    CHECK_OK(nn_swiglu_forward(n, dtype, gate, up, out, NULL));
    CHECK_OK(nn_swiglu_backward(n, dtype, d_gate, d_up, d_out, d_gate, d_up, NULL));
    for (int64_t i = 0; i < n; i++) {
        double g = nn_get(dtype, gate, i), u = nn_get(dtype, up, i), d = nn_get(dtype, d_out, i),
               ulps = 8 + 2 * fabs(g);
        nn_near("swiglu", dtype, out, i, silu(g) * u, 0, ulps);
        nn_near("d_gate", dtype, d_gate, i, d * u * d_silu(g), fabs(d * u), 8);
        nn_near("d_up", dtype, d_up, i, d * silu(g), 0, ulps);
    }
    CHECK_OK(nn_swiglu_forward(n, dtype, gate, up, gate, NULL)); /* in place */
    if (n > 0)
        assert_memory_equal(gate, out, (size_t)(n * dtype_bytes(dtype)));
    void *all[] = {gate, up, d_out, out, d_gate, d_up};
    for (int i = 0; i < CHECK_COUNT(all); i++)
        free(all[i]);
}

static void swiglu_shapes(struct rng *rng, enum dtype dtype)
{
    for (int i = 0; i < CHECK_COUNT(lengths); i++) {
        swiglu_case(rng, dtype, lengths[i], 1);
        swiglu_case(rng, dtype, lengths[i], 6);
    }
}

/* silu of what is far from 0 is x or nothing, and its slope 1 or nothing. */
static void swiglu_far_out(struct rng *rng, enum dtype dtype)
{
    (void)rng;
    static const float gates[] = {200, -200, 6e4f, -6e4f, 0};
    for (int i = 0; i < CHECK_COUNT(gates); i++) {
        char gate[4], up[4], d_out[4], out[4];
        float g = gates[i], right = fmaxf(g, 0), slope = g > 0 ? 1.0f : g < 0 ? 0.0f : 0.5f;
        dtype_set(dtype, gate, 0, g);
        g = dtype_get(dtype, gate, 0);
        right = fmaxf(g, 0);
        dtype_set(dtype, up, 0, 1);
        dtype_set(dtype, d_out, 0, 1);
        CHECK_OK(nn_swiglu_forward(1, dtype, gate, up, out, NULL));
        assert_true(dtype_get(dtype, out, 0) == right);
        CHECK_OK(nn_swiglu_backward(1, dtype, gate, up, d_out, gate, up, NULL));
        assert_true(dtype_get(dtype, gate, 0) == slope && dtype_get(dtype, up, 0) == right);
    }
}

static void swiglu(void **state)
{
    (void)state;
    nn_everywhere(swiglu_shapes);
    nn_everywhere(swiglu_far_out);
}

static void swiglu_finite_differences(void **state)
{
    (void)state;
    const double h = 1e-6;
    struct rng rng;
    rng_seed(&rng, 6, 0);
    enum { N = 29 };
    float *gate = nn_random(&rng, DTYPE_FP32, N, 3), *up = nn_random(&rng, DTYPE_FP32, N, 1),
          *d_out = nn_random(&rng, DTYPE_FP32, N, 1), d_gate[N], d_up[N];
    CHECK_OK(nn_swiglu_backward(N, DTYPE_FP32, gate, up, d_out, d_gate, d_up, NULL));
    for (int i = 0; i < N; i++) {
        double g = (double)gate[i], u = (double)up[i], d = (double)d_out[i];
        assert_true(fabs(d * u * (silu(g + h) - silu(g - h)) / (2 * h) - (double)d_gate[i]) < 1e-5);
        assert_true(fabs(d * silu(g) * ((u + h) - (u - h)) / (2 * h) - (double)d_up[i]) < 1e-5);
    }
    free(gate);
    free(up);
    free(d_out);
}

/* ---- sums and conversions ---- */

static void add_shapes(struct rng *rng, enum dtype dtype)
{
    for (int l = 0; l < CHECK_COUNT(lengths); l++) {
        int64_t n = lengths[l];
        void *x = nn_random(rng, dtype, n, 1), *y = nn_random(rng, dtype, n, 1), *sum = nn_copy(x, dtype, n);
        CHECK_OK(nn_add(n, dtype, sum, y, NULL));
        for (int64_t i = 0; i < n; i++)
            assert_true(
                dtype_get(dtype, sum, i) ==
                (dtype_set(dtype, x, i, dtype_get(dtype, x, i) + dtype_get(dtype, y, i)), dtype_get(dtype, x, i)));
        CHECK_OK(nn_add(n, dtype, y, y, NULL));
        free(x);
        free(y);
        free(sum);
    }
}

static void convert_shapes(struct rng *rng, enum dtype from)
{
    for (int to = 0; to < DTYPE_COUNT; to++)
        for (int l = 0; l < CHECK_COUNT(lengths); l++) {
            int64_t n = lengths[l];
            void *src = nn_random(rng, from, n, 1), *dst = nn_blank((enum dtype)to, n);
            char one[4];
            CHECK_OK(nn_convert(n, from, src, (enum dtype)to, dst, NULL));
            for (int64_t i = 0; i < n; i++) {
                dtype_set((enum dtype)to, one, 0, dtype_get(from, src, i));
                assert_memory_equal(one, (char *)dst + i * dtype_bytes((enum dtype)to),
                                    (size_t)dtype_bytes((enum dtype)to));
            }
            free(src);
            free(dst);
        }
}

static void sums_and_conversions(void **state)
{
    (void)state;
    nn_everywhere(add_shapes);
    nn_everywhere(convert_shapes);
    float x[1] = {1}, y[1] = {2};
    CHECK_FAILS(STATUS_USAGE, "dtype 3", nn_convert(1, DTYPE_COUNT, x, DTYPE_FP32, y, NULL));
    CHECK_FAILS(STATUS_USAGE, "missing", nn_add(1, DTYPE_FP32, NULL, y, NULL));
}

/* ---- bias ---- */

static void bias_case(struct rng *rng, enum dtype dtype, int64_t rows, int64_t n)
{
    void *y = nn_random(rng, dtype, rows * n, 1), *sum = nn_copy(y, dtype, rows * n),
         *bias = nn_random(rng, dtype, n, 1);
    float *dbias = nn_random(rng, DTYPE_FP32, n, 1), *was = nn_copy(dbias, DTYPE_FP32, n);
    CHECK_OK(nn_bias(rows, n, dtype, sum, bias, NULL));
    CHECK_OK(nn_bias_backward(rows, n, dtype, y, dbias, NULL));
    for (int64_t i = 0; i < rows * n; i++)
        nn_near("bias", dtype, sum, i, nn_get(dtype, y, i) + nn_get(dtype, bias, i % n), 0, 1);
    for (int64_t column = 0; column < n; column++) {
        double total = (double)was[column], size = fabs(total);
        for (int64_t row = 0; row < rows; row++) {
            total += nn_get(dtype, y, row * n + column);
            size += fabs(nn_get(dtype, y, row * n + column));
        }
        nn_near("dbias", DTYPE_FP32, dbias, column, total, size, 4 + sqrt((double)rows));
    }
    free(y);
    free(sum);
    free(bias);
    free(dbias);
    free(was);
}

static void bias_shapes(struct rng *rng, enum dtype dtype)
{
    static const int64_t rows[] = {0, 1, 3, 113}, columns[] = {0, 1, 7, 113, 600};
    for (int i = 0; i < CHECK_COUNT(rows) * CHECK_COUNT(columns); i++)
        bias_case(rng, dtype, rows[i / CHECK_COUNT(columns)], columns[i % CHECK_COUNT(columns)]);
}

static void bias(void **state)
{
    (void)state;
    nn_everywhere(bias_shapes);
}

/* ---- threads ---- */

enum { ROWS = 163, DIM = 1030 };

static void rope_on(void *arg, void *out, struct dev_queue *queue)
{
    struct rope *r = arg;
    CHECK_OK(nn_rope(r->rows, r->heads, r->dim, DTYPE_FP32, out, r->positions, r->inv_freq, false, queue));
}

static void each_on(void *arg, void *out, struct dev_queue *queue)
{
    const float *x = arg;
    float *to = out;
    CHECK_OK(nn_swiglu_forward(ROWS * DIM, DTYPE_FP32, x, to, to, queue));
    CHECK_OK(nn_add(ROWS * DIM, DTYPE_FP32, to, x, queue));
    CHECK_OK(nn_convert(ROWS * DIM, DTYPE_FP32, x, DTYPE_FP16, to, queue));
    CHECK_OK(nn_swiglu_backward(ROWS * DIM / 2, DTYPE_BF16, x, to, to, to, (uint16_t *)out + ROWS * DIM, queue));
}

static void bias_on(void *arg, void *out, struct dev_queue *queue)
{
    const float *x = arg;
    float *to = out;
    CHECK_OK(nn_bias(ROWS - 1, DIM, DTYPE_FP32, to, x, queue));
    CHECK_OK(nn_bias_backward(ROWS, DIM, DTYPE_FP32, x, to, queue));
}

static void threads_change_no_bits(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 7, 0);
    float *x = nn_random(&rng, DTYPE_FP32, ROWS * DIM, 1), *start = nn_random(&rng, DTYPE_FP32, ROWS * DIM, 1);
    struct rope r = rope_make(&rng, ROWS, 5, DIM / 5);
    nn_same_on_threads(rope_on, &r, start, (size_t)(ROWS * DIM) * sizeof *start);
    nn_same_on_threads(each_on, x, start, (size_t)(ROWS * DIM) * sizeof *start);
    nn_same_on_threads(bias_on, x, start, (size_t)(ROWS * DIM) * sizeof *start);
    rope_free(&r);
    free(x);
    free(start);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope),
        cmocka_unit_test(swiglu),
        cmocka_unit_test(swiglu_finite_differences),
        cmocka_unit_test(sums_and_conversions),
        cmocka_unit_test(bias),
        cmocka_unit_test(threads_change_no_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
