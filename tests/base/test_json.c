/* tests/base/test_json.c -- places in messages, limits, types, the envelope. */
#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/temp.h"
#include "base/version.h"

#include <fcntl.h>
#include <math.h>
#include <sys/wait.h>

static enum status parse(const char *text, json_t **out)
{
    return json_parse(text, strlen(text), "config.json", out);
}

static void malformed_text_has_a_place(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"", "empty", "config.json"},
        {" \n\t", "empty", "config.json"},
        {"\xef\xbb\xbf", "empty", "config.json"},
        {"{\"a\": 1,\n \"b\" 2}", "':' expected", "line 2 column 6"},
        {"{\"a\": 1} x", "end of file expected", "line 1 column 10"},
        {"{\"a\": NaN}", "NaN", "line 1"},
        {"{\"a\": 1000000000000000000000000000000}", "too large", "line 1 column 37"},
        {"{\"a\": -9223372036854775809}", "too large", "line 1"},
        {"{\"a\": 1e999}", "too large", "line 1"},
        {"[1,]", "", "line 1 column 4"},
        {"{\"a\": \"\xff\"}", "decode byte 0xff", "line 1"},
        {"{\"a\": tru", "", "line 1"},
        {"[", "", "line 1"},
        {"]", "", "line 1"},
        {"8", "", "line 1"},
        {"'a'", "", "line 1"},
    };
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        json_t *root = NULL;
        CHECK_FAILS(STATUS_USAGE, cases[i][1], parse(cases[i][0], &root));
        if (!strstr(status_last()->where, cases[i][2]))
            fail_msg("%s: '%s' is not in '%s'", cases[i][0], cases[i][2], status_last()->where);
        assert_null(root);
    }
}

static void depth_is_limited(void **state)
{
    (void)state;
    static char text[200001];
    json_t *root = NULL;
    for (int depth = JSON_DEPTH; depth <= JSON_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = '\0';
        if (depth == JSON_DEPTH) {
            CHECK_OK(parse(text, &root));
            json_decref(root);
        } else {
            CHECK_FAILS(STATUS_USAGE, "deeper than 64", parse(text, &root));
            assert_string_equal(status_last()->where, "config.json line 1 column 65");
        }
    }
    memset(text, '[', sizeof text - 1);
    CHECK_FAILS(STATUS_USAGE, "deeper", parse(text, &root));
    for (size_t i = 0; i + 5 < sizeof text - 1; i += 5)
        memcpy(text + i, "{\"a\":", 5);
    CHECK_FAILS(STATUS_USAGE, "deeper", parse(text, &root));
    CHECK_OK(parse("{\"a\\\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\": 1}", &root));
    json_decref(root);
}

static void odd_but_legal_text_is_read(void **state)
{
    (void)state;
    json_t *root = NULL;
    int64_t value = 0;
    CHECK_OK(parse("\xef\xbb\xbf{\"a\": 1, \"a\": 2, \"b\": 9223372036854775807}", &root));
    CHECK_OK(json_int(root, "a", "f", 0, &value));
    assert_int_equal(value, 2);
    CHECK_OK(json_int(root, "b", "f", 0, &value));
    assert_int_equal(value, INT64_MAX);
    json_decref(root);
}

static void getters_know_types(void **state)
{
    (void)state;
    json_t *root = NULL, *found = NULL;
    int64_t n = 0;
    double x = 0;
    bool flag = false;
    const char *text = NULL;
    CHECK_OK(parse("{\"i\": 8, \"w\": 8.0, \"r\": 8.5, \"h\": 1e18, \"e\": 1e30, \"m\": -9223372036854775808.0,"
                   " \"p\": 9223372036854775808.0, \"s\": \"x\", \"t\": true, \"z\": null, \"l\": [], \"o\": {}}",
                   &root));
    CHECK_OK(json_int(root, "i", "f", 0, &n));
    assert_int_equal(n, 8);
    CHECK_OK(json_int(root, "w", "f", 0, &n));
    assert_int_equal(n, 8);
    CHECK_OK(json_int(root, "h", "f", 0, &n));
    assert_int_equal(n, 1000000000000000000);
    CHECK_OK(json_int(root, "m", "f", 0, &n));
    assert_int_equal(n, INT64_MIN);
    CHECK_OK(json_int(root, "z", "f", -5, &n));
    assert_int_equal(n, -5);
    CHECK_OK(json_int(root, "absent", "f", -6, &n));
    assert_int_equal(n, -6);
    CHECK_FAILS(STATUS_USAGE, "\"r\" is 8.5, an integer", json_int(root, "r", "f", 0, &n));
    CHECK_FAILS(STATUS_USAGE, "too large", json_int(root, "e", "f", 0, &n));
    CHECK_FAILS(STATUS_USAGE, "too large", json_int(root, "p", "f", 0, &n));
    CHECK_FAILS(STATUS_USAGE, "\"s\" is a string, an integer", json_int(root, "s", "f", 0, &n));
    assert_string_equal(status_last()->where, "f");
    CHECK_FAILS(STATUS_USAGE, "true or false", json_int(root, "t", "f", 0, &n));
    assert_int_equal(n, -6);
    CHECK_OK(json_double(root, "i", "f", 0, &x));
    assert_true(x == 8.0);
    CHECK_OK(json_double(root, "z", "f", 0.5, &x));
    assert_true(x == 0.5);
    CHECK_FAILS(STATUS_USAGE, "an array, a number", json_double(root, "l", "f", 0, &x));
    CHECK_OK(json_bool(root, "t", "f", false, &flag));
    assert_true(flag);
    CHECK_FAILS(STATUS_USAGE, "an integer, true or false", json_bool(root, "i", "f", false, &flag));
    CHECK_OK(json_str(root, "s", "f", NULL, &text));
    assert_string_equal(text, "x");
    CHECK_OK(json_str(root, "z", "f", "fallback", &text));
    assert_string_equal(text, "fallback");
    CHECK_FAILS(STATUS_USAGE, "an object, a string", json_str(root, "o", "f", NULL, &text));
    CHECK_OK(json_need(root, "l", "f", &found));
    assert_true(json_is_array(found));
    CHECK_FAILS(STATUS_USAGE, "\"z\" is missing", json_need(root, "z", "f", &found));
    CHECK_FAILS(STATUS_USAGE, "an object is expected", json_int(found, "x", "f", 0, &n));
    CHECK_FAILS(STATUS_USAGE, "an object is expected", json_int(NULL, "x", "f", 0, &n));
    json_decref(root);
}

static void numbers_stay_readable(void **state)
{
    (void)state;
    static const struct {
        double value;
        int digits;
        const char *shown;
    } cases[] = {
        {1.0 / 3, 4, "0.3333"},   {117.25, 4, "117.2"},          {0.1, 15, "0.1"},  {1e30, 3, "1e30"},
        {39.8123, 99, "39.8123"}, {12345.6, 2, "12000.0"},       {-0.5, 0, "-0.5"}, {0, 3, "0.0"},
        {(double)NAN, 3, "null"}, {(double)INFINITY, 3, "null"},
    };
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        json_t *number = json_num(cases[i].value, cases[i].digits);
        char *text = NULL;
        CHECK_OK(json_format(number, false, &text));
        assert_string_equal(text, cases[i].shown);
        free(text);
        json_decref(number);
    }
    json_t *largest = json_num(1.7976931348623157e308, 3);
    assert_true(json_is_real(largest));
    json_decref(largest);
}

static void documents_carry_the_envelope(void **state)
{
    (void)state;
    struct json_envelope envelope = {
        .command = "sptune topo --x '\xff'", .started = "2026-11-29T18:30:00Z", .seed = 7, .machine = "abc"};
    log_reset();
    log_setup(LOG_NORMAL, false);
    log_warn("one");
    log_warn("two");
    json_t *root = json_document("topo", &envelope);
    assert_non_null(root);
    char *text = NULL;
    CHECK_OK(json_format(root, false, &text));
    assert_string_equal(text, "{\"schema\": \"sptune.topo/1\", \"version\": \"" SPTUNE_VERSION
                              "\", \"command\": \"sptune topo --x '?'\", \"started\": \"2026-11-29T18:30:00Z\", "
                              "\"seed\": 7, \"machine\": \"abc\", \"warnings\": [\"one\", \"two\"]}");
    free(text);
    json_decref(root);
    log_reset();
    root = json_document("topo", NULL);
    assert_string_equal(json_string_value(json_object_get(root, "machine")), "");
    json_decref(root);
}

static void failures_are_documents(void **state)
{
    (void)state;
    HINT(WHERE(FAIL(STATUS_USAGE, "bad \xff"), "--sp"), "use 2");
    json_t *root = json_error(NULL, status_last());
    assert_string_equal(json_string_value(json_object_get(root, "schema")), "sptune.error/1");
    assert_string_equal(json_string_value(json_object_get(root, "status")), "usage");
    assert_string_equal(json_string_value(json_object_get(root, "what")), "bad ?");
    assert_string_equal(json_string_value(json_object_get(root, "where")), "--sp");
    assert_string_equal(json_string_value(json_object_get(root, "hint")), "use 2");
    assert_true(json_is_null(json_object_get(root, "rank")));
    json_decref(root);
    status_rank(STATUS_USAGE, 3);
    root = json_error(NULL, status_last());
    assert_int_equal(json_integer_value(json_object_get(root, "rank")), 3);
    json_decref(root);
}

static void files_round_trip(void **state)
{
    (void)state;
    struct temp temp;
    json_t *root = json_pack("{s:i, s:[f]}", "b", 1, "a", 0.1), *back = NULL;
    char *text = NULL;
    size_t len = 0;
    temp_open(&temp);
    const char *path = temp_path(&temp, "x.json");
    CHECK_OK(json_write(path, root));
    CHECK_OK(file_read(path, 1000, &text, &len));
    assert_string_equal(text, "{\n  \"b\": 1,\n  \"a\": [\n    0.1\n  ]\n}\n");
    free(text);
    CHECK_OK(json_read(path, &back));
    assert_true(json_equal(root, back));
    json_decref(back);
    CHECK_FAILS(STATUS_USAGE, "No such file", json_read(temp_path(&temp, "none"), &back));
    temp_put(&temp, "bad.json", "{\n\"a\": }");
    CHECK_FAILS(STATUS_USAGE, "not valid JSON", json_read(temp_path(&temp, "bad.json"), &back));
    assert_non_null(strstr(status_last()->where, "bad.json line 2 column 6"));
    temp_close(&temp);
    json_decref(root);
}

static void print_is_one_document(void **state)
{
    (void)state;
    struct capture capture;
    json_t *root = json_pack("{s:i}", "a", 1);
    capture_begin(&capture, STDOUT_FILENO);
    enum status status = json_print(root);
    assert_string_equal(capture_end(&capture), "{\n  \"a\": 1\n}\n");
    CHECK_OK(status);
    json_decref(root);
}

static void a_full_stdout_is_io(void **state)
{
    (void)state;
    int ended;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        json_t *root = json_pack("{s:i}", "a", 1);
        int fd = open("/dev/full", O_WRONLY);
        dup2(fd, STDOUT_FILENO);
        enum status status = json_print(root);
        _exit(status == STATUS_IO ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_text_has_a_place), cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(odd_but_legal_text_is_read), cmocka_unit_test(getters_know_types),
        cmocka_unit_test(numbers_stay_readable),      cmocka_unit_test(documents_carry_the_envelope),
        cmocka_unit_test(failures_are_documents),     cmocka_unit_test(files_round_trip),
        cmocka_unit_test(print_is_one_document),      cmocka_unit_test(a_full_stdout_is_io),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
