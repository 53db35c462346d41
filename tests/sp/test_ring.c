/* tests/sp/test_ring.c -- keys that go round: what each step computes, pair by pair, and layers under ring and ulysses+ring against the
 * unsharded reference. */
#include "sp/whole.h"

#include "kernels/attention_mask.h"

enum { ROW_MAX = 64 };

/* ---- which pairs a step computes ---- */

/* The document of a token; -1 in none. */
static int doc_of(const struct ring_row *row, int64_t position)
{
    for (int d = 0; d < row->docs; d++)
        if (position >= row->cu[d] && position < row->cu[d + 1])
            return d;
    return row->docs > 0 ? -1 : 0;
}

/* Every pair of a step, by the kernels' own arithmetic, at its place in the sequence. */
static void pairs_count(const struct ring_row *row, const struct ring_block *block, int count[ROW_MAX][ROW_MAX])
{
    struct shard queries, keys;
    struct attention_shape shape = {.batch = 1,
                                    .seq_q = block->q_count,
                                    .seq_k = block->k_count,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = 1,
                                    .causal = block->causal,
                                    .docs = block->docs,
                                    .cu_q = block->cu_q,
                                    .cu_k = block->cu_k};
    attention_shape_fill(&shape);
    CHECK_OK(attention_shape_check(&shape));
    shard_get(row->ranks, row->padded, row->ranks, row->rank, &queries);
    shard_get(row->ranks, row->padded, row->ranks, block->from, &keys);
    for (int64_t s = 0; s < attention_segment_count(&shape); s++) {
        struct attention_segment segment = attention_segment_get(&shape, s);
        for (int64_t i = 0; i < segment.seq_q; i++) {
            struct attention_range range = attention_keys(&shape, &segment, i);
            int64_t q = shard_position(&queries, block->q_first + segment.q_first + i);
            for (int64_t j = range.first; j < range.end; j++)
                count[q][shard_position(&keys, block->k_first + segment.k_first + j)]++;
        }
    }
}

static void one_row(int ranks, int64_t padded, bool causal, int docs, const int64_t *cu)
{
    int count[ROW_MAX][ROW_MAX] = {{0}};
    for (int rank = 0; rank < ranks; rank++) {
        struct ring_row row = {
            .ranks = ranks, .rank = rank, .padded = padded, .causal = causal, .docs = docs, .cu = cu};
        for (int step = 0; step < ranks; step++) {
            struct ring_block block;
            CHECK_OK(ring_block_make(&row, step, &block));
            assert_int_equal(block.from, (rank + ranks - step) % ranks);
            pairs_count(&row, &block, count);
            ring_block_free(&block);
        }
    }
    struct ring_row whole = {.docs = docs, .cu = cu};
    for (int64_t q = 0; q < padded; q++)
        for (int64_t k = 0; k < padded; k++) {
            bool seen = doc_of(&whole, q) == doc_of(&whole, k) && (!causal || k <= q);
            if (count[q][k] != (seen ? 1 : 0))
                fail_msg("%d ranks, %lld tokens, %s, %d documents: query %lld and key %lld meet %d times", ranks,
                         (long long)padded, causal ? "causal" : "full", docs, (long long)q, (long long)k, count[q][k]);
        }
}

static void every_pair_once(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 5; ranks++)
        for (int64_t padded = 0; padded <= ROW_MAX; padded += 2 * ranks)
            for (int causal = 0; causal < 2; causal++) {
                struct rng rng;
                one_row(ranks, padded, causal != 0, 0, NULL);
                rng_seed(&rng, 3, (uint64_t)(padded * 2 + causal));
                for (int draw = 0; draw < 20; draw++) { /* some documents are empty, some reach over many pieces */
                    int64_t cu[6] = {0};
                    int docs = 1 + (int)rng_below(&rng, 5);
                    for (int d = 1; d <= docs; d++)
                        cu[d] =
                            d == docs ? padded : cu[d - 1] + rng_below(&rng, padded - cu[d - 1] + 1) * (d % 2 + 1) / 2;
                    one_row(ranks, padded, causal != 0, docs, cu);
                }
            }
}

/* ---- layers ---- */

static const struct scene scenes[] = {
    {1, 32, 2, 2, 8, 0, DTYPE_FP32, true, 0, 0, {0}},
    {1, 32, 2, 2, 8, 0, DTYPE_BF16, false, 0, 0, {0}},
    {2, 13, 12, 4, 16, 0, DTYPE_BF16, true, 0, 0, {0}}, /* odd length, batch 2, GQA */
    {1, 17, 3, 1, 8, 0, DTYPE_FP32, true, 0, 0, {0}},   /* heads that no number of ranks here but 3 divides */
    {2, 21, 5, 5, 8, 0, DTYPE_FP32, false, 0, 0, {0}},  /* full mask: padding must not be seen */
    {1, 23, 6, 3, 24, 16, DTYPE_FP32, true, 0, 0, {0}}, /* v narrower than q and k */
    {1, 23, 4, 2, 8, 12, DTYPE_BF16, true, 0, 0, {0}},  /* and wider */
    {2, 16, 12, 4, 8, 0, DTYPE_BF16, true, 0, 3, {3, 5, 8}},
    {1, 29, 4, 2, 8, 0, DTYPE_FP32, true, 0, 4, {1, 0, 19, 9}}, /* a document over most pieces, an empty one, padding */
    {2, 11, 2, 1, 8, 0, DTYPE_FP32, false, 0, 2, {4, 7}},
    {1, 24, 4, 4, 8, 0, DTYPE_BF16, true, 0, 4, {6, 6, 6, 6}}, /* steps in which nobody sees anything */
    {2, 2, 4, 2, 8, 0, DTYPE_FP32, true, 0, 0, {0}},           /* fewer tokens than pieces */
    {1, 1, 4, 2, 8, 0, DTYPE_BF16, false, 0, 0, {0}},
    {1, 0, 4, 2, 8, 0, DTYPE_FP32, true, 0, 0, {0}},
    {1, 24, 4, 2, 8, 0, DTYPE_FP32, true, 24, 0, {0}}, /* a window that hides nothing */
    {1, 24, 4, 2, 8, 0, DTYPE_FP32, true, 25, 3, {3, 0, 21}},
    {1, 24, 4, 2, 8, 0, DTYPE_FP32, false, 1000, 0, {0}},
};

static int run_one(int scene, const struct plan *plan, struct comm *group, int world, const struct side *side, int *ran)
{
    struct problem problem = problem_of(&scenes[scene], world);
    struct verdict verdict = plan_check(&problem, plan, DEV_CPU);
    struct whole whole;
    if (!verdict_ok(&verdict)) { /* only heads may be in the way, and those of the exchange alone */
        RANK_CHECK(plan_head_ranks(plan) > 1 &&
                   (verdict.rule == RULE_HEADS_NOT_DIVISIBLE || verdict.rule == RULE_KV_RULE));
        return 0;
    }
    int failed = whole_make(&problem, shard_padded(&problem, plan), &whole);
    failed = failed ? failed : run_plan(&whole, plan, group, side);
    if (failed) {
        char text[PLAN_TEXT];
        fprintf(stderr, "scene %d, %s\n", scene, plan_text(plan, text));
    }
    whole_free(&whole);
    ++*ran;
    return failed;
}

static int run_scenes(struct comm *group, int world, const struct side *side)
{
    static const char *const exchange[] = {"packed", "direct"};
    int sp = comm_size(group), ran = 0, failed = 0;
    for (int s = 0; s < CHECK_COUNT(scenes) && !failed; s++) {
        struct plan plan = small_plan(sp, world);
        strcpy(plan.exchange, PLAN_RING_EXCHANGE);
        plan.method = PLAN_METHOD_RING;
        failed = run_one(s, &plan, group, world, side, &ran);
        plan.method = PLAN_METHOD_ULYSSES_RING;
        strcpy(plan.exchange, exchange[s % 2]);
        for (plan.ring = 1; plan.ring <= sp && !failed; plan.ring++)
            if (sp % plan.ring == 0)
                failed = run_one(s, &plan, group, world, side, &ran);
    }
    RANK_CHECK(failed || ran >= CHECK_COUNT(scenes));
    return failed;
}

/* threads > 1: passes go beside the steps. */
static int rank_whole(const struct launch *launch, void *arg)
{
    struct side side;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(dev_threads_set(side.dev, *(const int *)arg));
    RANK_CHECK(dev_can_overlap(side.dev) == (*(const int *)arg > 1));
    int failed = run_scenes(side.comm, launch->size, &side);
    side_close(&side);
    return failed;
}

static void every_ring_equals_the_unsharded_layer(void **state)
{
    (void)state;
    int one = 1;
    for (int ranks = 1; ranks <= 4; ranks++)
        ranks_pass(ranks, rank_whole, &one);
    ranks_pass(6, rank_whole, &one); /* rings of 2 and 3 whose places 3 and 2 ranks share */
}

static void passes_beside_the_steps_change_nothing(void **state)
{
    (void)state;
    int two = 2;
    for (int ranks = 2; ranks <= 4; ranks++)
        ranks_pass(ranks, rank_whole, &two);
}

/* Groups of two of four ranks: places are those of the group. */
static int rank_pairs(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *group = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_split(side.comm, launch->rank / 2, launch->rank, &group));
    int failed = run_scenes(group, launch->size, &side);
    comm_close(group);
    side_close(&side);
    return failed;
}

static void two_rings_of_two(void **state)
{
    (void)state;
    ranks_pass(4, rank_pairs, NULL);
}

/* The same bits on every run, and whether passes overlap or not. */
static int rank_again(const struct launch *launch, void *arg)
{
    struct side side;
    struct problem problem = problem_of(&scenes[2], launch->size);
    struct plan plan = small_plan(launch->size, launch->size);
    struct whole whole;
    char *kept = NULL;
    (void)arg;
    plan.method = PLAN_METHOD_RING;
    strcpy(plan.exchange, PLAN_RING_EXCHANGE);
    RANK_TRY(side_open(&side, launch, NULL));
    int failed = whole_make(&problem, shard_padded(&problem, &plan), &whole);
    for (int run = 0; run < 4 && !failed; run++) {
        struct exec *exec = NULL;
        RANK_TRY(dev_threads_set(side.dev, 1 + run % 2));
        RANK_TRY(exec_create(&problem, &plan, side.comm, side.dev, &exec));
        const struct exec_tensors *t = exec_tensors(exec);
        void *const in[] = {t->q, t->k, t->v, t->d_o};
        const void *const out[] = {t->o, t->dq, t->dk, t->dv};
        const size_t bytes[] = {t->o_bytes, t->q_bytes, t->k_bytes, t->v_bytes};
        for (int i = Q; i <= DO; i++)
            slice_put(&whole, i, &t->shard, in[i]);
        RANK_TRY(exec_forward(exec, side.queue));
        RANK_TRY(exec_backward(exec, side.queue));
        size_t at = 0;
        kept = run == 0 ? malloc(bytes[0] + bytes[1] + bytes[2] + bytes[3]) : kept;
        RANK_CHECK(kept != NULL);
        for (int i = 0; i < 4; at += bytes[i++]) {
            if (run == 0)
                memcpy(kept + at, out[i], bytes[i]);
            RANK_CHECK(memcmp(kept + at, out[i], bytes[i]) == 0);
        }
        exec_destroy(exec);
    }
    free(kept);
    whole_free(&whole);
    side_close(&side);
    return failed;
}

static void the_same_bits_every_time(void **state)
{
    (void)state;
    ranks_pass(3, rank_again, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_once),
        cmocka_unit_test(every_ring_equals_the_unsharded_layer),
        cmocka_unit_test(passes_beside_the_steps_change_nothing),
        cmocka_unit_test(two_rings_of_two),
        cmocka_unit_test(the_same_bits_every_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
