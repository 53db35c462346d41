/* tuner/test_candidates.c -- every plan with its verdict: who is refused, why nobody is admissible, who wins a tie. */
#include "tuner/bench_fixture.h"

#include "base/text.h"
#include "sp/work.h"
#include "tuner/search_state.h"

#include <math.h>
#include <stdlib.h>

static struct candidates all;
static struct pool pool;

static int setup(void **state)
{
    (void)state;
    all = (struct candidates){0};
    pool = (struct pool){0};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    candidates_free(&all);
    pool_free(&pool);
    return 0;
}

static void build(void)
{
    CHECK_OK(request_complete(&request));
    candidates_free(&all);
    CHECK_OK(candidates_build(&request, &all));
}

/* Nothing is admissible, and the message says what to do. */
static void check_refused(const char *why, const char *hint)
{
    build();
    assert_false(candidates_any_legal(&all));
    CHECK_FAILS(STATUS_USAGE, why, candidates_refused(&request, &all));
    if (strstr(status_last()->hint, hint) == NULL)
        fail_msg("'%s' says nothing of '%s'", status_last()->hint, hint);
}

static void test_refused_documents(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    CHECK_OK(problem_set_docs(&request.problem, "fixed:1k"));
    check_refused("packed documents", "--target sptune");
}

static void test_refused_class(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.nclasses = 1;
    text_print(request.classes[0], PLAN_NAME, "flash_attention_2");
    check_refused("flash_attention_2", "--attention sdpa");
}

static void test_refused_batch(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.global_batch_tokens = 4097;
    check_refused("4,097", "--global-batch 4096tok");
    candidates_free(&all);
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.global_batch_tokens = 100;
    check_refused("100", "--global-batch 4096tok");
}

static void test_refused_sp(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.space.nsp = 1;
    request.space.sp[0] = 4;
    check_refused("over 4 ranks", "--sp");
    candidates_free(&all);
    fake_request(&bench, "qwen2.5-0.5b", 4097, 2, &request);
    request.space.nsp = 1;
    request.space.sp[0] = 2;
    request.sp_fixed = true;
    check_refused("4096 and 4098 would work", "--seq");
}

static int count_of(enum plan_method method, bool legal)
{
    int n = 0;
    for (int i = 0; i < all.n; i++)
        n += all.rows[i].plan.method == method && verdict_ok(&all.rows[i].verdict) == legal;
    return n;
}

/* Fourteen heads on 28 ranks: a ring is what remains, and ulysses says so. Of methods that nobody named what is illegal is not told. */
static void test_ring_remains(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.target = target_find("sptune");
    request.world = 28;
    request.space.nsp = 2;
    request.space.sp[0] = 1;
    request.space.sp[1] = 28;
    build();
    assert_int_equal(count_of(PLAN_METHOD_ULYSSES, true), 1); /* sp 1, of which there is no other */
    assert_int_equal(count_of(PLAN_METHOD_RING, true), 1);
    assert_int_equal(count_of(PLAN_METHOD_ULYSSES, false), 1);
    assert_int_equal(count_of(PLAN_METHOD_SPLIT_GATHER, false), 0);
    for (int i = 0; i < all.n; i++)
        if (!verdict_ok(&all.rows[i].verdict))
            assert_non_null(strstr(all.rows[i].verdict.why, "method ring splits no heads"));
    candidates_free(&all);
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.target = target_find("sptune");
    request.space.nsp = request.space.nmethod = 1;
    request.space.sp[0] = 4;
    request.space.method[0] = PLAN_METHOD_SPLIT_GATHER;
    request.world = 4;
    check_refused("over 4 ranks", "--sp"); /* who named it hears why */
}

/* Whoever executes no ring is not sent there. */
static void test_no_ring_remains(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.world = 28;
    request.space.nsp = 1;
    request.space.sp[0] = 28;
    check_refused("14 query heads are fewer than 28 ranks", "--sp");
    assert_null(strstr(status_last()->what, "ring"));
}

static void test_refused_target(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.space.nzero = 1;
    request.space.zero[0] = 0;
    check_refused("zero stages 1 to 3", "--target");
}

/* Each reason once, and never more than fits a message. */
static void test_refused_briefly(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.world = 5040; /* 60 divisors */
    request.global_batch_tokens = 3;
    build();
    CHECK_FAILS(STATUS_USAGE, "no plan is legal", candidates_refused(&request, &all));
    assert_true(strlen(status_last()->what) < 430);
}

/* Accumulation, by sizes: A = G*P/(S*B*W). */
static void test_accumulate(void **state)
{
    (void)state;
    fake_request(&bench, "llama-3.2-1b", 4096, 2, &request);
    request.world = 8;
    request.global_batch_tokens = 16 * 4096;
    build();
    int seen = 0;
    for (int i = 0; i < all.n; i++) {
        const struct recommend_candidate *c = &all.rows[i];
        if (!verdict_ok(&c->verdict))
            continue;
        assert_int_equal(c->plan.accumulate, 2 * c->plan.sp);
        assert_int_equal(work_step_tokens(&request.problem, &c->plan), 16 * 4096);
        seen++;
    }
    assert_int_equal(seen, 4);
}

/* Measured on CPU ranks, planned for GPUs: the peak holds a GPU's context. */
static void test_planned_device(void **state)
{
    (void)state;
    const struct target_memory *memory = &request.target->memory;
    build();
    int64_t cpu = all.rows[0].memory.peak_bytes;
    candidates_free(&all);
    request.planned = DEV_CUDA;
    CHECK_OK(candidates_build(&request, &all));
    assert_int_equal(all.rows[0].memory.peak_bytes - cpu, memory->context_bytes - memory->context_cpu_bytes);
}

/* A host too small for what is offloaded to it is no fit, however empty the device, and the text says host. */
static void test_host_memory(void **state)
{
    char fill[96];
    (void)state;
    fake_request(&bench, "llama-3.2-1b", 4096, 2, &request);
    request.space.noffload = 1;
    request.space.offload[0] = PLAN_OFFLOAD_OPTIMIZER;
    request.host_memory_bytes = (int64_t)8 << 30;
    build();
    assert_int_equal(all.rows[0].fit, WORK_DOES_NOT_FIT);
    assert_int_equal(work_fit(all.rows[0].memory.peak_bytes, request.device_memory_bytes), WORK_FITS);
    candidates_fill(&request, &all.rows[0], fill, sizeof fill);
    assert_non_null(strstr(fill, "of 8 GiB of host memory"));
    /* as many processes on fewer hosts: more of them share one host's memory */
    enum work_fit fit[2];
    for (int i = 0; i < 2; i++) {
        fake_request(&bench, "llama-3.2-1b", 4096, 2, &request);
        request.space.noffload = 1;
        request.space.offload[0] = PLAN_OFFLOAD_OPTIMIZER;
        request.host_memory_bytes = (int64_t)16 << 30;
        request.world = 8;
        request.ranks_per_host = i == 0 ? 2 : 8;
        build();
        fit[i] = all.rows[0].fit;
    }
    assert_int_equal(fit[0], WORK_FITS);
    assert_int_equal(fit[1], WORK_DOES_NOT_FIT);
}

/* ---- the choice, on prices made by hand ---- */

/* One row per entry: sp, time, the relative error it has alone, peak. */
struct made {
    int sp;
    double us, slack;
    double fullness; /* peak over limit */
    bool timed;
};

static void make(const struct made *made, int n)
{
    fake_request(&bench, "llama-3.2-1b", 4096, 2, &request);
    request.world = 64;
    CHECK_OK(request_complete(&request));
    request.objective = REQUEST_STEP_TIME;
    all.rows = calloc((size_t)n, sizeof *all.rows);
    all.prices = calloc((size_t)n, sizeof *all.prices);
    all.n = n;
    for (int i = 0; i < n; i++) {
        double times[10];
        char key[8];
        struct sample sample;
        sample_init(&sample);
        for (int k = 0; k < 10; k++)
            times[k] = made[i].us;
        sample.times_us = times;
        sample.n = 10;
        text_print(key, sizeof key, "%d", i);
        CHECK_OK(pool_add(&pool, key, &sample));
        struct price_term term = {.sample = i, .times = 1, .slack = made[i].slack, .slack_kind = i % POOL_ERRORS};
        CHECK_OK(price_add(&all.prices[i], &term));
        struct recommend_candidate *row = &all.rows[i];
        row->plan = request.space.base;
        row->plan.sp = made[i].sp;
        row->priced = true;
        row->timed = made[i].timed;
        row->memory.peak_bytes = (int64_t)(made[i].fullness * (double)request.device_memory_bytes);
        row->fit = work_fit(row->memory.peak_bytes, request.device_memory_bytes);
        price_time(&all.prices[i], &pool, &row->time);
        row->tokens_per_s_per_device = 1e6 / row->time.step_us;
    }
}

static int choose(enum work_fit expected)
{
    enum work_fit fit = WORK_DOES_NOT_FIT;
    int chosen = candidates_choose(&request, &all, &pool, &fit);
    assert_true(chosen >= 0);
    assert_int_equal(fit, expected);
    assert_int_equal(all.rows[chosen].lost.rule, RULE_OK);
    CHECK_NEAR(all.rows[chosen].loses_by, 0, 0);
    return all.rows[chosen].plan.sp;
}

static void test_fastest_wins(void **state)
{
    static const struct made rows[] = {{1, 130, 0.05, 0.5, true}, {2, 100, 0.05, 0.4, true}, {4, 140, 0.05, 0.3, true}};
    (void)state;
    make(rows, 3);
    assert_int_equal(choose(WORK_FITS), 2);
    assert_int_equal(all.rows[0].lost.rule, RULE_SLOWER);
    CHECK_NEAR(all.rows[0].loses_by, 0.3, 1e-9);
    assert_true(all.rows[0].loses_lo < 0.3 && 0.3 < all.rows[0].loses_hi && all.rows[0].loses_lo > 0);
}

/* The interval of the ratio contains 1: the smaller sp, also among three. */
static void test_tie_smaller_sp(void **state)
{
    static const struct made rows[] = {
        {8, 100, 0.05, 0.3, true}, {2, 103, 0.05, 0.5, true}, {4, 102, 0.05, 0.4, true}, {1, 150, 0.05, 0.6, true}};
    (void)state;
    make(rows, 4);
    assert_int_equal(choose(WORK_FITS), 2);
    assert_int_equal(all.rows[0].lost.rule, RULE_TIED);
    assert_int_equal(all.rows[2].lost.rule, RULE_TIED);
    assert_int_equal(all.rows[3].lost.rule, RULE_SLOWER);
    assert_true(all.rows[0].loses_by < 0); /* the fastest, and said so */
}

/* 2 is as fast as the fastest within the interval, 4 is not, and yet faster than 2: nothing faster than the chosen one
 * is "slower". */
static void test_tie_is_not_transitive(void **state)
{
    static const struct made rows[] = {
        {8, 100, 0.002, 0.3, true}, {4, 102, 0.002, 0.4, true}, {2, 104, 0.1, 0.5, true}};
    (void)state;
    make(rows, 3);
    assert_int_equal(choose(WORK_FITS), 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(all.rows[i].lost.rule, RULE_TIED);
        assert_true(all.rows[i].loses_by < 0);
    }
}

/* Three percent apart with errors of a hundredth: no tie. */
static void test_no_tie(void **state)
{
    static const struct made rows[] = {{1, 103, 0.01, 0.5, true}, {2, 100, 0.01, 0.4, true}};
    (void)state;
    make(rows, 2);
    assert_int_equal(choose(WORK_FITS), 2);
    assert_int_equal(all.rows[0].lost.rule, RULE_SLOWER);
}

/* A wide interval because little is known is no reason to prefer what was only estimated. */
static void test_estimate_wins_no_tie(void **state)
{
    static const struct made rows[] = {{1, 110, 0.5, 0.5, false}, {2, 100, 0.01, 0.4, true}};
    (void)state;
    make(rows, 2);
    assert_int_equal(choose(WORK_FITS), 2);
    assert_int_equal(all.rows[0].lost.rule, RULE_SLOWER);
    assert_non_null(strstr(all.rows[0].lost.why, "by estimate"));
}

static void test_equal_sp_less_memory(void **state)
{
    static const struct made rows[] = {{2, 100, 0.05, 0.6, true}, {2, 101, 0.05, 0.4, true}};
    (void)state;
    make(rows, 2);
    all.rows[0].plan.loss = PLAN_LOSS_PLAIN;
    all.rows[1].plan.loss = PLAN_LOSS_FUSED;
    assert_int_equal(choose(WORK_FITS), 2);
    assert_int_equal(all.rows[0].lost.rule, RULE_TIED);
    assert_non_null(strstr(all.rows[0].lost.why, "loss fused"));
}

/* 80 and 95 %: fits, measure first, never. */
static void test_fit_classes(void **state)
{
    static const struct made rows[] = {
        {1, 100, 0.01, 0.96, true}, {2, 120, 0.01, 0.9, true}, {4, 150, 0.01, 0.8, true}};
    static const struct made tight[] = {
        {1, 100, 0.01, 0.96, true}, {2, 150, 0.01, 0.95, true}, {4, 130, 0.01, 0.81, true}};
    static const struct made none[] = {
        {1, 100, 0.01, 1.5, true}, {2, 120, 0.01, 0.97, true}, {4, 150, 0.01, 1.2, true}};
    (void)state;
    make(rows, 3);
    assert_int_equal(choose(WORK_FITS), 4);
    assert_int_equal(all.rows[0].lost.rule, RULE_MEMORY);
    assert_int_equal(all.rows[1].lost.rule, RULE_MEASURE_FIRST);
    assert_non_null(strstr(all.rows[1].lost.why, "80 %"));
    candidates_free(&all);
    make(tight, 3);
    assert_int_equal(choose(WORK_MEASURE_FIRST), 4);
    assert_int_equal(all.rows[1].lost.rule, RULE_SLOWER);
    candidates_free(&all);
    make(none, 3);
    assert_int_equal(choose(WORK_DOES_NOT_FIT), 2);
    assert_int_equal(all.rows[0].lost.rule, RULE_MEMORY);
}

/* A plan that would tie but is fuller than 80 % does not take the place of one that fits. */
static void test_tie_within_a_class(void **state)
{
    static const struct made rows[] = {{1, 100, 0.05, 0.9, true}, {2, 100, 0.05, 0.5, true}};
    (void)state;
    make(rows, 2);
    assert_int_equal(choose(WORK_FITS), 2);
}

/* Tokens per device: twice the step for twice the tokens is a tie. */
static void test_tokens_objective(void **state)
{
    static const struct made rows[] = {{1, 200, 0.02, 0.5, true}, {2, 100, 0.02, 0.4, true}};
    (void)state;
    make(rows, 2);
    request.objective = REQUEST_TOKENS_PER_GPU;
    all.rows[0].tokens_per_s_per_device = 2 * 4096 * 1e6 / 200;
    all.rows[1].tokens_per_s_per_device = 4096 * 1e6 / 100;
    assert_int_equal(choose(WORK_FITS), 1);
    assert_int_equal(all.rows[1].lost.rule, RULE_TIED);
    struct stats_interval ratio = candidates_ratio(&request, &all, 1, 0, &pool);
    assert_true(ratio.lo < 1 && ratio.hi > 1 && ratio.hi - ratio.lo < 0.1);
}

static void test_nothing_priced(void **state)
{
    enum work_fit fit;
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    build();
    CHECK_OK(candidates_price(&request, &all, &pool, PARTS_LAYER, NULL));
    assert_int_equal(candidates_choose(&request, &all, &pool, &fit), -1);
    for (int i = 0; i < all.n; i++)
        assert_true(all.rows[i].lost.why[0] != '\0');
}

/* Why a row has no price is what its sample says. */
static void test_reason_of_a_gap(void **state)
{
    struct parts parts = {0};
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    build();
    int row = 0;
    while (!verdict_ok(&all.rows[row].verdict))
        row++;
    CHECK_OK(parts_list(&request, &all.rows[row].plan, PARTS_COARSE, &(struct parts_scale){0}, &parts));
    CHECK_OK(pool_refuse(&pool, parts.item[0].key, RULE_TAINTED, "9 of 10 samples were disturbed"));
    CHECK_OK(candidates_price(&request, &all, &pool, PARTS_COARSE, NULL));
    assert_int_equal(all.rows[row].lost.rule, RULE_TAINTED);
    assert_non_null(strstr(all.rows[row].lost.why, "9 of 10"));
    parts_free(&parts);
}

/* What lacks a sample is timed again, and a busy machine is blamed only where one was seen. */
static void test_why_rough(void **state)
{
    (void)state;
    struct parts parts = {0};
    struct pool none = {0};
    bool done[64] = {0};
    int row = 0;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    build();
    while (!verdict_ok(&all.rows[row].verdict))
        row++;
    CHECK_OK(parts_list(&request, &all.rows[row].plan, PARTS_COARSE, &(struct parts_scale){0}, &parts));
    assert_true(parts.n >= 3 && parts.n <= 64);
    for (int i = 0; i < parts.n; i++)
        assert_true(parts.item[i].possible);
    assert_int_equal(search_rough(&none, &parts, done), RULE_BUDGET); /* their turn has not come */
    for (int i = 0; i < parts.n; i++) {
        assert_false(done[i]);
        CHECK_OK(pool_refuse(&none, parts.item[i].key, RULE_MEMORY, "too large"));
    }
    assert_int_equal(search_rough(&none, &parts, done), RULE_OK); /* a refusal stays one */
    pool_free(&none);
    for (int i = 0; i < parts.n; i++)
        CHECK_OK(pool_refuse(&none, parts.item[i].key, i == 1 ? RULE_BUDGET : RULE_MEMORY, "no"));
    assert_int_equal(search_rough(&none, &parts, done), RULE_BUDGET);
    for (int i = 0; i < parts.n; i++)
        assert_true(done[i] == (i != 1));
    pool_free(&none);
    for (int i = 0; i < parts.n; i++)
        CHECK_OK(pool_refuse(&none, parts.item[i].key, i == 1 ? RULE_TAINTED : RULE_BUDGET, "no"));
    assert_int_equal(search_rough(&none, &parts, done), RULE_TAINTED);
    assert_false(done[0] || done[1]);
    parts.item[1].possible = false;
    assert_int_equal(search_rough(&none, &parts, done), RULE_BUDGET);
    parts.item[1].possible = true;
    double us = 3;
    struct sample one = {
        .times_us = &us, .n = 1, .outcome = SAMPLE_OK, .rule = RULE_BUDGET}; /* its time ended, but it has one */
    for (int i = 0; i < parts.n; i++) {
        one.outcome = i == 0 ? SAMPLE_FAILED : SAMPLE_OK;
        CHECK_OK(pool_add(&none, parts.item[i].key, &one));
    }
    assert_int_equal(search_rough(&none, &parts, done), RULE_OK);
    for (int i = 0; i < parts.n; i++)
        assert_true(done[i]);
    pool_free(&none);
    parts_free(&parts);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_refused_documents),
        CASE(test_refused_class),
        CASE(test_refused_batch),
        CASE(test_refused_sp),
        CASE(test_ring_remains),
        CASE(test_no_ring_remains),
        CASE(test_refused_target),
        CASE(test_refused_briefly),
        CASE(test_accumulate),
        CASE(test_host_memory),
        CASE(test_planned_device),
        CASE(test_fastest_wins),
        CASE(test_tie_smaller_sp),
        CASE(test_tie_is_not_transitive),
        CASE(test_no_tie),
        CASE(test_estimate_wins_no_tie),
        CASE(test_equal_sp_less_memory),
        CASE(test_fit_classes),
        CASE(test_tie_within_a_class),
        CASE(test_tokens_objective),
        CASE(test_nothing_priced),
        CASE(test_reason_of_a_gap),
        CASE(test_why_rough),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
