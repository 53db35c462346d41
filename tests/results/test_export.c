/* tests/results/test_export.c -- documents that read back, tables of 80 columns. */
#include "base/check.h"
#include "base/table.h"
#include "results/export_private.h"
#include "results/rows.h"

#include <locale.h>

static const struct export_context context = {
    {"sptune bench exchange --exchange 'odd, \"name\"'", "2026-11-29T18:30:00Z", "9f2c11aa", 7}, NULL};

static char *rendered(const char *format, const struct sample *samples, int n, size_t *len)
{
    char *out = NULL;
    const struct export *export = export_find(format);
    assert_non_null(export);
    CHECK_OK(export->render(samples, n, &context, &out, len));
    assert_int_equal(strlen(out), *len);
    return out;
}

static void free_rows(struct sample *samples, int n)
{
    for (int i = 0; i < n; i++)
        sample_free(&samples[i]);
}

static void formats_are_listed(void **state)
{
    (void)state;
    static const char *const names[] = {"json", "csv", "jsonl", "svg", "png"};
    for (int i = 0; i < CHECK_COUNT(names); i++)
        assert_string_equal(export_find(names[i])->name, names[i]);
    for (int i = 0; exports[i]; i++)
        assert_true(*exports[i]->about && exports[i]->render);
    assert_null(export_find("xml"));
    assert_null(export_find(""));
}

/* ---- JSON ---- */

static void every_format_is_a_row(void **state)
{
    (void)state;
    int rows = 0;
    while (exports[rows])
        rows++;
    table_holds("src/results", "export", "export", "src/results/export.c", rows);
}

static void a_document_reads_back(void **state)
{
    (void)state;
    struct sample rows[2] = {row_exchange(4096, "a\"b", 100), row_exchange(8192, "packed", 200)};
    size_t len = 0;
    char *text = rendered("json", rows, 2, &len);
    json_t *root = NULL;
    CHECK_OK(json_parse(text, len, "test", &root));
    assert_string_equal(json_string_value(json_object_get(root, "schema")), "sptune.samples/1");
    assert_string_equal(json_string_value(json_object_get(root, "command")), context.envelope.command);
    assert_int_equal(json_integer_value(json_object_get(root, "seed")), 7);
    const json_t *samples = json_object_get(root, "samples");
    assert_int_equal(json_array_size(samples), 2);
    for (size_t i = 0; i < 2; i++) {
        struct sample back;
        CHECK_OK(sample_from_json(json_array_get(samples, i), "test", &back));
        assert_true(sample_key_equal(&back.key, &rows[i].key));
        assert_int_equal(back.n, rows[i].n);
        sample_free(&back);
    }
    json_decref(root);
    free(text);
    text = rendered("json", rows, 0, &len); /* nothing measured is a document too */
    CHECK_OK(json_parse(text, len, "test", &root));
    assert_int_equal(json_array_size(json_object_get(root, "samples")), 0);
    json_decref(root);
    free(text);
    free_rows(rows, 2);
}

static void every_line_stands_alone(void **state)
{
    (void)state;
    struct sample rows[3] = {row_exchange(4096, "line\nbreak", 100), row_exchange(8192, "b", 200), row_exchange(64, "c", 3)};
    size_t len = 0;
    char *text = rendered("jsonl", rows, 3, &len), *save = NULL;
    int lines = 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *root = NULL;
        struct sample back;
        CHECK_OK(json_parse(line, strlen(line), "test", &root));
        assert_string_equal(json_string_value(json_object_get(root, "schema")), "sptune.sample/1");
        assert_string_equal(json_string_value(json_object_get(root, "machine")), "9f2c11aa");
        assert_int_equal(json_integer_value(json_object_get(root, "seed")), 7);
        CHECK_OK(sample_from_json(root, "test", &back));
        assert_true(sample_key_equal(&back.key, &rows[lines].key));
        sample_free(&back);
        json_decref(root);
        lines++;
    }
    assert_int_equal(lines, 3);
    free(text);
    text = rendered("jsonl", rows, 0, &len);
    assert_int_equal(len, 0);
    free(text);
    free_rows(rows, 3);
}

/* ---- CSV ---- */

enum { CSV_COLUMNS = SAMPLE_FIELDS + 28 };

/* An RFC 4180 reader that takes nothing else: the next field of *at into out; what ended it. */
static int csv_field(const char **at, char *out, size_t size)
{
    size_t len = 0;
    const char *c = *at;
    if (*c == '"') {
        for (c++; *c != '"' || c[1] == '"'; c++) {
            assert_true(*c && len + 1 < size);
            c += *c == '"';
            out[len++] = *c;
        }
        c++;
    } else {
        for (; *c && *c != ',' && *c != '\r'; c++) {
            assert_true(*c != '"' && *c != '\n' && len + 1 < size);
            out[len++] = *c;
        }
    }
    out[len] = '\0';
    int end = *c;
    if (end == '\r')
        assert_int_equal(*++c, '\n');
    assert_true(end == ',' || end == '\r');
    *at = c + 1;
    return end;
}

struct csv_row {
    char fields[CSV_COLUMNS][2048];
};

static void csv_row(const char **at, struct csv_row *row)
{
    int column = 0;
    while (csv_field(at, row->fields[column], sizeof row->fields[column]) == ',')
        assert_true(++column < CSV_COLUMNS);
    assert_int_equal(column, CSV_COLUMNS - 1);
}

static const char *csv_value(const struct csv_row *header, const struct csv_row *row, const char *name)
{
    for (int i = 0; i < CSV_COLUMNS; i++)
        if (strcmp(header->fields[i], name) == 0)
            return row->fields[i];
    fail_msg("no column %s", name);
    return NULL;
}

static void csv_reads_back(void **state)
{
    (void)state;
    static struct csv_row header, row;
    struct sample rows[2] = {row_exchange(4096, "a,\"b\"\r\nc", 364.47), row_make("collective")};
    rows[0].versions = strdup("{\"ucx\":\"1.13.1\"}");
    rows[1].outcome = SAMPLE_WAIVED;
    rows[1].rule = RULE_KV_RULE;
    text_print(rows[1].why, sizeof rows[1].why, " leading blank, and comma");
    size_t len = 0;
    char *text = rendered("csv", rows, 2, &len);
    const char *at = text;
    csv_row(&at, &header);
    for (int i = 0; i < CSV_COLUMNS; i++) /* every name once */
        for (int j = 0; j < i; j++)
            assert_string_not_equal(header.fields[i], header.fields[j]);
    csv_row(&at, &row);
    struct sample_summary s;
    sample_summarize(&rows[0], &s);
    assert_string_equal(csv_value(&header, &row, "exchange"), "a,\"b\"\r\nc");
    assert_string_equal(csv_value(&header, &row, "seq"), "4096");
    assert_string_equal(csv_value(&header, &row, "causal"), "");
    assert_string_equal(csv_value(&header, &row, "count"), "20");
    assert_string_equal(csv_value(&header, &row, "busbw_GBps"), "");
    assert_string_equal(csv_value(&header, &row, "versions"), "{\"ucx\":\"1.13.1\"}");
    assert_string_equal(csv_value(&header, &row, "command"), context.envelope.command);
    assert_string_equal(csv_value(&header, &row, "seed"), "7");
    assert_string_equal(csv_value(&header, &row, "verified"), "true");
    CHECK_NEAR(atof(csv_value(&header, &row, "median_us")), s.median_us, 1e-5 * s.median_us);
    CHECK_NEAR(atof(csv_value(&header, &row, "ci95_lo_us")), s.ci95_us.lo, 1e-5 * s.median_us);
    CHECK_NEAR(atof(csv_value(&header, &row, "effective_GBps")), s.effective_GBps, 1e-5 * s.effective_GBps);
    const char *times = csv_value(&header, &row, "times_us");
    assert_ptr_equal(times, row.fields[CSV_COLUMNS - 1]);
    for (int i = 0; i < 20; i++) {
        char *end;
        CHECK_NEAR(strtod(times, &end), rows[0].times_us[i], 1e-11 * rows[0].times_us[i]);
        assert_true(end > times);
        times = end;
    }
    csv_row(&at, &row);
    assert_string_equal(csv_value(&header, &row, "outcome"), "waived");
    assert_string_equal(csv_value(&header, &row, "rule"), "kv_rule");
    assert_string_equal(csv_value(&header, &row, "why"), " leading blank, and comma");
    assert_string_equal(csv_value(&header, &row, "median_us"), "");
    assert_string_equal(csv_value(&header, &row, "times_us"), "");
    assert_int_equal(*at, 0);
    free(text);
    free_rows(rows, 2);
}

static void numbers_ignore_the_locale(void **state)
{
    (void)state;
    struct text text = {0};
    static const char *const locales[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "ps_AF.UTF-8"};
    int known = 0;
    for (int i = 0; i < CHECK_COUNT(locales); i++) {
        if (!setlocale(LC_NUMERIC, locales[i]))
            continue;
        known++;
        export_number(&text, 364.47, 15);
        export_number(&text, NAN, 15);
        assert_string_equal(text_get(&text), "364.47");
        text_free(&text);
        text = (struct text){0};
    }
    setlocale(LC_NUMERIC, "C");
    export_number(&text, 1234567.5, 15);
    assert_string_equal(text_get(&text), "1234567.5");
    text_free(&text);
    if (!known) {
        print_message("skipped: no locale with a decimal comma is installed\n");
        skip();
    }
}

/* ---- tables ---- */

static int columns_of(const char *line, size_t len)
{
    int columns = 0;
    for (size_t i = 0; i < len; i++)
        columns += (line[i] & 0xc0) != 0x80;
    return columns;
}

static void expect_narrow(const char *text)
{
    assert_true(*text && text[strlen(text) - 1] == '\n');
    for (const char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        if (columns_of(line, len) > 80)
            fail_msg("%d columns: %.*s", columns_of(line, len), (int)len, line);
        assert_true(!len || line[len - 1] != ' ');
        line += len + 1;
    }
}

static void a_table_shows_what_differs(void **state)
{
    (void)state;
    struct sample rows[4] = {row_exchange(8192, "packed", 200), row_exchange(4096, "packed", 100),
                             row_exchange(131072, "packed", 2500000), row_exchange(4096, "direct", 80)};
    rows[3].n = 0;
    rows[3].outcome = SAMPLE_WAIVED;
    rows[3].rule = RULE_EXCHANGE_CANNOT;
    text_print(rows[3].why, sizeof rows[3].why, "no such path between these ranks, for a reason that is so long that it takes "
                                                "more than one line of a terminal to say all of it");
    char *text = NULL;
    CHECK_OK(export_table(rows, 4, &text));
    expect_narrow(text);
    assert_ptr_equal(strstr(text, "exchange ranks=2 sp=2 op=whole heads=14"), text);
    const char *body = strstr(text, "n=20\n");
    assert_non_null(body);
    assert_null(strstr(body, "heads")); /* what all rows share is no column */
    assert_non_null(strstr(body, "effective_"));
    assert_null(strstr(body, "busbw"));
    const char *first = strstr(body, "4,096"), *then = strstr(body, "8,192"), *last = strstr(body, "131,072");
    assert_true(first && then && last && first < then && then < last); /* sorted */
    assert_non_null(strstr(body, " s ")); /* 2.5 s, not 2,500,000 us */
    assert_non_null(strstr(body, "waived exchange_cannot: no such path"));
    free(text);
    free_rows(rows, 4);
}

static void subjects_have_their_own_blocks(void **state)
{
    (void)state;
    struct sample rows[3] = {row_exchange(64, "packed", 5), row_make("attention"), row_exchange(128, "packed", 6)};
    rows[1].flops = 1e9;
    rows[1].verified = false;
    row_scatter(&rows[1], 1000, 20, 1);
    char *text = NULL;
    CHECK_OK(export_table(rows, 3, &text));
    expect_narrow(text);
    const char *second = strstr(text, "\n\nattention");
    assert_non_null(second);
    assert_non_null(strstr(second, "tflops"));
    assert_non_null(strstr(second, "unverified"));
    assert_null(strstr(second, "effective"));
    free(text);
    CHECK_OK(export_table(rows, 0, &text));
    assert_string_equal(text, "");
    free(text);
    free_rows(rows, 3);
}

/* Rows of bench link, some without a transport, some without a time: one line each. What all have stands above them. */
static void ordinary_rows_are_lines(void **state)
{
    (void)state;
    struct sample rows[6];
    for (int i = 0; i < 6; i++) {
        rows[i] = row_make("link");
        text_print(rows[i].key.op, SAMPLE_NAME, "%s", i < 3 ? "memcpy" : "peer");
        text_print(rows[i].key.buffers, SAMPLE_NAME, "%s", i % 2 ? "hot" : "cold");
        text_print(rows[i].transport, sizeof rows[i].transport, "%s", i < 3 ? "" : "ucx posix shm");
        rows[i].key.bytes = rows[i].bytes = (int64_t)1 << (18 + 2 * i);
        row_scatter(&rows[i], 1761.54, 20, 1);
    }
    rows[5].n = 0;
    rows[5].outcome = SAMPLE_WAIVED;
    rows[5].rule = RULE_BUDGET;
    text_print(rows[5].why, sizeof rows[5].why, "the budget ended");
    char *text = NULL;
    CHECK_OK(export_table(rows, 6, &text));
    expect_narrow(text);
    const char *title = strstr(text, " over ucx posix shm n=20\n"),
               *end = strstr(text, "waived budget: the budget ended\n");
    assert_true(title && end);
    int lines = 0;
    for (const char *at = strchr(title, '\n') + 1; at < end; at = strchr(at, '\n') + 1)
        lines++;
    assert_in_range(lines, 7, 8); /* a header of one or two, and the rows */
    assert_null(strstr(strchr(title, '\n'), "ucx"));
    free(text);
    for (int i = 0; i < 5; i++) {
        rows[i].scaled = true;
        rows[i].verified = false;
        rows[i].conditions = strdup("{\"predicted_within\": 0.35}");
    }
    CHECK_OK(export_table(rows, 5, &text));
    expect_narrow(text);
    assert_non_null(strstr(text, " over ucx posix shm n=20 predicted\n"));
    assert_null(strstr(text, "status"));
    free(text);
    free_rows(rows, 6);
}

/* All fields at once, as long as they can be, with names that play tricks. */
static void odd_rows_are_printed(void **state)
{
    (void)state;
    struct sample rows[6];
    for (int i = 0; i < 6; i++) {
        rows[i] = row_make("exchange");
        for (int f = 1; f < SAMPLE_FIELDS; f++) {
            char *at = (char *)&rows[i].key + sample_fields[f].offset;
            if (sample_fields[f].text)
                text_print(at, SAMPLE_NAME, i % 2 ? "name%d with blanks\x1b[2J" : "n\xc3\xa4me%d_without_any_blanks", i);
            else if (f % 3 == 0 || i == 0)
                memcpy(at, &(int64_t){INT64_MAX - i}, sizeof(int64_t));
        }
        text_print(rows[i].transport, sizeof rows[i].transport, "transport number %d", i);
        row_scatter(&rows[i], pow(1000, i), 12, 1);
    }
    for (int n = 1; n <= 6; n++) {
        char *text = NULL;
        CHECK_OK(export_table(rows, n, &text));
        assert_null(strstr(text, "\x1b"));
        if (n == 1)
            expect_narrow(text); /* one row shares everything with itself */
        free(text);
    }
    free_rows(rows, 6);
}

static void digits_end_with_the_interval(void **state)
{
    (void)state;
    const double noisy[] = {100.123, 120.456, 140.789, 90.321, 111.111, 133.333, 99.999, 150.5, 88.8, 121.7};
    struct sample row = row_exchange(64, "packed", 5);
    row_times(&row, noisy, 10);
    char *text = NULL;
    CHECK_OK(export_table(&row, 1, &text));
    assert_null(strstr(text, "115.78")); /* the median to more digits than it has */
    assert_non_null(strstr(text, "116 us"));
    free(text);
    sample_free(&row);
}

static void grids_fit(void **state)
{
    (void)state;
    static const struct export_column columns[] = {{"run", true}, {"name", false}, {"command", false}, {"samples", true}};
    static const char *const cells[] = {
        "1", "nightly", "sptune bench exchange --seq 1k..128k*2 --heads 14 --kv-heads 2 --ranks 2 --dtype bf16,fp32", "1,234",
        "2", NULL, "", "7",
        "3", "gr\xc3\xb6\xc3\x9f", "/a/very/long/path/without/any/blank/in/it/that/is/longer/than/one/line/of/a/terminal", "0"};
    char *text = NULL;
    CHECK_OK(export_grid(columns, 4, cells, 3, &text));
    expect_narrow(text);
    assert_ptr_equal(strstr(text, "run  name"), text);
    assert_non_null(strstr(text, "1,234\n"));
    assert_non_null(strstr(text, "  2  -        -"));
    assert_non_null(strstr(text, "bf16,fp32")); /* wrapped, not cut */
    assert_null(strstr(text, "\xc3")); /* the C locale has no such letters */
    free(text);
    CHECK_OK(export_grid(columns, 4, NULL, 0, &text));
    assert_string_equal(text, "run  name  command  samples\n");
    free(text);
    CHECK_FAILS(STATUS_USAGE, "0 columns", export_grid(columns, 0, cells, 1, &text));
    CHECK_FAILS(STATUS_USAGE, "65 columns", export_grid(columns, 65, cells, 1, &text));
}

static void grids_know_their_locale(void **state)
{
    (void)state;
    static const struct export_column columns[] = {{"name", false}, {"x", true}};
    static const char *const cells[] = {"gr\xc3\xb6\xc3\x9f", "1", "plain", "2"};
    char *text = NULL;
    if (!setlocale(LC_CTYPE, "C.UTF-8")) {
        print_message("skipped: no UTF-8 locale is installed\n");
        skip();
    }
    enum status status = export_grid(columns, 2, cells, 2, &text);
    setlocale(LC_CTYPE, "C");
    CHECK_OK(status);
    assert_string_equal(text, "name   x\ngr\xc3\xb6\xc3\x9f   1\nplain  2\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_are_listed),
        cmocka_unit_test(every_format_is_a_row),
        cmocka_unit_test(a_document_reads_back),
        cmocka_unit_test(every_line_stands_alone),
        cmocka_unit_test(csv_reads_back),
        cmocka_unit_test(numbers_ignore_the_locale),
        cmocka_unit_test(a_table_shows_what_differs),
        cmocka_unit_test(subjects_have_their_own_blocks),
        cmocka_unit_test(ordinary_rows_are_lines),
        cmocka_unit_test(odd_rows_are_printed),
        cmocka_unit_test(digits_end_with_the_interval),
        cmocka_unit_test(grids_fit),
        cmocka_unit_test(grids_know_their_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
