/* tests/model/test_rule_sp.c -- legal sp sizes, the nearest ones, and which KV heads a rank holds. */
#include "model_test.h"

/* The legal sizes from 1 to `most` are exactly `want`, 0-terminated. */
static void assert_sizes(int heads, int kv_heads, int world, int most, const int *want)
{
    for (int sp = 1; sp <= most; sp++) {
        struct verdict verdict = model_sp_heads(heads, kv_heads, sp, world);
        bool wanted = *want == sp;
        if (verdict_ok(&verdict) != wanted)
            fail_msg("%d/%d heads, world %d, sp %d: %s", heads, kv_heads, world, sp, verdict.why);
        want += wanted;
    }
    assert_int_equal(*want, 0);
}

#define ASSERT_SIZES(heads, kv_heads, world, most, ...)                                                                \
    assert_sizes(heads, kv_heads, world, most, (const int[]){__VA_ARGS__, 0})

static void acceptance_of_issue_2(void **state)
{
    (void)state;
    ASSERT_SIZES(28, 4, 8, 8, 1, 2, 4);
    ASSERT_SIZES(9, 3, 6, 6, 1, 3);
    ASSERT_SIZES(71, 1, 8, 8, 1);
    ASSERT_SIZES(40, 8, 40, 40, 1, 2, 4, 8, 40);
}

static void c17_kv_heads_that_padding_would_break(void **state)
{
    (void)state;
    ASSERT_SIZES(28, 7, 0, 64, 1, 7, 14, 28);
    struct verdict verdict = model_sp_heads(28, 7, 2, 8);
    assert_int_equal(verdict.rule, RULE_KV_RULE);
    assert_non_null(strstr(verdict.why, "7"));
    assert_non_null(strstr(verdict.why, "2"));
}

static void c19_28_heads_on_8_gpus(void **state)
{
    (void)state;
    ASSERT_SIZES(28, 4, 0, 64, 1, 2, 4, 28);
    struct verdict verdict = model_sp_heads(28, 4, 8, 8);
    assert_int_equal(verdict.rule, RULE_HEADS_NOT_DIVISIBLE);
    assert_non_null(strstr(verdict.why, "28"));
    assert_non_null(strstr(verdict.why, "8"));
    assert_non_null(strstr(verdict.why, "leave 4"));
    assert_int_equal(verdict.nearest[0], 4);
    assert_int_equal(verdict.nearest[1], 0);
    assert_int_equal(model_sp_heads(28, 4, 7, 7).rule, RULE_KV_RULE);
    assert_int_equal(model_sp_heads(28, 4, 14, 14).rule, RULE_KV_RULE);
    ASSERT_SIZES(40, 8, 0, 64, 1, 2, 4, 8, 40);
    assert_int_equal(model_sp_heads(40, 8, 5, 40).rule, RULE_KV_RULE);
    assert_int_equal(model_sp_heads(40, 8, 10, 40).rule, RULE_KV_RULE);
    assert_int_equal(model_sp_heads(40, 8, 20, 40).rule, RULE_KV_RULE);
}

static void c20_odd_head_counts(void **state)
{
    (void)state;
    ASSERT_SIZES(9, 3, 8, 8, 1);
    ASSERT_SIZES(9, 3, 6, 6, 1, 3);
    ASSERT_SIZES(9, 3, 9, 9, 1, 3, 9);
    assert_int_equal(model_kv_copies(3, 9), 3);
    ASSERT_SIZES(25, 25, 8, 8, 1);
    ASSERT_SIZES(71, 1, 8, 8, 1);
    ASSERT_SIZES(28, 4, 7, 7, 1);
    struct verdict verdict = model_sp_heads(30, 30, 4, 4);
    assert_int_equal(verdict.rule, RULE_HEADS_NOT_DIVISIBLE);
    assert_int_equal(verdict.nearest[0], 2);
    ASSERT_SIZES(30, 30, 4, 4, 1, 2);
    ASSERT_SIZES(30, 30, 0, 64, 1, 2, 3, 5, 6, 10, 15, 30);
}

static void c16_interleaved_repeat(void **state)
{
    (void)state;
    static const int want[4] = {0, 0, 1, 1};
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(model_kv_first(2, 4, rank), want[rank]);
    assert_int_equal(model_kv_local(2, 4), 1);
    assert_int_equal(model_kv_copies(2, 4), 2);
    for (int rank = 0; rank < 4; rank++) /* 8 KV heads over 4 ranks: two each, in order */
        assert_int_equal(model_kv_first(8, 4, rank), 2 * rank);
    assert_int_equal(model_kv_local(8, 4), 2);
    assert_int_equal(model_kv_copies(8, 4), 1);
    assert_int_equal(model_kv_local(4, 4), 1);
}

/* Every query head finds its KV head on its rank, for all legal splits of these shapes. */
static void kv_heads_follow_their_queries(void **state)
{
    (void)state;
    static const int shapes[][2] = {{8, 2}, {28, 4}, {9, 3}, {40, 8}, {64, 8}, {30, 30}, {71, 1}, {28, 7}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        int heads = shapes[i][0], kv_heads = shapes[i][1];
        for (int sp = 1; sp <= heads; sp++) {
            struct verdict verdict = model_sp_heads(heads, kv_heads, sp, 0);
            for (int head = 0; verdict_ok(&verdict) && head < heads; head++) {
                int rank = head / (heads / sp), kv = head / (heads / kv_heads);
                int first = model_kv_first(kv_heads, sp, rank);
                assert_true(kv >= first && kv < first + model_kv_local(kv_heads, sp));
            }
        }
    }
}

static void c18_two_models_do_not_affect_each_other(void **state)
{
    (void)state;
    struct model three, twelve;
    assert_int_equal(model_from_heads(3, 3, 64, &three), STATUS_OK);
    assert_int_equal(model_from_heads(12, 12, 64, &twelve), STATUS_OK);
    struct verdict first = model_sp(&twelve, 4, 4);
    struct verdict other = model_sp(&three, 4, 4);
    struct verdict again = model_sp(&twelve, 4, 4);
    assert_true(verdict_ok(&first) && verdict_ok(&again));
    assert_false(verdict_ok(&other));
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(model_kv_first(twelve.kv_heads, 4, rank), 3 * rank);
        assert_int_equal(model_kv_local(twelve.kv_heads, 4), 3);
    }
}

static void the_world_is_named(void **state)
{
    (void)state;
    struct verdict verdict = model_sp_heads(32, 8, 16, 8);
    assert_int_equal(verdict.rule, RULE_WORLD);
    assert_non_null(strstr(verdict.why, "16"));
    assert_non_null(strstr(verdict.why, "8"));
    assert_int_equal(verdict.nearest[0], 8);
    assert_int_equal(verdict.nearest[1], 0);
    verdict = model_sp_heads(32, 8, 4, 6);
    assert_int_equal(verdict.rule, RULE_WORLD);
    assert_non_null(strstr(verdict.why, "6"));
    assert_int_equal(verdict.nearest[0], 2);
}

static void nearest_equals_a_plain_search(void **state)
{
    (void)state;
    for (int heads = 1; heads <= 72; heads++) {
        for (int sp = 1; sp <= 80; sp++) {
            int kv_heads = heads % 3 == 0 ? heads / 3 : heads;
            int world = sp % 2 ? 0 : 48;
            struct verdict verdict = model_sp_heads(heads, kv_heads, sp, world);
            int64_t below = 0, above = 0;
            for (int p = 1; p <= 128; p++) {
                struct verdict other = model_sp_heads(heads, kv_heads, p, world);
                if (verdict_ok(&other) && p < sp)
                    below = p;
                if (verdict_ok(&other) && p > sp && above == 0)
                    above = p;
            }
            assert_int_equal(verdict.nearest[0], verdict_ok(&verdict) ? 0 : below);
            assert_int_equal(verdict.nearest[1], verdict_ok(&verdict) ? 0 : above);
        }
    }
}

static void absurd_values_are_refused(void **state)
{
    (void)state;
    static const int bad[] = {0, -1, -8, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct verdict sp = model_sp_heads(32, 8, bad[i], 8);
        assert_false(verdict_ok(&sp));
        assert_true(sp.why[0] != '\0');
        struct verdict heads = model_sp_heads(bad[i], 8, 2, 8);
        assert_false(verdict_ok(&heads));
        struct verdict kv = model_sp_heads(32, bad[i], 2, 8);
        assert_false(verdict_ok(&kv));
        if (bad[i] < 0) {
            struct verdict world = model_sp_heads(32, 8, 2, bad[i]);
            assert_int_equal(world.rule, RULE_WORLD);
        }
    }
    assert_int_equal(model_sp_heads(32, 8, 0, 8).nearest[1], 1);
}

static void heads_alone(void **state)
{
    (void)state;
    struct model model;
    assert_int_equal(model_from_heads(28, 7, 128, &model), STATUS_OK);
    assert_int_equal(model.layers, 1);
    assert_int_equal(model.hidden, 28 * 128);
    assert_int_equal(model.head_dim_v, 128);
    assert_int_equal(model.ffn, 0);
    assert_int_equal(model.vocab, 0);
    assert_int_equal(model.params, 0);
    static const int bad[][3] = {{0, 1, 64}, {-4, 1, 64}, {8, 0, 64},         {8, 3, 64},        {8, 16, 64},
                                 {8, 8, 0},  {8, 8, -1},  {INT32_MAX, 1, 64}, {8, 8, INT32_MAX}, {8, INT32_MAX, 64}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(model_from_heads(bad[i][0], bad[i][1], bad[i][2], &model), STATUS_USAGE);
        assert_true(status_last()->hint[0] != '\0');
    }
    assert_int_equal(model.heads, 28);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(acceptance_of_issue_2),
        cmocka_unit_test(c16_interleaved_repeat),
        cmocka_unit_test(c17_kv_heads_that_padding_would_break),
        cmocka_unit_test(c18_two_models_do_not_affect_each_other),
        cmocka_unit_test(c19_28_heads_on_8_gpus),
        cmocka_unit_test(c20_odd_head_counts),
        cmocka_unit_test(kv_heads_follow_their_queries),
        cmocka_unit_test(the_world_is_named),
        cmocka_unit_test(nearest_equals_a_plain_search),
        cmocka_unit_test(absurd_values_are_refused),
        cmocka_unit_test(heads_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
