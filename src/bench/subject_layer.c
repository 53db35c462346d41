/* bench/subject_layer.c -- one layer of a plan, forward or backward: exchange in, attention, exchange out; or a ring.
 *
 * When only some heads are timed, whole groups of them scale every part alike. Part of a group still moves a whole kv head, so there the
 * phases are scaled each by its own work: attention by heads, exchanges by bytes.
 */
#include "bench/subject.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "bench/mirror.h"
#include "bench/phases.h"
#include "bench/spot.h"
#include "sp/exec.h"
#include "sp/work.h"

#include <stdlib.h>

struct subject {
    struct bench_env *env;
    struct group group;
    struct rotation rotation;
    struct dev_queue *queue;
    struct exec **execs; /* [rotation.n] */
    struct attention_shape shape;
    int64_t *cu;
    struct problem problem; /* as timed */
    uint64_t seed;
    double scale, scale_in, scale_out; /* whole / timed: heads, bytes in, bytes out */
    bool uniform;                      /* all three are one */
    struct exec_times last;            /* of both directions together */
    struct phases *phases;
    int copies; /* ranks that share a kv head, each with its part of the queries */
    int verified;
    char kernel[64];
};

static struct verdict layer_verdict(const struct bench_case *c, const struct bench_env *env, struct bench_case *timed,
                                    double *scale)
{
    struct verdict verdict = subject_check_heads(c, env);
    if (!verdict_ok(&verdict))
        return verdict;
    if (c->plan.method == PLAN_METHOD_SPLIT_GATHER)
        return verdict_no(RULE_NOT_MEASURED, "the attention of split_gather is that of one rank and moves nothing; "
                                             "span block times what it gathers and cuts");
    struct plan plan = subject_plan(c);
    verdict = plan_check(&c->problem, &plan, subject_dev(env));
    if (!verdict_ok(&verdict))
        return verdict;
    verdict = subject_check_paths(c, env);
    if (!verdict_ok(&verdict))
        return verdict;
    verdict = subject_timed(c, timed, scale);
    if (!verdict_ok(&verdict))
        return verdict;
    plan = subject_plan(timed);
    return plan_check(&timed->problem, &plan, subject_dev(env));
}

static struct verdict layer_check(const struct bench_case *c, const struct bench_env *env)
{
    struct bench_case timed;
    double scale;
    return layer_verdict(c, env, &timed, &scale);
}

static void bytes_of(const struct problem *problem, const struct plan *plan, int64_t *in, int64_t *out)
{
    *in = *out = 0;
    for (int backward = 0; backward < 2; backward++) {
        struct work_exchange work;
        if (!(problem->direction & (backward ? PROBLEM_BACKWARD : PROBLEM_FORWARD)))
            continue;
        work_exchange(problem, plan, backward != 0, &work);
        *in += work.bytes_in;
        *out += work.bytes_out;
    }
}

static void layer_key(const struct bench_case *c, const struct bench_env *env, struct sample *out)
{
    struct bench_case timed;
    double scale = 1;
    struct verdict verdict = layer_verdict(c, env, &timed, &scale);
    subject_key_common(c, out);
    subject_key_heads(c, out);
    subject_key_mask(c, out);
    subject_key_plan(c, out);
    text_print(out->key.span, sizeof out->key.span, "attention");
    out->bytes = -1;
    if (!verdict_ok(&verdict))
        return;
    int64_t in, back;
    bytes_of(&c->problem, &c->plan, &in, &back);
    out->bytes = in + back;
    if (c->problem.direction & PROBLEM_FORWARD)
        out->flops += work_attention_flops(&c->problem, &c->plan, false);
    if (c->problem.direction & PROBLEM_BACKWARD)
        out->flops += work_attention_flops(&c->problem, &c->plan, true);
    out->scaled = scale > 1;
    out->scale = scale;
}

static void layer_destroy(void *state)
{
    struct subject *s = state;
    if (s == NULL)
        return;
    for (int i = 0; s->execs != NULL && i < s->rotation.n; i++)
        exec_destroy(s->execs[i]);
    free(s->execs);
    free(s->phases);
    free(s->cu);
    dev_queue_destroy(s->queue);
    group_close(&s->group);
    free(s);
}

static enum status side_fill(const struct subject *s, const struct exec_tensors *t, enum data_tensor tensor, int heads,
                             int dim, void *base)
{
    struct data_side side = {.base = base,
                             .dtype = s->problem.dtype,
                             .batch = s->problem.batch,
                             .seq = t->seq_local,
                             .heads = heads,
                             .dim = dim,
                             .token_stride = (int64_t)heads * dim,
                             .batch_first = s->group.index * s->problem.batch};
    return mirror_shard_fill(s->env->dev, s->seed, tensor, &side, &t->shard);
}

static enum status exec_open(struct subject *s, const struct plan *plan, struct exec **out)
{
    struct problem problem = s->problem;
    problem.direction = s->problem.direction == PROBLEM_FORWARD ? PROBLEM_FORWARD : PROBLEM_BOTH;
    TRY(exec_create(&problem, plan, s->group.comm, s->env->dev, out));
    const struct exec_tensors *t = exec_tensors(*out);
    int dim = problem.head_dim, dim_v = problem_dim_v(&problem);
    TRY(side_fill(s, t, DATA_Q, problem.heads, dim, t->q));
    TRY(side_fill(s, t, DATA_K, problem.kv_heads, dim, t->k));
    TRY(side_fill(s, t, DATA_V, problem.kv_heads, dim_v, t->v));
    if (problem.direction & PROBLEM_BACKWARD)
        TRY(side_fill(s, t, DATA_DO, problem.heads, dim_v, t->d_o));
    /* Backward starts from a forward's outputs. */
    return s->problem.direction == PROBLEM_BACKWARD ? exec_forward(*out, s->queue) : STATUS_OK;
}

static enum status execs_open(struct subject *s, const struct bench_case *c, const struct plan *plan)
{
    struct exec *first = NULL;
    enum status status = group_agree(s->env, exec_open(s, plan, &first));
    if (status == STATUS_OK)
        status = rotation_open(s->env, c->buffers, exec_bytes(first), &s->rotation);
    if (status == STATUS_OK)
        status = group_agree(s->env, mem_alloc((size_t)s->rotation.n * sizeof *s->execs, "layers", (void **)&s->execs));
    if (status != STATUS_OK) {
        exec_destroy(first);
        return status;
    }
    s->execs[0] = first;
    for (int i = 1; i < s->rotation.n; i++)
        TRY(group_agree(s->env, exec_open(s, plan, &s->execs[i])));
    return STATUS_OK;
}

/* What belongs to this rank alone. */
static enum status prepare(struct subject *s, const struct bench_case *timed)
{
    TRY(mem_alloc(sizeof *s->phases, "phases of a layer", (void **)&s->phases));
    TRY(subject_whole_shape(&timed->problem, shard_padded(&timed->problem, &timed->plan), &s->shape, &s->cu));
    return dev_queue_create(s->env->dev, &s->queue);
}

static void scales_set(struct subject *s, const struct bench_case *c, const struct bench_case *timed, double scale)
{
    int64_t in, out, in_timed, out_timed;
    bytes_of(&c->problem, &c->plan, &in, &out);
    bytes_of(&timed->problem, &timed->plan, &in_timed, &out_timed);
    s->scale = scale;
    s->scale_in = in_timed > 0 ? (double)in / (double)in_timed : scale;
    s->scale_out = out_timed > 0 ? (double)out / (double)out_timed : scale;
    s->uniform = c->heads_timed == 0 || (in * out_timed == out * in_timed && s->scale_in == scale);
}

static enum status layer_create(const struct bench_case *c, struct bench_env *env, void **state)
{
    struct subject *s = NULL;
    struct bench_case timed;
    double scale;
    struct verdict verdict = layer_verdict(c, env, &timed, &scale);
    if (!verdict_ok(&verdict))
        return FAIL(STATUS_UNSUPPORTED, "%s", verdict.why);
    TRY(group_alloc(env, sizeof *s, "a layer", (void **)&s));
    *s = (struct subject){.env = env, .seed = c->seed, .problem = timed.problem};
    s->copies = model_kv_copies(timed.problem.kv_heads, plan_head_ranks(&timed.plan));
    scales_set(s, c, &timed, scale);
    subject_kernel_name(attention_find(c->plan.attention), s->kernel);
    struct plan plan = subject_plan(&timed);
    enum status status = group_open(env, c->plan.sp, &s->group);
    if (status == STATUS_OK)
        status = group_agree(env, prepare(s, &timed));
    if (status == STATUS_OK)
        status = execs_open(s, c, &plan);
    if (status != STATUS_OK) {
        layer_destroy(s);
        return status;
    }
    *state = s;
    return STATUS_OK;
}

static void times_add(struct subject *s, struct exec *exec)
{
    const struct exec_times *times = exec_times(exec);
    s->last.exchange_in_us += times->exchange_in_us;
    s->last.attention_us += times->attention_us;
    s->last.exchange_out_us += times->exchange_out_us;
    s->last.exposed_us += times->exposed_us;
}

/* An exec remembers its last run: of forward and backward in one sample there is no forward any more. */
static enum status layer_timed(void *state, bool ran)
{
    struct subject *s = state;
    if (s->problem.direction == PROBLEM_BOTH)
        return STATUS_OK;
    times_add(s, s->execs[s->rotation.last]);
    return phases_add_last(s->phases, s->group.comm, ran, PHASES_OF(&s->last));
}

/* Phases are there only when the queue was waited for. */
static enum status layer_enqueue(void *state, int iteration)
{
    struct subject *s = state;
    struct exec *exec = s->execs[rotation_pick(&s->rotation, iteration)];
    s->last = (struct exec_times){0};
    if (s->problem.direction & PROBLEM_FORWARD)
        TRY(exec_forward(exec, s->queue));
    return s->problem.direction & PROBLEM_BACKWARD ? exec_backward(exec, s->queue) : STATUS_OK;
}

static struct dev_queue *layer_queue(void *state)
{
    return ((struct subject *)state)->queue;
}

static enum status layer_iterate(void *state, int iteration)
{
    struct subject *s = state;
    struct exec *exec = s->execs[rotation_pick(&s->rotation, iteration)];
    s->last = (struct exec_times){0};
    if (s->problem.direction & PROBLEM_FORWARD) {
        TRY(exec_forward(exec, s->queue));
        TRY(dev_sync(s->queue, clock_deadline(SUBJECT_SYNC_US)));
        times_add(s, exec);
    }
    if (s->problem.direction & PROBLEM_BACKWARD) {
        TRY(exec_backward(exec, s->queue));
        TRY(dev_sync(s->queue, clock_deadline(SUBJECT_SYNC_US)));
        times_add(s, exec);
    }
    phases_add(s->phases, PHASES_OF(&s->last));
    return STATUS_OK;
}

/* NaN: an output that is not written cannot pass. The copy used next is touched first, so that it is the coldest. */
static enum status layer_poison(void *state)
{
    struct subject *s = state;
    for (int k = 1; k <= s->rotation.n; k++) {
        const struct exec_tensors *t = exec_tensors(s->execs[(s->rotation.last + k) % s->rotation.n]);
        if (s->problem.direction & PROBLEM_FORWARD)
            TRY(dev_fill(s->queue, t->o, 0xff, t->o_bytes));
        if (s->problem.direction & PROBLEM_BACKWARD) {
            TRY(dev_fill(s->queue, t->dq, 0xff, t->q_bytes));
            TRY(dev_fill(s->queue, t->dk, 0xff, t->k_bytes));
            TRY(dev_fill(s->queue, t->dv, 0xff, t->v_bytes));
        }
    }
    return dev_sync(s->queue, clock_deadline(SUBJECT_SYNC_US));
}

/* What the host has of a layer's tensors. */
enum { SEEN_Q, SEEN_K, SEEN_V, SEEN_O, SEEN_FORWARD, SEEN_DO = SEEN_FORWARD, SEEN_DQ, SEEN_DK, SEEN_DV, SEEN };

static enum status seen_open(const struct subject *s, const struct exec_tensors *t, struct mirror seen[SEEN])
{
    void *const device[SEEN] = {t->q, t->k, t->v, t->o, t->d_o, t->dq, t->dk, t->dv};
    const size_t bytes[SEEN] = {t->q_bytes, t->k_bytes, t->v_bytes, t->o_bytes,
                                t->o_bytes, t->q_bytes, t->k_bytes, t->v_bytes};
    bool backward = (s->problem.direction & PROBLEM_BACKWARD) != 0; /* only its identities are of the inputs */
    for (int i = backward ? 0 : SEEN_O; i < (backward ? SEEN : SEEN_FORWARD); i++) {
        TRY(mirror_open(s->env->dev, device[i], bytes[i], &seen[i]));
        TRY(mirror_load(&seen[i]));
    }
    return STATUS_OK;
}

static enum status layer_verify(void *state, bool *ok, char why[256])
{
    struct subject *s = state;
    const struct exec_tensors *t = exec_tensors(s->execs[s->rotation.last]);
    struct mirror seen[SEEN] = {{0}};
    enum status status = seen_open(s, t, seen);
    char other[256];
    bool same = true;
    struct spot spot = {.shape = &s->shape,
                        .copies = s->copies,
                        .seed = s->seed,
                        .threads = mirror_threads(s->env->dev),
                        .padded = t->seq,
                        .batch_first = s->group.index * s->problem.batch,
                        .shard = t->shard,
                        .backward = (s->problem.direction & PROBLEM_BACKWARD) != 0,
                        .q = seen[SEEN_Q].host,
                        .k = seen[SEEN_K].host,
                        .v = seen[SEEN_V].host,
                        .o = seen[SEEN_O].host,
                        .d_o = seen[SEEN_DO].host,
                        .dq = seen[SEEN_DQ].host,
                        .dk = seen[SEEN_DK].host,
                        .dv = seen[SEEN_DV].host};
    *ok = true;
    if (status == STATUS_OK)
        status = spot_rows(&spot, (uint64_t)s->verified++, ok, why);
    if (spot.backward) { /* collective: also when the rows here are wrong already */
        status = group_agree(s->env, status);
        if (status == STATUS_OK)
            status = spot_identities(s->env, &spot, &s->group, &same, other);
    }
    if (*ok && !same)
        text_print(why, 256, "%s", other);
    *ok = *ok && same;
    for (int i = 0; i < SEEN; i++)
        mirror_close(&seen[i]);
    return status;
}

static const char *layer_kernel(void *state)
{
    return ((struct subject *)state)->kernel;
}

static const char *layer_transport(void *state)
{
    struct subject *s = state;
    return s->group.size > 1 ? exec_in_use(s->execs[0]) : "";
}

static double layer_whole_us(void *state, double timed_us)
{
    struct subject *s = state;
    const struct exec_times *t = &s->last;
    double rest = timed_us - t->exchange_in_us - t->attention_us - t->exchange_out_us;
    if (s->uniform || rest < 0 ||
        t->attention_us <= 0) /* phases that overlap, or are not known, cannot be told apart */
        return timed_us * s->scale;
    return t->exchange_in_us * s->scale_in + t->attention_us * s->scale + t->exchange_out_us * s->scale_out + rest;
}

static void layer_note(void *state, json_t *conditions)
{
    static const char *const names[PHASES] = {"exchange_in_us", "attention_us", "exchange_out_us", "exposed_us"};
    struct subject *s = state;
    const double scales[PHASES] = {s->uniform ? s->scale : s->scale_in, s->scale, s->uniform ? s->scale : s->scale_out,
                                   s->scale};
    rotation_note(&s->rotation, conditions);
    if (s->scale > 1)
        json_object_set_new(conditions, "scaled_by", json_string(s->uniform ? "heads" : "phases"));
    phases_note(s->phases, names, scales, conditions);
}

const struct bench_subject subject_layer = {
    .name = "layer",
    .about = "one layer of a plan: exchange in, attention, exchange out",
    .layout_included = true,
    .computes = true,
    .check = layer_check,
    .key = layer_key,
    .create = layer_create,
    .iterate = layer_iterate,
    .enqueue = layer_enqueue,
    .timed = layer_timed,
    .queue = layer_queue,
    .poison = layer_poison,
    .verify = layer_verify,
    .destroy = layer_destroy,
    .kernel = layer_kernel,
    .transport = layer_transport,
    .whole_us = layer_whole_us,
    .note = layer_note,
};
