/* tests/comm/test_signals.c -- signals to the supervisor, and the supervisor's own end. */
#include "ranks.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t got;

static void on_signal(int sig)
{
    got = sig;
}

/* Rank 0 decides: it ends cleanly at the first signal. The others get none. */
static int decide(const struct launch *launch, void *arg)
{
    (void)arg;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    board->flag[launch->rank] = 1;
    if (launch->rank == 1) {
        while (board->flag[0] != 2)
            ranks_sleep_ms(1);
        RANK_CHECK(!got);
        return 130;
    }
    while (!got)
        ranks_sleep_ms(1);
    ranks_sleep_ms(20);
    board->flag[0] = 2;
    return 128 + got;
}

/* A caller's mask is inherited. */
static int decide_unblocked(const struct launch *launch, void *arg)
{
    sigset_t none;
    sigemptyset(&none);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    sigprocmask(SIG_SETMASK, &none, NULL);
    return decide(launch, arg);
}

static int insist(const struct launch *launch, void *arg)
{
    (void)arg;
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    board->flag[launch->rank] = 1;
    return ranks_sleep_forever();
}

static int defenceless(const struct launch *launch, void *arg)
{
    (void)arg;
    board->flag[launch->rank] = 1;
    return launch->rank == 0 ? ranks_sleep_forever() : 0;
}

/* A process beside the test that sends signals to its supervisor once both ranks run. */
static pid_t start_sender(int sig, int count, int gap_ms)
{
    pid_t supervisor = getpid(), sender = fork();
    if (sender != 0)
        return sender;
    while (!board->flag[0] || !board->flag[1])
        ranks_sleep_ms(1);
    for (int i = 0; i < count; i++) {
        kill(supervisor, sig);
        ranks_sleep_ms(gap_ms);
    }
    _exit(0);
}

static struct launch_report run_signalled(launch_rank_main rank_main, int sig, int count, int gap_ms)
{
    ranks_fresh_board();
    struct launch_report report;
    pid_t sender = start_sender(sig, count, gap_ms);
    assert_int_equal(launch_fork(2, NULL, rank_main, NULL, &report), STATUS_OK);
    assert_false(board->failed);
    waitpid(sender, NULL, 0);
    return report;
}

static void test_signal_forwarded(void **state)
{
    (void)state;
    struct launch_report report = run_signalled(decide, SIGINT, 1, 0);
    assert_int_equal(report.exit_code, 130);
    assert_int_equal(report.failed_rank, -1);
    assert_true(report.root_spoke);
    /* Two within a few milliseconds are one wish: rank 0 still gets to decide. */
    report = run_signalled(decide, SIGINT, 2, 3);
    assert_int_equal(report.exit_code, 130);
    assert_true(report.root_spoke);
}

static void *sleep_in_a_thread(void *arg)
{
    (void)arg;
    ranks_sleep_forever();
    return NULL;
}

/* The kernel may give a signal to any thread: a library's would end the process. */
static void test_signal_hits_thread(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message(
        "skipped: tsan delays a signal to a thread that only waits, and does not support forking beside it\n");
    skip();
#endif
    sigset_t both, mask;
    pthread_t thread;
    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    assert_int_equal(pthread_create(&thread, NULL, sleep_in_a_thread, NULL), 0);
    pthread_sigmask(SIG_BLOCK, &both, &mask); /* so that it has to be the other thread */
    struct launch_report report = run_signalled(decide_unblocked, SIGTERM, 1, 0);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    assert_int_equal(report.exit_code, 143);
    assert_true(report.root_spoke);
}

static int ignored_by_caller(const struct launch *launch, void *arg)
{
    (void)arg;
    board->flag[launch->rank] = 1;
    struct sigaction now;
    RANK_CHECK(sigaction(SIGINT, NULL, &now) == 0 && now.sa_handler == SIG_IGN);
    for (int i = 0; i < 50 && launch->rank == 0; i++)
        ranks_sleep_ms(1); /* the signal comes and goes */
    return 0;
}

/* A caller that ignores SIGINT, as a background job of a shell does, and SIGCHLD: ranks end as they want, and are
 * counted. */
static void test_signal_ignored(void **state)
{
    (void)state;
    struct sigaction now;
    signal(SIGINT, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    struct launch_report report = run_signalled(ignored_by_caller, SIGINT, 1, 0);
    assert_int_equal(report.exit_code, 0);
    sigaction(SIGINT, NULL, &now);
    assert_ptr_equal(now.sa_handler, SIG_IGN);
    sigaction(SIGCHLD, NULL, &now);
    assert_ptr_equal(now.sa_handler, SIG_IGN);
    signal(SIGINT, SIG_DFL);
    signal(SIGCHLD, SIG_DFL);
}

static void test_signal_twice_kills(void **state)
{
    (void)state;
    struct launch_report report = run_signalled(insist, SIGTERM, 2, 150);
    assert_int_equal(report.exit_code, 143);
    assert_int_equal(report.failed_rank, -1);
    assert_int_equal(report.signal, SIGTERM);
    assert_false(report.root_spoke);
}

/* Before rank 0 has a handler, the signal ends it: that is the user's wish, not a rank that died. */
static void test_signal_early(void **state)
{
    (void)state;
    struct launch_report report = run_signalled(defenceless, SIGTERM, 1, 0);
    assert_int_equal(report.exit_code, 143);
    assert_int_equal(report.failed_rank, -1);
    assert_false(report.root_spoke);
}

static int tick(const struct launch *launch, void *arg)
{
    (void)arg;
    board->pid[launch->rank] = getpid();
    while (!board->flag[RANKS_MAX - 1]) {
        board->flag[launch->rank]++;
        ranks_sleep_ms(1);
    }
    return 0;
}

static void await_ticks(int rank)
{
    for (int now = board->flag[rank]; board->flag[rank] < now + 2;)
        ranks_sleep_ms(1);
}

/* Ctrl-Z stops the ranks with their supervisor, fg continues them with it. */
static void test_suspend(void **state)
{
    (void)state;
    ranks_fresh_board();
    pid_t supervisor = fork();
    if (supervisor == 0) {
        struct launch_report report = {.exit_code = 99};
        setpgid(0, 0); /* as a shell's job */
        launch_fork(2, NULL, tick, NULL, &report);
        _exit(report.exit_code);
    }
    await_ticks(0);
    await_ticks(1);
    int status, before[2];
    kill(supervisor, SIGTSTP);
    assert_int_equal(waitpid(supervisor, &status, WUNTRACED), supervisor);
    assert_true(WIFSTOPPED(status));
    ranks_sleep_ms(5); /* a tick under way may still come */
    before[0] = board->flag[0];
    before[1] = board->flag[1];
    ranks_sleep_ms(30);
    assert_int_equal(board->flag[0], before[0]);
    assert_int_equal(board->flag[1], before[1]);
    kill(supervisor, SIGCONT);
    await_ticks(0);
    await_ticks(1);
    board->flag[RANKS_MAX - 1] = 1;
    assert_int_equal(waitpid(supervisor, &status, 0), supervisor);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int wait_forever(const struct launch *launch, void *arg)
{
    (void)arg;
    board->pid[launch->rank] = getpid();
    return ranks_sleep_forever();
}

static void test_supervisor_killed(void **state)
{
    (void)state;
    ranks_fresh_board();
    pid_t supervisor = fork();
    if (supervisor == 0) {
        struct launch_report report;
        launch_fork(3, NULL, wait_forever, NULL, &report);
        _exit(0);
    }
    while (!board->pid[0] || !board->pid[1] || !board->pid[2])
        ranks_sleep_ms(1);
    kill(supervisor, SIGKILL);
    waitpid(supervisor, NULL, 0);
    for (int r = 0; r < 3; r++)
        ranks_await_end(board->pid[r]); /* for ever when one lives on: the test's own timeout says so */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signal_forwarded),  cmocka_unit_test(test_signal_hits_thread),
        cmocka_unit_test(test_signal_ignored),    cmocka_unit_test(test_signal_twice_kills),
        cmocka_unit_test(test_signal_early),      cmocka_unit_test(test_suspend),
        cmocka_unit_test(test_supervisor_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
