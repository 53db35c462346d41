/* tests/base/test_thread.c -- a thread of ours takes no signals, and starting it changes nothing for the one that starts it. */
#include "base/check.h"
#include "base/thread.h"

#include <signal.h>

static void *look(void *arg)
{
    pthread_sigmask(SIG_SETMASK, NULL, arg);
    return NULL;
}

static void takes_no_signals(void **state)
{
    (void)state;
    sigset_t before, inside, after, one;
    pthread_t thread;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &one, &before);
    sigemptyset(&inside);
    assert_int_equal(thread_start(&thread, look, &inside), 0);
    pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, &after);
    assert_true(sigismember(&after, SIGUSR1) == 1 && sigismember(&after, SIGINT) == 0);
    static const int ours[] = {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGALRM, SIGPIPE};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        assert_int_equal(sigismember(&inside, ours[i]), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(takes_no_signals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
