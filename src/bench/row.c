/* bench/row.c -- a case from its check to its sample. */
#include "bench/measure.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "bench/ceiling.h"
#include "bench/group.h"
#include "bench/subject.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void row_settle(struct row *row, enum sample_outcome outcome, enum rule rule)
{
    row->settled = true;
    row->outcome = outcome;
    row->rule = rule;
}

void row_waive(struct row *row, enum rule rule, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(row->why, sizeof row->why, fmt, args);
    va_end(args);
    row_settle(row, SAMPLE_WAIVED, rule);
}

void row_fail(struct row *row, const char *why)
{
    text_print(row->why, sizeof row->why, "%s", why);
    row_settle(row, SAMPLE_FAILED, RULE_OK);
}

/* Can this row's buffers be used between its iterations? */
static struct verdict used_check(const struct run *run, const struct row *row)
{
    if (run_behind(run))
        return verdict_no(RULE_ABSENT, "buffers used is a state of CPUs' caches; on %s there are hot and cold",
                          dev_kind_name(dev_kind_of(run->env->dev)));
    if (row->subject->use == NULL)
        return verdict_no(RULE_ABSENT, "%s has no buffers used; link and exchange have, all have hot and cold",
                          row->c->subject);
    if (row->c->timing == BENCH_LOOP)
        return verdict_no(RULE_ABSENT, "timing loop has no time between iterations in which buffers are used; stream has");
    return VERDICT_YES;
}

void row_check(const struct run *run, struct row *row)
{
    const struct bench_case *c = row->c;
    for (int i = 0; run->subjects[i] != NULL && row->subject == NULL; i++)
        if (strcmp(run->subjects[i]->name, c->subject) == 0)
            row->subject = subject_span(run->subjects[i], c);
    if (row->subject == NULL) {
        row_waive(row, RULE_ABSENT, "there is no subject '%.31s'", c->subject);
        return;
    }
    struct verdict verdict = row->subject->check(c, run->env);
    if (verdict_ok(&verdict) && c->timing == BENCH_GRAPH && !run_behind(run))
        verdict = verdict_no(RULE_ABSENT, "timing graph replays a captured graph and needs a GPU; here there are stream and loop");
    if (verdict_ok(&verdict) && c->timing == BENCH_GRAPH && subject_host_driven(row->subject, c))
        verdict = verdict_no(RULE_EXCHANGE_CANNOT, "the host drives exchange %s, so no graph can hold it; stream and loop time it", c->plan.exchange);
    if (verdict_ok(&verdict) && run_behind(run) && row->subject->enqueue == NULL)
        verdict = verdict_no(RULE_ABSENT, "%s is not timed on %s in this build", c->subject, dev_kind_name(dev_kind_of(run->env->dev)));
    if (verdict_ok(&verdict) && c->buffers == BENCH_USED)
        verdict = used_check(run, row);
    if (!verdict_ok(&verdict))
        row_waive(row, verdict.rule, "%s", verdict.why);
}

enum status row_open(struct run *run, struct row *row, bool others_open)
{
    enum status status = row->subject->create(row->c, run->env, &row->state);
    row->wave = run->wave;
    row->repeats_left = run->options->repeats;
    row->repeats_total = MEASURE_PATIENCE * run->options->repeats;
    if (status == STATUS_OK || (group_is_over(status) && !group_is_interrupt(status)))
        return status;
    if (group_is_interrupt(status)) {
        run->interrupted = true;
        row_waive(row, RULE_BUDGET, "interrupted while it was made ready");
    } else if (status == STATUS_NOMEM && others_open) {
        /* the next wave has more memory */
    } else if (status == STATUS_NOMEM) {
        row_waive(row, RULE_MEMORY, "%s", status_last()->what);
    } else if (status == STATUS_UNSUPPORTED) {
        /* Kernels were asked by check; what is found only now is room for the memory of an exchange. */
        row_waive(row, row->subject->layout_included ? RULE_EXCHANGE_CANNOT : RULE_KERNEL_CANNOT, "%s",
                  status_last()->what);
    } else {
        row_fail(row, status_last()->what);
    }
    status_clear();
    return STATUS_OK;
}

void row_close(struct row *row)
{
    dev_graph_destroy(row->graph);
    row->graph = NULL;
    if (row->state != NULL)
        row->subject->destroy(row->state);
    row->state = NULL;
}

void row_restart(struct row *row)
{
    row->n = row->blocks = row->tainted = row->verified = 0;
    row->state_sum = row->state_min = row->steal_max = row->wait_max = row->throttled = 0;
    row->repeated++;
}

static bool narrow_enough(const struct run *run, const struct row *row)
{
    if (row->n < run->options->samples_min)
        return false;
    struct stats_interval ci = stats_median_ci95(row->times_us, row->n, row->c->seed);
    double median = stats_median(row->times_us, row->n);
    return median > 0 && (ci.hi - ci.lo) / median < run->options->ci_target;
}

/* Mostly disturbed, and out of patience. */
static bool is_hopeless(const struct run *run, const struct row *row)
{
    return row->n >= run->options->samples_min && 2 * row->tainted > row->n && row->repeats_total <= 0;
}

/* What was wrong with disturbed samples. */
static const char *disturbance(const struct run *run)
{
    return run_behind(run) ? "a GPU was slowed down, or not ours alone" : "the CPUs were slower, faster or not ours";
}

void row_stop(const struct run *run, struct row *row)
{
    if (row->settled || row->state == NULL)
        return;
    bool over = run->options->budget_us >= 0 &&
                run->elapsed_us + block_load_us(run, row) + row->real_us > (double)run->options->budget_us;
    if (row->n >= run->options->samples_max)
        row->ended = "samples";
    else if (narrow_enough(run, row))
        row->ended = "interval";
    else if (run->interrupted)
        row->ended = "interrupt";
    else if (is_hopeless(run, row))
        row->ended = "tainted";
    else if (over)
        row->ended = "budget";
    else
        return;
    if (row->n == 0 && row->repeated > 0 && !run->interrupted)
        row_waive(row, RULE_TAINTED, "every one of %d blocks was disturbed: %s", row->repeated, disturbance(run));
    else if (row->n == 0 || (run->interrupted && row->n < run->options->samples_min))
        row_waive(row, RULE_BUDGET, "%s after %d of %d samples", run->interrupted ? "interrupted" : "the budget ended", row->n,
                  run->options->samples_min);
    else if (2 * row->tainted > row->n && run_behind(run))
        row_waive(row, RULE_TAINTED, "%d of %d samples were taken while %s", row->tainted, row->n, disturbance(run));
    else if (2 * row->tainted > row->n)
        row_waive(row, RULE_TAINTED, "%d of %d samples were taken while the CPUs were slower, faster or not ours (up to %.0f %% of the time)",
                  row->tainted, row->n, 100 * fmax(row->wait_max, row->steal_max));
    else
        row_settle(row, SAMPLE_OK, RULE_OK);
}

static void put(json_t *object, const char *name, double value)
{
    json_object_set_new(object, name, json_num(value, 5));
}

static void put_int(json_t *object, const char *name, int64_t value)
{
    json_object_set_new(object, name, json_integer(value));
}

/* docs/measurement.md lists every key. */
static json_t *conditions_of(const struct run *run, const struct row *row)
{
    json_t *c = json_object();
    if (c == NULL || row->subject == NULL || row->blocks == 0)
        return c;
    json_object_set_new(c, "ended", json_string(row->ended != NULL ? row->ended : "failed"));
    if (row->n < MEASURE_FEW)
        json_object_set_new(c, "few", json_true());
    put_int(c, "threads", dev_threads(run->env->dev));
    put_int(c, "warmups", row->warmups);
    put_int(c, "blocks", row->blocks);
    put_int(c, "interleaved", run->nwave);
    if (row->loop > 1)
        put_int(c, "loop", row->loop);
    put_int(c, "verified", row->verified);
    put(c, "align_us", run->align_us);
    put_int(c, "clock_ns", clock_resolution_ns());
    if (!run_behind(run)) {
        put(c, "state", row->state_sum / row->blocks);
        put(c, "state_min", row->state_min);
    } else {
        if (row->subject->computes)
            put(c, "load_us", row->load_us);
        conditions_gpu_note(row->gpu, c);
        if (timing_ungated(run->timing) > 0)
            put_int(c, "ungated", timing_ungated(run->timing));
    }
    put_int(c, "repeated", row->repeated);
    if (row->tainted > 0)
        put_int(c, "tainted", row->tainted);
    put(c, "steal", row->steal_max);
    put(c, "waited", row->wait_max);
    put(c, "throttled", row->throttled);
    if (run->options->oversubscribed)
        json_object_set_new(c, "oversubscribed", json_true());
    if (run->wave > 0)
        put_int(c, "wave", run->wave);
    if (row->state != NULL && row->subject->note != NULL)
        row->subject->note(row->state, c);
    return c;
}

enum status row_sample(const struct run *run, const struct row *row, struct sample *out)
{
    sample_init(out);
    if (row->subject != NULL)
        row->subject->key(row->c, run->env, out);
    else
        text_print(out->key.subject, sizeof out->key.subject, "%s", row->c->subject);
    out->outcome = row->outcome;
    out->rule = row->rule;
    text_print(out->why, sizeof out->why, "%s", row->why);
    text_print(out->machine, sizeof out->machine, "%s", run->env->machine);
    clock_iso(out->measured_at);
    if (row->state != NULL) {
        text_print(out->kernel, sizeof out->kernel, "%s", row->subject->kernel(row->state));
        if (row->subject->transport != NULL)
            text_print(out->transport, sizeof out->transport, "%s", row->subject->transport(row->state));
    }
    out->verified = row->verified > 0 && row->outcome != SAMPLE_FAILED;
    if (row->n > 0) {
        out->times_us = malloc((size_t)row->n * sizeof *out->times_us);
        if (out->times_us == NULL)
            return FAIL(STATUS_NOMEM, "no memory for %d samples", row->n);
        memcpy(out->times_us, row->times_us, (size_t)row->n * sizeof *out->times_us);
        out->n = row->n;
    }
    json_t *conditions = conditions_of(run, row);
    out->conditions = conditions != NULL ? json_dumps(conditions, JSON_COMPACT) : NULL;
    json_decref(conditions);
    return out->conditions != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for the conditions of a sample");
}

static void condition_add(struct sample *sample, const char *name, json_t *value)
{
    json_t *conditions = sample->conditions != NULL ? json_loads(sample->conditions, 0, NULL) : NULL;
    if (json_object_set_new(conditions, name, value) == 0) { /* takes the reference, also when there is no object */
        char *text = json_dumps(conditions, JSON_COMPACT);
        if (text != NULL) {
            free(sample->conditions);
            sample->conditions = text;
        }
    }
    json_decref(conditions);
}

/* A lower 95 % bound of the rate above the ceiling: one of the two is wrong. */
static void question_ceiling(struct sample *sample)
{
    struct sample_summary summary;
    sample_summarize(sample, &summary);
    if (!(summary.ceiling_share * summary.median_us / summary.ci95_us.hi > 1)) /* false for NaN */
        return;
    char *key = sample_key_text(&sample->key);
    log_warn("%.0f %% of its ceiling cannot be, one of the two is wrong: %s", 100 * summary.ceiling_share, key != NULL ? key : "");
    free(key);
    condition_add(sample, "above_ceiling", json_true());
}

enum status row_ceiling_open(struct run *run, struct row *row)
{
    struct sample meta;
    enum bench_traffic traffic = row->subject->traffic;
    sample_init(&meta);
    row->subject->key(row->c, run->env, &meta);
    int64_t bytes = meta.bytes;
    sample_free(&meta);
    if (traffic == TRAFFIC_NONE || bytes < 1)
        return STATUS_OK;
    for (int i = 0; i < run->nceilings && row->ceiling == NULL; i++)
        if (ceiling_is_of(run->ceilings[i], row->c, traffic, bytes))
            row->ceiling = run->ceilings[i];
    if (row->ceiling != NULL)
        return STATUS_OK;
    TRY(ceiling_open(run->env, row->c, traffic, bytes, &row->ceiling));
    if (row->ceiling != NULL)
        run->ceilings[run->nceilings++] = row->ceiling;
    return STATUS_OK;
}

void row_ceilings(const struct run *run, const struct row *row, struct sample *out)
{
    if (row->outcome != SAMPLE_OK)
        return;
    if (row->limit.GBps > 0) {
        out->ceiling_GBps = row->limit.GBps;
        condition_add(out, "ceiling_by", json_string(row->limit.by));
        condition_add(out, "ceiling_samples", json_integer(row->limit.samples));
    }
    out->ceiling_tflops = out->flops > 0 ? ceiling_tflops(run->env) : 0;
    question_ceiling(out);
}
