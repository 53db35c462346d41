/* tuner/sample.h -- for tests: a recommendation made by hand, as the search would leave it. */
#ifndef SPTUNE_TESTS_TUNER_SAMPLE_H
#define SPTUNE_TESTS_TUNER_SAMPLE_H

#include "base/text.h"
#include "tuner/recommend.h"

#include <stdlib.h>
#include <string.h>

struct sample_options {
    const char *model; /* shipped name */
    int64_t seq;
    int world, sp, zero, per_host;
    const char *class;
    enum dev_kind dev;
};

/* Two candidates: the plan asked for, and with another sp one that lost; one plan refused. `topo` is never looked at.
 */
static inline enum status sample_recommendation(const struct sample_options *options, struct recommendation *out)
{
    memset(out, 0, sizeof *out);
    struct request *r = &out->request;
    request_init(r);
    TRY(model_load(options->model, &r->model));
    problem_from_model(&r->model, options->seq, options->world, &r->problem);
    r->problem.dtype = DTYPE_BF16;
    r->target = target_find("accelerate");
    r->dev = r->planned = options->dev;
    r->world = r->ranks = options->world;
    r->ranks_per_host = options->per_host;
    r->device_memory_bytes = (int64_t)80 << 30;
    text_print(r->device_memory_from, sizeof r->device_memory_from, "--device-memory");
    request_assume(r, "loss", "plain", "default of accelerate");
    request_assume(r, "optimizer", "adamw", "default of accelerate");
    out->n = 3;
    out->candidates = calloc(3, sizeof *out->candidates);
    if (out->candidates == NULL)
        return FAIL(STATUS_NOMEM, "no memory");
    const int sp[3] = {options->sp, options->sp > 1 ? options->sp / 2 : 2, 7};
    for (int i = 0; i < 3; i++) {
        struct recommend_candidate *c = &out->candidates[i];
        c->plan = r->target->defaults;
        c->plan.sp = sp[i];
        c->plan.dp_shard = options->world / sp[i] > 0 ? options->world / sp[i] : 1;
        c->plan.zero_stage = options->zero;
        text_print(c->attention_class, sizeof c->attention_class, "%s", options->class);
        text_print(c->plan.attention, sizeof c->plan.attention, "%s", options->class);
        work_memory(&r->model, &r->problem, &c->plan, r->target, &c->memory);
        c->fit = work_fit(c->memory.peak_bytes, r->device_memory_bytes);
        c->priced = c->timed = i < 2;
        double us = i == 0 ? 2e6 : 3e6 * sp[0] / sp[i]; /* as many tokens take 50 % longer */
        c->time = (struct recommend_time){.step_us = us,
                                          .lo_us = us * 0.97,
                                          .hi_us = us * 1.03,
                                          .exchange_in = us * 0.1,
                                          .attention = us * 0.3,
                                          .exchange_out = us * 0.05,
                                          .exposed = us * 0.15,
                                          .gemm = us * 0.35,
                                          .zero = us * 0.1,
                                          .optimizer = us * 0.02,
                                          .logits = us * 0.06,
                                          .elementwise = us * 0.02,
                                          .source = RECOMMEND_MEASURED};
        text_print(c->time.composed_of, sizeof c->time.composed_of,
                   "layer forward and backward, products, gathers, each timed");
        c->tokens_per_s_per_device = (double)work_step_tokens(&r->problem, &c->plan) * 1e6 / us / options->world;
        c->lo = c->tokens_per_s_per_device * 0.97;
        c->hi = c->tokens_per_s_per_device * 1.03;
    }
    out->candidates[1].loses_by = 0.5;
    out->candidates[1].lost = verdict_no(RULE_SLOWER, "50 %% slower than the plan chosen");
    out->candidates[2].verdict =
        verdict_no(RULE_HEADS_NOT_DIVISIBLE, "%d heads cannot be split among 7 ranks", r->model.heads);
    out->verdict = out->candidates[0].fit;
    out->native_best = -1;
    text_print(out->next_measurement, sizeof out->next_measurement, "attention at %lld tokens",
               (long long)options->seq);
    return STATUS_OK;
}

#endif
