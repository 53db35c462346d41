/* tests/base/test_lane.c -- jobs run in order beside their owner, more of them than there is room, and a failure is told once. */
#include "base/check.h"
#include "base/lane.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MANY = 10 * LANE_JOBS };

static int order[MANY + 1], ran;

static enum status note(void *arg)
{
    order[ran++] = *(int *)arg;
    return STATUS_OK;
}

static enum status fails(void *arg)
{
    return HINT(FAIL(STATUS_PEER, "job %d failed", *(int *)arg), "none");
}

static void jobs_run_in_order_and_none_is_lost(void **state)
{
    (void)state;
    struct lane *lane = NULL;
    int number[MANY];
    uint64_t ticket = 0;
    ran = 0;
    CHECK_OK(lane_open(&lane));
    CHECK_OK(lane_wait(lane, ticket));
    for (int i = 0; i < MANY; i++) {
        number[i] = i;
        ticket = lane_put(lane, note, &number[i]);
        assert_int_equal(ticket, i + 1);
    }
    CHECK_OK(lane_wait(lane, ticket));
    assert_int_equal(ran, MANY);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(order[i], i);
    ticket = lane_put(lane, note, &number[7]);
    lane_close(lane); /* runs what was put */
    assert_int_equal(ran, MANY + 1);
    lane_close(NULL);
}

static atomic_int go, seen;

static enum status wait_for_owner(void *arg)
{
    (void)arg;
    atomic_store(&seen, 1);
    while (!atomic_load(&go))
        ;
    return STATUS_OK;
}

static enum status self(void *arg)
{
    *(pthread_t *)arg = pthread_self();
    return STATUS_OK;
}

static void jobs_run_beside_the_owner(void **state)
{
    (void)state;
    struct lane *lane = NULL;
    pthread_t thread = pthread_self();
    uint64_t ticket;
    CHECK_OK(lane_open(&lane));
    lane_put(lane, wait_for_owner, NULL);
    ticket = lane_put(lane, self, &thread);
    while (!atomic_load(&seen)) /* would never end if lane_put ran the job */
        ;
    atomic_store(&go, 1);
    CHECK_OK(lane_wait(lane, ticket));
    assert_false(pthread_equal(thread, pthread_self()));
    lane_close(lane);
}

static atomic_int held;

static enum status hold(void *arg)
{
    (void)arg;
    while (!atomic_load(&held))
        ;
    return STATUS_OK;
}

static void what_was_put_before_a_failure_was_seen_never_runs(void **state)
{
    (void)state;
    struct lane *lane = NULL;
    int number[] = {1, 2, 3};
    ran = 0;
    atomic_store(&held, 0);
    CHECK_OK(lane_open(&lane));
    uint64_t first = lane_put(lane, note, &number[0]);
    CHECK_OK(lane_wait(lane, first));
    uint64_t failing = lane_put(lane, fails, &number[1]);
    lane_put(lane, hold, NULL); /* skipped: it would never end */
    uint64_t last = lane_put(lane, note, &number[2]);
    CHECK_OK(lane_wait(lane, first)); /* an earlier job's wait is not this failure's */
    CHECK_FAILS(STATUS_PEER, "job 2 failed", lane_wait(lane, failing));
    CHECK_OK(lane_wait(lane, last));
    assert_int_equal(ran, 1);
    CHECK_OK(lane_wait(lane, lane_put(lane, note, &number[2])));
    assert_int_equal(ran, 2);
    lane_close(lane);
}

static void a_failure_is_told_once_and_skips_what_follows(void **state)
{
    (void)state;
    struct lane *lane = NULL;
    int number[] = {1, 2, 3};
    uint64_t ticket;
    ran = 0;
    CHECK_OK(lane_open(&lane));
    ticket = lane_put(lane, note, &number[0]);
    ticket = lane_put(lane, fails, &number[1]);
    ticket = lane_put(lane, note, &number[2]);
    status_clear();
    CHECK_FAILS(STATUS_PEER, "job 2 failed", lane_wait(lane, ticket));
    assert_string_equal(status_last()->hint, "none");
    assert_int_equal(ran, 1);
    CHECK_OK(lane_wait(lane, ticket));
    ticket = lane_put(lane, note, &number[2]);
    CHECK_OK(lane_wait(lane, ticket));
    assert_int_equal(ran, 2);
    assert_int_equal(order[1], 3);
    lane_close(lane);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_run_in_order_and_none_is_lost),
        cmocka_unit_test(jobs_run_beside_the_owner),
        cmocka_unit_test(a_failure_is_told_once_and_skips_what_follows),
        cmocka_unit_test(what_was_put_before_a_failure_was_seen_never_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
