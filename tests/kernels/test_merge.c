/* tests/kernels/test_merge.c -- parts of an attention put together on the CPU: sums, rows that saw nothing, NaN, threads. */
#include "kernels/merge_cases.h"

static void parts_make_the_whole(void **state)
{
    (void)state;
    merge_all(DEV_CPU);
}

static float merged(float lse_a, float lse_b, float o_b, float *lse)
{
    float o = 3;
    struct merge_part part = {.tokens = 1,
                              .heads = 1,
                              .dim = 1,
                              .dtype = DTYPE_FP32,
                              .o = &o_b,
                              .lse = &lse_b,
                              .o_sum = &o,
                              .lse_sum = &lse_a,
                              .lse_stride = 1};
    CHECK_OK(merge_out(DEV_CPU, &part, NULL));
    *lse = lse_a;
    return o;
}

static void a_nan_of_either_side_shows(void **state)
{
    (void)state;
    const float other[] = {-INFINITY, -3, 1e30f};
    float lse;
    for (int i = 0; i < CHECK_COUNT(other); i++) {
        assert_true(isnan(merged(NAN, other[i], 1, &lse)) && isnan(lse));
        assert_true(isnan(merged(other[i], NAN, 1, &lse)) && isnan(lse));
    }
    assert_true(isnan(merged(0, 0, NAN, &lse)) && !isnan(lse));
}

/* Statistics far apart neither overflow nor lose the larger side. */
static void the_larger_side_wins(void **state)
{
    (void)state;
    float lse;
    assert_true(merged(1e4f, -1e4f, 7, &lse) == 3 && lse == 1e4f);
    assert_true(merged(-1e4f, 1e4f, 7, &lse) == 7 && lse == 1e4f);
    assert_true(merged(-INFINITY, 5, 7, &lse) == 7 && lse == 5);
    assert_true(merged(5, -INFINITY, 0, &lse) == 3 && lse == 5);
}

static void what_is_missing_is_refused(void **state)
{
    (void)state;
    float x = 0;
    struct merge_part part = {.tokens = 1, .heads = 1, .dim = 1, .o = &x, .lse = &x, .o_sum = &x, .lse_sum = &x};
    assert_int_equal(merge_out(DEV_CPU, &part, NULL), STATUS_USAGE); /* statistics 0 apart */
    part.lse_stride = 1;
    part.lse_sum = NULL;
    assert_int_equal(merge_out(DEV_CPU, &part, NULL), STATUS_USAGE);
    part.tokens = 0;
    CHECK_OK(merge_out(DEV_CPU, &part, NULL));
    assert_int_equal(merge_add(DEV_CPU, DTYPE_FP32, NULL, &x, 1, true, NULL), STATUS_USAGE);
    assert_int_equal(merge_add(DEV_CPU, (enum dtype)9, &x, &x, 1, true, NULL), STATUS_USAGE);
    CHECK_OK(merge_add(DEV_CPU, DTYPE_FP32, NULL, NULL, 0, true, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_make_the_whole),
        cmocka_unit_test(a_nan_of_either_side_shows),
        cmocka_unit_test(the_larger_side_wins),
        cmocka_unit_test(what_is_missing_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
