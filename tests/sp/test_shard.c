/* tests/sp/test_shard.c -- every token is held exactly once, in the order said, for all small lengths, groups and methods. */
#include "sp/sp_test.h"

#include "sp/shard.h"

#include <stdlib.h>

enum { SP_MAX = 8, TOKENS_MAX = 2 * SP_MAX * 5 };

/* What a shard's functions say of it agrees with its ranges. */
static void indices_agree(const struct shard *shard, int64_t padded)
{
    int64_t below = 0;
    for (int64_t position = 0; position <= padded; position++) {
        int64_t index = shard_index(shard, position);
        assert_int_equal(shard_below(shard, position), below);
        if (index < 0)
            continue;
        assert_int_equal(index, below);
        assert_int_equal(shard_position(shard, index), position);
        below++;
    }
    assert_int_equal(below, shard->local);
}

static void one_group(const struct plan *plan, int64_t padded)
{
    int holders[TOKENS_MAX] = {0}, ranks = plan_sequence_ranks(plan);
    for (int rank = 0; rank < ranks; rank++) {
        struct shard shard;
        int64_t sum = 0;
        shard_of(plan, padded, rank, &shard);
        assert_true(shard.n >= 0 && shard.n <= SHARD_RANGES_MAX);
        for (int i = 0; i < shard.n; i++) {
            assert_true(shard.range[i].count > 0);
            assert_true(i == 0 || shard.range[i].first > shard.range[i - 1].first + shard.range[i - 1].count);
            for (int64_t t = 0; t < shard.range[i].count; t++)
                holders[shard.range[i].first + t]++;
            sum += shard.range[i].count;
        }
        assert_int_equal(sum, shard.local);
        assert_int_equal(shard.local, padded / ranks);
        indices_agree(&shard, padded);
    }
    for (int64_t t = 0; t < padded; t++)
        assert_int_equal(holders[t], 1);
}

static void every_token_once(void **state)
{
    (void)state;
    for (int method = 0; method < PLAN_METHOD_COUNT; method++)
        for (int ranks = 1; ranks <= SP_MAX; ranks++)
            for (int tp = 1; tp <= ranks; tp++)
                for (int ring = 1; ring <= ranks / tp; ring++) {
                    struct plan plan = {.method = (enum plan_method)method, .sp = ranks / tp, .tp = tp, .ring = ring};
                    if (ranks % tp != 0 || plan.sp % ring != 0)
                        continue;
                    for (int64_t padded = 0; padded <= TOKENS_MAX; padded += shard_multiple(&plan))
                        one_group(&plan, padded);
                }
}

/* With tp, the ranks that cut a layer hold one after the other what the rank of sp holds alone. */
static void tp_cuts_what_a_rank_of_sp_holds(void **state)
{
    (void)state;
    static const struct plan plans[] = {{.method = PLAN_METHOD_ULYSSES, .sp = 2, .ring = 1},
                                        {.method = PLAN_METHOD_RING, .sp = 3, .ring = 1},
                                        {.method = PLAN_METHOD_ULYSSES_RING, .sp = 4, .ring = 2}};
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++)
        for (int tp = 2; tp <= 4; tp++) {
            struct plan plan = plans[p];
            plan.tp = tp;
            int64_t padded = 3 * shard_multiple(&plan);
            for (int s = 0; s < plan.sp; s++) {
                struct shard whole, part;
                int64_t at = 0;
                shard_of(&plans[p], padded, s, &whole);
                for (int t = 0; t < tp; t++) {
                    shard_of(&plan, padded, s * tp + t, &part);
                    for (int64_t i = 0; i < part.local; i++, at++)
                        assert_int_equal(shard_position(&part, i), shard_position(&whole, at));
                }
                assert_int_equal(at, whole.local);
            }
        }
}

static void is(enum plan_method method, int ring, int64_t padded, int sp, int rank, int n, int64_t first0,
               int64_t count0, int64_t first1, int64_t count1)
{
    const struct plan plan = {.method = method, .sp = sp, .tp = 1, .ring = ring};
    struct shard shard;
    shard_of(&plan, padded, rank, &shard);
    assert_int_equal(shard.n, n);
    assert_int_equal(shard.range[0].first, first0);
    assert_int_equal(shard.range[0].count, count0);
    assert_int_equal(shard.range[1].first, first1);
    assert_int_equal(shard.range[1].count, count1);
}

static void these_tokens_and_no_others(void **state)
{
    (void)state;
    is(PLAN_METHOD_ULYSSES, 1, 12, 4, 2, 1, 6, 3, 0, 0);
    is(PLAN_METHOD_SPLIT_GATHER, 1, 12, 4, 3, 1, 9, 3, 0, 0);
    is(PLAN_METHOD_RING, 1, 24, 3, 0, 2, 0, 4, 20, 4);
    is(PLAN_METHOD_RING, 1, 24, 3, 1, 2, 4, 4, 16, 4);
    is(PLAN_METHOD_RING, 1, 24, 3, 2, 1, 8, 8, 0, 0); /* its two pieces are neighbours */
    is(PLAN_METHOD_RING, 1, 7, 1, 0, 1, 0, 7, 0, 0);  /* alone: nothing is cut */
    is(PLAN_METHOD_ULYSSES_RING, 2, 16, 4, 0, 1, 0, 4, 0, 0);
    is(PLAN_METHOD_ULYSSES_RING, 2, 16, 4, 1, 1, 12, 4, 0, 0);
    is(PLAN_METHOD_ULYSSES_RING, 2, 16, 4, 2, 1, 4, 4, 0, 0);
    is(PLAN_METHOD_ULYSSES_RING, 2, 16, 4, 3, 1, 8, 4, 0, 0);
    is(PLAN_METHOD_ULYSSES_RING, 2, 24, 6, 1, 2, 4, 2, 18, 2); /* three ranks share two pieces of 6 */
}

/* Pairs that a causal mask leaves each rank: the same for all, which is why pieces are dealt out in this order. */
static void a_causal_mask_leaves_all_ranks_of_a_ring_the_same(void **state)
{
    (void)state;
    for (int sp = 2; sp <= SP_MAX; sp++) {
        int64_t padded = 2 * sp * 5, of_first = 0;
        for (int rank = 0; rank < sp; rank++) {
            struct shard shard;
            int64_t pairs = 0;
            shard_get(sp, padded, sp, rank, &shard);
            for (int64_t i = 0; i < shard.local; i++)
                pairs += shard_position(&shard, i) + 1;
            of_first = rank == 0 ? pairs : of_first;
            assert_int_equal(pairs, of_first);
        }
    }
}

static void lengths_are_padded_to_whole_pieces(void **state)
{
    (void)state;
    struct problem problem = small_problem(8, 8, 17, 4);
    struct plan plan = small_plan(4, 4);
    assert_int_equal(shard_padded(&problem, &plan), 20);
    plan.method = PLAN_METHOD_RING;
    assert_int_equal(shard_padded(&problem, &plan), 24);
    assert_int_equal(shard_local(&problem, &plan), 6);
    plan.method = PLAN_METHOD_ULYSSES_RING;
    plan.ring = 2;
    assert_int_equal(shard_padded(&problem, &plan), 24);
    plan.ring = 1; /* no ring: ulysses alone */
    assert_int_equal(shard_padded(&problem, &plan), 20);
    plan.tp = 2;
    assert_int_equal(shard_padded(&problem, &plan), 24);
    assert_int_equal(shard_local(&problem, &plan), 3);
    plan.tp = 1;
    plan.sp = 1;
    plan.method = PLAN_METHOD_RING;
    assert_int_equal(shard_padded(&problem, &plan), 17);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_once),
        cmocka_unit_test(tp_cuts_what_a_rank_of_sp_holds),
        cmocka_unit_test(these_tokens_and_no_others),
        cmocka_unit_test(a_causal_mask_leaves_all_ranks_of_a_ring_the_same),
        cmocka_unit_test(lengths_are_padded_to_whole_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
