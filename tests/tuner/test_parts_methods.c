/* tuner/test_parts_methods.c -- a step as samples under each method: every one is legal for its subject; what a ring and split_gather move. */
#include "tuner/parts_fixture.h"

static struct plan method_of(int sp, enum plan_method method)
{
    struct plan plan = plan_of(sp);
    plan.method = method;
    if (plan_method_exchange(method) != NULL)
        text_print(plan.exchange, sizeof plan.exchange, "%s", plan_method_exchange(method));
    return plan;
}

static bool is_legal(int sp, enum plan_method method)
{
    struct plan plan = method_of(sp, method);
    struct verdict verdict = plan_check(&request.problem, &plan, DEV_CPU);
    return verdict_ok(&verdict) && (sp > 1 || method == PLAN_METHOD_ULYSSES) &&
           (method != PLAN_METHOD_SPLIT_GATHER || request.model.experts == 0);
}

/* Every case of every scale is legal for its subject, whatever the heads and the method. */
static void test_legal_cases(void **state)
{
    static const char *const models[] = {"qwen2.5-0.5b", "llama-3-8b", "qwen2-7b", "qwen3-30b-a3b", "falcon-7b"};
    static const int64_t lengths[] = {1, 17, 1000, 1 << 20};
    struct parts parts = {0};
    (void)state;
    for (int m = 0; m < CHECK_COUNT(models); m++)
        for (int s = 0; s < CHECK_COUNT(lengths); s++)
            for (int k = 0; k < 9; k++) {
                int sp = 1 << k % 3;
                enum plan_method method = (enum plan_method)(k / 3); /* ulysses, ring, split_gather */
                enum parts_level level = PARTS_LAYER;
                struct parts_scale scale = {0};
                start(models[m], lengths[s], 4, 4);
                struct plan plan = method_of(sp, method);
                for (bool more = is_legal(sp, method); more; more = search_scale_next(&request, &level, &scale)) {
                    list(&plan, level, &scale, &parts);
                    for (int i = 0; i < parts.n; i++) {
                        const struct part *part = &parts.item[i];
                        struct verdict verdict = bench_subject_of(&part->c)->check(&part->c, NULL);
                        if (!verdict_ok(&verdict))
                            fail_msg("%s: %s", part->key, verdict.why);
                        assert_true(isfinite(part->times) && part->times > 0);
                        assert_true(part->slack >= 0 && part->slack_kind < POOL_ERRORS);
                    }
                }
            }
    parts_free(&parts);
}

/* Bytes that arrive at a rank by collectives of this name, all of a step's that are no part of ZeRO's. */
static double arrives(const struct parts *parts, const char *op)
{
    double bytes = 0;
    for (int i = 0; i < parts->n; i++) {
        const struct part *part = &parts->item[i];
        bool sent = strcmp(op, "sendrecv") == 0;
        if (strcmp(part->c.op, op) == 0 && part->part != PRICE_ZERO)
            bytes += part->times * (double)part->c.bytes * (sent ? 1 : (double)(request.ranks - 1) / request.ranks);
    }
    return bytes;
}

static double attended(const struct parts *parts, enum problem_direction direction)
{
    const struct part *part = find(parts, "attention", "", direction);
    return part->times * work_attention_flops(&part->c.problem, &part->c.plan, direction == PROBLEM_BACKWARD);
}

/* Fourteen heads, four ranks: a ring alone has a layer. It is timed whole, or as some heads and sends. */
static void test_ring(void **state)
{
    static const struct parts_scale scales[] = {{0}, {.heads_timed = 1}, {.heads_timed = 1, .seq_timed = 1024}};
    struct parts parts = {0};
    struct work_exchange forward, backward;
    (void)state;
    start("qwen2.5-0.5b", 8192, 4, 4);
    struct plan plan = method_of(4, PLAN_METHOD_RING);
    assert_false(is_legal(4, PLAN_METHOD_ULYSSES));
    assert_true(is_legal(4, PLAN_METHOD_RING));
    list(&plan, PARTS_LAYER, &whole, &parts);
    const struct part *layer = find(&parts, "layer", "", PROBLEM_FORWARD);
    assert_int_equal(layer->c.plan.method, PLAN_METHOD_RING);
    assert_string_equal(layer->c.plan.exchange, PLAN_RING_EXCHANGE);
    CHECK_NEAR(layer->times, 2 * 24, 0);
    assert_int_equal(count(&parts, "exchange"), 0);
    work_exchange(&request.problem, &plan, false, &forward);
    work_exchange(&request.problem, &plan, true, &backward);
    double moved = 24 * (2.0 * (double)forward.wire_in + (double)backward.wire_in + (double)backward.wire_out);
    for (int i = -1; i < CHECK_COUNT(scales); i++) {
        list(&plan, i < 0 ? PARTS_COARSE : PARTS_SPLIT, i < 0 ? &whole : &scales[i], &parts);
        CHECK_NEAR(arrives(&parts, "sendrecv") / moved, 1, 1e-9);
        CHECK_NEAR(attended(&parts, PROBLEM_BACKWARD) / (24 * work_attention_flops(&request.problem, &plan, true)), 1,
                   1e-9);
        assert_int_equal(count(&parts, "exchange"), 0);
    }
    parts_free(&parts);
}

/* Rows are gathered and their sums scattered beside attention, which is timed as a rank of ulysses computes it. */
static void test_split_gather(void **state)
{
    struct parts parts = {0}, other = {0};
    struct work_exchange forward, backward;
    (void)state;
    start("qwen2.5-0.5b", 8192, 2, 2);
    struct plan plan = method_of(2, PLAN_METHOD_SPLIT_GATHER), ulysses = plan_of(2);
    work_exchange(&request.problem, &plan, false, &forward);
    work_exchange(&request.problem, &plan, true, &backward);
    for (int level = PARTS_COARSE; level <= PARTS_LAYER; level++) {
        list(&plan, (enum parts_level)level, &whole, &parts);
        CHECK_NEAR(arrives(&parts, "allgather") / (24 * (2.0 * (double)forward.wire_in + (double)backward.wire_in)), 1,
                   1e-9);
        CHECK_NEAR(arrives(&parts, "reduce_scatter") /
                       (24 * (2.0 * (double)forward.wire_out + (double)backward.wire_out)),
                   1, 1e-9);
        assert_int_equal(count(&parts, "layer") + count(&parts, "exchange"), 0);
        list(&ulysses, level == PARTS_COARSE ? PARTS_COARSE : PARTS_SPLIT, &whole, &other);
        assert_true(parts_has(&other, find(&parts, "attention", "", PROBLEM_FORWARD)->key));
    }
    parts_free(&parts);
    parts_free(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_legal_cases),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_split_gather),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
