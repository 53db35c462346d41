/* tests/base/test_status.c -- one message per thread, three parts, never stale. */
#include "base/check.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>

static void names_follow_the_list(void **state)
{
    (void)state;
    static const char *const expected[] = {
#define STATUS_ENUM(name, exit_code, text) #name,
        STATUS_LIST(STATUS_ENUM)
#undef STATUS_ENUM
    };
    for (int i = 0; i < STATUS_COUNT; i++) {
        const char *name = status_name((enum status)i);
        assert_int_equal(strlen(name), strlen(expected[i]));
        for (size_t k = 0; name[k]; k++)
            assert_int_equal(toupper((unsigned char)name[k]), expected[i][k]);
        assert_true(strlen(status_text((enum status)i)) > 0);
    }
    assert_string_equal(status_name((enum status)99), "unknown");
    assert_int_equal(status_exit_code((enum status)99), 4);
}

static void exit_codes_are_the_contract(void **state)
{
    (void)state;
    assert_int_equal(status_exit_code(STATUS_OK), 0);
    assert_int_equal(status_exit_code(STATUS_CHECK), 1);
    assert_int_equal(status_exit_code(STATUS_NOFIT), 1);
    assert_int_equal(status_exit_code(STATUS_USAGE), 2);
    assert_int_equal(status_exit_code(STATUS_ABSENT), 2);
    assert_int_equal(status_exit_code(STATUS_NODATA), 3);
    assert_int_equal(status_exit_code(STATUS_PEER), 4);
    assert_int_equal(status_exit_code(STATUS_IO), 4);
    assert_int_equal(status_exit_code(STATUS_INTERRUPTED), 130);
    assert_int_equal(status_exit_code(STATUS_UNREAD), 141);
    assert_int_equal(status_exit_code(STATUS_TERMINATED), 143);
}

static enum status deep(int value)
{
    return HINT(WHERE(FAIL(STATUS_USAGE, "sp_size %d is not positive", value), "line %d", 3), "use 1 or more");
}

static enum status middle(int value)
{
    TRY(deep(value));
    return STATUS_OK;
}

static void parts_gather_on_the_way_up(void **state)
{
    (void)state;
    enum status status = HINT(WHERE(status_rank(middle(-2), 5), "--sp"), "or leave it out");
    const struct status_message *last = status_last();
    assert_int_equal(status, STATUS_USAGE);
    assert_int_equal(last->code, STATUS_USAGE);
    assert_string_equal(last->what, "sp_size -2 is not positive");
    assert_string_equal(last->where, "line 3; --sp");
    assert_string_equal(last->hint, "use 1 or more; or leave it out");
    assert_int_equal(last->rank, 5);
    assert_non_null(strstr(last->source, "test_status.c:"));
}

static void a_new_failure_forgets_the_old_one(void **state)
{
    (void)state;
    deep(-1);
    assert_int_equal(FAIL(STATUS_IO, "disk"), STATUS_IO);
    assert_string_equal(status_last()->where, "");
    assert_string_equal(status_last()->hint, "");
    assert_int_equal(status_last()->rank, -1);
}

static void a_failure_is_never_ok(void **state)
{
    (void)state;
    volatile enum status fine = STATUS_OK;
    assert_int_equal(FAIL(fine, "who said so"), STATUS_MACHINE);
    assert_string_equal(status_last()->what, "who said so");
}

static void ok_passes_untouched(void **state)
{
    (void)state;
    FAIL(STATUS_IO, "disk");
    assert_int_equal(HINT(WHERE(status_rank(STATUS_OK, 3), "x"), "y"), STATUS_OK);
    assert_string_equal(status_last()->where, "");
    assert_int_equal(status_last()->rank, -1);
}

static void a_code_without_its_message_does_not_borrow_one(void **state)
{
    (void)state;
    FAIL(STATUS_IO, "disk");
    WHERE(STATUS_TIMEOUT, "rank 3");
    assert_string_equal(status_last()->what, status_text(STATUS_TIMEOUT));
    assert_string_equal(status_last()->where, "rank 3");
}

static void arguments_may_be_the_message(void **state)
{
    (void)state;
    deep(-1);
    FAIL(STATUS_PEER, "rank 1 said: %s", status_last()->what);
    assert_string_equal(status_last()->what, "rank 1 said: sp_size -1 is not positive");
    WHERE(STATUS_PEER, "%s", status_last()->what);
    assert_string_equal(status_last()->where, status_last()->what);
}

static void long_and_dirty_text_is_cut_and_cleaned(void **state)
{
    (void)state;
    char big[2000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    for (int i = 0; i < 10; i++)
        HINT(WHERE(FAIL(STATUS_USAGE, "%s", big), "%s", big), "%s", big);
    for (int i = 0; i < 10; i++)
        HINT(WHERE(STATUS_USAGE, "%s", big), "%s", big);
    assert_int_equal(strlen(status_last()->what), sizeof status_last()->what - 1);
    assert_int_equal(strlen(status_last()->where), sizeof status_last()->where - 1);
    FAIL(STATUS_USAGE, "a\nb\033[2Jc\xff");
    assert_string_equal(status_last()->what, "a?b?[2Jc?");
}

static void restore_trusts_nothing(void **state)
{
    (void)state;
    struct status_message hostile;
    memset(&hostile, 'z', sizeof hostile);
    status_restore(&hostile);
    assert_int_equal(status_last()->code, STATUS_PEER);
    assert_int_equal(strlen(status_last()->what), sizeof hostile.what - 1);
    status_clear();
    assert_int_equal(status_last()->code, STATUS_OK);
    assert_string_equal(status_last()->what, "");
}

static void *other_thread(void *seen)
{
    *(int *)seen = (int)status_last()->code;
    FAIL(STATUS_NOMEM, "mine");
    return NULL;
}

static void threads_do_not_share(void **state)
{
    (void)state;
    pthread_t thread;
    int seen = -1;
    FAIL(STATUS_IO, "main");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &seen), 0);
    pthread_join(thread, NULL);
    assert_int_equal(seen, STATUS_OK);
    assert_string_equal(status_last()->what, "main");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_follow_the_list),
        cmocka_unit_test(exit_codes_are_the_contract),
        cmocka_unit_test(parts_gather_on_the_way_up),
        cmocka_unit_test(a_new_failure_forgets_the_old_one),
        cmocka_unit_test(a_failure_is_never_ok),
        cmocka_unit_test(ok_passes_untouched),
        cmocka_unit_test(a_code_without_its_message_does_not_borrow_one),
        cmocka_unit_test(arguments_may_be_the_message),
        cmocka_unit_test(long_and_dirty_text_is_cut_and_cleaned),
        cmocka_unit_test(restore_trusts_nothing),
        cmocka_unit_test(threads_do_not_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
