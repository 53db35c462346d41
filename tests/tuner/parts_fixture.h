/* tuner/parts_fixture.h -- for tests: a step as samples, of a request to the machine of fake.h. */
#ifndef SPTUNE_TESTS_TUNER_PARTS_FIXTURE_H
#define SPTUNE_TESTS_TUNER_PARTS_FIXTURE_H

#include "tuner/bench_fixture.h"

#include "base/text.h"
#include "sp/work.h"
#include "tuner/search_state.h"

#include <math.h>
#include <stdlib.h>

static const struct parts_scale whole = {0};

static inline struct plan plan_of(int sp)
{
    struct plan plan = request.space.base;
    plan.sp = sp;
    plan.dp_shard = request.world / sp;
    plan.micro_batch = request.micro_batch[0];
    text_print(plan.attention, sizeof plan.attention, "cpu");
    return plan;
}

static inline const struct part *find(const struct parts *parts, const char *subject, const char *op,
                                      enum problem_direction direction)
{
    for (int i = 0; i < parts->n; i++) {
        const struct bench_case *c = &parts->item[i].c;
        if (strcmp(c->subject, subject) == 0 && strcmp(c->op, op) == 0 &&
            (direction == 0 || c->problem.direction == direction))
            return &parts->item[i];
    }
    return NULL;
}

static inline int count(const struct parts *parts, const char *subject)
{
    int n = 0;
    for (int i = 0; i < parts->n; i++)
        n += strcmp(parts->item[i].c.subject, subject) == 0;
    return n;
}

/* What a step takes by these parts, were every sample what the fake machine says. */
static inline double sum_us(const struct parts *parts)
{
    double sum = 0;
    for (int i = 0; i < parts->n; i++)
        sum += parts->item[i].times * fake_case_us(&fake_default, &parts->item[i].c);
    return sum;
}

static inline void list(const struct plan *plan, enum parts_level level, const struct parts_scale *scale,
                        struct parts *out)
{
    parts_clear(out);
    CHECK_OK(parts_list(&request, plan, level, scale, out));
}

static inline void start(const char *model, int64_t seq, int ranks, int world)
{
    fake_request(&bench, model, seq, ranks, &request);
    request.world = world;
    CHECK_OK(request_complete(&request));
}

#endif
