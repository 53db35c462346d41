/* tests/base/test_verdict.c -- codes are distinct and spelt as documents spell them. */
#include "base/check.h"
#include "base/verdict.h"

static void codes_are_distinct(void **state)
{
    (void)state;
    for (int i = 0; i < RULE_COUNT; i++) {
        assert_true(strlen(rule_code((enum rule)i)) > 0);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(rule_code((enum rule)i), rule_code((enum rule)j));
    }
    assert_string_equal(rule_code(RULE_HEADS_NOT_DIVISIBLE), "heads_not_divisible");
    assert_string_equal(rule_code((enum rule) - 1), "unknown");
}

static void no_names_its_rule(void **state)
{
    (void)state;
    struct verdict yes = VERDICT_YES, no = verdict_no(RULE_SEQ, "%d tokens do not divide by %d", 1023, 2);
    assert_true(verdict_ok(&yes));
    assert_string_equal(yes.why, "");
    assert_false(verdict_ok(&no));
    assert_int_equal(no.rule, RULE_SEQ);
    assert_string_equal(no.why, "1023 tokens do not divide by 2");
    assert_int_equal(no.nearest[0], 0);
}

static void a_long_reason_is_cut(void **state)
{
    (void)state;
    struct verdict no = verdict_no(RULE_MEMORY, "%0500d\n", 1);
    assert_int_equal(strlen(no.why), sizeof no.why - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_distinct),
        cmocka_unit_test(no_names_its_rule),
        cmocka_unit_test(a_long_reason_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
