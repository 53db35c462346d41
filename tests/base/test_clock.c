/* tests/base/test_clock.c -- time goes forward, deadlines do not overflow, stamps are well-formed. */
#include "base/check.h"
#include "base/clock.h"

#include <stdio.h>

static void time_goes_forward(void **state)
{
    (void)state;
    int64_t before = clock_ns();
    for (int i = 0; i < 1000; i++) {
        int64_t now = clock_ns();
        assert_true(now >= before);
        before = now;
    }
    assert_true(clock_resolution_ns() > 0);
    assert_int_equal(clock_resolution_ns(), clock_resolution_ns());
}

static void deadlines(void **state)
{
    (void)state;
    assert_true(clock_passed(clock_deadline(0)));
    assert_false(clock_passed(clock_deadline(3600000000)));
    assert_true(clock_deadline(-1) == INT64_MAX);
    assert_true(clock_deadline(INT64_MAX) == INT64_MAX);
    assert_true(clock_deadline(INT64_MAX / 1000) == INT64_MAX);
    assert_false(clock_passed(INT64_MAX));
}

static void stamps_are_iso(void **state)
{
    (void)state;
    char buf[32];
    int year, month, day, hour, minute, second, end = 0;
    clock_iso(buf);
    assert_int_equal(sscanf(buf, "%4d-%2d-%2dT%2d:%2d:%2dZ%n", &year, &month, &day, &hour, &minute, &second, &end), 6);
    assert_int_equal(strlen(buf), 20);
    assert_int_equal(end, 20);
    assert_true(year >= 2024 && month >= 1 && month <= 12 && day >= 1 && day <= 31);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_goes_forward),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(stamps_are_iso),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
