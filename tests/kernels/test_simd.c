/* tests/kernels/test_simd.c -- the vector helpers as this file is compiled: 2^-x over its range, special values, lanes.
 */
#include "base/check.h"
#include "kernels/simd.h"

#include <math.h>

static float exp2_minus(float x)
{
    float lanes[SIMD_FLOATS];
    simd_store(lanes, simd_exp2_minus(simd_set(x)));
    for (int i = 1; i < SIMD_FLOATS; i++)
        assert_memory_equal(&lanes[0], &lanes[i], sizeof(float));
    return lanes[0];
}

static void exp2_is_right_to_two_roundings(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i <= 125 * 4096; i += 3) {
        float x = (float)i / 4096;
        double exact = exp2(-(double)x);
        worst = fmax(worst, fabs((double)exp2_minus(x) - exact) / exact);
    }
    if (worst > 0x1p-23)
        fail_msg("relative error %g", worst);
}

static void exp2_of_special_values(void **state)
{
    (void)state;
    assert_true(exp2_minus(0.0f) == 1.0f);
    assert_true(exp2_minus(-0.0f) == 1.0f);
    assert_true(exp2_minus(-1.0f) == 1.0f); /* rounding may leave a score a little above the maximum of its row */
    assert_true(exp2_minus(-INFINITY) == 1.0f);
    assert_true(exp2_minus(1.0f) == 0.5f);
    assert_true(exp2_minus(125.0f) == 0x1p-125f);
    assert_true(exp2_minus(125.1f) == 0.0f);
    assert_true(exp2_minus(1e10f) == 0.0f);
    assert_true(exp2_minus(3e38f) == 0.0f);
    assert_true(exp2_minus(INFINITY) == 0.0f); /* a hidden key weighs exactly nothing */
    assert_true(isnan(exp2_minus(NAN)));
}

static void lanes_are_reduced(void **state)
{
    (void)state;
    float lanes[SIMD_FLOATS];
    for (int at = 0; at < SIMD_FLOATS; at++) {
        for (int i = 0; i < SIMD_FLOATS; i++)
            lanes[i] = i == at ? 7.0f : (float)-i;
        assert_true(simd_max_lanes(simd_load(lanes)) == 7.0f);
        assert_true(simd_sum_lanes(simd_load(lanes)) ==
                    7.0f + (float)at - (float)(SIMD_FLOATS * (SIMD_FLOATS - 1) / 2));
    }
    float pair[SIMD_FLOATS];
    simd_store(pair, simd_max(simd_set(1.0f), simd_set(NAN)));
    assert_true(isnan(pair[0]));
    simd_store(pair, simd_set(-0.0f));
    assert_true(signbit(pair[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp2_is_right_to_two_roundings),
        cmocka_unit_test(exp2_of_special_values),
        cmocka_unit_test(lanes_are_reduced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
