/* tuner/test_search.c -- searches on a machine whose rates are known: the answer, its time and its reasons follow from
 * them. */
#include "tuner/search_fixture.h"

static void test_closed_form(void **state)
{
    static const int64_t lengths[] = {512, 4096, 32768};
    static const enum recommend_source sources[] = {RECOMMEND_ASSUMED, RECOMMEND_MEASURED, RECOMMEND_MEASURED};
    (void)state;
    for (int i = 0; i < CHECK_COUNT(lengths); i++) {
        fake_request(&bench, "qwen2.5-0.5b", lengths[i], 2, &request);
        run(&fake_default);
        for (int k = 0; k < answer.n; k++)
            if (answer.candidates[k].priced)
                check_time(&fake_default, &answer.candidates[k]);
        assert_int_equal(chosen()->plan.sp, 1); /* everything fits, and an exchange only costs */
        assert_true(chosen()->timed);
        assert_int_equal(chosen()->time.source, sources[i]); /* the share of what copies price */
        assert_int_equal(answer.verdict, WORK_FITS);
        assert_int_equal(answer.measured, 0);
    }
}

/* A layer that takes hours is priced from some heads of a shorter row, and the answer says so. */
static void test_closed_form_in_parts(void **state)
{
    static const int64_t lengths[] = {8192, 1 << 20};
    static const enum recommend_source sources[] = {RECOMMEND_MEASURED, RECOMMEND_EXTRAPOLATED};
    (void)state;
    for (int i = 0; i < CHECK_COUNT(lengths); i++) {
        fake_request(&bench, "qwen2.5-0.5b", lengths[i], 2, &request);
        request.device_memory_bytes = (int64_t)1 << 43;
        request.effort = REQUEST_QUICK;
        request.budget_us = 60 * 1000 * 1000;
        CHECK_OK(request_complete(&request));
        fake_fill_scales(&bench, &fake_default, &request);
        recommend_free(&answer);
        CHECK_OK(search_run(&request, &bench.session, &answer));
        check_time(&fake_default, with_sp(1));
        check_time(&fake_default, with_sp(2));
        assert_true(chosen()->timed);
        assert_int_equal(chosen()->time.source, sources[i]);
    }
}

/* Where the estimate from small shapes is 30 % wrong, its interval knows. */
static void test_estimate(void **state)
{
    struct fake fake = fake_default;
    (void)state;
    fake.small_share = 0.75;
    fake_request(&bench, "qwen2.5-0.5b", 16384, 2, &request);
    request.effort = REQUEST_ESTIMATE;
    run(&fake);
    assert_false(chosen()->timed);
    assert_int_equal(chosen()->time.source, RECOMMEND_ASSUMED);
    double truth = fake_step_us(&fake, &request, &chosen()->plan);
    assert_true(chosen()->time.lo_us < truth && truth < chosen()->time.hi_us);
    assert_true(chosen()->time.step_us > truth * 1.1);
    assert_non_null(strstr(answer.next_measurement, "without --replay"));
}

/* A global batch of one sequence on two ranks: sp 1 would see two. */
static void test_batch_forces_sp(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.global_batch_tokens = 4096;
    run(&fake_default);
    assert_int_equal(chosen()->plan.sp, 2);
    assert_int_equal(chosen()->plan.accumulate, 1);
    assert_int_equal(with_sp(1)->verdict.rule, RULE_GLOBAL_BATCH);
    assert_false(with_sp(1)->priced);
    check_time(&fake_default, chosen());
}

/* Sixteen sequences on two ranks: as many micro-steps as make the batch, ZeRO paid in each. */
static void test_accumulation(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.global_batch_tokens = 16 * 4096;
    run(&fake_default);
    assert_int_equal(with_sp(1)->plan.accumulate, 8);
    assert_int_equal(with_sp(2)->plan.accumulate, 16);
    check_time(&fake_default, with_sp(1));
    check_time(&fake_default, with_sp(2));
}

static int64_t peak_of(int sp)
{
    struct work_memory memory;
    struct plan plan = request.space.base;
    plan.sp = sp;
    plan.dp_shard = request.world / sp;
    text_print(plan.attention, sizeof plan.attention, "cpu");
    work_memory(&request.model, &request.problem, &plan, request.target, &memory);
    return memory.peak_bytes;
}

/* A limit under which sp 1 does not fit and sp 2 does forces sp 2, however slow the exchange. */
static void test_memory_forces_sp(void **state)
{
    static const double exchange_GBps[] = {5, 0.05};
    (void)state;
    for (int i = 0; i < CHECK_COUNT(exchange_GBps); i++) {
        struct fake fake = fake_default;
        fake.exchange_GBps = exchange_GBps[i];
        fake_forget(&bench);
        fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
        CHECK_OK(request_complete(&request));
        int64_t one = peak_of(1), two = peak_of(2);
        assert_true(two < one);
        fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
        request.device_memory_bytes = (int64_t)((double)two / 0.79);
        assert_true((double)one > 0.95 * (double)request.device_memory_bytes);
        run(&fake);
        assert_int_equal(chosen()->plan.sp, 2);
        assert_int_equal(answer.verdict, WORK_FITS);
        assert_int_equal(with_sp(1)->lost.rule, RULE_MEMORY);
        assert_int_equal(with_sp(1)->fit, WORK_DOES_NOT_FIT);
        assert_true(with_sp(1)->loses_by < 0); /* faster, and said so */
        check_time(&fake, chosen());
        bool more = false; /* the one fact that changes the answer, where it is worth saying */
        for (int f = 0; f < answer.nflips; f++)
            more = more || strncmp(answer.flips[f].condition, "--device-memory", 15) == 0;
        assert_int_equal(more, i == 1);
    }
}

/* 80 to 95 % full: the answer when nothing is emptier, and marked. */
static void test_measure_first(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    CHECK_OK(request_complete(&request));
    int64_t one = peak_of(1), two = peak_of(2);
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.device_memory_bytes = (int64_t)((double)two / 0.9);
    run(&fake_default);
    assert_int_equal(chosen()->plan.sp, 2);
    assert_int_equal(answer.verdict, WORK_MEASURE_FIRST);
    assert_non_null(strstr(answer.next_measurement, "training step"));
    /* and one that is 90 % full is not taken while a slower one fits */
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.device_memory_bytes = (int64_t)((double)one / 0.9);
    run(&fake_default);
    assert_int_equal(chosen()->plan.sp, 2);
    assert_int_equal(answer.verdict, WORK_FITS);
    assert_int_equal(with_sp(1)->lost.rule, RULE_MEASURE_FIRST);
}

static void test_does_not_fit(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.device_memory_bytes = (int64_t)2 << 30;
    CHECK_OK(request_complete(&request));
    fake_fill(&bench, &fake_default, &request);
    recommend_free(&answer);
    CHECK_FAILS(STATUS_NOFIT, "sp 2", search_run(&request, &bench.session, &answer));
    assert_int_equal(answer.verdict, WORK_DOES_NOT_FIT);
    assert_int_equal(chosen()->plan.sp, 2); /* the nearest to fitting */
    assert_true(chosen()->priced);
    assert_true(answer.fits_if[0] != '\0');
    assert_string_equal(status_last()->hint, answer.fits_if);
    check_time(&fake_default, chosen());
}

/* What fits when the loss is fused is said, and so is how much memory would do. */
static void test_does_not_fit_but_fused(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 32768, 1, &request);
    CHECK_OK(request_complete(&request));
    struct work_memory memory;
    struct plan plan = request.space.base;
    plan.loss = PLAN_LOSS_FUSED;
    work_memory(&request.model, &request.problem, &plan, request.target, &memory);
    fake_request(&bench, "qwen2.5-0.5b", 32768, 1, &request);
    request.device_memory_bytes = (int64_t)((double)memory.peak_bytes / 0.75);
    CHECK_OK(request_complete(&request));
    fake_fill(&bench, &fake_default, &request);
    CHECK_FAILS(STATUS_NOFIT, "no plan fits", search_run(&request, &bench.session, &answer));
    assert_non_null(strstr(answer.fits_if, "--loss fused makes sp 1 fit"));
    assert_int_equal(answer.flips[0].then_plan.loss, PLAN_LOSS_FUSED);
}

/* With the logits gone sp 1 fits, and is faster. */
static void test_flip_loss(void **state)
{
    (void)state;
    struct fake fake = fake_default;
    fake.exchange_GBps = 0.05;
    fake_request(&bench, "qwen2.5-0.5b", 16384, 2, &request);
    CHECK_OK(request_complete(&request));
    int64_t two = peak_of(2);
    fake_request(&bench, "qwen2.5-0.5b", 16384, 2, &request);
    request.device_memory_bytes = (int64_t)((double)two / 0.79);
    run(&fake);
    assert_int_equal(chosen()->plan.sp, 2);
    const struct recommend_flip *flip = NULL;
    for (int i = 0; i < answer.nflips; i++)
        if (strcmp(answer.flips[i].condition, "--loss fused") == 0)
            flip = &answer.flips[i];
    assert_non_null(flip);
    assert_int_equal(flip->then_plan.sp, 1);
    assert_true(flip->peak_bytes <= 0.8 * (double)request.device_memory_bytes);
    /* sp 1 was never timed: the gain is an estimate, and the truth is near it */
    struct plan then = flip->then_plan;
    double now = fake_step_us(&fake, &request, &chosen()->plan), after = fake_step_us(&fake, &request, &then) / 2;
    CHECK_NEAR((1 + flip->gain) / (now / after), 1, 0.02);
}

/* Exchanges that cost nothing, nor copies, of which sp 2 has more (gradients in fp32): both take as long, and the smaller sp wins. */
static void test_tie(void **state)
{
    (void)state;
    struct fake fake = fake_default;
    fake.exchange_GBps = 1e6;
    fake.collective_GBps = 1e6;
    fake.copy_GBps = 1e6;
    fake_request(&bench, "qwen2.5-0.5b", 8192, 2, &request);
    request.global_batch_tokens = 2 * 8192;
    run(&fake);
    assert_int_equal(chosen()->plan.sp, 1);
    assert_int_equal(with_sp(2)->lost.rule, RULE_TIED);
    assert_true(with_sp(2)->tied);
    assert_false(with_sp(1)->tied);
}

/* And exchanges that cost a fifth do not tie. */
static void test_no_tie(void **state)
{
    (void)state;
    struct fake fake = fake_default;
    fake.exchange_GBps = 0.01;
    fake_request(&bench, "qwen2.5-0.5b", 8192, 2, &request);
    run(&fake);
    assert_int_equal(chosen()->plan.sp, 1);
    assert_int_equal(with_sp(2)->lost.rule, RULE_SLOWER);
    assert_true(with_sp(2)->loses_by > 0.05);
    double truth =
        fake_step_us(&fake, &request, &with_sp(2)->plan) * 2 / fake_step_us(&fake, &request, &with_sp(1)->plan) - 1;
    CHECK_NEAR(with_sp(2)->loses_by, truth, 0.01);
}

/* Step time is another question: more ranks on one sequence end a step sooner. */
static void test_objective(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 16384, 2, &request);
    request.objective = REQUEST_STEP_TIME;
    run(&fake_default);
    assert_int_equal(chosen()->plan.sp, 2);
    assert_true(with_sp(1)->loses_by > 0.3);
}

/* Eight processes, two of them here: groups of 4 and 8 are scaled from groups of 2, and marked. Llama's 8 kv heads
 * split. */
static void test_more_ranks_than_here(void **state)
{
    (void)state;
    fake_request(&bench, "llama-3.2-1b", 8192, 2, &request);
    request.world = 8;
    run(&fake_default);
    static const int sizes[] = {1, 2, 4, 8};
    for (int i = 0; i < CHECK_COUNT(sizes); i++) {
        const struct recommend_candidate *c = with_sp(sizes[i]);
        assert_true(c->priced);
        check_time(&fake_default, c);
        assert_int_equal(c->time.source, sizes[i] > 2 ? RECOMMEND_EXTRAPOLATED : RECOMMEND_MEASURED);
    }
    bool said = false;
    for (int i = 0; i < request.nassumptions; i++)
        said = said || strcmp(request.assumptions[i].name, "measured_ranks") == 0;
    assert_true(said);
}

/* One rank can time no exchange: what needs one is named, what does not is priced. */
static void test_one_rank_of_many(void **state)
{
    (void)state;
    fake_request(&bench, "llama-3.2-1b", 8192, 1, &request);
    request.world = 4;
    run(&fake_default);
    assert_int_equal(chosen()->plan.sp, 1);
    assert_false(with_sp(2)->priced);
    assert_int_equal(with_sp(2)->lost.rule, RULE_NOT_MEASURED);
    assert_true(chosen()->time.zero > 0); /* not free because it cannot be timed */
    fake_request(&bench, "llama-3.2-1b", 8192, 1, &request);
    request.world = 4;
    request.global_batch_tokens = 8192;
    CHECK_OK(request_complete(&request));
    recommend_free(&answer);
    CHECK_FAILS(STATUS_NODATA, "sp 4", search_run(&request, &bench.session, &answer));
    assert_non_null(strstr(status_last()->hint, "--ranks 2"));
}

/* sp 8 of 2 kv heads: each is sent four times, and priced so. */
static void test_replicated_kv(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 8192, 2, &request);
    request.world = 14;
    run(&fake_default);
    check_time(&fake_default, with_sp(14));
    assert_int_equal(with_sp(7)->verdict.rule, RULE_KV_RULE);
}

/* Half of the layers slide over 1,024 tokens: they cost less, and are priced apart. */
static void test_window(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 8192, 2, &request);
    request.model.window = 1024;
    request.model.window_layers = 12;
    run(&fake_default);
    check_time(&fake_default, with_sp(1));
    check_time(&fake_default, with_sp(2));
    double windowed = chosen()->time.attention;
    fake_request(&bench, "qwen2.5-0.5b", 8192, 2, &request);
    run(&fake_default);
    assert_true(windowed < 0.75 * chosen()->time.attention);
}

static void test_mixture(void **state)
{
    (void)state;
    fake_request(&bench, "qwen3-30b-a3b", 4096, 2, &request);
    run(&fake_default);
    check_time(&fake_default, with_sp(1));
    check_time(&fake_default, with_sp(2));
}

/* Heads alone: no vocabulary, no parameters, one layer of attention and its projections. */
static void test_heads_only(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 8192, 2, &request);
    CHECK_OK(model_from_heads(32, 8, 128, &request.model));
    problem_from_model(&request.model, 8192, 2, &request.problem);
    run(&fake_default);
    check_time(&fake_default, with_sp(1));
    check_time(&fake_default, with_sp(2));
    CHECK_NEAR(chosen()->time.logits, 0, 0);
    CHECK_NEAR(chosen()->time.optimizer, 0, 0);
}

/* Packed documents: accelerate's sdpa would attend across them; our harness runs them. */
static void test_documents(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 8192, 2, &request);
    CHECK_OK(problem_set_docs(&request.problem, "fixed:1k"));
    CHECK_OK(request_complete(&request));
    CHECK_FAILS(STATUS_USAGE, "packed documents", search_run(&request, &bench.session, &answer));
    assert_non_null(strstr(status_last()->hint, "--target sptune"));
    fake_request(&bench, "qwen2.5-0.5b", 8192, 2, &request);
    CHECK_OK(problem_set_docs(&request.problem, "fixed:1k"));
    request.target = target_find("sptune");
    run(&fake_default);
    check_time(&fake_default, with_sp(1));
    check_time(&fake_default, with_sp(2));
    assert_int_equal(answer.native_best, -1); /* it is the target itself */
}

/* A list of micro-batches: each is a candidate; a batch that one of them cannot make refuses it alone. */
static void test_micro_batches(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 2048, 2, &request);
    request.nmicro = 3;
    request.micro_batch[0] = 1;
    request.micro_batch[1] = 4;
    request.micro_batch[2] = 4; /* twice: once */
    request.global_batch_tokens = 4 * 2048;
    run(&fake_default);
    int legal = 0, refused = 0;
    for (int i = 0; i < answer.n; i++) {
        const struct recommend_candidate *c = &answer.candidates[i];
        if (c->verdict.rule == RULE_NOT_MEASURED)
            continue;
        legal += verdict_ok(&c->verdict);
        refused += c->verdict.rule == RULE_GLOBAL_BATCH;
        if (c->priced)
            check_time(&fake_default, c);
    }
    assert_int_equal(legal, 3); /* 1 x sp 1, 1 x sp 2, 4 x sp 2 */
    assert_int_equal(refused, 1);
}

/* Every legal plan in the document once; the chosen first, then by cost, the refused last. */
static void test_order(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 8192, 2, &request);
    request.world = 14;
    run(&fake_default);
    assert_int_equal(answer.chosen, 0);
    for (int i = 2; i < answer.n; i++) {
        const struct recommend_candidate *a = &answer.candidates[i - 1], *b = &answer.candidates[i];
        assert_true(a->priced >= b->priced);
        if (a->priced && b->priced)
            assert_true(a->loses_by <= b->loses_by);
    }
    for (int i = 0; i < answer.n; i++)
        if (i != answer.chosen)
            assert_true(answer.candidates[i].lost.rule != RULE_OK && answer.candidates[i].lost.why[0] != '\0');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_closed_form),
        CASE(test_closed_form_in_parts),
        CASE(test_estimate),
        CASE(test_batch_forces_sp),
        CASE(test_accumulation),
        CASE(test_memory_forces_sp),
        CASE(test_measure_first),
        CASE(test_does_not_fit),
        CASE(test_does_not_fit_but_fused),
        CASE(test_flip_loss),
        CASE(test_tie),
        CASE(test_no_tie),
        CASE(test_objective),
        CASE(test_more_ranks_than_here),
        CASE(test_one_rank_of_many),
        CASE(test_replicated_kv),
        CASE(test_window),
        CASE(test_mixture),
        CASE(test_heads_only),
        CASE(test_documents),
        CASE(test_micro_batches),
        CASE(test_order),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
