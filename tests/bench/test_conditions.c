/* bench/test_conditions.c -- readings of this machine are there and make sense. No time is asserted. */
#include "base/check.h"
#include "bench/conditions.h"
#include "bench/rotation.h"
#include "bench/spin.h"

#include <math.h>

static void test_span(void **state)
{
    (void)state;
    struct conditions from;
    conditions_read(&from);
    assert_true(from.ns > 0);
    assert_true(from.ticks > 0); /* Linux always counts */
    struct conditions_span span = conditions_since(&from);
    assert_true(span.elapsed_us >= 0);
    assert_true(span.steal_share >= 0 && span.steal_share <= 1);
    assert_true(span.wait_share >= 0 && span.throttled >= 0);
}

static void test_spin(void **state)
{
    (void)state;
    double rate = spin_rate();
    assert_true(isfinite(rate) && rate > 1); /* more than a million FLOP per second */
    assert_true(strcmp(spin_isa(), "avx512") == 0 || strcmp(spin_isa(), "avx2") == 0 || strcmp(spin_isa(), "baseline") == 0);
}

static void test_cache(void **state)
{
    (void)state;
    int64_t bytes = rotation_cache_bytes();
    assert_true(bytes >= 64 * 1024 && bytes <= (int64_t)16 << 30);
}

static void test_rotation(void **state)
{
    (void)state;
    struct rotation rotation = {.n = 3};
    int seen[3] = {0};
    for (int i = 0; i < 9; i++) {
        int copy = rotation_pick(&rotation, i);
        assert_in_range(copy, 0, 2);
        assert_int_equal(rotation.last, copy);
        seen[copy]++;
    }
    assert_true(seen[0] == 3 && seen[1] == 3 && seen[2] == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_span),
        cmocka_unit_test(test_spin),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_rotation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
