/* tests/kernels/test_nn_norm.c -- RMS norm against its formula in double and against finite differences, on odd shapes. */
#include "kernels/nn_fixture.h"

static const float eps = 1e-5f;

struct norm {
    int64_t rows, dim;
    enum dtype dtype;
    void *x, *weight, *dy, *y, *dx;
    float *rstd, *dweight;
};

static struct norm norm_make(struct rng *rng, int64_t rows, int64_t dim, enum dtype dtype)
{
    return (struct norm){.rows = rows,
                         .dim = dim,
                         .dtype = dtype,
                         .x = nn_random(rng, dtype, rows * dim, 2),
                         .weight = nn_random(rng, dtype, dim, 1),
                         .dy = nn_random(rng, dtype, rows * dim, 1),
                         .y = nn_blank(dtype, rows * dim),
                         .dx = nn_random(rng, dtype, rows * dim, 1),
                         .rstd = nn_blank(DTYPE_FP32, rows),
                         .dweight = nn_random(rng, DTYPE_FP32, dim, 1)};
}

static void norm_free(struct norm *g)
{
    void *all[] = {g->x, g->weight, g->dy, g->y, g->dx, g->rstd, g->dweight};
    for (int i = 0; i < CHECK_COUNT(all); i++)
        free(all[i]);
}

static double rstd_of(const struct norm *g, int64_t row)
{
    double sum = 0;
    for (int64_t i = 0; i < g->dim; i++) {
        double x = nn_get(g->dtype, g->x, row * g->dim + i);
        sum += x * x;
    }
    return 1 / sqrt(sum / (double)g->dim + (double)eps);
}

static void forward_is_right(const struct norm *g)
{
    CHECK_OK(nn_norm_forward(g->rows, g->dim, g->dtype, g->x, g->weight, eps, g->y, g->rstd, NULL));
    for (int64_t row = 0; row < g->rows && g->dim > 0; row++) {
        double rstd = rstd_of(g, row);
        nn_near("rstd", DTYPE_FP32, g->rstd, row, rstd, 0, 4);
        for (int64_t i = 0; i < g->dim; i++)
            nn_near("y", g->dtype, g->y, row * g->dim + i,
                    nn_get(g->dtype, g->x, row * g->dim + i) * rstd * nn_get(g->dtype, g->weight, i), 0, 8);
    }
    void *in_place = nn_copy(g->x, g->dtype, g->rows * g->dim);
    CHECK_OK(nn_norm_forward(g->rows, g->dim, g->dtype, in_place, g->weight, eps, in_place, g->rstd, NULL));
    if (g->rows * g->dim > 0)
        assert_memory_equal(in_place, g->y, (size_t)(g->rows * g->dim * dtype_bytes(g->dtype)));
    free(in_place);
}

static void dx_is_right(const struct norm *g, const void *was, const void *dx, bool add)
{
    for (int64_t row = 0; row < g->rows; row++) {
        double rstd = rstd_of(g, row), mean = 0, size = 0;
        for (int64_t i = 0; i < g->dim; i++) {
            int64_t at = row * g->dim + i;
            double term = nn_get(g->dtype, g->x, at) * nn_get(g->dtype, g->weight, i) * nn_get(g->dtype, g->dy, at);
            mean += term / (double)g->dim;
            size += fabs(term) / (double)g->dim;
        }
        for (int64_t i = 0; i < g->dim; i++) {
            int64_t at = row * g->dim + i;
            double x = nn_get(g->dtype, g->x, at), back = x * pow(rstd, 3),
                   direct = rstd * nn_get(g->dtype, g->weight, i) * nn_get(g->dtype, g->dy, at),
                   before = add ? nn_get(g->dtype, was, at) : 0;
            nn_near("dx", g->dtype, dx, at, before + direct - back * mean,
                    fabs(before) + fabs(direct) + fabs(back) * size, 16);
        }
    }
}

static void dweight_is_right(const struct norm *g, const float *was, const float *dweight)
{
    double *sum = calloc((size_t)g->dim + 1, sizeof *sum), *size = calloc((size_t)g->dim + 1, sizeof *size);
    for (int64_t row = 0; row < g->rows; row++) {
        double rstd = rstd_of(g, row);
        for (int64_t i = 0; i < g->dim; i++) {
            int64_t at = row * g->dim + i;
            double term = nn_get(g->dtype, g->x, at) * rstd * nn_get(g->dtype, g->dy, at);
            sum[i] += term;
            size[i] += fabs(term);
        }
    }
    for (int64_t i = 0; i < g->dim; i++)
        nn_near("dweight", DTYPE_FP32, dweight, i, (double)was[i] + sum[i], fabs((double)was[i]) + size[i],
                8 + sqrt((double)g->rows));
    free(sum);
    free(size);
}

static void backward_is_right(const struct norm *g)
{
    int64_t n = g->rows * g->dim;
    for (int form = 0; form < 3; form++) { /* overwritten; added to; over dy */
        bool add = form == 1;
        void *dx = nn_copy(form == 2 ? g->dy : g->dx, g->dtype, n);
        float *dweight = nn_copy(g->dweight, DTYPE_FP32, g->dim);
        void *scratch = malloc(nn_norm_scratch(DEV_CPU, g->rows, g->dim));
        CHECK_OK(nn_norm_backward(g->rows, g->dim, g->dtype, g->x, g->weight, g->rstd, form == 2 ? dx : g->dy, add, dx,
                                  dweight, scratch, NULL));
        dx_is_right(g, g->dx, dx, add);
        dweight_is_right(g, g->dweight, dweight);
        free(dx);
        free(dweight);
        free(scratch);
    }
}

static void shapes_are_right(struct rng *rng, enum dtype dtype)
{
    static const int64_t rows[] = {0, 1, 3, 7, 113}, dims[] = {0, 1, 3, 7, 113, 512, 1030};
    for (int i = 0; i < CHECK_COUNT(rows) * CHECK_COUNT(dims); i++) {
        struct norm g = norm_make(rng, rows[i / CHECK_COUNT(dims)], dims[i % CHECK_COUNT(dims)], dtype);
        forward_is_right(&g);
        backward_is_right(&g);
        norm_free(&g);
    }
}

static void formulas(void **state)
{
    (void)state;
    nn_everywhere(shapes_are_right);
}

/* Sum of dy * y in double, element `at` of x or of the weight moved by h. */
static double moved_sum(const struct norm *g, bool of_weight, int64_t at, double h)
{
    double total = 0;
    for (int64_t row = 0; row < g->rows; row++) {
        double squares = 0, sum = 0;
        for (int64_t i = 0; i < g->dim; i++) {
            int64_t place = row * g->dim + i;
            double x = nn_get(g->dtype, g->x, place) + (!of_weight && place == at ? h : 0),
                   w = nn_get(g->dtype, g->weight, i) + (of_weight && i == at ? h : 0);
            squares += x * x;
            sum += nn_get(g->dtype, g->dy, place) * x * w;
        }
        total += sum / sqrt(squares / (double)g->dim + (double)eps);
    }
    return total;
}

static void finite_differences(void **state)
{
    (void)state;
    const double h = 1e-5;
    struct rng rng;
    rng_seed(&rng, 2, 0);
    for (int64_t dim = 1; dim <= 13; dim += 4) {
        struct norm g = norm_make(&rng, 3, dim, DTYPE_FP32);
        float *dx = g.dx;
        memset(g.dweight, 0, (size_t)dim * sizeof *g.dweight);
        void *scratch = malloc(nn_norm_scratch(DEV_CPU, g.rows, dim));
        CHECK_OK(nn_norm_forward(g.rows, dim, g.dtype, g.x, g.weight, eps, g.y, g.rstd, NULL));
        CHECK_OK(
            nn_norm_backward(g.rows, dim, g.dtype, g.x, g.weight, g.rstd, g.dy, false, dx, g.dweight, scratch, NULL));
        for (int64_t i = 0; i < g.rows * dim; i++)
            assert_true(fabs((moved_sum(&g, false, i, h) - moved_sum(&g, false, i, -h)) / (2 * h) - (double)dx[i]) <
                        1e-5);
        for (int64_t i = 0; i < dim; i++)
            assert_true(
                fabs((moved_sum(&g, true, i, h) - moved_sum(&g, true, i, -h)) / (2 * h) - (double)g.dweight[i]) < 1e-5);
        free(scratch);
        norm_free(&g);
    }
}

/* out: y and rstd, or dx and dweight; the scratch is not told what ran before. */
static void forward_on(void *arg, void *out, struct dev_queue *queue)
{
    struct norm *g = arg;
    float *y = out;
    CHECK_OK(nn_norm_forward(g->rows, g->dim, g->dtype, g->x, g->weight, eps, y, y + g->rows * g->dim, queue));
}

static void backward_on(void *arg, void *out, struct dev_queue *queue)
{
    struct norm *g = arg;
    float *dx = out;
    size_t bytes = nn_norm_scratch(DEV_CPU, g->rows, g->dim);
    void *scratch = malloc(bytes);
    memset(scratch, 0xff, bytes);
    CHECK_OK(nn_norm_backward(g->rows, g->dim, g->dtype, g->x, g->weight, g->rstd, g->dy, true, dx, //
                              dx + g->rows * g->dim, scratch, queue));
    free(scratch);
}

static void threads_change_no_bits(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 3, 0);
    struct norm g = norm_make(&rng, 257, 771, DTYPE_FP32);
    int64_t n = g.rows * g.dim;
    float *start = nn_random(&rng, DTYPE_FP32, n + g.dim, 1);
    CHECK_OK(nn_norm_forward(g.rows, g.dim, g.dtype, g.x, g.weight, eps, g.y, g.rstd, NULL));
    nn_same_on_threads(forward_on, &g, start, (size_t)(n + g.rows) * sizeof *start);
    nn_same_on_threads(backward_on, &g, start, (size_t)(n + g.dim) * sizeof *start);
    free(start);
    norm_free(&g);
}

/* Squares beyond fp32's range in neither direction: mean(x^2) of 1e17 and of 1e-17. */
static void large_and_small_rows(void **state)
{
    (void)state;
    float x[2] = {1e17f, -1e17f}, w[2] = {1, 1}, y[2], rstd;
    CHECK_OK(nn_norm_forward(1, 2, DTYPE_FP32, x, w, eps, y, &rstd, NULL));
    assert_true(fabsf(y[0] - 1) < 1e-6f && fabsf(y[1] + 1) < 1e-6f);
    x[0] = x[1] = 0;
    CHECK_OK(nn_norm_forward(1, 2, DTYPE_FP32, x, w, eps, y, &rstd, NULL));
    assert_true(y[0] == 0 && y[1] == 0 && fabsf(rstd * sqrtf(eps) - 1) < 1e-6f);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    float x[2] = {1, 2}, w[2] = {1, 1}, y[2], rstd[1] = {1}, dw[2] = {0}, scratch[2];
    CHECK_FAILS(STATUS_USAGE, "-1 rows", nn_norm_forward(-1, 2, DTYPE_FP32, x, w, eps, y, rstd, NULL));
    CHECK_FAILS(STATUS_USAGE, "-2 columns", nn_norm_forward(1, -2, DTYPE_FP32, x, w, eps, y, rstd, NULL));
    CHECK_FAILS(STATUS_USAGE, "dtype 7", nn_norm_forward(1, 2, (enum dtype)7, x, w, eps, y, rstd, NULL));
    CHECK_FAILS(STATUS_USAGE, "missing", nn_norm_forward(1, 2, DTYPE_FP32, x, NULL, eps, y, rstd, NULL));
    CHECK_FAILS(STATUS_USAGE, "missing", nn_norm_backward(1, 2, DTYPE_FP32, x, w, rstd, x, false, y, dw, NULL, NULL));
    CHECK_FAILS(STATUS_USAGE, "dx is dy",
                nn_norm_backward(1, 2, DTYPE_FP32, x, w, rstd, y, true, y, dw, scratch, NULL));
    CHECK_OK(nn_norm_forward(0, 2, DTYPE_FP32, NULL, NULL, eps, NULL, NULL, NULL));
    assert_true(nn_norm_scratch(DEV_CPU, 0, 5) == 0 && nn_norm_scratch(DEV_CPU, 5, 0) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formulas),
        cmocka_unit_test(finite_differences),
        cmocka_unit_test(threads_change_no_bits),
        cmocka_unit_test(large_and_small_rows),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
