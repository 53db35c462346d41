/* cli/test_apart.c -- a question asked in a process of its own: its answer, its failure, its death, its silence. */
#include "base/check.h"
#include "cli/apart.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static int here; /* stays as it is, whatever the question does */

static enum status answer(void *arg, void *out)
{
    here++;
    *(int *)out = *(const int *)arg * 2;
    return STATUS_OK;
}

static enum status refuse(void *arg, void *out)
{
    (void)arg;
    *(int *)out = 99;
    return HINT(WHERE(FAIL(STATUS_USAGE, "no such store"), "%s", "store.db"), "make one");
}

static enum status die(void *arg, void *out)
{
    (void)arg;
    (void)out;
    raise(SIGKILL);
    return STATUS_OK;
}

static enum status say_nothing(void *arg, void *out)
{
    (void)arg;
    (void)out;
    pause();
    return STATUS_OK;
}

static void nothing_is_left(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child */
    assert_int_equal(here, 0);
}

static void what_it_answers_comes_back(void **state)
{
    (void)state;
    int four = 4, out = 0;
    CHECK_OK(apart_ask(answer, &four, &out, sizeof out, 60000));
    assert_int_equal(out, 8);
    nothing_is_left();
}

static void a_refusal_comes_back_whole(void **state)
{
    (void)state;
    int out = 7;
    CHECK_FAILS(STATUS_USAGE, "no such store", apart_ask(refuse, NULL, &out, sizeof out, 60000));
    assert_string_equal(status_last()->where, "store.db");
    assert_string_equal(status_last()->hint, "make one");
    assert_int_equal(out, 7);
    nothing_is_left();
}

static void death_and_silence_are_told(void **state)
{
    (void)state;
    int out = 7;
    CHECK_FAILS(STATUS_TIMEOUT, "ended, or did not answer", apart_ask(die, NULL, &out, sizeof out, 60000));
    CHECK_FAILS(STATUS_TIMEOUT, "within 50 ms", apart_ask(say_nothing, NULL, &out, sizeof out, 50));
    assert_int_equal(out, 7);
    nothing_is_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_answers_comes_back),
        cmocka_unit_test(a_refusal_comes_back_whole),
        cmocka_unit_test(death_and_silence_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
