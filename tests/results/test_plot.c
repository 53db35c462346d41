/* tests/results/test_plot.c -- pictures by gnuplot: whole, safe from the names in them, absent without gnuplot. */
#include "base/check.h"
#include "base/temp.h"
#include "results/export.h"
#include "results/rows.h"

static const struct export_context context = {{"sptune bench", "2026-11-29T18:30:00Z", "9f2c11aa", 1}, NULL};

static bool have_gnuplot(void)
{
    return system("command -v gnuplot >/dev/null 2>&1") == 0;
}

#define NEED_GNUPLOT()                                                                                                 \
    do {                                                                                                               \
        if (!have_gnuplot()) {                                                                                         \
            print_message("skipped: gnuplot is not installed\n");                                                      \
            skip();                                                                                                    \
        }                                                                                                              \
    } while (0)

static int count(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)); text += strlen(word))
        n++;
    return n;
}

/* Enough of XML to notice a picture that is cut off or breaks out of its text: one root, tags that close. */
static void expect_svg(const char *svg)
{
    assert_ptr_equal(strstr(svg, "<?xml"), svg);
    assert_non_null(strstr(svg, "<svg"));
    assert_int_equal(count(svg, "<svg"), count(svg, "</svg>"));
    assert_int_equal(count(svg, "<text"), count(svg, "</text>"));
    assert_true(count(svg, "<g") >= count(svg, "</g>"));
    assert_int_equal(count(svg, "nan"), 0);
    if (system("command -v xmllint >/dev/null 2>&1") == 0) {
        FILE *check = popen("xmllint --noout - 2>/dev/null", "w");
        assert_non_null(check);
        fputs(svg, check);
        assert_int_equal(pclose(check), 0);
    }
}

static char *draw(const char *format, const struct sample *rows, int n, const struct export_context *with)
{
    char *out = NULL;
    size_t len = 0;
    CHECK_OK(export_find(format)->render(rows, n, with, &out, &len));
    assert_true(len > 1000);
    return out;
}

static void free_rows(struct sample *rows, int n)
{
    for (int i = 0; i < n; i++)
        sample_free(&rows[i]);
}

static void a_sweep_is_a_picture(void **state)
{
    (void)state;
    NEED_GNUPLOT();
    struct sample rows[12];
    for (int i = 0; i < 12; i++)
        rows[i] = row_exchange(INT64_C(1024) << i % 6, i < 6 ? "packed" : "direct", 100.0 * (1 << i % 6) * (1 + i / 6));
    char *svg = draw("svg", rows, 12, &context);
    expect_svg(svg);
    assert_non_null(strstr(svg, ">32k<")); /* the axis is labelled with the sizes themselves */
    assert_non_null(strstr(svg, "packed"));
    assert_non_null(strstr(svg, "direct"));
    assert_non_null(strstr(svg, "ceiling"));
    assert_non_null(strstr(svg, "effective GB/s"));
    assert_non_null(strstr(svg, "sequence length"));
    assert_non_null(strstr(svg, "9f2c11aa"));
    free(svg);
    char *png = draw("png", rows, 12, &context);
    assert_memory_equal(png, "\x89PNG\r\n\x1a\n", 8);
    free(png);
    free_rows(rows, 12);
}

static void subjects_are_panels(void **state)
{
    (void)state;
    NEED_GNUPLOT();
    static const char *const subjects[] = {"exchange", "attention", "gemm", "layer"};
    struct sample rows[12];
    for (int i = 0; i < 12; i++) {
        rows[i] = row_make(subjects[i / 3]);
        rows[i].key.seq = INT64_C(1000) * (i % 3 + 1);
        rows[i].flops = i / 3 == 1 || i / 3 == 2 ? 1e9 : 0;
        row_scatter(&rows[i], 1000 * (i % 3 + 1), 10, 1);
    }
    struct export_context with = context;
    with.title = "All of it";
    char *svg = draw("svg", rows, 12, &with);
    expect_svg(svg);
    assert_int_equal(count(svg, "All of it"), 2); /* drawn, and the document's title */
    assert_int_equal(count(svg, "9f2c11aa"), 2);
    for (int i = 0; i < 4; i++)
        assert_non_null(strstr(svg, subjects[i]));
    free(svg);
    free_rows(rows, 12);
}

static uint32_t big_endian(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* CRC-32 by its definition: the remainder of a division, bit by bit. */
static uint32_t crc_by_division(const unsigned char *bytes, size_t len)
{
    uint32_t rest = UINT32_MAX;
    for (size_t bit = 0; bit < 8 * len; bit++) {
        uint32_t carry = (rest ^ (uint32_t)(bytes[bit / 8] >> bit % 8)) & 1;
        rest = rest >> 1 ^ (carry ? UINT32_C(0xedb88320) : 0);
    }
    return ~rest;
}

/* The text of the iTXt chunk with this keyword; every chunk of the file has to be whole. */
static const char *png_text(const char *png, size_t len, const char *keyword, size_t *out_len)
{
    const unsigned char *bytes = (const unsigned char *)png;
    const char *found = NULL;
    size_t at = 8;
    while (at < len) {
        assert_true(at + 12 <= len);
        size_t data = big_endian(bytes + at), key = strlen(keyword);
        assert_true(data <= len - at - 12);
        assert_int_equal(crc_by_division(bytes + at + 4, data + 4), big_endian(bytes + at + 8 + data));
        if (memcmp(bytes + at + 4, "iTXt", 4) == 0 && data > key + 5 &&
            memcmp(bytes + at + 8, keyword, key + 1) == 0) {
            assert_memory_equal(bytes + at + 8 + key, "\0\0\0\0\0", 5);
            found = png + at + 8 + key + 5;
            *out_len = data - key - 5;
        }
        at += 12 + data;
    }
    assert_int_equal(at, len);
    return found;
}

#define PNG_SAYS(png, len, keyword, what)                                                                              \
    do {                                                                                                               \
        size_t has_ = 0;                                                                                               \
        const char *text_ = png_text(png, len, keyword, &has_);                                                        \
        assert_non_null(text_);                                                                                        \
        assert_int_equal(has_, strlen(what));                                                                          \
        assert_memory_equal(text_, what, has_);                                                                        \
    } while (0)

/* The command that made it is in the file, whatever is in the command. */
static void a_picture_says_where_it_comes_from(void **state)
{
    (void)state;
    NEED_GNUPLOT();
    struct sample rows[3];
    for (int i = 0; i < 3; i++)
        rows[i] = row_exchange(INT64_C(1024) << i, "packed", 100.0 * (i + 1));
    struct export_context with = context;
    with.envelope.command = "sptune bench exchange --name 'a<b>&\n'";
    with.envelope.seed = 77;
    with.title = "A & B";
    char *svg = draw("svg", rows, 3, &with);
    expect_svg(svg);
    assert_int_equal(count(svg, "<title>A &amp; B</title>"), 1);
    assert_non_null(strstr(svg, "command: sptune bench exchange --name 'a&lt;b&gt;&amp;?'; seed 77; 2026-11-29T18:30:00Z; "
                                "machine 9f2c11aa</desc>"));
    assert_int_equal(count(svg, "<desc>"), 1);
    free(svg);
    char *png = NULL;
    size_t len = 0;
    CHECK_OK(export_find("png")->render(rows, 3, &with, &png, &len));
    PNG_SAYS(png, len, "Title", "A & B");
    PNG_SAYS(png, len, "Creation Time", "2026-11-29T18:30:00Z");
    PNG_SAYS(png, len, "Comment", "command: sptune bench exchange --name 'a<b>&?'; seed 77; 2026-11-29T18:30:00Z; "
                                  "machine 9f2c11aa");
    free(png);
    free_rows(rows, 3);
}

static void odd_shapes_are_drawn(void **state)
{
    (void)state;
    NEED_GNUPLOT();
    struct sample rows[30];
    for (int i = 0; i < 3; i++) { /* nothing varies but the way */
        char name[16];
        snprintf(name, sizeof name, "way%d", i);
        rows[i] = row_exchange(4096, name, 100);
    }
    char *svg = draw("svg", rows, 3, &context);
    expect_svg(svg);
    assert_non_null(strstr(svg, "way2"));
    free(svg);
    svg = draw("svg", rows, 1, &context); /* one row */
    expect_svg(svg);
    free(svg);
    free_rows(rows, 3);
    for (int i = 0; i < 30; i++) { /* more curves than colours, some sizes absent, extreme values */
        char name[16];
        snprintf(name, sizeof name, "w%d", i % 15);
        rows[i] = row_exchange(2, name, i % 2 ? 1e-3 : 1e12);
        rows[i].key.seq = i < 15 ? 1 : INT64_MAX;
    }
    svg = draw("svg", rows, 30, &context);
    expect_svg(svg);
    free(svg);
    free_rows(rows, 30);
    struct sample zero = row_make("layer");
    double none[] = {0, 0, 0};
    row_times(&zero, none, 3);
    svg = draw("svg", &zero, 1, &context);
    expect_svg(svg);
    free(svg);
    sample_free(&zero);
}

/* A name is text, not a command of gnuplot or of a shell, and not markup. */
static void names_are_only_text(void **state)
{
    (void)state;
    NEED_GNUPLOT();
    struct temp temp;
    temp_open(&temp);
    char name[4][SAMPLE_NAME] = {"", "'; system('touch x'); '", "</text><script>a_b^{c}&", "@x $p0c0 \\n 100% \"q\" {}"};
    char back[1024];
    struct sample rows[8];
    strcpy(name[0], "`touch x`");
    for (int i = 0; i < 8; i++)
        rows[i] = row_exchange(INT64_C(1024) << i % 2, name[i / 2], 100);
    struct export_context with = context;
    with.title = "`touch x` '; system('touch x'); '\nset output 'x'\n</svg>";
    assert_non_null(getcwd(back, sizeof back));
    assert_int_equal(chdir(temp.dir), 0);
    char *svg = draw("svg", rows, 8, &with);
    assert_int_equal(temp_count(temp.dir), 0);
    assert_int_equal(chdir(back), 0);
    expect_svg(svg);
    assert_null(strstr(svg, "<script>"));
    assert_non_null(strstr(svg, "system(\xe2\x80\x99touch x"));
    assert_non_null(strstr(svg, "a_b^{c}"));
    free(svg);
    free_rows(rows, 8);
    temp_close(&temp);
}

static void what_cannot_be_drawn_is_said(void **state)
{
    (void)state;
    char *out = NULL;
    size_t len = 0;
    struct sample waived = row_make("exchange");
    waived.outcome = SAMPLE_WAIVED;
    CHECK_FAILS(STATUS_NODATA, "none of 1 samples", export_find("svg")->render(&waived, 1, &context, &out, &len));
    CHECK_FAILS(STATUS_NODATA, "none of 0 samples", export_find("png")->render(NULL, 0, &context, &out, &len));
    CHECK_FAILS(STATUS_USAGE, "no picture of kind 'gif'", export_gnuplot("plot x", "gif", &out, &len));
    NEED_GNUPLOT();
    CHECK_FAILS(STATUS_IO, "gnuplot failed", export_gnuplot("plot nonsense(", "svg", &out, &len));
    CHECK_FAILS(STATUS_IO, "drew nothing", export_gnuplot("x = 1\n", "svg", &out, &len));
    CHECK_OK(export_gnuplot("plot sin(x)\n", "svg", &out, &len));
    expect_svg(out);
    free(out);
}

static void gnuplot_may_be_absent(void **state)
{
    (void)state;
    char *out = NULL, *path = strdup(getenv("PATH") ? getenv("PATH") : "/usr/bin");
    size_t len = 0;
    setenv("PATH", "/nowhere", 1);
    enum status status = export_gnuplot("plot x", "svg", &out, &len);
    setenv("PATH", path, 1);
    free(path);
    assert_int_equal(status, STATUS_ABSENT);
    assert_non_null(strstr(status_last()->hint, "gnuplot"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sweep_is_a_picture),
        cmocka_unit_test(subjects_are_panels),
        cmocka_unit_test(a_picture_says_where_it_comes_from),
        cmocka_unit_test(odd_shapes_are_drawn),
        cmocka_unit_test(names_are_only_text),
        cmocka_unit_test(what_cannot_be_drawn_is_said),
        cmocka_unit_test(gnuplot_may_be_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
