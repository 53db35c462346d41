/* bench/span_block.c -- subject layer with span block: a whole transformer block under a plan, forward or backward.
 *
 * Forward is timed as it is. A backward overwrites what its forward left, so each iteration of one runs a forward first, which is not in its
 * time: ranks are aligned once more behind it, and the time is that between two events around the backward. Graphs and loops cannot tell
 * the two apart.
 */
#include "bench/subject.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "bench/phases.h"
#include "bench/transformer.h"
#include "sp/exec.h"
#include "sp/shard.h"
#include "sp/work.h"

#include <stdlib.h>

struct span {
    struct bench_env *env;
    struct group group;
    struct rotation rotation;
    struct dev_queue *queue;
    struct dev_event *begins, *ends; /* of a backward */
    struct transformer **blocks;     /* [rotation.n] */
    struct truth *truth;
    struct phases *phases;
    bool backward;
    char kernel[64];
};

static struct verdict span_check(const struct bench_case *c, const struct bench_env *env)
{
    struct plan plan = subject_plan(c);
    struct verdict verdict = subject_check_heads(c, env);
    if (verdict_ok(&verdict))
        verdict = transformer_verdict(&c->problem);
    if (verdict_ok(&verdict))
        verdict = plan_check(&c->problem, &plan, subject_dev(env));
    if (verdict_ok(&verdict))
        verdict = subject_check_paths(c, env);
    if (verdict_ok(&verdict) && c->plan.method == PLAN_METHOD_SPLIT_GATHER && c->plan.sp > 1)
        verdict = subject_check_sums(env);
    if (!verdict_ok(&verdict))
        return verdict;
    if (c->heads_timed != 0)
        return verdict_no(RULE_KERNEL_CANNOT, "a block is timed with all its heads, not with %d", c->heads_timed);
    if (c->problem.direction == PROBLEM_BOTH)
        return verdict_no(RULE_KERNEL_CANNOT, "a block is timed forward or backward, not both in one");
    if (c->problem.direction == PROBLEM_BACKWARD && c->timing != BENCH_STREAM)
        return verdict_no(RULE_KERNEL_CANNOT,
                          "each backward of a block follows a forward that is not in its time, which "
                          "timing stream alone can leave out");
    return VERDICT_YES;
}

/* Products of one layer; backward multiplies twice. */
static double product_flops(const struct problem *problem, const struct plan *plan, bool backward)
{
    const struct model model = {.layers = 1, .hidden = problem->hidden, .ffn = problem->ffn, .gated = true};
    struct work_gemm gemms[WORK_GEMMS];
    double flops = 0;
    int n = work_gemms(&model, problem, plan, NULL, gemms);
    for (int i = 0; i < n; i++)
        flops += 2.0 * (double)gemms[i].m * (double)gemms[i].n * (double)gemms[i].k;
    return backward ? 2 * flops : flops;
}

static void span_key(const struct bench_case *c, const struct bench_env *env, struct sample *out)
{
    struct verdict verdict = span_check(c, env);
    bool backward = c->problem.direction == PROBLEM_BACKWARD;
    subject_key_common(c, out);
    subject_key_heads(c, out);
    subject_key_mask(c, out);
    subject_key_plan(c, out);
    text_print(out->key.span, sizeof out->key.span, "block");
    out->key.hidden = c->problem.hidden;
    out->key.ffn = c->problem.ffn;
    out->bytes = -1;
    if (!verdict_ok(&verdict))
        return;
    struct work_exchange work;
    work_exchange(&c->problem, &c->plan, backward, &work);
    out->bytes = work.bytes_in + work.bytes_out;
    out->flops = work_attention_flops(&c->problem, &c->plan, backward) + product_flops(&c->problem, &c->plan, backward);
}

static void span_destroy(void *state)
{
    struct span *s = state;
    if (s == NULL)
        return;
    for (int i = 0; s->blocks != NULL && i < s->rotation.n; i++)
        transformer_close(s->blocks[i]);
    free(s->blocks);
    truth_close(s->truth);
    free(s->phases);
    dev_event_destroy(s->begins);
    dev_event_destroy(s->ends);
    dev_queue_destroy(s->queue);
    group_close(&s->group);
    free(s);
}

/* What belongs to this rank alone. */
static enum status prepare(struct span *s)
{
    TRY(mem_alloc(sizeof *s->phases, "phases of a block", (void **)&s->phases));
    TRY(dev_queue_create(s->env->dev, &s->queue));
    TRY(dev_event_create(s->env->dev, &s->begins));
    return dev_event_create(s->env->dev, &s->ends);
}

static enum status blocks_open(struct span *s, const struct bench_case *c, const struct transformer_order *order)
{
    struct transformer *first = NULL;
    enum status status = transformer_open(s->env, &s->group, order, s->queue, &first);
    if (status == STATUS_OK)
        status = rotation_open(s->env, c->buffers, transformer_bytes(first), &s->rotation);
    if (status == STATUS_OK)
        status =
            group_agree(s->env, mem_alloc((size_t)s->rotation.n * sizeof *s->blocks, "blocks", (void **)&s->blocks));
    if (status != STATUS_OK) {
        transformer_close(first);
        return status;
    }
    s->blocks[0] = first;
    for (int i = 1; i < s->rotation.n; i++)
        TRY(transformer_open(s->env, &s->group, order, s->queue, &s->blocks[i]));
    return STATUS_OK;
}

static enum status span_create(const struct bench_case *c, struct bench_env *env, void **state)
{
    struct span *s = NULL;
    const struct plan plan = subject_plan(c);
    struct verdict verdict = span_check(c, env);
    if (!verdict_ok(&verdict))
        return FAIL(STATUS_UNSUPPORTED, "%s", verdict.why);
    TRY(group_alloc(env, sizeof *s, "a block", (void **)&s));
    *s = (struct span){.env = env, .backward = c->problem.direction == PROBLEM_BACKWARD};
    subject_kernel_name(attention_find(c->plan.attention), s->kernel);
    enum status status = group_open(env, c->plan.sp, &s->group);
    const struct transformer_order order = {.problem = &c->problem,
                                            .plan = &plan,
                                            .seed = c->seed,
                                            .batch_first = s->group.index * c->problem.batch,
                                            .rank = s->group.rank};
    if (status == STATUS_OK)
        status = group_agree(env, prepare(s));
    if (status == STATUS_OK)
        status = truth_open(env, &order, &s->truth);
    if (status == STATUS_OK)
        status = blocks_open(s, c, &order);
    if (status != STATUS_OK) {
        span_destroy(s);
        return status;
    }
    *state = s;
    return STATUS_OK;
}

static enum status span_enqueue(void *state, int iteration)
{
    struct span *s = state;
    struct transformer *block = s->blocks[rotation_pick(&s->rotation, iteration)];
    TRY(transformer_forward(block, s->queue));
    if (!s->backward)
        return STATUS_OK;
    TRY(transformer_prepare(block, s->queue));
    TRY(comm_barrier(s->env->world, s->queue));
    TRY(dev_event_record(s->begins, s->queue));
    TRY(transformer_backward(block, s->queue));
    return dev_event_record(s->ends, s->queue);
}

/* An exec remembers its last run, which is of the direction that is timed. */
static const struct exec_times *span_times(const struct span *s)
{
    return exec_times(transformer_exec(s->blocks[s->rotation.last]));
}

static enum status span_timed(void *state, bool ran)
{
    struct span *s = state;
    const struct exec_times *t = span_times(s);
    return phases_add_last(s->phases, s->group.comm, ran, PHASES_OF(t));
}

static enum status span_iterate(void *state, int iteration)
{
    struct span *s = state;
    TRY(span_enqueue(s, iteration));
    TRY(dev_sync(s->queue, clock_deadline(SUBJECT_SYNC_US)));
    const struct exec_times *t = span_times(s);
    phases_add(s->phases, PHASES_OF(t));
    return STATUS_OK;
}

static struct dev_queue *span_queue(void *state)
{
    return ((struct span *)state)->queue;
}

/* The copy used next is touched first, so that it is the coldest. Gradients are made new before each backward. */
static enum status span_poison(void *state)
{
    struct span *s = state;
    for (int k = 1; k <= s->rotation.n; k++)
        TRY(transformer_poison(s->blocks[(s->rotation.last + k) % s->rotation.n], s->queue));
    return dev_sync(s->queue, clock_deadline(SUBJECT_SYNC_US));
}

static enum status span_verify(void *state, bool *ok, char why[256])
{
    struct span *s = state;
    return truth_compare(s->env, s->truth, s->blocks[s->rotation.last], ok, why);
}

static const char *span_kernel(void *state)
{
    return ((struct span *)state)->kernel;
}

static const char *span_transport(void *state)
{
    struct span *s = state;
    return s->group.size > 1 ? exec_in_use(transformer_exec(s->blocks[0])) : "";
}

static double span_whole_us(void *state, double timed_us)
{
    struct span *s = state;
    double us = timed_us;
    if (s->backward && dev_event_us(s->begins, s->ends, &us) != STATUS_OK)
        status_clear(); /* the queue was waited for, so both events are there */
    return us;
}

static void span_note(void *state, json_t *conditions)
{
    static const char *const names[PHASES] = {"exchange_in_us", "attention_us", "exchange_out_us", "exposed_us"};
    static const double scales[PHASES] = {1, 1, 1, 1};
    struct span *s = state;
    rotation_note(&s->rotation, conditions);
    phases_note(s->phases, names, scales, conditions);
}

const struct bench_subject span_block = {
    .name = "layer",
    .about = "a transformer block of a plan: norms, projections, RoPE, attention with its exchanges, MLP",
    .layout_included = true,
    .computes = true,
    .check = span_check,
    .key = span_key,
    .create = span_create,
    .iterate = span_iterate,
    .enqueue = span_enqueue,
    .timed = span_timed,
    .queue = span_queue,
    .poison = span_poison,
    .verify = span_verify,
    .destroy = span_destroy,
    .kernel = span_kernel,
    .transport = span_transport,
    .whole_us = span_whole_us,
    .note = span_note,
};
