/* tuner/test_replay.c -- the same store gives the same answer; gaps leave estimates; what is timed fits the budget. */
#include "tuner/search_fixture.h"

#include "base/log.h"

/* The same store gives the same answer, digit by digit; also when only another effort or budget was recorded. */
static void test_replay_again(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 16384, 2, &request);
    run(&fake_default);
    struct recommend_time first = chosen()->time;
    recommend_free(&answer);
    CHECK_OK(search_run(&request, &bench.session, &answer));
    CHECK_NEAR(chosen()->time.step_us, first.step_us, 0);
    CHECK_NEAR(chosen()->time.lo_us, first.lo_us, 0);
    CHECK_NEAR(chosen()->time.hi_us, first.hi_us, 0);
    recommend_free(&answer);
    fake_forget(&bench);
    struct parts_scale scale = {.seq_exchange = 0};
    fake_fill_level(&bench, &fake_default, &request, PARTS_COARSE, &scale);
    fake_fill_level(&bench, &fake_default, &request, PARTS_LAYER,
                    &scale); /* recorded whole, replayed with a small budget */
    request.effort = REQUEST_QUICK;
    request.budget_us = 1000 * 1000;
    CHECK_OK(search_run(&request, &bench.session, &answer));
    assert_true(chosen()->timed);
    assert_int_equal(chosen()->time.source, first.source);
    check_time(&fake_default, chosen());
}

/* Only the coarse samples are there: an estimate, not a failure. An empty store: no answer. */
static void test_replay_gaps(void **state)
{
    (void)state;
    struct parts_scale scale = {0};
    fake_request(&bench, "qwen2.5-0.5b", 16384, 2, &request);
    CHECK_OK(request_complete(&request));
    CHECK_FAILS(STATUS_NODATA, "was not timed", search_run(&request, &bench.session, &answer));
    recommend_free(&answer);
    fake_fill_level(&bench, &fake_default, &request, PARTS_COARSE, &scale);
    CHECK_OK(search_run(&request, &bench.session, &answer));
    assert_false(chosen()->timed);
    assert_int_equal(chosen()->time.source, RECOMMEND_ASSUMED);
    check_time(&fake_default, chosen()); /* rates of this machine do not depend on size */
}

/* Where the machine was busy a replay has no rows that are good: it says so, and takes those that another run adds. */
static void test_replay_tainted(void **state)
{
    (void)state;
    struct parts_scale scale = {0};
    fake_request(&bench, "llama-3.1-8b", 16384, 2, &request); /* rows of any machine count, other tests have none of it */
    CHECK_OK(request_complete(&request));
    request.replay = true;
    bench.session.machine[0] = '\0';
    bench.waived = RULE_TAINTED;
    fake_fill_level(&bench, &fake_default, &request, PARTS_COARSE, &scale);
    bench.waived = RULE_OK;
    CHECK_FAILS(STATUS_NODATA, "taken while others worked", search_run(&request, &bench.session, &answer));
    assert_non_null(strstr(status_last()->hint, "its rows are tainted"));
    recommend_free(&answer);
    fake_fill_level(&bench, &fake_default, &request, PARTS_COARSE, &scale);
    CHECK_OK(search_run(&request, &bench.session, &answer));
    check_time(&fake_default, chosen());
}

/* What would say more is a longer budget where that ended first, and no busy machine; what is refused stays so: the reason is told. */
static void test_what_could_not_be_timed(void **state)
{
    static const struct {
        enum rule rule;
        const char *says;
    } of[] = {
        {RULE_BUDGET, "without --replay"},
        {RULE_TAINTED, "on a quieter machine"},
        {RULE_KERNEL_CANNOT, "can be timed here: layer forward at sp 1, 12,288 tokens: the fake machine takes none"}};
    (void)state;
    struct parts_scale scale = {0};
    bench.session.machine[0] = '\0';
    for (int i = 0; i < CHECK_COUNT(of); i++) {
        fake_request(&bench, "llama-3.2-1b", 10240 + 1024 * i, 2,
                     &request);               /* rows of any machine: other tests have none of these */
        request.budget_us = (int64_t)1 << 50; /* for layers as a whole */
        CHECK_OK(request_complete(&request));
        fake_fill_level(&bench, &fake_default, &request, PARTS_COARSE, &scale);
        bench.waived = of[i].rule;
        fake_fill_level(&bench, &fake_default, &request, PARTS_LAYER, &scale);
        bench.waived = RULE_OK;
        CHECK_OK(search_run(&request, &bench.session, &answer));
        assert_false(chosen()->timed);
        if (strstr(answer.next_measurement, of[i].says) == NULL)
            fail_msg("%s", answer.next_measurement);
        recommend_free(&answer);
    }
}

/* Nor does a budget help where no plan has a price for such a reason. */
static void test_nothing_could_be_timed(void **state)
{
    static const enum rule of[] = {RULE_TAINTED, RULE_EXCHANGE_CANNOT};
    (void)state;
    struct parts_scale scale = {0};
    bench.session.machine[0] = '\0';
    for (int i = 0; i < CHECK_COUNT(of); i++) {
        fake_request(&bench, i == 0 ? "qwen2.5-7b" : "qwen2.5-14b", 10240, 2, &request);
        CHECK_OK(request_complete(&request));
        request.replay = false;
        bench.waived = of[i];
        fake_fill_level(&bench, &fake_default, &request, PARTS_COARSE, &scale);
        bench.waived = RULE_OK;
        CHECK_FAILS(STATUS_NODATA, "no candidate has a time", search_run(&request, &bench.session, &answer));
        assert_int_equal(strstr(status_last()->hint, "longer --budget") != NULL, of[i] == RULE_TAINTED);
        recommend_free(&answer);
    }
}

/* Samples of two builds or thread counts in one answer: taken, as a replay can measure nothing, but said. */
static void test_replay_mixed(void **state)
{
    (void)state;
    struct parts_scale scale = {0};
    fake_request(&bench, "qwen2.5-0.5b", 16384, 2, &request);
    CHECK_OK(request_complete(&request));
    bench.versions = "{\"sptune\":\"a\",\"threads\":1}";
    fake_fill_level(&bench, &fake_default, &request, PARTS_COARSE, &scale);
    log_reset();
    log_setup(LOG_QUIET, false);
    CHECK_OK(search_run(&request, &bench.session, &answer));
    recommend_free(&answer);
    assert_int_equal(log_warning_count(), 0);
    bench.versions = "{\"sptune\":\"a\",\"threads\":2}";
    fake_fill_level(&bench, &fake_default, &request, PARTS_LAYER, &scale);
    CHECK_OK(search_run(&request, &bench.session, &answer));
    bench.versions = NULL;
    assert_int_equal(log_warning_count(), 1);
    assert_non_null(strstr(log_warning(0), "measured alike: threads 1 -> 2"));
    log_reset();
}

/* Only sp 2 was timed in detail, and small shapes run at half the rate: the estimate of sp 1 is corrected by what sp 2
 * showed, so that the comparison is fair. */
static void test_correction(void **state)
{
    (void)state;
    struct fake fake = fake_default;
    struct parts_scale scale = {0};
    fake.small_share = 0.5;
    fake_request(&bench, "qwen2.5-0.5b", 16384, 2, &request);
    CHECK_OK(request_complete(&request));
    fake_fill_level(&bench, &fake, &request, PARTS_COARSE, &scale);
    struct request two = request;
    two.space.nsp = 1;
    two.space.sp[0] = 2;
    fake_fill_level(&bench, &fake, &two, PARTS_LAYER, &scale);
    CHECK_OK(search_run(&request, &bench.session, &answer));
    assert_true(with_sp(2)->timed);
    assert_false(with_sp(1)->timed);
    double truth = fake_step_us(&fake, &request, &with_sp(1)->plan);
    CHECK_NEAR(with_sp(1)->time.step_us / truth, 1, 0.02);
}

/* The native line: the same sizes through our own exchange, never refused because of accelerate's rules. */
static void test_native(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.global_batch_tokens = 4096;
    run(&fake_default);
    assert_true(answer.native_best >= 0);
    assert_int_equal(answer.native.plan.sp, 2);
    assert_string_equal(answer.native.plan.exchange, "direct");
    assert_string_equal(chosen()->plan.exchange, "packed-separate");
    assert_true(answer.native.tokens_per_s_per_device > 0);
}

/* Three microseconds, one microsecond, a budget of years: an answer all the same. */
static void test_budgets(void **state)
{
    static const int64_t budgets[] = {0, 1, (int64_t)1 << 50};
    (void)state;
    for (int i = 0; i < CHECK_COUNT(budgets); i++) {
        fake_request(&bench, "qwen2.5-0.5b", 65536, 2, &request);
        request.budget_us = budgets[i];
        run(&fake_default);
        assert_int_equal(chosen()->plan.sp, 1);
    }
}

/* The scale of a search depends on the coarse samples and the request alone, and what it times fits in its budget. */
static void test_scale(void **state)
{
    static const int64_t lengths[] = {512, 1024, 4096, 16384, 131072, 1 << 20};
    (void)state;
    int64_t last_cost = 0;
    for (int i = 0; i < CHECK_COUNT(lengths); i++) {
        fake_request(&bench, "qwen2.5-0.5b", lengths[i], 2, &request);
        request.effort = REQUEST_QUICK;
        request.budget_us = 60 * 1000 * 1000;
        CHECK_OK(request_complete(&request));
        struct parts_scale none = {0};
        fake_fill_level(&bench, &fake_default, &request, PARTS_COARSE, &none);
        struct search *search = calloc(1, sizeof *search);
        *search = (struct search){.request = &request, .session = &bench.session, .room_bytes = INFINITY};
        CHECK_OK(candidates_build(&request, &search->candidates));
        CHECK_OK(search_coarse(search, &request, &search->candidates, true));
        bool which[64] = {false}, fits = false;
        assert_true(search->candidates.n < 64);
        CHECK_OK(candidates_price(&request, &search->candidates, &search->pool, PARTS_COARSE, NULL));
        for (int k = 0; k < search->candidates.n; k++)
            which[k] = search->candidates.rows[k].priced;
        CHECK_OK(search_scale(search, which, &fits));
        assert_true(fits);
        double iteration_us = 0;
        struct parts parts = {0}, all = {0};
        for (int k = 0; k < search->candidates.n; k++) {
            parts_clear(&parts);
            if (which[k])
                CHECK_OK(parts_list(&request, &search->candidates.rows[k].plan, search->level, &search->scale, &parts));
            for (int p = 0; p < parts.n; p++) {
                const struct bench_case *c = &parts.item[p].c;
                double heads = c->heads_timed > 0 ? (double)c->heads_timed * c->plan.sp / c->problem.heads : 1;
                if (!parts_has(&all, parts.item[p].key))
                    iteration_us += fake_case_us(&fake_default, c) * heads;
                CHECK_OK(parts_add(&all, &parts.item[p]));
            }
        }
        assert_true(13 * iteration_us < 0.6 * 60e6); /* 10 samples, 3 to warm up */
        assert_true(i == 0 || (int64_t)iteration_us > last_cost / 8);
        last_cost = (int64_t)iteration_us;
        parts_free(&parts);
        parts_free(&all);
        candidates_free(&search->candidates);
        pool_free(&search->pool);
        sample_free(&search->replayed);
        free(search);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_replay_again),
        CASE(test_replay_gaps),
        CASE(test_replay_mixed),
        CASE(test_replay_tainted),
        CASE(test_what_could_not_be_timed),
        CASE(test_nothing_could_be_timed),
        CASE(test_correction),
        CASE(test_native),
        CASE(test_budgets),
        CASE(test_scale),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
