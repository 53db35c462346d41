/* bench/test_conditions.c -- readings of this machine are there and make sense. No time is asserted. */
#include "base/cache.h"
#include "base/check.h"
#include "base/temp.h"
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

/* ---- a machine made here ---- */

static void make_machine(struct temp *temp)
{
    temp_open(temp);
    temp_put(temp, "proc/self/cgroup", "0::/job\n");
    temp_put(temp, "proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
}

/* 1,000 ticks go by, 250 of them stolen; the group is stopped three times; 40 ms are waited for a CPU. */
static void test_steal_and_quota(void **state)
{
    (void)state;
    struct temp temp;
    struct conditions from, to;
    make_machine(&temp);
    temp_put(&temp, "proc/stat", "cpu  1000 0 500 9000 0 0 0 100 0 0\n");
    temp_put(&temp, "proc/self/schedstat", "5000 1000000 7\n");
    temp_put(&temp, "sys/fs/cgroup/job/cpu.stat", "usage_usec 5\nnr_periods 10\nnr_throttled 2\n");
    conditions_read_at(temp.dir, &from);
    temp_put(&temp, "proc/stat", "cpu  1500 0 600 9150 0 0 0 350 0 0\n");
    temp_put(&temp, "proc/self/schedstat", "9000 41000000 9\n");
    temp_put(&temp, "sys/fs/cgroup/job/cpu.stat", "usage_usec 9\nnr_periods 20\nnr_throttled 5\n");
    conditions_read_at(temp.dir, &to);
    to.ns = from.ns + 100 * 1000 * 1000;
    struct conditions_span span = conditions_between(&from, &to);
    assert_true(fabs(span.steal_share - 0.25) < 1e-9);
    assert_true(fabs(span.wait_share - 0.4) < 1e-9);
    assert_true(fabs(span.throttled - 3) < 1e-9);
    assert_true(fabs(span.elapsed_us - 100000) < 1e-6);
    temp_close(&temp);
}

/* One tick is what the clock cannot tell from none; without /proc nothing is known, and nothing is held against a row. */
static void test_little_and_nothing(void **state)
{
    (void)state;
    struct temp temp;
    struct conditions from, to;
    make_machine(&temp);
    temp_put(&temp, "proc/stat", "cpu  1000 0 500 9000 0 0 0 100 0 0\n");
    conditions_read_at(temp.dir, &from);
    temp_put(&temp, "proc/stat", "cpu  1005 0 500 9004 0 0 0 101 0 0\n");
    conditions_read_at(temp.dir, &to);
    assert_true(conditions_between(&from, &to).steal_share == 0);
    conditions_read_at(temp_path(&temp, "nowhere"), &from);
    conditions_read_at(temp_path(&temp, "nowhere"), &to);
    struct conditions_span span = conditions_between(&from, &to);
    assert_true(span.steal_share == 0 && span.wait_share == 0 && span.throttled == 0);
    temp_close(&temp);
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
    int64_t bytes = cache_bytes();
    assert_true(bytes >= 64 * 1024 && bytes <= (int64_t)16 << 30);
    assert_true(cache_core_bytes() >= 0 && cache_core_bytes() <= bytes);
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
        cmocka_unit_test(test_steal_and_quota),
        cmocka_unit_test(test_little_and_nothing),
        cmocka_unit_test(test_spin),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_rotation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
