/* tests/base/test_team.c -- every task runs once, lower ones first; calls follow each other at any pace; a forked child may let go. */
#include "base/check.h"
#include "base/dev.h"
#include "base/team.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TASKS = 1000, THREADS = 5, CALLS = 300 };

struct tally {
    int ran[TASKS]; /* not atomic: a task that runs twice, or is not seen by the caller, shows under a race detector */
    atomic_int thread_tasks[THREADS];
};

static void count(void *arg, int64_t task, int thread)
{
    struct tally *tally = arg;
    tally->ran[task]++;
    atomic_fetch_add(&tally->thread_tasks[thread], 1);
}

static void every_task_runs_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= THREADS; threads++) {
        struct tally tally = {0};
        struct team *team = NULL;
        CHECK_OK(team_create(threads, &team));
        assert_int_equal(team_threads(team), threads);
        for (int call = 0; call < CALLS; call++) {
            team_run(team, call % 7 == 0 ? 0 : TASKS, count, &tally);
            if (call % 100 == 50) /* now the others sleep */
                nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        }
        int full = CALLS - (CALLS + 6) / 7, all = 0;
        for (int i = 0; i < TASKS; i++)
            assert_int_equal(tally.ran[i], full);
        for (int i = 0; i < THREADS; i++) {
            all += tally.thread_tasks[i];
            assert_true(i < threads || tally.thread_tasks[i] == 0);
        }
        assert_int_equal(all, full * TASKS);
        team_destroy(team);
    }
    team_destroy(NULL);
}

/* Each task waits for the one before it, which can only end well when lower ones are taken first. */
static void lower_task_first(void *arg, int64_t task, int thread)
{
    _Atomic int64_t *done = arg;
    (void)thread;
    while (atomic_load(done) != task)
        sched_yield();
    atomic_store(done, task + 1);
}

static void a_task_may_wait_for_a_lower_one(void **state)
{
    (void)state;
    struct team *team = NULL;
    _Atomic int64_t done = 0;
    CHECK_OK(team_create(4, &team));
    team_run(team, TASKS, lower_task_first, &done);
    assert_int_equal(done, TASKS);
    team_destroy(team);
}

static void meet(void *arg, int64_t task, int thread)
{
    atomic_int *here = arg;
    (void)task;
    (void)thread;
    atomic_fetch_add(here, 1);
    while (atomic_load(here) < 3)
        sched_yield();
}

static void all_threads_take_part(void **state)
{
    (void)state;
    struct team *team = NULL;
    CHECK_OK(team_create(3, &team));
    for (int call = 0; call < 10; call++) {
        atomic_int here = 0;
        team_run(team, 3, meet, &here); /* hangs unless three threads are inside at once */
        assert_int_equal(here, 3);
    }
    team_destroy(team);
}

static void counts_are_checked(void **state)
{
    (void)state;
    struct team *team = NULL;
    CHECK_FAILS(STATUS_USAGE, "0 threads", team_create(0, &team));
    CHECK_FAILS(STATUS_USAGE, "1025 threads", team_create(TEAM_THREADS_MAX + 1, &team));
    assert_null(team);
}

static void a_forked_child_may_let_go(void **state)
{
    (void)state;
    struct team *team = NULL;
    struct tally tally = {0};
    CHECK_OK(team_create(3, &team));
    team_run(team, TASKS, count, &tally);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        team_destroy(team); /* must not wait for threads that are not here */
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    team_run(team, TASKS, count, &tally);
    assert_int_equal(tally.ran[TASKS - 1], 2);
    team_destroy(team);
}

static void nested(void *arg, int64_t task, int thread)
{
    (void)task;
    (void)thread;
    team_run(arg, 1, nested, arg);
}

/* What the child says goes nowhere; how it ends is what counts. */
static int how_it_ends(struct team *parents)
{
    int status = -1;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct team *own = NULL;
        struct tally tally = {0};
        (void)!freopen("/dev/null", "w", stderr);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        if (parents != NULL)
            team_run(parents, 2, count, &tally);
        else if (team_create(2, &own) == STATUS_OK)
            team_run(own, 2, nested, own);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void a_call_within_a_call_or_after_a_fork_ends_the_program(void **state)
{
    (void)state;
    struct team *team = NULL;
    assert_int_equal(how_it_ends(NULL), SIGABRT);
    CHECK_OK(team_create(2, &team));
    assert_int_equal(how_it_ends(team), SIGABRT);
    team_destroy(team);
}

static void a_device_shares_tasks_on_its_queue(void **state)
{
    (void)state;
    struct dev *dev = NULL;
    struct dev_queue *queue = NULL, *beside = NULL;
    struct tally tally = {0};
    CHECK_OK(dev_open(DEV_CPU, 0, &dev));
    assert_true(dev_threads(dev) >= 1);
    CHECK_FAILS(STATUS_USAGE, "0 threads", dev_threads_set(dev, 0));
    CHECK_FAILS(STATUS_USAGE, "1025 threads", dev_threads_set(dev, DEV_THREADS_MAX + 1));
    CHECK_OK(dev_queue_create(dev, &queue));
    CHECK_OK(dev_queue_create_beside(dev, &beside));
    for (int threads = 3; threads >= 1; threads -= 2) {
        atomic_int here = threads == 1 ? 2 : 0;
        CHECK_OK(dev_threads_set(dev, threads));
        assert_int_equal(dev_threads(dev), threads);
        assert_int_equal(dev_queue_threads(queue), threads);
        assert_int_equal(dev_queue_threads(beside), 1);
        assert_int_equal(dev_queue_threads(NULL), 1);
        dev_parallel(queue, threads, meet, &here);
        assert_int_equal(here, 3);
    }
    CHECK_OK(dev_threads_set(dev, 4));
    dev_parallel(queue, TASKS, count, &tally);
    dev_parallel(beside, TASKS, count, &tally);
    dev_parallel(NULL, TASKS, count, &tally);
    dev_parallel(queue, 0, count, &tally);
    for (int i = 0; i < TASKS; i++)
        assert_int_equal(tally.ran[i], 3);
    dev_queue_destroy(beside);
    dev_queue_destroy(queue);
    dev_close(dev);
}

static void without_a_team_the_caller_runs_all(void **state)
{
    (void)state;
    struct tally tally = {0};
    assert_null(team_or_alone(1));
    assert_null(team_or_alone(TEAM_THREADS_MAX + 1));
    assert_int_equal(status_last()->code, STATUS_OK);
    team_run(NULL, TASKS, count, &tally);
    for (int i = 0; i < TASKS; i++)
        assert_int_equal(tally.ran[i], 1);
    assert_int_equal(tally.thread_tasks[0], TASKS);
    struct team *team = team_or_alone(2);
    assert_int_equal(team_threads(team), 2);
    team_destroy(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(a_task_may_wait_for_a_lower_one),
        cmocka_unit_test(all_threads_take_part),
        cmocka_unit_test(counts_are_checked),
        cmocka_unit_test(a_forked_child_may_let_go),
        cmocka_unit_test(a_call_within_a_call_or_after_a_fork_ends_the_program),
        cmocka_unit_test(a_device_shares_tasks_on_its_queue),
        cmocka_unit_test(without_a_team_the_caller_runs_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
