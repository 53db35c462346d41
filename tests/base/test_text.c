/* tests/base/test_text.c -- growing, cutting, cleaning, guessing. */
#include "base/check.h"
#include "base/text.h"

static void texts_grow(void **state)
{
    (void)state;
    struct text text = {0};
    assert_string_equal(text_get(&text), "");
    text_add_raw(&text, "", 0);
    assert_non_null(text.s);
    for (int i = 0; i < 1000; i++)
        text_add(&text, "%03d,", i);
    CHECK_OK(text_status(&text));
    assert_int_equal(text.len, 4000);
    assert_int_equal(strlen(text_get(&text)), 4000);
    assert_memory_equal(text_get(&text) + 3996, "999,", 4);
    text_add_raw(&text, "a\0b", 3);
    assert_int_equal(text.len, 4003);
    text_free(&text);
    assert_null(text.s);
}

static void a_failure_sticks(void **state)
{
    (void)state;
    struct text text = {0};
    text_add(&text, "kept");
    text_add_raw(&text, "x", SIZE_MAX / 2);
    text_add(&text, "lost");
    assert_string_equal(text_get(&text), "kept");
    CHECK_FAILS(STATUS_NOMEM, "4 bytes", text_status(&text));
    text_free(&text);
    CHECK_OK(text_status(&text));
}

static void print_says_whether_it_fitted(void **state)
{
    (void)state;
    char buf[5];
    assert_true(text_print(buf, sizeof buf, "%d", 1234));
    assert_false(text_print(buf, sizeof buf, "%d", 12345));
    assert_string_equal(buf, "1234");
    assert_false(text_print(buf, 0, "x"));
}

static void clean_leaves_text_and_nothing_else(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"plain", "plain"},
        {"", ""},
        {"tab\tnewline\n", "tab?newline?"},
        {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
        {"\xe2\x82\xac \xf0\x9f\x98\x80", "\xe2\x82\xac \xf0\x9f\x98\x80"},
        {"cut \xe2\x82", "cut ??"},
        {"overlong \xc0\xaf", "overlong ??"},
        {"surrogate \xed\xa0\x80", "surrogate ???"},
        {"beyond \xf4\x90\x80\x80", "beyond ????"},
        {"c1 \xc2\x9b"
         "2J",
         "c1 ?2J"},
        {"esc \033[0m\x7f", "esc ?[0m?"},
    };
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        char buf[64];
        text_print(buf, sizeof buf, "%s", cases[i][0]);
        text_clean(buf);
        assert_string_equal(buf, cases[i][1]);
    }
}

static void slips_are_recognised(void **state)
{
    (void)state;
    static const char *const words[] = {"tune", "plan", "bench", "exchange", "attention", "topo", NULL, "model"};
    static const char *const cases[][2] = {
        {"exchnage", "exchange"},
        {"exch", "exchange"},
        {"tnue", "tune"},
        {"Bench", "bench"},
        {"atention", "attention"},
        {"modle", "model"},
        {"topology", NULL},
        {"zzz", NULL},
        {"", NULL},
        {"completely else", NULL},
        {"x", NULL},
    };
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        const char *found = text_nearest(cases[i][0], words, 8);
        if (cases[i][1]) {
            assert_non_null(found);
            assert_string_equal(found, cases[i][1]);
        } else {
            assert_null(found);
        }
    }
    char huge[5000];
    memset(huge, 'a', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    assert_null(text_nearest(huge, words, 8));
    assert_null(text_nearest(NULL, words, 8));
    assert_null(text_nearest("tune", NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_grow),
        cmocka_unit_test(a_failure_sticks),
        cmocka_unit_test(print_says_whether_it_fitted),
        cmocka_unit_test(clean_leaves_text_and_nothing_else),
        cmocka_unit_test(slips_are_recognised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
