/* tests/base/test_units.c -- what people write, exactly; what they mistype, refused with a way out. */
#include "base/check.h"
#include "base/units.h"

#include <math.h>
#include <stdlib.h>

#define E30 "1000000000000000000000000000000"

static void counts_are_exact(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } cases[] = {
        {"0", 0},
        {"1", 1},
        {"131072", 131072},
        {"128k", 131072},
        {"128K", 131072},
        {"1M", 1 << 20},
        {"8G", 8LL << 30},
        {"1.5k", 1536},
        {"8.0", 8},
        {"007", 7},
        {"128 k", 131072},
        {"9223372036854775807", INT64_MAX},
        {"1000000000000000000", 1000000000000000000},
    };
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        int64_t out = -1;
        CHECK_OK(units_parse_count(cases[i].text, "--seq", 0, INT64_MAX, &out));
        assert_int_equal(out, cases[i].value);
    }
}

static void bad_counts_are_explained(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "missing"},
        {"x", "whole number"},
        {"-1", "negative"},
        {"-", "whole number"},
        {"1x", "whole number"},
        {"128kk", "whole number"},
        {"128kB", "whole number"},
        {"1..", "whole number"},
        {"1..4", "whole number"},
        {"1.", "whole number"},
        {".5k", "whole number"},
        {"1.5", "whole number"},
        {"0x10", "whole number"},
        {"1e6", "whole number"},
        {" 1", "whole number"},
        {"1 ", "whole number"},
        {"1,2", "whole number"},
        {"+1", "whole number"},
        {"nan", "whole number"},
        {"1.0001k", "whole number"},
        {E30, "too large"},
        {E30 "G", "too large"},
        {"9223372036854775808", "too large"},
        {"9007199254740992k", "too large"},
        {"0.00000000000000000000000000000000000000000000000000000001k", "too many digits"},
        {"\xc3\xa9", "whole number"},
    };
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        int64_t out = -7;
        CHECK_FAILS(STATUS_USAGE, cases[i][1], units_parse_count(cases[i][0], "--seq", 0, INT64_MAX, &out));
        assert_string_equal(status_last()->where, "--seq");
        assert_true(strlen(status_last()->hint) > 0);
        assert_int_equal(out, -7);
    }
    int64_t out;
    CHECK_FAILS(STATUS_USAGE, "missing", units_parse_count(NULL, "--seq", 0, 9, &out));
    CHECK_FAILS(STATUS_USAGE, "too small", units_parse_count("0", "--sp", 1, 9, &out));
    CHECK_FAILS(STATUS_USAGE, "too large", units_parse_count("10", "--sp", 1, 9, &out));
    assert_string_equal(status_last()->hint, "use 9 or less");
}

static void memory_says_its_unit(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } cases[] = {
        {"80GiB", 80LL << 30},    {"80 GiB", 80LL << 30}, {"80GB", 80000000000},
        {"1KiB", 1024},           {"1KB", 1000},          {"1kB", 1000},
        {"512MiB", 512 << 20},    {"0.5GiB", 1 << 29},    {"2TiB", 2LL << 40},
        {"79.6GiB", 85469849190},
    };
    static const char *const bad[] = {"80",    "80G", "80k",     "80gib",   "80Gb",  "GiB",
                                      "-1GiB", "",    "1..2GiB", E30 "GiB", "80GiBx"};
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        int64_t out = -1;
        CHECK_OK(units_parse_memory(cases[i].text, "--device-memory", &out));
        assert_int_equal(out, cases[i].value);
    }
    for (int i = 0; i < CHECK_COUNT(bad); i++) {
        int64_t out = -7;
        CHECK_FAILS(STATUS_USAGE, "", units_parse_memory(bad[i], "--device-memory", &out));
        assert_non_null(strstr(status_last()->hint, "GiB"));
        assert_string_equal(status_last()->where, "--device-memory");
        assert_int_equal(out, -7);
    }
}

static void durations(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t us;
    } cases[] = {{"10s", 10000000}, {"5m", 300000000}, {"1h", 3600000000}, {"250ms", 250000},
                 {"7us", 7},        {"1.5s", 1500000}, {"0s", 0}};
    static const char *const bad[] = {"10", "s", "-1s", "", "1d", E30 "h", "1s ", "0.1us", "9223372036854775807s"};
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        int64_t out = -1;
        CHECK_OK(units_parse_duration(cases[i].text, "--budget", &out));
        assert_int_equal(out, cases[i].us);
    }
    for (int i = 0; i < CHECK_COUNT(bad); i++) {
        int64_t out = -7;
        CHECK_FAILS(STATUS_USAGE, "", units_parse_duration(bad[i], "--budget", &out));
        assert_true(strlen(status_last()->hint) > 0);
        assert_int_equal(out, -7);
    }
}

static void doubles_and_percentages(void **state)
{
    (void)state;
    static const char *const bad[] = {"",   "x",     "nan", "inf", "0x1", "1.5.2", " 1",
                                      "1 ", "1e999", "--1", "11",  "-1",  "1,5"};
    static const char *const bad_percent[] = {"50", "%", "-1%", "101%", "x%", "nan%", "50%%", "", "5 0%"};
    double out = -7;
    CHECK_OK(units_parse_double("2.5e-1", "--alpha", 0, 10, &out));
    assert_true(out == 0.25);
    CHECK_OK(units_parse_percent("50%", "--use-memory", &out));
    assert_true(out == 0.5);
    CHECK_OK(units_parse_percent("12.5%", "--use-memory", &out));
    assert_true(out == 0.125);
    out = -7;
    for (int i = 0; i < CHECK_COUNT(bad); i++)
        CHECK_FAILS(STATUS_USAGE, "", units_parse_double(bad[i], "--alpha", 0, 10, &out));
    for (int i = 0; i < CHECK_COUNT(bad_percent); i++)
        CHECK_FAILS(STATUS_USAGE, "", units_parse_percent(bad_percent[i], "--use-memory", &out));
    CHECK_FAILS(STATUS_USAGE, "missing", units_parse_percent(NULL, "--use-memory", &out));
    assert_true(out == -7);
}

static void expect_list(const char *text, const int64_t *values, int n)
{
    int64_t *out = NULL;
    int out_n = 0;
    CHECK_OK(units_parse_list(text, "--bytes", 0, INT64_MAX, &out, &out_n));
    assert_int_equal(out_n, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(out[i], values[i]);
    free(out);
}

#define LIST(text, ...) expect_list(text, (const int64_t[]){__VA_ARGS__}, CHECK_COUNT(((const int64_t[]){__VA_ARGS__})))

static void lists_and_ranges(void **state)
{
    (void)state;
    LIST("7", 7);
    LIST("1k,4k", 1024, 4096);
    LIST("4,1,4", 4, 1, 4);
    LIST("1..4", 1, 2, 3, 4);
    LIST("4..4", 4);
    LIST("2..8+2", 2, 4, 6, 8);
    LIST("2..9+3", 2, 5, 8);
    LIST("1k..8k*2", 1024, 2048, 4096, 8192);
    LIST("1..100*10", 1, 10, 100);
    LIST("1..99*10", 1, 10);
    LIST("0..2", 0, 1, 2);
    LIST("1..2,1k..2k+512", 1, 2, 1024, 1536, 2048);
    LIST("9223372036854775806..9223372036854775807", INT64_MAX - 1, INT64_MAX);
    LIST("4611686018427387904..9223372036854775807*2", 1LL << 62);
    int64_t *out = NULL;
    int n = 0;
    CHECK_OK(units_parse_list("1k..8G*2", "--bytes", 1, INT64_MAX, &out, &n));
    assert_int_equal(n, 24);
    assert_int_equal(out[23], 8LL << 30);
    free(out);
    CHECK_OK(units_parse_list("1..4096", "--bytes", 1, INT64_MAX, &out, &n));
    assert_int_equal(n, UNITS_LIST_MAX);
    free(out);
}

static void bad_lists_are_explained(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "missing"},
        {",", "empty place"},
        {"1,", "empty place"},
        {"1,,2", "empty place"},
        {"1..", "missing"},
        {"..4", "missing"},
        {"..", "missing"},
        {"1...4", "whole number"},
        {"1..4*", "missing"},
        {"1..4+", "missing"},
        {"1..4*1", "too small"},
        {"1..4+0", "too small"},
        {"1..4*0", "too small"},
        {"1..4*-2", "negative"},
        {"4..1", "below its start"},
        {"0..8*2", "start at 0"},
        {"1..4*1.5", "whole number"},
        {"-1..4", "negative"},
        {"1..4..8", "whole number"},
        {"1..4*2*2", "whole number"},
        {"1..4097", "more than 4096"},
        {"0..9223372036854775807", "more than 4096"},
        {"1, 2", "whole number"},
        {E30 ",1", "too large"},
        {"1.." E30, "too large"},
        {"1..4x", "whole number"},
        {E30 E30 E30, "too long"},
    };
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        int64_t *out = NULL;
        int n = -7;
        CHECK_FAILS(STATUS_USAGE, cases[i][1], units_parse_list(cases[i][0], "--bytes", 0, INT64_MAX, &out, &n));
        assert_string_equal(status_last()->where, "--bytes");
        assert_true(strlen(status_last()->hint) > 0);
        assert_null(out);
        assert_int_equal(n, -7);
    }
}

static void numbers_are_shown_as_people_read_them(void **state)
{
    (void)state;
    char buf[UNITS_BUF];
    assert_string_equal(units_format_count(131072, buf), "131,072");
    assert_string_equal(units_format_count(0, buf), "0");
    assert_string_equal(units_format_count(-1234, buf), "-1,234");
    assert_string_equal(units_format_count(999, buf), "999");
    assert_string_equal(units_format_count(INT64_MIN, buf), "-9,223,372,036,854,775,808");
    assert_string_equal(units_format_short(131072, buf), "128k");
    assert_string_equal(units_format_short(131000, buf), "131,000");
    assert_string_equal(units_format_short(1 << 20, buf), "1M");
    assert_string_equal(units_format_short(1LL << 41, buf), "2,048G");
    assert_string_equal(units_format_short(0, buf), "0");
    assert_string_equal(units_format_short(-1024, buf), "-1,024");
    assert_string_equal(units_format_bytes(40.7 * (1 << 30), buf), "40.7 GiB");
    assert_string_equal(units_format_bytes(64 << 20, buf), "64 MiB");
    assert_string_equal(units_format_bytes(1023.9 * 1024, buf), "1.00 MiB");
    assert_string_equal(units_format_bytes(512, buf), "512 B");
    assert_string_equal(units_format_bytes(0, buf), "0 B");
    assert_string_equal(units_format_bytes(NAN, buf), "- B");
    assert_string_equal(units_format_us(117.2, buf), "117 us");
    assert_string_equal(units_format_us(39.8e6, buf), "39.8 s");
    assert_string_equal(units_format_us(2345, buf), "2.35 ms");
    assert_string_equal(units_format_us(252e6, buf), "4m12s");
    assert_string_equal(units_format_us(3600e6, buf), "1h00m");
    assert_string_equal(units_format_us(INFINITY, buf), "- us");
    assert_string_equal(units_format_us(0, buf), "0 us");
    assert_string_equal(units_format_us(0.00012, buf), "0.00012 us");
    assert_string_equal(units_format_rate(727.4, buf), "727 GB/s");
    assert_string_equal(units_format_rate(9.999, buf), "10.0 GB/s");
    assert_true(strlen(units_format_rate(-1.7e308, buf)) < 32);
    assert_true(strlen(units_format_bytes(1.7e308, buf)) < 32);
    assert_true(strlen(units_format_us(-1.7e308, buf)) < 32);
}

static void digits_follow_the_interval(void **state)
{
    (void)state;
    static const struct {
        double value, lo, hi;
        const char *shown;
    } cases[] = {
        {412.3, 396, 428, "412"},
        {14.68, 11.9, 17.1, "14.7"},
        {8123, 7600, 8600, "8,120"},
        {39.812, 39.8, 39.82, "39.812"},
        {5, -1e6, 1e6, "5"},
        {123.456, 123.456, 123.456, "123.5"},
        {0, -1, 1, "0"},
        {-14.68, -17.1, -11.9, "-14.7"},
        {1.5e20, 1.4e20, 1.6e20, "1.50e+20"},
        {(double)NAN, 0, 1, "-"},
        {2.5, (double)NAN, 1, "2.500"},
    };
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        char buf[UNITS_BUF];
        assert_string_equal(units_format_measured(cases[i].value, cases[i].lo, cases[i].hi, buf), cases[i].shown);
    }
}

/* One step time is one text, wherever it is told. */
static void times_follow_the_interval(void **state)
{
    (void)state;
    static const struct {
        double us, lo, hi;
        const char *shown;
    } cases[] = {{39.87654e6, 33e6, 47e6, "39.9 s"},
                 {2345.6, 1900, 2900, "2.35 ms"},
                 {154860e6, 113880e6, 197820e6, "43h00m"}, /* give or take 11 hours */
                 {154860e6, 154500e6, 155200e6, "43h01m"},
                 {154860e6, 0, 2000000e6, "40h00m"},
                 {158.2e6, 120e6, 200e6, "2m38s"},
                 {158.2e6, 0, 1000e6, "2m40s"},
                 {3599.9e6, 3500e6, 3700e6, "1h00m"},
                 {10e6, 0, 900e6, "10 s"}, /* not 0 */
                 {154860e6, 154860e6, 154860e6, "43h01m"},
                 {154860e6, 0, INFINITY, "43h01m"},
                 {NAN, 1, 2, "- us"}};
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        char buf[UNITS_BUF];
        assert_string_equal(units_format_us_measured(cases[i].us, cases[i].lo, cases[i].hi, buf), cases[i].shown);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_exact),           cmocka_unit_test(bad_counts_are_explained),
        cmocka_unit_test(memory_says_its_unit),       cmocka_unit_test(durations),
        cmocka_unit_test(doubles_and_percentages),    cmocka_unit_test(lists_and_ranges),
        cmocka_unit_test(bad_lists_are_explained),    cmocka_unit_test(numbers_are_shown_as_people_read_them),
        cmocka_unit_test(digits_follow_the_interval), cmocka_unit_test(times_follow_the_interval),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
