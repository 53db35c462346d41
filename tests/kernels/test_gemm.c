/* tests/kernels/test_gemm.c -- products against loops in double: transposes, dtypes, sizes across the panels; what is
 * refused. */
#include "base/check.h"
#include "base/rng.h"
#include "kernels/gemm.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

static void *random_matrix(struct rng *rng, enum dtype dtype, int64_t elems)
{
    void *out = malloc((size_t)(elems * dtype_bytes(dtype)) + 1);
    assert_non_null(out);
    for (int64_t i = 0; i < elems; i++)
        dtype_set(dtype, out, i, (float)rng_normal(rng));
    return out;
}

static struct dev_queue *on_queue; /* NULL: one thread */

/* Operands are exact in fp32, so the error is that of an fp32 sum of k terms, at most k u sum |a b|, and of one rounding. */
static void product_equals_loops(struct rng *rng, const struct gemm_shape *shape)
{
    static const double roundings[DTYPE_COUNT] = {0x1p-24, 0x1p-8, 0x1p-11};
    int64_t m = shape->m, n = shape->n, k = shape->k;
    enum dtype type = shape->narrow ? shape->dtype : DTYPE_FP32;
    void *a = random_matrix(rng, shape->dtype, m * k), *b = random_matrix(rng, shape->dtype, k * n);
    void *workspace = malloc(gemm_workspace(DEV_CPU, shape));
    void *was = random_matrix(rng, type, m * n), *c = random_matrix(rng, type, m * n);
    memset(c, 0xff, (size_t)(m * n * dtype_bytes(type))); /* NaN: nothing may be left of it */
    if (shape->add)
        memcpy(c, was, (size_t)(m * n * dtype_bytes(type)));
    CHECK_OK(gemm_run(DEV_CPU, shape, a, b, c, workspace, on_queue));
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = shape->add ? (double)dtype_get(type, was, i * n + j) : 0, size = fabs(sum),
                   got = (double)dtype_get(type, c, i * n + j);
            for (int64_t t = 0; t < k; t++) {
                double term = (double)dtype_get(shape->dtype, a, shape->trans_a ? t * m + i : i * k + t) *
                              (double)dtype_get(shape->dtype, b, shape->trans_b ? j * k + t : t * n + j);
                sum += term;
                size += fabs(term);
            }
            if (!(fabs(got - sum) <= 0x1p-24 * (double)(k + 1) * size + roundings[type] * fabs(sum)))
                fail_msg("%lld x %lld x %lld, %s, transposed %d %d, added %d, narrow %d: c[%lld][%lld] = %g, not %g",
                         (long long)m, (long long)n, (long long)k, dtype_name(shape->dtype), shape->trans_a,
                         shape->trans_b, shape->add, shape->narrow, (long long)i, (long long)j, got, sum);
        }
    free(a);
    free(b);
    free(c);
    free(was);
    free(workspace);
}

/* form: of 48. */
static struct gemm_shape shape_of(const int64_t size[3], int form)
{
    return (struct gemm_shape){.m = size[0],
                               .n = size[1],
                               .k = size[2],
                               .dtype = (enum dtype)(form / 16),
                               .trans_a = form % 2 == 1,
                               .trans_b = form / 2 % 2 == 1,
                               .add = form / 4 % 2 == 1,
                               .narrow = form / 8 % 2 == 1};
}
enum { FORMS = 16 * DTYPE_COUNT };

/* The last three cross the panels of 4096 rows, 4096 columns and 512 of k. */
static void every_form_equals_loops(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {17, 33, 65}, {1, 113, 31}, {64, 1, 100}, {5, 4, 0},
                                       {0, 3, 2}, {3, 0, 2}, {4099, 3, 5}, {2, 4100, 3}, {3, 5, 1030}};
    struct rng rng;
    rng_seed(&rng, 1, 0);
    for (int i = 0; i < CHECK_COUNT(sizes); i++)
        for (int form = 0; form < FORMS; form++) {
            struct gemm_shape shape = shape_of(sizes[i], form);
            product_equals_loops(&rng, &shape);
        }
}

static void repeats_are_bitwise_equal(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 4, 0);
    struct gemm_shape shape = {.m = 65, .n = 70, .k = 600, .dtype = DTYPE_BF16, .trans_b = true};
    void *a = random_matrix(&rng, DTYPE_BF16, 65 * 600), *b = random_matrix(&rng, DTYPE_BF16, 70 * 600);
    void *workspace = malloc(gemm_workspace(DEV_CPU, &shape));
    float first[65 * 70], again[65 * 70];
    CHECK_OK(gemm_run(DEV_CPU, &shape, a, b, first, workspace, NULL));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(gemm_run(DEV_CPU, &shape, a, b, again, workspace, NULL));
        assert_memory_equal(first, again, sizeof first);
    }
    free(a);
    free(b);
    free(workspace);
}

static void workspace_is_bounded(void **state)
{
    (void)state;
    struct gemm_shape shape = {.m = 1 << 20, .n = 150000, .k = 8192, .dtype = DTYPE_BF16, .trans_b = true};
    assert_true(gemm_workspace(DEV_CPU, &shape) == 16 << 20);
    shape.narrow = true;
    assert_true(gemm_workspace(DEV_CPU, &shape) == 24 << 20);
    shape.dtype = DTYPE_FP32;
    assert_true(gemm_workspace(DEV_CPU, &shape) == 0);
    shape.m = -1;
    shape.dtype = DTYPE_BF16;
    assert_true(gemm_workspace(DEV_CPU, &shape) == 0);
}

/* Without GPU parts there is no kernel; with them no library, since main names one that is not there. */
#if SPTUNE_CUDA
static const char no_cuda[] = "cuBLAS cannot be loaded";
#else
static const char no_cuda[] = "cuda";
#endif

static void bad_sizes_are_refused(void **state)
{
    (void)state;
    float a[4] = {0}, b[4] = {0}, c[4] = {0};
    const struct gemm_shape good = {.m = 2, .n = 2, .k = 2};
    struct gemm_shape shape = good;
    CHECK_OK(gemm_run(DEV_CPU, &shape, a, b, c, NULL, NULL));
    CHECK_FAILS(STATUS_ABSENT, no_cuda, gemm_run(DEV_CUDA, &shape, a, b, c, NULL, NULL));
    CHECK_FAILS(STATUS_ABSENT, no_cuda, gemm_ready(DEV_CUDA));
    CHECK_FAILS(STATUS_USAGE, "missing", gemm_run(DEV_CPU, &shape, NULL, b, c, NULL, NULL));
    CHECK_FAILS(STATUS_USAGE, "missing", gemm_run(DEV_CPU, &shape, a, NULL, c, NULL, NULL));
    CHECK_FAILS(STATUS_USAGE, "missing", gemm_run(DEV_CPU, &shape, a, b, NULL, NULL, NULL));
    shape.dtype = DTYPE_FP16;
    CHECK_FAILS(STATUS_USAGE, "workspace", gemm_run(DEV_CPU, &shape, a, b, c, NULL, NULL));
    shape.dtype = (enum dtype)9;
    CHECK_FAILS(STATUS_USAGE, "dtype 9", gemm_run(DEV_CPU, &shape, a, b, c, NULL, NULL));
    shape = good;
    shape.m = (int64_t)INT_MAX + 1;
    CHECK_FAILS(STATUS_UNSUPPORTED, "m = 2147483648", gemm_run(DEV_CPU, &shape, a, b, c, NULL, NULL));
    shape = good;
    shape.n = INT64_C(1000000000000000000);
    CHECK_FAILS(STATUS_UNSUPPORTED, "n = 1000000000000000000", gemm_run(DEV_CPU, &shape, a, b, c, NULL, NULL));
    shape = good;
    shape.k = -5;
    CHECK_FAILS(STATUS_USAGE, "k = -5", gemm_run(DEV_CPU, &shape, a, b, c, NULL, NULL));
}

static void names_the_library(void **state)
{
    (void)state;
    assert_int_equal(strncmp(gemm_name(DEV_CPU), "openblas ", 9), 0);
    assert_true(strlen(gemm_name(DEV_CPU)) > strlen("openblas 0.3 "));
    assert_string_equal(gemm_name(DEV_CUDA), "");
}

static void threads_do_not_change_the_product(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 3, 0);
    struct gemm_shape shape = {.m = 64, .n = 65, .k = 66};
    gemm_set_threads(2);
    product_equals_loops(&rng, &shape);
    gemm_set_threads(-7); /* as 1 */
    product_equals_loops(&rng, &shape);
}

/* Tiles of a grid, uneven ones and empty ones; widening by several threads; blocks of 4096 rows. */
static void tiles_equal_loops(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{160, 130, 100}, {18, 700, 170}, {4200, 2, 300}, {170, 20, 600}};
    static const int threads[] = {2, 3, 6};
    struct dev *dev = NULL;
    struct rng rng;
    rng_seed(&rng, 5, 0);
    CHECK_OK(dev_open(DEV_CPU, 0, &dev));
    CHECK_OK(dev_queue_create(dev, &on_queue));
    for (int i = 0; i < CHECK_COUNT(sizes) * CHECK_COUNT(threads); i++) {
        const int64_t *size = sizes[i % CHECK_COUNT(sizes)];
        CHECK_OK(dev_threads_set(dev, threads[i / CHECK_COUNT(sizes)]));
        for (int form = i % 11; form < FORMS; form += 11) {
            struct gemm_shape shape = shape_of(size, form);
            product_equals_loops(&rng, &shape);
        }
    }
    dev_queue_destroy(on_queue);
    on_queue = NULL;
    dev_close(dev);
}

int main(void)
{
    setenv("SPTUNE_CUBLAS", "/nowhere/libcublasLt.so", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_equals_loops), cmocka_unit_test(repeats_are_bitwise_equal),
        cmocka_unit_test(workspace_is_bounded),    cmocka_unit_test(bad_sizes_are_refused),
        cmocka_unit_test(names_the_library),       cmocka_unit_test(threads_do_not_change_the_product),
        cmocka_unit_test(tiles_equal_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
