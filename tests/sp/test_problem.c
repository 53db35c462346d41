/* tests/sp/test_problem.c -- problems: what is refused, padding, documents and their offsets. */
#include "sp/sp_test.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

static void from_model_takes_shapes(void **state)
{
    (void)state;
    struct model model = {.layers = 4,
                          .hidden = 896,
                          .heads = 14,
                          .kv_heads = 2,
                          .head_dim = 64,
                          .head_dim_v = 64,
                          .ffn = 4864,
                          .window = 128,
                          .window_layers = 4};
    struct problem problem;
    problem_from_model(&model, 4096, 2, &problem);
    CHECK_OK(problem_check(&problem));
    assert_int_equal(problem.heads, 14);
    assert_int_equal(problem.kv_heads, 2);
    assert_int_equal(problem.batch, 1);
    assert_int_equal(problem.direction, PROBLEM_BOTH);
    assert_int_equal(problem.window, 128);
    assert_true(problem.causal);
    model.window_layers = 2; /* the layers that see everything are what the problem stands for */
    problem_from_model(&model, 4096, 2, &problem);
    assert_int_equal(problem.window, 0);
}

static void refuses_every_bad_field(void **state)
{
    (void)state;
    const struct problem good = small_problem(8, 2, 64, 4);
    struct problem p;
    CHECK_OK(problem_check(&good));
    CHECK_FAILS(STATUS_USAGE, "batch 0", (p = good, p.batch = 0, problem_check(&p)));
    CHECK_FAILS(STATUS_USAGE, "seq -1", (p = good, p.seq = -1, problem_check(&p)));
    CHECK_FAILS(STATUS_USAGE, "heads 0", (p = good, p.heads = 0, problem_check(&p)));
    CHECK_FAILS(STATUS_USAGE, "kv_heads -3", (p = good, p.kv_heads = -3, problem_check(&p)));
    CHECK_FAILS(STATUS_USAGE, "head_dim 0", (p = good, p.head_dim = 0, problem_check(&p)));
    CHECK_FAILS(STATUS_USAGE, "head_dim_v -1", (p = good, p.head_dim_v = -1, problem_check(&p)));
    CHECK_FAILS(STATUS_USAGE, "window -5", (p = good, p.window = -5, problem_check(&p)));
    CHECK_FAILS(STATUS_USAGE, "world 0", (p = good, p.world = 0, problem_check(&p)));
    CHECK_FAILS(STATUS_USAGE, "hidden -1", (p = good, p.hidden = -1, problem_check(&p)));
    CHECK_FAILS(STATUS_USAGE, "ffn -1", (p = good, p.ffn = -1, problem_check(&p)));
    CHECK_FAILS(STATUS_USAGE, "groups", (p = good, p.kv_heads = 3, problem_check(&p)));
    CHECK_FAILS(STATUS_USAGE, "dtype", (p = good, p.dtype = (enum dtype)17, problem_check(&p)));
    CHECK_FAILS(STATUS_USAGE, "direction", (p = good, p.direction = (enum problem_direction)0, problem_check(&p)));
    CHECK_FAILS(STATUS_USAGE, "documents", (p = good, p.docs = PROBLEM_MAX_DOCS + 1, problem_check(&p)));
}

static void refuses_absurd_sizes_without_wrapping(void **state)
{
    (void)state;
    const struct problem good = small_problem(8, 2, 64, 4);
    struct problem p;
    const int64_t huge[] = {INT64_MAX, INT64_C(1000000000000000000), INT64_C(1) << 56};
    for (int i = 0; i < CHECK_COUNT(huge); i++) {
        CHECK_FAILS(STATUS_USAGE, "", (p = good, p.seq = huge[i], problem_check(&p)));
        CHECK_FAILS(STATUS_USAGE, "", (p = good, p.batch = huge[i], problem_check(&p)));
        CHECK_FAILS(STATUS_USAGE, "", (p = good, p.hidden = huge[i], problem_check(&p)));
        CHECK_FAILS(STATUS_USAGE, "", (p = good, p.ffn = huge[i], problem_check(&p)));
    }
    p = good;
    p.heads = p.kv_heads = p.head_dim = INT32_MAX;
    CHECK_FAILS(STATUS_USAGE, "heads x head_dim", (p.seq = 1 << 20, problem_check(&p)));
    p = good;
    p.batch = 1 << 20;
    CHECK_OK(problem_check(&p));
    p.world = INT32_MAX; /* a ring of all pads to twice as many */
    CHECK_FAILS(STATUS_USAGE, "beyond any machine", problem_check(&p));
}

static void zero_and_one_token_are_problems(void **state)
{
    (void)state;
    for (int64_t seq = 0; seq < 2; seq++) {
        struct problem p = small_problem(4, 4, seq, 4);
        CHECK_OK(problem_check(&p));
        assert_int_equal(problem_padded(&p, 4), seq * 4);
    }
}

static void c12_pads_to_a_multiple(void **state)
{
    (void)state;
    struct problem p = small_problem(8, 8, 10, 4);
    assert_int_equal(problem_padded(&p, 4), 12);
    p.seq = 4097;
    assert_int_equal(problem_padded(&p, 8), 4104);
    assert_int_equal(problem_padded(&p, 8) / 8, 513);
    assert_int_equal(problem_padded(&p, 1), 4097);
}

static void c11_boundaries_come_from_the_whole_row(void **state)
{
    (void)state;
    struct problem p = small_problem(2, 2, 8, 2);
    int64_t *cu = NULL;
    int docs = -1;
    p.docs = 2;
    p.doc_len[0] = 3;
    p.doc_len[1] = 5;
    CHECK_OK(problem_check(&p));
    CHECK_OK(problem_offsets(&p, 8, &cu, &docs));
    const int64_t want[] = {0, 3, 8};
    assert_int_equal(docs, 2);
    assert_memory_equal(cu, want, sizeof want);
    free(cu);
}

static void padding_is_a_document_of_every_row(void **state)
{
    (void)state;
    struct problem p = small_problem(2, 2, 7, 2);
    int64_t *cu = NULL;
    int docs = -1;
    p.batch = 2;
    p.docs = 3;
    p.doc_len[0] = 3;
    p.doc_len[1] = 0;
    p.doc_len[2] = 4;
    CHECK_OK(problem_offsets(&p, 8, &cu, &docs));
    const int64_t want[] = {0, 3, 3, 7, 8, 11, 11, 15, 16};
    assert_int_equal(docs, 8);
    assert_memory_equal(cu, want, sizeof want);
    free(cu);
}

static void an_unpacked_row_has_offsets_only_when_padding_could_be_seen(void **state)
{
    (void)state;
    struct problem p = small_problem(2, 2, 7, 2);
    int64_t *cu = (int64_t *)&p;
    int docs = -1;
    CHECK_OK(problem_offsets(&p, 8, &cu, &docs));
    assert_null(cu);
    assert_int_equal(docs, 0);
    p.causal = false;
    CHECK_OK(problem_offsets(&p, 8, &cu, &docs));
    const int64_t want[] = {0, 7, 8};
    assert_int_equal(docs, 2);
    assert_memory_equal(cu, want, sizeof want);
    free(cu);
    CHECK_OK(problem_offsets(&p, 7, &cu, &docs));
    assert_int_equal(docs, 0);
}

static void fixed_documents_fill_the_row(void **state)
{
    (void)state;
    struct problem p = small_problem(2, 2, 20000, 2);
    CHECK_OK(problem_set_docs(&p, "fixed:8k"));
    assert_int_equal(p.docs, 3);
    assert_int_equal(p.doc_len[0], 8192);
    assert_int_equal(p.doc_len[2], 20000 - 2 * 8192);
    CHECK_OK(problem_check(&p));
    CHECK_OK(problem_set_docs(&p, "none"));
    assert_int_equal(p.docs, 0);
    CHECK_FAILS(STATUS_USAGE, "documents", problem_set_docs(&p, "fixed:1"));
    CHECK_FAILS(STATUS_USAGE, "", problem_set_docs(&p, "fixed:0"));
    CHECK_FAILS(STATUS_USAGE, "", problem_set_docs(&p, "fixed:"));
    CHECK_FAILS(STATUS_USAGE, "", problem_set_docs(&p, "fixed:1000000000000000000000"));
    CHECK_FAILS(STATUS_USAGE, "", problem_set_docs(&p, "/nonexistent/docs.txt"));
    assert_int_equal(p.docs, 0); /* a refused option changes nothing */
    p.seq = 0;
    CHECK_OK(problem_set_docs(&p, "fixed:8"));
    assert_int_equal(p.docs, 0);
}

static void file_put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void files_of_lengths(void **state)
{
    (void)state;
    struct problem p = small_problem(2, 2, 8, 2);
    char dir[] = "/tmp/sptune-docs-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/docs", dir);
    log_setup(LOG_QUIET, false);
    file_put(path, "# lengths\n3\r\n\n  5  \n");
    CHECK_OK(problem_set_docs(&p, path));
    assert_int_equal(p.docs, 2);
    assert_int_equal(p.doc_len[1], 5);
    assert_int_equal(log_warning_count(), 0);
    p.seq = 13; /* 3 5 3 and 2 of the next 5 */
    CHECK_OK(problem_set_docs(&p, path));
    assert_int_equal(p.docs, 4);
    assert_int_equal(p.doc_len[3], 2);
    CHECK_OK(problem_check(&p));
    assert_int_equal(log_warning_count(), 1);
    p.seq = 4; /* 3 and 1 of the next 5 */
    CHECK_OK(problem_set_docs(&p, path));
    assert_int_equal(p.docs, 2);
    assert_int_equal(p.doc_len[1], 1);
    assert_int_equal(log_warning_count(), 2);
    static const char *const bad[] = {"",      "\n\n", "0\n0\n", "3\nfive\n",
                                      "3 5\n", "-3\n", "1e30\n", "99999999999999999999\n"};
    for (int i = 0; i < CHECK_COUNT(bad); i++) {
        file_put(path, bad[i]);
        if (problem_set_docs(&p, path) != STATUS_USAGE)
            fail_msg("accepted the lengths '%s'", bad[i]);
    }
    file_put(path, "4611686018427387903\n4611686018427387903\n4611686018427387903\n");
    p.seq = INT64_MAX; /* three of them are more than an int64 holds */
    CHECK_OK(problem_set_docs(&p, path));
    assert_int_equal(p.docs, 3);
    assert_int_equal(p.doc_len[2], 1);
    assert_non_null(strstr(log_warning(log_warning_count() - 1), "holds more than"));
    file_put(path, "1\n");
    p.seq = PROBLEM_MAX_DOCS + 1;
    CHECK_FAILS(STATUS_USAGE, "more than 1024 documents", problem_set_docs(&p, path));
    assert_int_equal(remove(path), 0);
    assert_int_equal(remove(dir), 0);
    log_reset();
}

static void documents_sum_to_the_row(void **state)
{
    (void)state;
    struct problem p = small_problem(2, 2, 8, 2);
    p.docs = 2;
    p.doc_len[0] = 3;
    p.doc_len[1] = 4;
    CHECK_FAILS(STATUS_USAGE, "7 tokens", problem_check(&p));
    p.doc_len[1] = 6;
    CHECK_FAILS(STATUS_USAGE, "more than the 8", problem_check(&p));
    p.doc_len[0] = p.doc_len[1] = INT64_MAX; /* must not wrap to something that fits */
    CHECK_FAILS(STATUS_USAGE, "more than the 8", problem_check(&p));
    p.doc_len[0] = -3;
    CHECK_FAILS(STATUS_USAGE, "negative", problem_check(&p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_model_takes_shapes),
        cmocka_unit_test(refuses_every_bad_field),
        cmocka_unit_test(refuses_absurd_sizes_without_wrapping),
        cmocka_unit_test(zero_and_one_token_are_problems),
        cmocka_unit_test(c12_pads_to_a_multiple),
        cmocka_unit_test(c11_boundaries_come_from_the_whole_row),
        cmocka_unit_test(padding_is_a_document_of_every_row),
        cmocka_unit_test(an_unpacked_row_has_offsets_only_when_padding_could_be_seen),
        cmocka_unit_test(fixed_documents_fill_the_row),
        cmocka_unit_test(files_of_lengths),
        cmocka_unit_test(documents_sum_to_the_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
