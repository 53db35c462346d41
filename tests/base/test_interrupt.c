/* tests/base/test_interrupt.c -- once is remembered, twice ends, the other ranks ignore. */
#include "base/check.h"
#include "base/interrupt.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs `act` in a child; the wait status. */
static int in_child(int (*act)(void))
{
    int ended = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(act());
    assert_int_equal(waitpid(child, &ended, 0), child);
    return ended;
}

static int signal_once(void)
{
    interrupt_setup(NULL);
    if (interrupt_pending() || interrupt_status() != STATUS_OK)
        return 1;
    raise(SIGINT);
    return interrupt_pending() == SIGINT && interrupt_status() == STATUS_INTERRUPTED ? 0 : 2;
}

/* The first signal is answered with one line at once, the second ends. */
static int signal_said(void)
{
    char said[256];
    int fds[2];
    if (pipe(fds) != 0 || dup2(fds[1], STDERR_FILENO) < 0)
        return 1;
    interrupt_setup("this step");
    raise(SIGINT);
    ssize_t n = read(fds[0], said, sizeof said - 1);
    said[n > 0 ? n : 0] = '\0';
    return strcmp(said, "sptune: interrupted: ends after this step; again stops at once\n") == 0 ? 0 : 2;
}

static int terminate_once(void)
{
    interrupt_setup(NULL);
    raise(SIGTERM);
    return interrupt_pending() == SIGTERM && interrupt_status() == STATUS_TERMINATED ? 0 : 2;
}

static int signal_twice(void)
{
    interrupt_setup(NULL);
    raise(SIGINT);
    raise(SIGTERM);
    return 0;
}

static int ignore(void)
{
    interrupt_ignore();
    raise(SIGINT);
    raise(SIGTERM);
    raise(SIGTERM);
    return interrupt_pending() == 0 && interrupt_status() == STATUS_OK ? 0 : 1;
}

static void the_first_is_remembered(void **state)
{
    (void)state;
    assert_int_equal(in_child(signal_once), 0);
    assert_int_equal(in_child(signal_said), 0);
    assert_int_equal(in_child(terminate_once), 0);
}

static void the_second_ends(void **state)
{
    (void)state;
    int ended = in_child(signal_twice);
    assert_true(WIFSIGNALED(ended));
    assert_int_equal(WTERMSIG(ended), SIGTERM);
}

static void other_ranks_ignore(void **state)
{
    (void)state;
    assert_int_equal(in_child(ignore), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_is_remembered),
        cmocka_unit_test(the_second_ends),
        cmocka_unit_test(other_ranks_ignore),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
