/* bench/test_state.c -- which blocks count, by the rates before and after them. */
#include "base/check.h"
#include "base/log.h"
#include "bench/measure.h"

struct fixture {
    struct bench_env env;
    struct bench_options options;
    struct run run;
};

static void begin(struct fixture *f, double rate)
{
    double rates[3] = {rate, rate * 0.99, rate * 1.01};
    *f = (struct fixture){.options = {.repeats = 3}};
    f->run.env = &f->env;
    f->run.options = &f->options;
    state_begin(&f->run, rates, 3);
}

static void test_same(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, 100);
    assert_int_equal(state_judge(&f.run, 100, 95, 0, 0), STATE_SAME);
    assert_int_equal(state_judge(&f.run, 95, 104, 0, 0), STATE_SAME);
    assert_true(f.env.memo.fma_best == 104);
}

static void test_stolen_time_is_outside(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, 100);
    assert_int_equal(state_judge(&f.run, 100, 100, 0.5, 0), STATE_OUTSIDE);
    assert_int_equal(state_judge(&f.run, 100, 100, 0, 1), STATE_OUTSIDE);
    for (int i = 0; i < 10; i++) /* however often: it is no new state */
        assert_int_equal(state_judge(&f.run, 100, 100, 0.5, 0), STATE_OUTSIDE);
}

/* A block that begins or ends in another state is outside; one dip is no new state. */
static void test_dip(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, 100);
    assert_int_equal(state_judge(&f.run, 100, 50, 0, 0), STATE_OUTSIDE);
    assert_int_equal(state_judge(&f.run, 50, 100, 0, 0), STATE_OUTSIDE);
    assert_int_equal(state_judge(&f.run, 100, 100, 0, 0), STATE_SAME);
    assert_int_equal(state_judge(&f.run, 100, 50, 0, 0), STATE_OUTSIDE);
    assert_int_equal(state_judge(&f.run, 50, 70, 0, 0), STATE_OUTSIDE);
    assert_int_equal(state_judge(&f.run, 70, 50, 0, 0), STATE_OUTSIDE);
    assert_int_equal(state_judge(&f.run, 50, 100, 0, 0), STATE_OUTSIDE);
    assert_true(f.env.memo.state_rate > 99);
}

/* Three probes that agree are a new state, slower or faster; then rates of the old one are outside. */
static void test_lasting_change(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, 100);
    assert_int_equal(state_judge(&f.run, 100, 50, 0, 0), STATE_OUTSIDE);
    assert_int_equal(state_judge(&f.run, 50, 51, 0, 0), STATE_OUTSIDE);
    assert_int_equal(state_judge(&f.run, 51, 50, 0, 0), STATE_CHANGED);
    assert_int_equal(state_judge(&f.run, 50, 51, 0, 0), STATE_SAME);
    assert_int_equal(state_judge(&f.run, 51, 100, 0, 0), STATE_OUTSIDE);
    assert_int_equal(state_judge(&f.run, 100, 100, 0, 0), STATE_OUTSIDE);
    assert_int_equal(state_judge(&f.run, 100, 100, 0, 0), STATE_CHANGED);
    /* The third change in one run would never end: rows are then waived as tainted. */
    for (int i = 0; i < 10; i++)
        assert_int_equal(state_judge(&f.run, 50, 50, 0, 0), STATE_OUTSIDE);
}

static void test_recorded_not_judged(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f, 100);
    f.options.repeats = -1;
    assert_int_equal(state_judge(&f.run, 100, 10, 1, 1), STATE_SAME);
    f.options.repeats = 3;
    f.options.oversubscribed = true;
    assert_int_equal(state_judge(&f.run, 100, 10, 1, 1), STATE_SAME);
}

/* The next run on the same env starts in the state it finds, and says once that it is a slow one. */
static void test_next_run(void **state)
{
    (void)state;
    struct fixture f;
    double slow[3] = {50, 51, 50}, mixed[3] = {50, 100, 51};
    log_reset();
    log_setup(LOG_QUIET, false);
    begin(&f, 100);
    state_begin(&f.run, mixed, 3);
    assert_true(f.env.memo.state_rate > 99);
    state_begin(&f.run, slow, 3);
    assert_true(f.env.memo.state_rate < 52);
    state_begin(&f.run, slow, 3);
    assert_int_equal(log_warning_count(), 1);
    log_reset();
}

/* A row of which most samples were disturbed is waived, by its rule, and one of which few were is not. */
static void test_tainted_rows(void **state)
{
    (void)state;
    static const struct {
        int tainted, left;
        enum sample_outcome outcome;
        enum rule rule;
    } want[] = {
        {0, 20, SAMPLE_OK, RULE_OK},
        {5, 0, SAMPLE_OK, RULE_OK},
        {7, 0, SAMPLE_WAIVED, RULE_TAINTED},
        {7, 3, SAMPLE_WAIVED, RULE_TAINTED}, /* narrow all the same: it was disturbed evenly */
    };
    for (int i = 0; i < CHECK_COUNT(want); i++) {
        double times[12];
        struct fixture f;
        struct bench_case c = {.seed = 1};
        int something;
        begin(&f, 100);
        f.options.samples_min = 10;
        f.options.samples_max = 100;
        f.options.ci_target = 0.05;
        f.options.budget_us = -1;
        for (int t = 0; t < 12; t++)
            times[t] = 100 + t % 2;
        struct row row = {.c = &c, .state = &something, .times_us = times, .n = 12, .tainted = want[i].tainted,
                          .repeats_total = want[i].left};
        row_stop(&f.run, &row);
        assert_true(row.settled);
        assert_int_equal(row.outcome, want[i].outcome);
        assert_int_equal(row.rule, want[i].rule);
    }
    /* Nothing but disturbed blocks until the budget ended: it is not the budget that is to blame. */
    for (int repeated = 0; repeated < 2; repeated++) {
        struct fixture f;
        struct bench_case c = {.seed = 1};
        int something;
        begin(&f, 100);
        f.options = (struct bench_options){.samples_min = 10, .samples_max = 100, .budget_us = 1000, .repeats = 3};
        f.run.elapsed_us = 2000;
        struct row row = {.c = &c, .state = &something, .repeated = repeated};
        row_stop(&f.run, &row);
        assert_int_equal(row.outcome, SAMPLE_WAIVED);
        assert_int_equal(row.rule, repeated > 0 ? RULE_TAINTED : RULE_BUDGET);
    }
    /* Wide, disturbed, and out of patience: it ends here; with patience left it goes on. */
    for (int left = 0; left < 2; left++) {
        double times[12];
        struct fixture f;
        struct bench_case c = {.seed = 1};
        int something;
        begin(&f, 100);
        f.options = (struct bench_options){.samples_min = 10, .samples_max = 100, .ci_target = 0.01, .budget_us = -1, .repeats = 3};
        for (int t = 0; t < 12; t++)
            times[t] = 100 * (1 + t % 3);
        struct row row = {.c = &c, .state = &something, .times_us = times, .n = 12, .tainted = 7, .repeats_total = left};
        row_stop(&f.run, &row);
        assert_int_equal(row.settled, left == 0);
        assert_int_equal(row.rule, left == 0 ? RULE_TAINTED : RULE_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tainted_rows),
        cmocka_unit_test(test_same),          cmocka_unit_test(test_stolen_time_is_outside),
        cmocka_unit_test(test_dip),           cmocka_unit_test(test_lasting_change),
        cmocka_unit_test(test_recorded_not_judged), cmocka_unit_test(test_next_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
