/* tests/sp/test_exec_chunk.c -- head arithmetic against brute force: every (heads, kv_heads, sp, chunks) of small sizes.
 *
 * The oracle knows one rule only: query head i of the model uses kv head i / (heads / kv_heads), and rank r computes
 * the r-th part of the query heads.
 */
#include "sp/sp_test.h"

#include "model/model.h"
#include "sp/exchange.h"
#include "sp/exec_chunk.h"

enum { HEADS_MAX = 12, SP_MAX = 8 };

typedef void (*visitor)(int heads, int kv_heads, int sp);

static int each_legal(visitor visit)
{
    int n = 0;
    for (int heads = 1; heads <= HEADS_MAX; heads++)
        for (int kv = 1; kv <= heads; kv++)
            for (int sp = 1; sp <= SP_MAX; sp++) {
                bool legal = heads % kv == 0 && heads % sp == 0 && (kv % sp == 0 || sp % kv == 0);
                struct verdict verdict = model_sp_heads(heads, kv, sp, 0);
                assert_int_equal(legal, heads % kv == 0 && verdict_ok(&verdict));
                if (!legal)
                    continue;
                visit(heads, kv, sp);
                n++;
            }
    return n;
}

static void check_map(int heads, int kv, int sp)
{
    int local = model_kv_local(kv, sp), copies = model_kv_copies(kv, sp), group = heads / kv;
    int holders[HEADS_MAX] = {0};
    assert_int_equal(model_kv_local(heads, sp), heads / sp);
    assert_int_equal(model_kv_copies(heads, sp), 1);
    for (int rank = 0; rank < sp; rank++) {
        int first = model_kv_first(kv, sp, rank);
        assert_int_equal(model_kv_first(heads, sp, rank), rank * (heads / sp));
        for (int i = rank * (heads / sp); i < (rank + 1) * (heads / sp); i++)
            assert_in_range(i / group, first, first + local - 1); /* what its queries need is what it holds */
        for (int j = first; j < first + local; j++)
            holders[j]++;
    }
    for (int j = 0; j < kv; j++)
        assert_int_equal(holders[j], copies);
}

static void every_rank_holds_what_its_queries_need(void **state)
{
    (void)state;
    assert_int_equal(each_legal(check_map), 98);
}

static void check_chunks(int heads, int kv, int sp)
{
    int hl = heads / sp, group = heads / kv, kv_local = model_kv_local(kv, sp);
    for (int chunks = 1; chunks <= hl; chunks++)
        for (int rank = 0; rank < sp; rank++) {
            struct problem problem = small_problem(heads, kv, 4, sp);
            struct plan plan = small_plan(sp, sp);
            int moved[HEADS_MAX] = {0}, sent[HEADS_MAX] = {0}, readers[HEADS_MAX] = {0};
            bool shared = exec_chunk_shared(&problem, (plan.chunks = chunks, &plan), rank);
            int at = 0, base = model_kv_first(kv, sp, rank);
            struct exec_chunk rest = {0};
            for (int c = 0; c < chunks; c++) {
                struct exec_chunk chunk;
                bool needed[HEADS_MAX] = {false};
                exec_chunk(&problem, &plan, rank, c, &chunk);
                assert_int_equal(chunk.first, at);
                at += chunk.count;
                if (c == 0) {
                    exec_chunk_rest(&chunk, hl, kv_local, &rest);
                } else { /* what is left of the rest after the chunks before this one */
                    assert_int_equal(rest.first, chunk.first);
                    rest.first += chunk.count;
                    rest.count -= chunk.count;
                    if (chunk.new_count > 0)
                        assert_int_equal(rest.new_first, chunk.new_first);
                    rest.new_first += chunk.new_count;
                    rest.new_count -= chunk.new_count;
                }
                for (int i = chunk.first; i < chunk.first + chunk.count; i++) {
                    int want = (rank * hl + i) / group - base;
                    needed[want] = true;
                    /* the kernel's own rule, on the heads of this call */
                    assert_int_equal(chunk.kv_first + (chunk.group_first + i - chunk.first) / group, want);
                }
                for (int j = chunk.new_first; j < chunk.new_first + chunk.new_count; j++)
                    moved[j]++;
                for (int j = 0; j < kv_local; j++) {
                    assert_int_equal(needed[j], j >= chunk.kv_first && j < chunk.kv_first + chunk.kv_count);
                    assert_true(!needed[j] || moved[j] == 1); /* there before it is read, and once */
                    readers[j] += needed[j];
                    assert_true(!needed[j] || sent[j] == 0); /* not sent away before its last reader */
                }
                for (int j = chunk.out_first; j < chunk.out_first + chunk.out_count; j++)
                    sent[j]++;
            }
            assert_int_equal(at, hl);
            assert_int_equal(rest.count, 0);
            assert_int_equal(rest.new_count, 0);
            bool several = false;
            for (int j = 0; j < kv_local; j++) {
                assert_int_equal(moved[j], 1);
                assert_int_equal(sent[j], 1);
                several = several || readers[j] > 1;
            }
            assert_int_equal(shared, several);
        }
}

static void kv_heads_move_once_with_the_first_chunk_that_needs_them(void **state)
{
    (void)state;
    assert_int_equal(each_legal(check_chunks), 98);
}

/* All ranks must put the same tensors into the same exchange. */
static void check_agree(int heads, int kv, int sp)
{
    for (int chunks = 1; chunks <= heads / sp; chunks++)
        for (int c = 0; c < chunks; c++) {
            struct problem problem = small_problem(heads, kv, 4, sp);
            struct plan plan = small_plan(sp, sp);
            struct exec_chunk first, other;
            plan.chunks = chunks;
            exec_chunk(&problem, &plan, 0, c, &first);
            for (int rank = 1; rank < sp; rank++) {
                exec_chunk(&problem, &plan, rank, c, &other);
                assert_int_equal(first.count, other.count);
                assert_int_equal(first.new_first, other.new_first);
                assert_int_equal(first.new_count, other.new_count);
                assert_int_equal(first.out_first, other.out_first);
                assert_int_equal(first.out_count, other.out_count);
            }
        }
}

static void ranks_agree_on_what_moves(void **state)
{
    (void)state;
    assert_int_equal(each_legal(check_agree), 98);
}

static void c16_replicated_heads_interleave(void **state)
{
    (void)state;
    const int want[] = {0, 0, 1, 1};
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(model_kv_first(2, 4, rank), want[rank]);
}

static void c18_the_split_depends_on_nothing_else(void **state)
{
    (void)state;
    const int pairs[][2] = {{12, 3}, {12, 12}, {8, 2}, {12, 4}, {12, 1}};
    for (int i = 0; i < CHECK_COUNT(pairs) * 2; i++) {
        const int *pair = pairs[i % CHECK_COUNT(pairs)];
        struct problem problem = small_problem(pair[0], pair[1], 4, 4);
        struct plan plan = small_plan(4, 4);
        struct verdict verdict = model_sp_heads(pair[0], pair[1], 4, 4);
        for (int rank = 0; rank < 4 && verdict_ok(&verdict) && pair[0] == 12; rank++) {
            struct exec_chunk chunk;
            exec_chunk(&problem, &plan, rank, 0, &chunk);
            assert_int_equal(chunk.count, 3); /* [3,3,3,3], never [4,4,4,0] */
        }
    }
}

static void widest_row(void **state)
{
    (void)state;
    struct problem problem = small_problem(8, 2, 4, 4);
    struct plan plan = small_plan(4, 4);
    assert_int_equal(exec_row_elems(&problem, &plan), 2 * 8 + 8 + 8);
    problem.head_dim_v = 64; /* o is wider than q, k and v together */
    problem.head_dim = 1;
    problem.kv_heads = 2;
    assert_int_equal(exec_row_elems(&problem, &plan), 2 * 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_holds_what_its_queries_need),
        cmocka_unit_test(kv_heads_move_once_with_the_first_chunk_that_needs_them),
        cmocka_unit_test(ranks_agree_on_what_moves),
        cmocka_unit_test(c16_replicated_heads_interleave),
        cmocka_unit_test(c18_the_split_depends_on_nothing_else),
        cmocka_unit_test(widest_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
