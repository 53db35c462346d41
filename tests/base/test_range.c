/* tests/base/test_range.c -- ranges without a profiler: status goes through, and nothing else happens. tests/cli/test_range.c
 * sees them with one. */
#include "base/range.h"

#include "base/check.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>

static int calls;

static enum status work(enum status status)
{
    calls++;
    return status;
}

static enum status try_ranges(void)
{
    TRY(RANGE("outer", RANGE_AT("inner", 3, work(STATUS_OK))));
    TRY(RANGE("fails", work(FAIL(STATUS_NODATA, "on purpose"))));
    return work(STATUS_OK);
}

static void test_status_goes_through(void **state)
{
    (void)state;
    calls = 0;
    assert_int_equal(try_ranges(), STATUS_NODATA);
    assert_string_equal(status_last()->what, "on purpose");
    assert_int_equal(calls, 2);
    status_clear();
}

static void test_nobody_listens(void **state)
{
    (void)state;
    range_push("first"); /* looks for a profiler */
    range_pop();
    assert_true(range_is_off());
    range_pop(); /* one too many is no crash */
}

/* Not a check: what a push and its pop cost, for the comment in base/range.h. */
static void test_cost(void **state)
{
    enum { TIMES = 100 * 1000 * 1000 };
    (void)state;
    if (getenv("SPTUNE_RANGE_COST") == NULL) {
        print_message("skipped: set SPTUNE_RANGE_COST to measure it\n");
        skip();
    }
    int64_t from = clock_ns();
    for (int i = 0; i < TIMES; i++) {
        range_push("cost");
        __asm__ volatile("" ::: "memory"); /* the flag is read again */
        range_pop();
        __asm__ volatile("" ::: "memory");
    }
    double with = (double)(clock_ns() - from) / TIMES;
    from = clock_ns();
    for (int i = 0; i < TIMES; i++) {
        __asm__ volatile("" ::: "memory");
        __asm__ volatile("" ::: "memory");
    }
    printf("push and pop: %.2f ns, the empty loop %.2f ns\n", with, (double)(clock_ns() - from) / TIMES);
}

int main(void)
{
    unsetenv("NVTX_INJECTION64_PATH");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_goes_through),
        cmocka_unit_test(test_nobody_listens),
        cmocka_unit_test(test_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
