/* tuner/test_parts.c -- a step as samples: how often each is paid, which plans share one, what stands in for what
 * cannot be timed. */
#include "tuner/admitted.h"
#include "tuner/parts_fixture.h"

/* On a machine whose rates do not depend on size, every level and scale adds up to the same step. */
static void test_levels_agree(void **state)
{
    static const struct parts_scale scales[] = {
        {0}, {.heads_timed = 3}, {.heads_timed = 1, .seq_timed = 1500}, {.seq_exchange = 1024}};
    struct parts parts = {0};
    (void)state;
    start("qwen2.5-0.5b", 6000, 2, 2);
    request.micro_batch[0] = 3;
    for (int sp = 1; sp <= 2; sp++) {
        struct plan plan = plan_of(sp);
        plan.accumulate = 5;
        double truth = fake_step_us(&fake_default, &request, &plan);
        list(&plan, PARTS_LAYER, &whole, &parts);
        CHECK_NEAR(sum_us(&parts) / truth, 1, 1e-9);
        list(&plan, PARTS_COARSE, &whole, &parts);
        CHECK_NEAR(sum_us(&parts) / truth, 1, 1e-9);
        for (int i = 0; i < CHECK_COUNT(scales); i++) {
            list(&plan, PARTS_SPLIT, &scales[i], &parts);
            CHECK_NEAR(sum_us(&parts) / truth, 1, 1e-9);
        }
    }
    parts_free(&parts);
}

/* Forward twice with checkpointing, once without; the loss a fourth time when it is recomputed. */
static void test_passes(void **state)
{
    struct parts parts = {0};
    (void)state;
    start("qwen2.5-0.5b", 4096, 2, 2);
    struct plan plan = plan_of(2);
    list(&plan, PARTS_LAYER, &whole, &parts);
    CHECK_NEAR(find(&parts, "layer", "", PROBLEM_FORWARD)->times, 2 * 24, 0);
    CHECK_NEAR(find(&parts, "layer", "", PROBLEM_BACKWARD)->times, 24, 0);
    plan.checkpointing = PLAN_CHECKPOINTING_NONE;
    plan.accumulate = 3;
    list(&plan, PARTS_LAYER, &whole, &parts);
    CHECK_NEAR(find(&parts, "layer", "", PROBLEM_FORWARD)->times, 3 * 24, 0);
    static const enum plan_loss losses[] = {PLAN_LOSS_PLAIN, PLAN_LOSS_TILED, PLAN_LOSS_FUSED};
    double logits[3] = {0};
    for (int i = 0; i < 3; i++) {
        plan.loss = losses[i];
        list(&plan, PARTS_LAYER, &whole, &parts);
        for (int p = 0; p < parts.n; p++)
            if (parts.item[p].part == PRICE_LOGITS)
                logits[i] += parts.item[p].times;
    }
    CHECK_NEAR(logits[1] / logits[0], 4.0 / 3, 1e-12); /* tiles are computed again */
    CHECK_NEAR(logits[2], logits[0], 0);               /* fused: both gradients at once */
    parts_free(&parts);
}

/* Plans that differ in what a sample does not see share it: key by key. */
static void test_shared_keys(void **state)
{
    struct parts a = {0}, b = {0};
    (void)state;
    start("qwen2.5-0.5b", 4096, 2, 2);
    struct plan one = plan_of(1), two = plan_of(1);
    two.loss = PLAN_LOSS_FUSED;
    two.checkpointing = PLAN_CHECKPOINTING_NONE;
    two.offload = PLAN_OFFLOAD_OPTIMIZER;
    two.accumulate = 7;
    text_print(two.exchange, sizeof two.exchange, "packed"); /* of no matter at sp 1 */
    for (int level = PARTS_COARSE; level <= PARTS_LAYER; level++) {
        list(&one, (enum parts_level)level, &whole, &a);
        list(&two, (enum parts_level)level, &whole, &b);
        assert_int_equal(a.n, b.n);
        for (int i = 0; i < a.n; i++)
            assert_string_equal(a.item[i].key, b.item[i].key);
    }
    two = plan_of(2);
    list(&one, PARTS_COARSE, &whole, &a);
    list(&two, PARTS_COARSE, &whole, &b);
    int own = 0;
    for (int i = 0; i < b.n; i++)
        own += !parts_has(&a, b.item[i].key);
    assert_int_equal(own, 4); /* its exchanges alone */
    text_print(two.exchange, sizeof two.exchange, "packed");
    list(&two, PARTS_COARSE, &whole, &a);
    own = 0;
    for (int i = 0; i < b.n; i++)
        own += !parts_has(&a, b.item[i].key);
    assert_int_equal(own, 4);
    parts_free(&a);
    parts_free(&b);
}

/* Where not all of a rank's work is timed, plans share the sample too: what disturbs it cancels in their ratio. */
static void test_shared_between_sizes(void **state)
{
    static const struct parts_scale scales[] = {{.heads_timed = 3}, {.heads_timed = 1, .seq_timed = 2048}};
    struct parts one = {0}, two = {0};
    (void)state;
    start("qwen2.5-0.5b", 8192, 2, 2);
    struct plan a = plan_of(1), b = plan_of(2);
    for (int i = 0; i < CHECK_COUNT(scales); i++) {
        list(&a, PARTS_SPLIT, &scales[i], &one);
        list(&b, PARTS_SPLIT, &scales[i], &two);
        for (int p = 0; p < two.n; p++)
            if (strcmp(two.item[p].c.subject, "exchange") != 0)
                assert_true(parts_has(&one, two.item[p].key));
    }
    list(&a, PARTS_SPLIT, &whole, &one); /* whole ranks differ */
    list(&b, PARTS_SPLIT, &whole, &two);
    assert_false(parts_has(&one, find(&two, "attention", "", PROBLEM_FORWARD)->key));
    assert_int_equal(find(&one, "attention", "", PROBLEM_FORWARD)->c.heads_timed, 0);
    parts_free(&one);
    parts_free(&two);
}

/* Two different cases never have one key. */
static void test_keys_tell_apart(void **state)
{
    struct parts parts = {0};
    (void)state;
    start("qwen2.5-0.5b", 4096, 2, 2);
    request.model.window = 512;
    request.model.window_layers = 12;
    struct plan plan = plan_of(2);
    for (int level = PARTS_COARSE; level <= PARTS_LAYER; level++) {
        list(&plan, (enum parts_level)level, &whole, &parts);
        for (int i = 0; i < parts.n; i++)
            for (int k = 0; k < i; k++) {
                const struct bench_case *a = &parts.item[i].c, *b = &parts.item[k].c;
                if (strcmp(parts.item[i].key, parts.item[k].key) == 0)
                    assert_memory_equal(a, b, sizeof *a);
            }
    }
    parts_free(&parts);
}

static void test_window(void **state)
{
    struct parts parts = {0};
    (void)state;
    start("qwen2.5-0.5b", 4096, 2, 2);
    request.model.window = 1024;
    request.model.window_layers = 10;
    struct plan plan = plan_of(1);
    list(&plan, PARTS_LAYER, &whole, &parts);
    assert_int_equal(count(&parts, "layer"), 4);
    double all = 0;
    for (int i = 0; i < parts.n; i++)
        if (parts.item[i].split_layer && parts.item[i].c.problem.direction == PROBLEM_BACKWARD) {
            CHECK_NEAR(parts.item[i].times, parts.item[i].c.problem.window > 0 ? 10 : 14, 0);
            all += parts.item[i].times;
        }
    CHECK_NEAR(all, 24, 0);
    request.model.window = 4096; /* as long as the row: none */
    list(&plan, PARTS_LAYER, &whole, &parts);
    assert_int_equal(count(&parts, "layer"), 2);
    assert_int_equal(parts.item[0].c.problem.window, 0);
    request.model.window = 512;
    request.model.window_layers = 99; /* all of them, whatever the file says */
    list(&plan, PARTS_SPLIT, &whole, &parts);
    assert_int_equal(count(&parts, "attention"), 2);
    CHECK_NEAR(find(&parts, "attention", "", PROBLEM_BACKWARD)->times, 24, 0);
    parts_free(&parts);
}

/* Products are those of work_gemms: forward as often as layers run, backward twice. */
static void test_products(void **state)
{
    static const char *const models[] = {"qwen2.5-0.5b", "llama-3-8b", "qwen3-30b-a3b"};
    struct parts parts = {0};
    (void)state;
    for (int m = 0; m < CHECK_COUNT(models); m++) {
        start(models[m], 4096, 2, 2);
        struct plan plan = plan_of(2);
        struct work_gemm gemms[WORK_GEMMS];
        double truth = 0, priced = 0;
        for (int i = work_gemms(&request.model, &request.problem, &plan, request.target, gemms) - 1; i >= 0; i--)
            truth += 2.0 * (double)gemms[i].m * (double)gemms[i].n * (double)gemms[i].k * gemms[i].count *
                     gemms[i].layers * (gemms[i].forwards + 2);
        list(&plan, PARTS_SPLIT, &whole, &parts);
        for (int i = 0; i < parts.n; i++) {
            const struct bench_case *c = &parts.item[i].c;
            double flops = 2.0 * (double)c->m * (double)c->n * (double)c->k;
            if (parts.item[i].part == PRICE_GEMM)
                priced += parts.item[i].times * flops;
            if (strcmp(c->subject, "gemm") == 0)
                assert_true(flops <= 4e9 && c->m >= 1);
        }
        CHECK_NEAR(priced / truth, 1, 1e-12);
    }
    parts_free(&parts);
}

/* What is bound by memory is priced from a copy that the bench has, by every rank at once; not from what a library copies on the way. */
static void test_copy(void **state)
{
    struct parts parts = {0};
    (void)state;
    start("qwen2.5-0.5b", 4096, 2, 2);
    struct plan plan = plan_of(2);
    list(&plan, PARTS_SPLIT, &whole, &parts);
    int copies = 0;
    for (int i = 0; i < parts.n; i++) {
        const struct part *part = &parts.item[i];
        if (part->part != PRICE_ELEMENTWISE && part->part != PRICE_OPTIMIZER)
            continue;
        assert_string_equal(part->c.subject, "link");
        assert_string_equal(part->c.op, "memcpy");
        assert_int_equal(bench_subject_of(&part->c)->check(&part->c, NULL).rule, RULE_OK);
        copies++;
    }
    assert_int_equal(copies, 2);
    parts_free(&parts);
}

static double elementwise_us(const struct plan *plan)
{
    return work_elementwise(&request.model, &request.problem, plan, request.target) / fake_default.copy_GBps * 1e-3;
}

/* DeepSeek's shape: three dense layers, a shared expert in the others; each is paid for. */
static void test_shared_experts(void **state)
{
    struct parts plain = {0}, shared = {0};
    (void)state;
    start("qwen3-30b-a3b", 4096, 2, 2);
    struct plan plan = plan_of(1);
    list(&plan, PARTS_SPLIT, &whole, &plain);
    double before = sum_us(&plain) - elementwise_us(&plan);
    request.model.ffn_shared = 1024;
    list(&plan, PARTS_SPLIT, &whole, &shared);
    double flops = 2.0 * 4096 * (2 * 1024 + 1024) * (double)request.model.hidden * request.model.layers * 4;
    CHECK_NEAR(sum_us(&shared) - elementwise_us(&plan) - before, flops / fake_default.gemm_GFLOPs * 1e-3,
               before * 1e-9);
    request.model.ffn_shared = 0;
    request.model.dense_layers = 3;
    request.model.ffn_dense = 9000;
    list(&plan, PARTS_SPLIT, &whole, &shared);
    int64_t sparse = request.model.ffn * request.model.experts_per_token;
    flops = 2.0 * 4096 * (double)(3 * 4 * (9000 - sparse)) * (double)request.model.hidden * 3;
    flops -= 2.0 * 4096 * (double)request.model.experts * (double)request.model.hidden * 3 * 4; /* and no router */
    CHECK_NEAR(sum_us(&shared) - elementwise_us(&plan) - before, flops / fake_default.gemm_GFLOPs * 1e-3,
               before * 1e-9);
    /* an expert sees its share of the rows */
    bool small = false;
    for (int i = 0; i < plain.n; i++)
        small = small || plain.item[i].c.m == 4096 * request.model.experts_per_token / request.model.experts;
    assert_true(small);
    parts_free(&plain);
    parts_free(&shared);
}

/* Groups of more ranks than are here: a rank's attention is timed with as many heads as it will have, exchanges by what
 * leaves a rank. */
static void test_stand_in(void **state)
{
    struct parts parts = {0};
    (void)state;
    start("llama-3-8b", 8192, 2, 32);
    assert_int_equal(parts_sp_here(&request, &(struct plan){.sp = 32}), 2);
    assert_int_equal(parts_sp_here(&request, &(struct plan){.sp = 2}), 2);
    assert_int_equal(parts_sp_here(&request, &(struct plan){.sp = 1}), 1);
    struct plan plan = plan_of(16);
    list(&plan, PARTS_LAYER, &whole, &parts); /* which is not here: split all the same */
    assert_int_equal(count(&parts, "layer"), 0);
    const struct part *attention = find(&parts, "attention", "", PROBLEM_FORWARD);
    assert_int_equal(attention->c.plan.sp, 2);
    assert_int_equal(attention->c.heads_timed, 2); /* 32 heads / 16 */
    assert_int_equal(attention->source, RECOMMEND_EXTRAPOLATED);
    const struct part *in = find(&parts, "exchange", "in", PROBLEM_FORWARD);
    struct work_exchange asked, timed;
    work_exchange(&request.problem, &plan, false, &asked);
    work_exchange(&in->c.problem, &in->c.plan, false, &timed);
    CHECK_NEAR(in->times, (double)asked.wire_in / (double)timed.wire_in * 32 * 2, 1e-9);
    assert_int_equal(in->source, RECOMMEND_EXTRAPOLATED);
    assert_true(in->possible && in->slack > 0.3);
    for (int i = 0; i < parts.n; i++) { /* all of it can be timed on two ranks */
        struct verdict verdict = bench_subject_of(&parts.item[i].c)->check(&parts.item[i].c, NULL);
        if (!verdict_ok(&verdict))
            fail_msg("%s: %s", parts.item[i].key, verdict.why);
    }
    parts_free(&parts);
}

/* Three ranks: no group of two divides them, and three do not divide the heads. */
static void test_no_stand_in(void **state)
{
    struct parts parts = {0};
    (void)state;
    start("llama-3-8b", 8192, 3, 6);
    assert_int_equal(parts_sp_here(&request, &(struct plan){.sp = 2}), 1);
    struct plan plan = plan_of(2);
    list(&plan, PARTS_SPLIT, &whole, &parts);
    assert_int_equal(count(&parts, "exchange"), 4);
    for (int i = 0; i < parts.n; i++)
        assert_int_equal(parts.item[i].possible, strcmp(parts.item[i].c.subject, "exchange") != 0);
    struct price price;
    struct pool pool = {0};
    const struct part *missing = NULL;
    CHECK_OK(parts_price(&parts, &pool, &price, &missing));
    assert_non_null(missing);
    pool_free(&pool);
    parts_free(&parts);
}

/* Scales go down to the end, one smaller than the other. */
static void test_scales_end(void **state)
{
    (void)state;
    start("llama-3-8b", INT64_C(1) << 36, 2, 2);
    enum parts_level level = PARTS_LAYER;
    struct parts_scale scale = {0};
    int steps = 0, heads = 32;
    int64_t seq = request.problem.seq;
    while (search_scale_next(&request, &level, &scale)) {
        int now = scale.heads_timed > 0 ? scale.heads_timed : 32;
        int64_t tokens = scale.seq_timed > 0 ? scale.seq_timed : request.problem.seq;
        assert_true(now < heads || tokens < seq || steps == 0);
        assert_true(now <= 4 || now % 4 == 0); /* whole groups above one */
        heads = now;
        seq = tokens;
        assert_true(++steps < 60);
    }
    assert_int_equal(heads, 1);
    assert_int_equal(seq, 1024);
}

static void test_documents(void **state)
{
    struct parts parts = {0};
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 10000, 2, &request);
    CHECK_OK(problem_set_docs(&request.problem, "fixed:3000"));
    request.target = target_find("sptune");
    CHECK_OK(request_complete(&request));
    struct plan plan = plan_of(2);
    const struct parts_scale shorter = {.heads_timed = 1, .seq_timed = 5000};
    list(&plan, PARTS_SPLIT, &shorter, &parts);
    const struct problem *p = &find(&parts, "attention", "", PROBLEM_FORWARD)->c.problem;
    assert_int_equal(p->seq, 5000);
    assert_int_equal(p->docs, 2);
    assert_int_equal(p->doc_len[0], 3000);
    assert_int_equal(p->doc_len[1], 2000);
    CHECK_OK(problem_check(p));
    assert_int_equal(find(&parts, "exchange", "in", PROBLEM_FORWARD)->c.problem.docs, 0);
    CHECK_NEAR(sum_us(&parts) / fake_step_us(&fake_default, &request, &plan), 1, 1e-9);
    parts_free(&parts);
}

/* A layer sample is divided by its phases; one without phases is attention. */
static void test_layer_shares(void **state)
{
    struct parts parts = {0};
    struct pool pool = {0};
    struct price price;
    const struct part *missing;
    char phases[] = "{\"exchange_in_us\": 100, \"attention_us\": 300, \"exchange_out_us\": 100}";
    char nonsense[] = "{\"exchange_in_us\": -5, \"attention_us\": \"x\"}";
    (void)state;
    start("qwen2.5-0.5b", 4096, 2, 2);
    struct plan plan = plan_of(2);
    list(&plan, PARTS_LAYER, &whole, &parts);
    for (int i = 0; i < parts.n; i++) {
        double us = 1000;
        struct sample sample;
        sample_init(&sample);
        sample.times_us = &us;
        sample.n = 1;
        sample.conditions = parts.item[i].c.problem.direction == PROBLEM_FORWARD ? phases : nonsense;
        CHECK_OK(pool_add(&pool, parts.item[i].key, &sample));
    }
    CHECK_OK(parts_price(&parts, &pool, &price, &missing));
    assert_null(missing);
    struct recommend_time time;
    price_time(&price, &pool, &time);
    CHECK_NEAR(time.exchange_in, 24 * 2 * 200, 1e-6);
    CHECK_NEAR(time.exchange_out, 24 * 2 * 200, 1e-6);
    CHECK_NEAR(time.attention, 24 * 2 * 600 + 24 * 1000, 1e-6);
    CHECK_NEAR(time.exposed, time.exchange_in + time.exchange_out, 1e-9);
    pool_free(&pool);
    parts_free(&parts);
}

/* test_gpu.c asks the same of GPUs. */
static void test_parts_run_here(void **state)
{
    (void)state;
    check_everything(&bench, &bench.topo, DEV_CPU);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels_agree),
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_shared_keys),
        cmocka_unit_test(test_shared_between_sizes),
        cmocka_unit_test(test_keys_tell_apart),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_shared_experts),
        cmocka_unit_test(test_stand_in),
        cmocka_unit_test(test_no_stand_in),
        cmocka_unit_test(test_scales_end),
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_layer_shares),
        cmocka_unit_test(test_parts_run_here),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
