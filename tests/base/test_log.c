/* tests/base/test_log.c -- who speaks, what is repeated, what is kept. */
#include "base/check.h"
#include "base/log.h"
#include "base/temp.h"

#include <pthread.h>

static int reset(void **state)
{
    (void)state;
    log_reset();
    return 0;
}

static const char *say_all(enum log_level level, bool speaking)
{
    struct capture capture;
    log_setup(level, speaking);
    capture_begin(&capture, STDERR_FILENO);
    log_info("info %d", 1);
    log_verbose("verbose");
    log_warn("warn");
    return capture_end(&capture);
}

static void levels_choose_lines(void **state)
{
    (void)state;
    assert_string_equal(say_all(LOG_QUIET, true), "sptune: warning: warn\n");
    log_reset();
    assert_string_equal(say_all(LOG_NORMAL, true), "sptune: info 1\nsptune: warning: warn\n");
    log_reset();
    assert_string_equal(say_all(LOG_VERBOSE, true), "sptune: info 1\nsptune: verbose\nsptune: warning: warn\n");
}

static void a_silent_rank_keeps_its_warnings(void **state)
{
    (void)state;
    assert_string_equal(say_all(LOG_VERBOSE, false), "");
    assert_int_equal(log_warning_count(), 1);
    assert_string_equal(log_warning(0), "warn");
}

static void each_text_once_in_order(void **state)
{
    (void)state;
    struct capture capture;
    capture_begin(&capture, STDERR_FILENO);
    for (int i = 0; i < 6; i++)
        log_warn("number %d", i % 2);
    assert_string_equal(capture_end(&capture), "sptune: warning: number 0\nsptune: warning: number 1\n");
    assert_int_equal(log_warning_count(), 2);
    assert_string_equal(log_warning(1), "number 1");
    assert_string_equal(log_warning(2), "");
    assert_string_equal(log_warning(-1), "");
}

static void one_warning_is_one_line(void **state)
{
    (void)state;
    log_setup(LOG_NORMAL, false);
    log_warn("a\nb\r\xfe");
    assert_string_equal(log_warning(0), "a?b??");
}

static void a_flood_is_bounded_and_said(void **state)
{
    (void)state;
    log_setup(LOG_NORMAL, false);
    for (int i = 0; i < 1000; i++)
        log_warn("number %d", i);
    assert_int_equal(log_warning_count(), 256);
    assert_non_null(strstr(log_warning(255), "more than 255"));
}

static void *warn_often(void *unused)
{
    (void)unused;
    for (int i = 0; i < 50; i++)
        log_warn("shared %d", i);
    return NULL;
}

static void threads_may_warn(void **state)
{
    (void)state;
    pthread_t threads[4];
    log_setup(LOG_NORMAL, false);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, warn_often, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(log_warning_count(), 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(levels_choose_lines, reset, reset),
        cmocka_unit_test_setup_teardown(a_silent_rank_keeps_its_warnings, reset, reset),
        cmocka_unit_test_setup_teardown(each_text_once_in_order, reset, reset),
        cmocka_unit_test_setup_teardown(one_warning_is_one_line, reset, reset),
        cmocka_unit_test_setup_teardown(a_flood_is_bounded_and_said, reset, reset),
        cmocka_unit_test_setup_teardown(threads_may_warn, reset, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
