/* tests/train/test_data_row.c -- one row: forms of tokens, shifted labels, padding, documents, ranges. */
#include "train/data_test.h"

static void expect(const int32_t *got, const int32_t *want, int n, const char *what)
{
    for (int i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s %d is %d, expected %d", what, i, (int)got[i], (int)want[i]);
}

static void read_share(const struct data_options *o, int sp, int index, struct data_batch *out)
{
    struct data *data = NULL;
    CHECK_OK(data_open(o, &data));
    struct shard share = share_of(data_padded(data, 0), sp, index);
    CHECK_OK(data_read(data, 0, 0, 0, &share, out));
    data_close(data);
}

static void forms_are_little_endian(void **state)
{
    (void)state;
    static const unsigned char bytes[] = {0x01, 0x02, 0xff, 0xfe, 0x05, 0x00, 0x00, 0x00};
    static const int32_t as_bytes[] = {1, 2, 255, 254, 5, 0, 0}, as_u16[] = {0x201, 0xfeff, 5}, as_u32[] = {0x7eff0201};
    int64_t seq = 7;
    struct data_batch batch = {0};
    put_bytes(bytes, sizeof bytes);
    struct data_options o = options_of(DATA_BYTES, &seq);
    read_share(&o, 1, 0, &batch);
    expect(batch.ids, as_bytes, 7, "byte");
    seq = 3;
    o = options_of(DATA_U16, &seq);
    read_share(&o, 1, 0, &batch);
    expect(batch.ids, as_u16, 3, "u16");
    put_bytes("\x01\x02\xff\x7e\x05\0\0", 8);
    seq = 1;
    o = options_of(DATA_U32, &seq);
    o.vocab = INT32_MAX;
    read_share(&o, 1, 0, &batch);
    expect(batch.ids, as_u32, 1, "u32");
    assert_int_equal(batch.labels[0], 5);
    data_batch_free(&batch);
}

/* Labels are shifted over the whole row and then cut: the last token of rank 0 has the first of rank 1 as its label. */
static void labels_cross_the_cut(void **state)
{
    (void)state;
    static const int32_t left[] = {'b', 'c'}, right[] = {'d', 'e'};
    const int64_t seq = 4;
    struct data_batch batch = {0};
    put_bytes("abcde", 5);
    struct data_options o = options_of(DATA_BYTES, &seq);
    read_share(&o, 2, 0, &batch);
    expect(batch.labels, left, 2, "label");
    read_share(&o, 2, 1, &batch);
    expect(batch.labels, right, 2, "label");
    assert_int_equal(batch.valid, 4);
    assert_null(batch.docs);
    assert_null(batch.doc_len);
    data_batch_free(&batch);
}

static void padding_counts_for_nothing(void **state)
{
    (void)state;
    static const int32_t ids[] = {'a', 'b', 'c', 'd', 'e', 0, 0, 0},
                         labels[] = {'b', 'c', 'd', 'e', 'f', -100, -100, -100}, positions[] = {0, 1, 2, 3, 4, 0, 1, 2};
    const int64_t seq = 5;
    struct data_batch batch = {0};
    put_bytes("abcdef", 6);
    struct data_options o = options_of(DATA_BYTES, &seq);
    o.pad_to = 4;
    for (int sp = 1; sp <= 4; sp *= 2)
        for (int index = 0; index < sp; index++) {
            read_share(&o, sp, index, &batch);
            int local = 8 / sp, at = local * index;
            assert_int_equal(batch.local, local);
            assert_int_equal(batch.valid, 5);
            expect(batch.ids, ids + at, local, "id");
            expect(batch.labels, labels + at, local, "label");
            expect(batch.positions, positions + at, local, "position");
        }
    data_batch_free(&batch);
}

/* As ring attention holds them: the first and the last of 2 P pieces; also three ranges, one of them empty. */
static void a_rank_may_hold_several_ranges(void **state)
{
    (void)state;
    static const int32_t ids[] = {'c', 'd', 'g', 'h', 'k', 'l', 'o', 'p'}, positions[] = {2, 3, 6, 7, 2, 3, 6, 7};
    const int64_t seq = 8;
    struct data *data = NULL;
    struct data_batch batch = {0};
    put_bytes("abcdefghijklmnopq", 17);
    struct data_options o = options_of(DATA_BYTES, &seq);
    o.micro_batch = 2;
    CHECK_OK(data_open(&o, &data));
    const struct shard ranges = {.n = 2, .range = {{2, 2}, {6, 2}}};
    CHECK_OK(data_read(data, 0, 0, 0, &ranges, &batch));
    bool swapped = data_first(data, 0, 0, 0, 0) != 0; /* which of the two windows came first */
    assert_int_equal(batch.rows, 2);
    assert_int_equal(batch.local, 4);
    assert_int_equal(batch.valid, 16);
    expect(batch.ids, ids + (swapped ? 4 : 0), 4, "id of row 0");
    expect(batch.ids + 4, ids + (swapped ? 0 : 4), 4, "id of row 1");
    expect(batch.positions, positions, 8, "position");
    const struct shard beyond = {.n = 1, .range = {{6, 3}}}, none = {.n = 0},
                       twice = {.n = 2, .range = {{0, 8}, {0, 8}}};
    CHECK_FAILS(STATUS_USAGE, "tokens 6 to 9 of a row of 8", data_read(data, 0, 0, 0, &beyond, &batch));
    CHECK_FAILS(STATUS_USAGE, "0 ranges", data_read(data, 0, 0, 0, &none, &batch));
    CHECK_FAILS(STATUS_USAGE, "16 tokens in ranges", data_read(data, 0, 0, 0, &twice, &batch));
    data_batch_free(&batch);
    data_close(data);
}

/* ---- packed ---- */

static struct data_options packed_by(enum data_form form, const int64_t *seq, const char *separator)
{
    struct data_options o = options_of(form, seq);
    CHECK_OK(data_separator_parse(separator, "--doc-separator", form, &o.separator));
    return o;
}

/* C11: documents 3 + 5 in a row of 8, sp 2: positions 0,1,2,0,1,2,3,4; boundaries 0, 3, 8 from the whole row although rank 1's part
 * begins at position 1 and holds no 0; 21 pairs of query and key, not 36. */
static void c11_documents_are_those_of_the_whole_row(void **state)
{
    (void)state;
    static const int32_t positions[] = {0, 1, 2, 0, 1, 2, 3, 4}, labels[] = {'b', '|', -100, 'd', 'e', 'f', '|', -100};
    const int64_t seq = 8;
    struct data_batch batch = {0};
    put_bytes("ab|cdef|", 8);
    struct data_options o = packed_by(DATA_BYTES, &seq, "|");
    for (int index = 0; index < 2; index++) {
        read_share(&o, 2, index, &batch);
        expect(batch.positions, positions + 4 * index, 4, "position");
        expect(batch.labels, labels + 4 * index, 4, "label");
        assert_int_equal(batch.docs[0], 2);
        assert_int_equal(batch.doc_len[0], 3);
        assert_int_equal(batch.doc_len[1], 5);
        assert_int_equal(batch.valid, 6);
        int64_t pairs = 0;
        for (int i = 0; i < batch.docs[0]; i++)
            pairs += batch.doc_len[i] * (batch.doc_len[i] + 1) / 2;
        assert_int_equal(pairs, 21);
    }
    data_batch_free(&batch);
}

/* C12: rows of 10 on sp 4 and of 4097 on sp 8 become 12 and 4104, 3 and 513 tokens per rank; 9 and 4096 labels count. */
static void c12_rows_are_padded_to_a_multiple(void **state)
{
    (void)state;
    static const struct {
        int64_t seq, padded, valid;
        int sp;
    } cases[] = {{10, 12, 9, 4}, {4097, 4104, 4096, 8}};
    struct data_batch batch = {0};
    for (int c = 0; c < CHECK_COUNT(cases); c++) {
        int64_t seq = cases[c].seq, ignored = 0;
        char *text = malloc((size_t)seq);
        assert_non_null(text);
        memset(text, 'x', (size_t)seq);
        text[seq - 1] = '|'; /* one document: its last token has no label */
        put_bytes(text, (size_t)seq);
        free(text);
        struct data_options o = packed_by(DATA_BYTES, &seq, "|");
        o.pad_to = cases[c].sp;
        for (int index = 0; index < cases[c].sp; index++) {
            read_share(&o, cases[c].sp, index, &batch);
            assert_int_equal(batch.padded, cases[c].padded);
            assert_int_equal(batch.local, cases[c].padded / cases[c].sp);
            assert_int_equal(batch.valid, cases[c].valid);
            for (int64_t i = 0; i < batch.local; i++)
                ignored += batch.labels[i] == DATA_IGNORED;
        }
        assert_int_equal(ignored, cases[c].padded - cases[c].valid);
    }
    data_batch_free(&batch);
}

static void expect_docs(const char *text, const char *separator, const int64_t *want, int n, int64_t valid)
{
    const int64_t seq = (int64_t)strlen(text);
    struct data_batch batch = {0};
    put_bytes(text, (size_t)seq);
    struct data_options o = packed_by(DATA_BYTES, &seq, separator);
    read_share(&o, 1, 0, &batch);
    assert_int_equal(batch.docs[0], n);
    for (int i = 0; i < n; i++)
        assert_int_equal(batch.doc_len[i], want[i]);
    assert_int_equal(batch.valid, valid);
    data_batch_free(&batch);
}

static void separators_end_documents(void **state)
{
    (void)state;
    static const int64_t two[] = {4, 3}, one[] = {7}, run[] = {6, 1}, first[] = {2, 2};
    expect_docs("ab\n\ncde", "\\n\\n", two, 2, 5); /* the file ends: its last token has no label either */
    expect_docs("ab\ncde\n", "\\n\\n", one, 1, 6);
    expect_docs("ab\n\n\n\nc", "\\n\\n", run, 2, 5); /* several in a row end one document */
    expect_docs("a\n\n\nbc\n", "\\x0a\\n", (const int64_t[]){4, 3}, 2, 5);
    expect_docs("\n\nab", "\\n\\n", first, 2, 2);
    expect_docs("a|b", "|", (const int64_t[]){2, 1}, 2, 1);
}

/* Rows are cut where they are long enough. What the cut shares is seen from both sides: a document that goes on keeps its label, and
 * a separator across the cut ends the document one token into the row. */
static void documents_are_cut_with_rows(void **state)
{
    (void)state;
    static const int32_t first[] = {'b', 'c', '\n', '\n'}, second[] = {-100, 'e', 'f', 'g'}, positions[] = {0, 0, 1, 2};
    const int64_t seq = 4;
    struct data *data = NULL;
    struct data_batch batch = {0};
    put_bytes("abc\n\ndefgh", 10);
    struct data_options o = packed_by(DATA_BYTES, &seq, "\\n\\n");
    CHECK_OK(data_open(&o, &data));
    assert_int_equal(data_steps(data), 2);
    struct shard whole = share_of(seq, 1, 0);
    for (int64_t step = 0; step < 2; step++) {
        CHECK_OK(data_read(data, step, 0, 0, &whole, &batch));
        if (data_first(data, step, 0, 0, 0) == 0) {
            expect(batch.labels, first, 4, "label");
            assert_int_equal(batch.docs[0], 1);
            assert_int_equal(batch.valid, 4);
        } else {
            expect(batch.labels, second, 4, "label");
            expect(batch.positions, positions, 4, "position");
            assert_int_equal(batch.docs[0], 2);
            assert_int_equal(batch.doc_len[0], 1);
            assert_int_equal(batch.valid, 3);
        }
    }
    data_batch_free(&batch);
    data_close(data);
}

static void ids_separate_too(void **state)
{
    (void)state;
    static const unsigned char ids[] = {1, 0, 44, 1, 2, 0, 3, 0, 44, 1, 4, 0}; /* 1 300 | 2 3 300 | 4 */
    const int64_t seq = 6;
    struct data_batch batch = {0};
    put_bytes(ids, sizeof ids);
    struct data_options o = packed_by(DATA_U16, &seq, "300");
    read_share(&o, 1, 0, &batch);
    assert_int_equal(batch.docs[0], 3);
    assert_int_equal(batch.doc_len[0], 2);
    assert_int_equal(batch.doc_len[1], 3);
    assert_int_equal(batch.valid, 3);
    data_batch_free(&batch);
}

/* A problem holds PROBLEM_MAX_DOCS documents, padding one of them; beyond them the row is one document without labels, so no length is lost. */
static void more_documents_than_fit_lose_their_labels(void **state)
{
    (void)state;
    enum { DOCS = PROBLEM_MAX_DOCS + 10 };
    char text[2 * DOCS];
    const int64_t seq = sizeof text;
    struct data_batch batch = {0};
    for (int i = 0; i < DOCS; i++)
        memcpy(text + 2 * i, "x|", 2);
    put_bytes(text, sizeof text);
    struct data_options o = packed_by(DATA_BYTES, &seq, "|");
    read_share(&o, 1, 0, &batch);
    assert_int_equal(batch.docs[0], PROBLEM_MAX_DOCS - 1);
    assert_int_equal(batch.valid, PROBLEM_MAX_DOCS - 2);
    int64_t sum = 0;
    for (int i = 0; i < batch.docs[0]; i++)
        sum += batch.doc_len[i];
    assert_int_equal(sum, seq);
    assert_int_equal(batch.doc_len[PROBLEM_MAX_DOCS - 2], 24);
    assert_int_equal(batch.positions[seq - 1], 23);
    assert_int_equal(batch.labels[seq - 2], DATA_IGNORED);
    data_batch_free(&batch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_TEMP(forms_are_little_endian),
        IN_TEMP(labels_cross_the_cut),
        IN_TEMP(padding_counts_for_nothing),
        IN_TEMP(a_rank_may_hold_several_ranges),
        IN_TEMP(c11_documents_are_those_of_the_whole_row),
        IN_TEMP(c12_rows_are_padded_to_a_multiple),
        IN_TEMP(separators_end_documents),
        IN_TEMP(documents_are_cut_with_rows),
        IN_TEMP(ids_separate_too),
        IN_TEMP(more_documents_than_fit_lose_their_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
