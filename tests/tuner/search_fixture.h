/* tuner/search_fixture.h -- for tests that search the fake machine: one store, one request, one answer at a time. */
#ifndef SPTUNE_TESTS_TUNER_SEARCH_FIXTURE_H
#define SPTUNE_TESTS_TUNER_SEARCH_FIXTURE_H

#include "tuner/bench_fixture.h"

#include "base/text.h"
#include "sp/work.h"
#include "tuner/search.h"
#include "tuner/search_state.h"

#include <math.h>
#include <stdlib.h>

static struct recommendation answer; /* large: one, used by one test at a time */

static inline int setup(void **state)
{
    (void)state;
    fake_forget(&bench);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    recommend_free(&answer);
    return 0;
}

static inline const struct recommend_candidate *chosen(void)
{
    assert_true(answer.chosen >= 0);
    return &answer.candidates[answer.chosen];
}

/* The candidate with this sp and a class that has a kernel here. */
static inline const struct recommend_candidate *with_sp(int sp)
{
    for (int i = 0; i < answer.n; i++)
        if (answer.candidates[i].plan.sp == sp && answer.candidates[i].verdict.rule != RULE_NOT_MEASURED)
            return &answer.candidates[i];
    fail_msg("no candidate has sp %d", sp);
    return NULL;
}

static inline void run(const struct fake *fake)
{
    CHECK_OK(request_complete(&request));
    fake_fill(&bench, fake, &request);
    recommend_free(&answer);
    CHECK_OK(search_run(&request, &bench.session, &answer));
}

/* The fake machine's noise is 0.4 % a sample: medians of fifteen stay well within 1 %. */
static inline void check_time(const struct fake *fake, const struct recommend_candidate *c)
{
    double truth = fake_step_us(fake, &request, &c->plan);
    CHECK_NEAR(c->time.step_us / truth, 1, 0.01);
    assert_true(c->time.lo_us <= truth * 1.004 && truth <= c->time.hi_us * 1.004);
    double sum = c->time.exchange_in + c->time.attention + c->time.exchange_out + c->time.gemm + c->time.zero +
                 c->time.optimizer + c->time.logits + c->time.elementwise;
    CHECK_NEAR(sum / c->time.step_us, 1, 1e-9);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
