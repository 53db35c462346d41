/* tuner/fake.c -- a machine whose rates are known. */
#include "tuner/fake.h"

#include "base/rng.h"
#include "base/text.h"
#include "sp/work.h"
#include "tuner/search_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 15 };

const struct fake fake_default = {.attention_GFLOPs = 50,
                                  .backward_share = 0.8,
                                  .small_share = 1,
                                  .gemm_GFLOPs = 100,
                                  .exchange_GBps = 5,
                                  .collective_GBps = 4,
                                  .copy_GBps = 10,
                                  .noise = 0.004};

static double attention_us(const struct fake *fake, const struct problem *problem, const struct plan *plan,
                           bool backward)
{
    double rate =
        fake->attention_GFLOPs * (backward ? fake->backward_share : 1) * (problem->seq <= 1024 ? fake->small_share : 1);
    return work_attention_flops(problem, plan, backward) / rate * 1e-3;
}

static void exchange_us(const struct fake *fake, const struct problem *problem, const struct plan *plan, bool backward,
                        double *in, double *out)
{
    struct work_exchange work;
    work_exchange(problem, plan, backward, &work);
    *in = (double)work.wire_in / fake->exchange_GBps * 1e-3;
    *out = (double)work.wire_out / fake->exchange_GBps * 1e-3;
}

double fake_case_us(const struct fake *fake, const struct bench_case *c)
{
    bool backward = c->problem.direction == PROBLEM_BACKWARD;
    double in, out;
    if (strcmp(c->subject, "gemm") == 0)
        return 2.0 * (double)c->m * (double)c->n * (double)c->k / fake->gemm_GFLOPs * 1e-3;
    if (strcmp(c->subject, "link") == 0)
        return 2.0 * (double)c->bytes / fake->copy_GBps * 1e-3;
    if (strcmp(c->subject, "collective") == 0)
        return (double)c->bytes * (c->plan.sp - 1) / c->plan.sp / fake->collective_GBps * 1e-3;
    exchange_us(fake, &c->problem, &c->plan, backward, &in, &out);
    if (strcmp(c->subject, "exchange") == 0)
        return strcmp(c->op, "in") == 0 ? in : out;
    double attention = attention_us(fake, &c->problem, &c->plan, backward);
    return strcmp(c->subject, "layer") == 0 ? in + attention + out : attention;
}

static double products_us(const struct fake *fake, const struct request *r, const struct problem *problem,
                          const struct plan *plan)
{
    struct work_gemm gemms[WORK_GEMMS], logits = work_logits(&r->model, problem, plan);
    double flops = 2.0 * (double)logits.m * (double)logits.n * (double)logits.k * logits.count *
                   (plan->loss == PLAN_LOSS_TILED ? 4 : 3);
    for (int i = work_gemms(&r->model, problem, plan, r->target, gemms) - 1; i >= 0; i--)
        flops += 2.0 * (double)gemms[i].m * (double)gemms[i].n * (double)gemms[i].k * gemms[i].count * gemms[i].layers *
                 (gemms[i].forwards + 2);
    return flops / fake->gemm_GFLOPs * 1e-3;
}

double fake_step_us(const struct fake *fake, const struct request *r, const struct plan *plan)
{
    struct problem problem = r->problem;
    problem.batch = plan->micro_batch;
    double forwards = work_forward_passes(plan), micro = 0;
    for (int layer = 0; layer < r->model.layers; layer++) {
        problem.window = r->model.window > 0 && layer < r->model.window_layers ? r->model.window : 0;
        for (int backward = 0; backward < 2; backward++) {
            double in, out;
            exchange_us(fake, &problem, plan, backward, &in, &out);
            micro += (backward ? 1 : forwards) * (in + attention_us(fake, &problem, plan, backward) + out);
        }
    }
    micro += products_us(fake, r, &problem, plan);
    struct work_zero zero;
    work_zero(&r->model, &r->problem, plan, r->target, &zero);
    double wire = (double)(zero.gather_bytes + zero.reduce_bytes) / fake->collective_GBps * 1e-3;
    double optimizer = (zero.optimizer_bytes + zero.gradient_bytes) / fake->copy_GBps * 1e-3;
    micro += work_elementwise(&r->model, &problem, plan, r->target) / fake->copy_GBps * 1e-3;
    return micro * (double)plan->accumulate + wire + optimizer;
}

void fake_open(struct fake_bench *bench)
{
    *bench = (struct fake_bench){0};
    temp_open(&bench->temp);
    CHECK_OK(topo_open("synth:8xcpu", &bench->topo));
    CHECK_OK(store_open(temp_path(&bench->temp, "fake.db"), STORE_WRITE, &bench->store));
    CHECK_OK(store_run_begin(bench->store, "test", "test", NULL, "fake", 1, &bench->run));
    bench->session = (struct bench_session){.store = bench->store, .reuse = true, .machine = "fake0"};
}

void fake_close(struct fake_bench *bench)
{
    store_close(bench->store);
    topo_free(&bench->topo);
    temp_close(&bench->temp);
}

void fake_forget(struct fake_bench *bench)
{
    static int machines;
    text_print(bench->session.machine, sizeof bench->session.machine, "fake%d", ++machines);
}

static void put(struct fake_bench *bench, const struct fake *fake, const struct bench_case *c)
{
    double times[SAMPLES], in = 0, out = 0;
    char conditions[160];
    struct sample sample, there;
    struct rng rng;
    sample_init(&sample);
    bench_subject_of(c)->key(c, NULL, &sample);
    text_print(sample.machine, sizeof sample.machine, "%s", bench->session.machine);
    if (store_find(bench->store, &sample.key, sample.machine, NULL, -1, &there, NULL) == STATUS_OK) {
        sample_free(&there);
        sample_free(&sample);
        return;
    }
    status_clear();
    double us = fake_case_us(fake, c);
    rng_seed(&rng, 7, (uint64_t)bench->samples++);
    for (int i = 0; i < SAMPLES; i++)
        times[i] = us * (1 + fake->noise * rng_normal(&rng));
    if (strcmp(c->subject, "layer") == 0) {
        exchange_us(fake, &c->problem, &c->plan, c->problem.direction == PROBLEM_BACKWARD, &in, &out);
        text_print(conditions, sizeof conditions,
                   "{\"exchange_in_us\": %.17g, \"attention_us\": %.17g, \"exchange_out_us\": %.17g}", in,
                   us - in - out, out);
        sample.conditions = strdup(conditions);
    }
    text_print(sample.measured_at, sizeof sample.measured_at, "2026-11-29T18:30:00Z");
    sample.versions = bench->versions != NULL ? strdup(bench->versions) : NULL;
    sample.verified = true;
    sample.times_us = times;
    sample.n = SAMPLES;
    if (bench->waived != RULE_OK) {
        sample.outcome = SAMPLE_WAIVED;
        sample.rule = bench->waived;
        text_print(sample.why, sizeof sample.why, "%s",
                   bench->waived == RULE_TAINTED ? "9 of 10 samples were taken while others worked"
                                                 : "the fake machine takes none of it");
    }
    CHECK_OK(store_put(bench->store, bench->run, &sample));
    sample.times_us = NULL;
    sample_free(&sample);
}

void fake_fill_level(struct fake_bench *bench, const struct fake *fake, const struct request *request,
                     enum parts_level level, const struct parts_scale *scale)
{
    struct candidates candidates;
    struct parts parts = {0}, all = {0};
    CHECK_OK(candidates_build(request, &candidates));
    for (int i = 0; i < candidates.n; i++) {
        if (!verdict_ok(&candidates.rows[i].verdict))
            continue;
        parts_clear(&parts);
        CHECK_OK(parts_list(request, &candidates.rows[i].plan, level, scale, &parts));
        for (int p = 0; p < parts.n; p++)
            if (parts.item[p].possible && !parts_has(&all, parts.item[p].key)) {
                CHECK_OK(parts_add(&all, &parts.item[p]));
                put(bench, fake, &parts.item[p].c);
            }
    }
    parts_free(&parts);
    parts_free(&all);
    candidates_free(&candidates);
}

/* A request and what native_find makes of it. */
static void fill_both(struct fake_bench *bench, const struct fake *fake, const struct request *request,
                      enum parts_level level, const struct parts_scale *scale)
{
    struct request native = *request;
    CHECK_OK(request_retarget(&native, target_find("sptune")));
    fake_fill_level(bench, fake, request, level, scale);
    fake_fill_level(bench, fake, &native, level, scale);
}

void fake_fill(struct fake_bench *bench, const struct fake *fake, const struct request *request)
{
    struct parts_scale scale = {0};
    fill_both(bench, fake, request, PARTS_COARSE, &scale);
    fill_both(bench, fake, request, PARTS_LAYER, &scale);
}

void fake_fill_scales(struct fake_bench *bench, const struct fake *fake, const struct request *request)
{
    enum parts_level level = PARTS_LAYER;
    struct parts_scale scale = {0};
    fill_both(bench, fake, request, PARTS_COARSE, &scale);
    while (search_scale_next(request, &level, &scale))
        if (scale.heads_timed <= 1) /* the key of a sample does not say how many heads were timed */
            fill_both(bench, fake, request, level, &scale);
}

void fake_request(const struct fake_bench *bench, const char *model, int64_t seq, int ranks, struct request *out)
{
    request_init(out);
    CHECK_OK(model_load(model, &out->model));
    problem_from_model(&out->model, seq, ranks, &out->problem);
    out->target = target_find("accelerate");
    out->topo = &bench->topo;
    out->dev = DEV_CPU;
    out->ranks = out->world = ranks;
    out->effort = REQUEST_NORMAL;
    out->budget_us = 300 * 1000 * 1000;
    out->device_memory_bytes = (int64_t)1 << 40;
    out->replay = true;
}
