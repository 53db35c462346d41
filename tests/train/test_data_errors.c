/* tests/train/test_data_errors.c -- files and options that do not fit: what is wrong, where, and what would be right. */
#include "train/data_test.h"

static void short_files_say_what_is_needed(void **state)
{
    (void)state;
    const int64_t seq = 16;
    struct data *data = NULL;
    struct data_options o = options_of(DATA_BYTES, &seq);
    o.groups = 2;
    put_bytes("", 0);
    CHECK_FAILS(STATUS_USAGE, "0 tokens, 33 are needed for one step: 2 rows of 16 and the token after them",
                data_open(&o, &data));
    assert_string_equal(status_last()->where, data_path);
    put_bytes("01234567890123456789012345678901", 32);
    CHECK_FAILS(STATUS_USAGE, "32 tokens, 33 are needed", data_open(&o, &data));
    CHECK_OK(data_separator_parse("|", "--doc-separator", DATA_BYTES, &o.separator));
    CHECK_OK(data_open(&o, &data)); /* packed, a file may end where a row does */
    data_close(data);
    data = NULL;
    put_bytes("0123456789012345678901234567890", 31);
    CHECK_FAILS(STATUS_USAGE, "31 tokens, 32 are needed for one step: 2 rows of 16", data_open(&o, &data));
    assert_null(data);
}

static void cut_files_of_ids_are_refused(void **state)
{
    (void)state;
    const int64_t seq = 1;
    struct data *data = NULL;
    put_bytes("1234567", 7);
    struct data_options o = options_of(DATA_U16, &seq);
    CHECK_FAILS(STATUS_USAGE, "7 bytes are no whole number of u16 tokens", data_open(&o, &data));
    assert_non_null(strstr(status_last()->hint, "2 bytes each"));
    put_bytes("123456", 6);
    o.form = DATA_U32;
    CHECK_FAILS(STATUS_USAGE, "6 bytes are no whole number of u32 tokens", data_open(&o, &data));
}

/* The one token beyond the vocabulary may be an input or no more than the label of the last: both are named. */
static void tokens_beyond_the_vocabulary_are_named(void **state)
{
    (void)state;
    static const unsigned char ids[] = {1, 0, 2, 0, 100, 0}, big[] = {1, 0, 0, 0, 255, 255, 255, 255};
    int64_t seq = 2;
    struct data *data = NULL;
    struct data_batch batch = {0};
    put_bytes(ids, sizeof ids);
    struct data_options o = options_of(DATA_U16, &seq);
    o.vocab = 100;
    CHECK_OK(data_open(&o, &data));
    struct shard whole = share_of(2, 1, 0);
    CHECK_FAILS(STATUS_USAGE, "token 2 is 100, the vocabulary has 100", data_read(data, 0, 0, 0, &whole, &batch));
    assert_non_null(strstr(status_last()->where, data_path));
    data_close(data);
    o.vocab = 101;
    CHECK_OK(data_open(&o, &data));
    CHECK_OK(data_read(data, 0, 0, 0, &whole, &batch));
    data_close(data);
    put_bytes(big, sizeof big);
    seq = 1;
    o = options_of(DATA_U32, &seq);
    CHECK_OK(data_open(&o, &data));
    whole = share_of(1, 1, 0);
    CHECK_FAILS(STATUS_USAGE, "token 1 is 4294967295, the vocabulary has 1048576",
                data_read(data, 0, 0, 0, &whole, &batch));
    data_close(data);
    data_batch_free(&batch);
}

/* Whichever part of whichever sharing it lies in, by that part alone; pieces that are read at a time are longer than one part, and shorter. */
static void the_file_is_checked_in_parts(void **state)
{
    (void)state;
    enum { N = 600011, PARTS = 7 };
    static unsigned char ids[4 * N];
    static const int64_t beyond[] = {0, 85715, 85716, 262143, 262144, 524288, N - 1};
    const int64_t seq = 4;
    for (enum data_form form = DATA_BYTES; form <= DATA_U32; form++)
        for (int b = 0; b < CHECK_COUNT(beyond); b++) {
            const int bytes = form == DATA_BYTES ? 1 : form == DATA_U16 ? 2 : 4;
            struct data_options o = options_of(form, &seq);
            struct data *data = NULL;
            int refused = 0;
            char says[64];
            o.vocab = 200;
            memset(ids, 0, sizeof ids);
            ids[beyond[b] * bytes] = 200;
            put_bytes(ids, (size_t)(N * bytes));
            CHECK_OK(data_open(&o, &data));
            snprintf(says, sizeof says, "token %lld is 200, the vocabulary has 200", (long long)beyond[b]);
            for (int part = 0; part < PARTS; part++) {
                if (data_check(data, part, PARTS) == STATUS_OK)
                    continue;
                assert_string_equal(status_last()->what, says);
                assert_non_null(strstr(status_last()->where, data_path));
                status_clear();
                refused++;
            }
            assert_int_equal(refused, 1);
            data_close(data);
            o.vocab = 201;
            CHECK_OK(data_open(&o, &data));
            CHECK_OK(data_check(data, 0, 1));
            data_close(data);
        }
}

/* A file of so many bytes, opened. */
static struct data *open_sized(enum data_form form, int64_t vocab, int64_t bytes)
{
    static const int64_t seq = 4;
    struct data_options o = options_of(form, &seq);
    struct data *data = NULL;
    o.vocab = vocab;
    put_counting(16);
    assert_int_equal(truncate(data_path, bytes), 0);
    CHECK_OK(data_open(&o, &data));
    return data;
}

static void a_check_has_rounds(void **state)
{
    (void)state;
    static const struct {
        enum data_form form;
        int64_t vocab, bytes;
        int ranks, rounds;
    } cases[] = {{DATA_BYTES, 256, INT64_C(384) << 20, 1, 0}, /* no byte is beyond */
                 {DATA_BYTES, 255, INT64_C(384) << 20, 1, 3},
                 {DATA_U16, 65535, 16, 8, 1},
                 {DATA_U16, 65535, INT64_C(256) << 20, 2, 1},
                 {DATA_U32, 200, (INT64_C(256) << 20) + 4, 2, 2}};
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        struct data *data = open_sized(cases[i].form, cases[i].vocab, cases[i].bytes);
        assert_int_equal(data_check_rounds(data, cases[i].ranks), cases[i].rounds);
        data_close(data);
    }
}

/* Nothing is read that cannot be beyond: the file is not there any more. */
static void a_vocabulary_of_all_tokens_reads_nothing(void **state)
{
    (void)state;
    static const struct {
        enum data_form form;
        int64_t vocab;
        enum status status;
    } cases[] = {{DATA_BYTES, 256, STATUS_OK},
                 {DATA_BYTES, 255, STATUS_IO},
                 {DATA_U16, 65536, STATUS_OK},
                 {DATA_U16, 65535, STATUS_IO},
                 {DATA_U32, INT32_MAX, STATUS_IO}};
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        struct data *data = open_sized(cases[i].form, cases[i].vocab, 64);
        assert_int_equal(truncate(data_path, 0), 0);
        assert_int_equal(data_check_rounds(data, 1), cases[i].status != STATUS_OK);
        if (cases[i].status != STATUS_OK)
            assert_int_equal(data_check(data, 0, 1), cases[i].status);
        status_clear();
        data_close(data);
    }
}

static void files_that_cannot_be_read_are_named(void **state)
{
    (void)state;
    const int64_t seq = 1;
    struct data *data = NULL;
    struct data_options o = options_of(DATA_BYTES, &seq);
    CHECK_FAILS(STATUS_USAGE, "No such file", data_open(&o, &data));
    assert_string_equal(status_last()->where, data_path);
    o.path = temp.dir;
    CHECK_FAILS(STATUS_USAGE, "Is a directory", data_open(&o, &data));
    o.path = "/dev/zero";
    CHECK_FAILS(STATUS_USAGE, "not a regular file", data_open(&o, &data));
}

static void a_file_cut_while_it_is_read_is_io(void **state)
{
    (void)state;
    const int64_t seq = 10;
    struct data *data = NULL;
    struct data_batch batch = {0};
    put_bytes("0123456789a", 11);
    struct data_options o = options_of(DATA_BYTES, &seq);
    CHECK_OK(data_open(&o, &data));
    assert_int_equal(truncate(data_path, 4), 0);
    struct shard whole = share_of(10, 1, 0);
    CHECK_FAILS(STATUS_IO, "nothing from byte 4 on, 7 bytes", data_read(data, 0, 0, 0, &whole, &batch));
    data_batch_free(&batch);
    data_close(data);
}

static void options_that_cannot_be_are_named(void **state)
{
    (void)state;
    const int64_t seq = 4, zero = 0, huge = INT32_MAX;
    struct data *data = NULL;
    put_bytes("0123456789", 10);
    const struct data_options fine = options_of(DATA_BYTES, &seq);
    struct data_options o;
#define REFUSED(change, word)                                                                                          \
    do {                                                                                                               \
        o = fine;                                                                                                      \
        change;                                                                                                        \
        CHECK_FAILS(STATUS_USAGE, word, data_open(&o, &data));                                                         \
    } while (0)
    REFUSED(o.vocab = 0, "the vocabulary is 0");
    REFUSED(o.vocab = INT64_C(1) << 31, "ids are 32 bits");
    REFUSED(o.n_seqs = 0, "the number of lengths is 0");
    REFUSED(o.seqs = &zero, "a row's length is 0");
    REFUSED(o.seqs = &huge, "positions are 32 bits");
    REFUSED(o.pad_to = 0, "padded to a multiple of is 0");
    REFUSED(o.pad_to = INT64_MAX, "positions are 32 bits");
    REFUSED(o.micro_batch = 0, "micro_batch is 0");
    REFUSED(o.accumulate = -1, "accumulate is -1");
    REFUSED(o.groups = 0, "groups is 0");
    REFUSED(o.epochs = 0, "epochs is 0");
    REFUSED(o.epochs = INT64_MAX, "steps");
    REFUSED((o.micro_batch = INT32_MAX, o.accumulate = INT32_MAX, o.groups = INT32_MAX), "rows per step");
    REFUSED((o.vocab = 10, o.separator = (struct data_separator){.n = 1, .token = {10}}), "separator's token 10");
    assert_null(data);
}

static void forms_are_parsed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *path;
        enum data_form form;
    } cases[] = {{"auto", "a.u16", DATA_U16},   {"auto", "dir.u16/b.u32", DATA_U32}, {"auto", "a.u16.txt", DATA_BYTES},
                 {"auto", "plain", DATA_BYTES}, {"bytes", "a.u16", DATA_BYTES},      {"u32", "a", DATA_U32}};
    enum data_form form;
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        CHECK_OK(data_form_parse(cases[i].text, "--data-form", cases[i].path, &form));
        assert_int_equal(form, cases[i].form);
    }
    CHECK_FAILS(STATUS_USAGE, "'i64' is not a form of tokens", data_form_parse("i64", "--data-form", "a", &form));
    assert_string_equal(status_last()->where, "--data-form");
}

static void separators_are_parsed(void **state)
{
    (void)state;
    struct data_separator s = {0};
    CHECK_OK(data_separator_parse("a\\n\\\\\\x7C\\0\xc3", "--doc-separator", DATA_BYTES, &s));
    assert_int_equal(s.n, 6);
    static const int32_t want[] = {'a', '\n', '\\', '|', 0, 0xc3};
    assert_memory_equal(s.token, want, sizeof want);
    CHECK_OK(data_separator_parse("151643,0", "--doc-separator", DATA_U32, &s));
    assert_true(s.n == 2 && s.token[0] == 151643 && s.token[1] == 0);
    static const char *const bad_bytes[] = {"", "\\", "\\q", "\\x", "\\x1", "\\xg0", "12345678901234567"};
    static const char *const bad_ids[] = {
        "", "x", "-1", "1,", ",1", "1,,2", "1 2", "2147483648", "99999999999999999999"};
    for (int i = 0; i < CHECK_COUNT(bad_bytes); i++)
        CHECK_FAILS(STATUS_USAGE, "separator", data_separator_parse(bad_bytes[i], "--doc-separator", DATA_BYTES, &s));
    for (int i = 0; i < CHECK_COUNT(bad_ids); i++)
        CHECK_FAILS(STATUS_USAGE, "separator", data_separator_parse(bad_ids[i], "--doc-separator", DATA_U16, &s));
    assert_int_equal(s.n, 2); /* nothing changes on failure */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_TEMP(short_files_say_what_is_needed),
        IN_TEMP(cut_files_of_ids_are_refused),
        IN_TEMP(tokens_beyond_the_vocabulary_are_named),
        IN_TEMP(the_file_is_checked_in_parts),
        IN_TEMP(a_check_has_rounds),
        IN_TEMP(a_vocabulary_of_all_tokens_reads_nothing),
        IN_TEMP(files_that_cannot_be_read_are_named),
        IN_TEMP(a_file_cut_while_it_is_read_is_io),
        IN_TEMP(options_that_cannot_be_are_named),
        cmocka_unit_test(forms_are_parsed),
        cmocka_unit_test(separators_are_parsed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
