/* tuner/parts.c -- a step as samples: which cases, how often each, how sure. Attention and exchanges here, the rest in
 * parts_linear.c.
 *
 * One optimizer step of one rank, A micro-steps, L layers, F forward passes (2 with checkpointing):
 *
 *   A * L * (F * layer forward + layer backward)                 attention layer, exchanges included
 * + A * L * (F + 2) * products of a layer                        backward multiplies twice: dX and dW
 * + A * (3 or 4) * product with the vocabulary                   4 where the loss recomputes it (tiled, fused)
 * + gathers and reductions of ZeRO                               not overlapped with anything: an upper bound
 * + A * bytes of norms, activations and the like, at the copy rate  sp/work.h counts them as the target has kernels
 * + optimizer: bytes per element it owns at the copy rate        as the target has kernels: 28 are weight, gradient and moments in fp32
 */
#include "tuner/parts_build.h"

#include "base/mem.h"
#include "base/text.h"
#include "base/units.h"
#include "sp/exchange.h"
#include "sp/work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the samples that all plans share: large enough that the device is busy, small enough to take no time. A GPU is not filled by the
 * heads of one group. */
static const struct coarse {
    int64_t seq;      /* tokens of the attention sample */
    bool all_heads;   /* not those of one group alone */
    int64_t exchange; /* tokens of an exchange */
} coarse_of[] = {[DEV_CPU] = {1024, false, 4096}, [DEV_CUDA] = {8192, true, 16384}};

void parts_free(struct parts *parts)
{
    free(parts->item);
    *parts = (struct parts){0};
}

void parts_clear(struct parts *parts)
{
    parts->n = 0;
}

bool parts_has(const struct parts *parts, const char *key)
{
    for (int i = 0; i < parts->n; i++)
        if (strcmp(parts->item[i].key, key) == 0)
            return true;
    return false;
}

enum status parts_add(struct parts *parts, const struct part *part)
{
    TRY(mem_grow((void **)&parts->item, &parts->cap, (size_t)parts->n + 1, sizeof *parts->item));
    parts->item[parts->n++] = *part;
    return STATUS_OK;
}

/* Fields that do not apply to the subject have one value in every case, so that plans which differ in them share the
 * sample. */
static void key_of(const struct bench_case *c, char buf[PARTS_KEY])
{
    const struct problem *p = &c->problem;
    uint64_t docs = 1469598103934665603u; /* FNV-1a over the lengths */
    for (int i = 0; i < p->docs; i++)
        docs = (docs ^ (uint64_t)p->doc_len[i]) * 1099511628211u;
    snprintf(buf, PARTS_KEY,
             "%s %s %lld mnk %lld %lld %lld b%lld s%lld h%d/%d d%d/%d t%d c%d w%lld docs%d:%llx dir%d W%d sp%d %s %s "
             "ch%d m%d %d%d ht%d",
             c->subject, c->op, (long long)c->bytes, (long long)c->m, (long long)c->n, (long long)c->k,
             (long long)p->batch, (long long)p->seq, p->heads, p->kv_heads, p->head_dim, p->head_dim_v, (int)p->dtype,
             p->causal, (long long)p->window, p->docs, (unsigned long long)docs, (int)p->direction, p->world,
             c->plan.sp, c->plan.exchange, c->plan.attention, c->plan.chunks, (int)c->plan.method, (int)c->timing,
             (int)c->buffers, c->heads_timed);
}

struct part parts_base(const struct parts_build *build, const char *subject, const char *op, int sp)
{
    const struct request *r = build->request;
    struct part part = {.times = 1, .source = RECOMMEND_MEASURED, .possible = true};
    bench_case_init(&part.c);
    text_print(part.c.subject, sizeof part.c.subject, "%s", subject);
    text_print(part.c.op, sizeof part.c.op, "%s", op);
    part.c.bytes = part.c.m = part.c.n = part.c.k = 0;
    part.c.problem = (struct problem){.batch = 1, .dtype = r->problem.dtype, .world = r->ranks};
    part.c.plan.sp = sp;
    part.c.plan.dp_shard = r->ranks / sp > 0 ? r->ranks / sp : 1;
    part.c.seed = r->seed;
    return part;
}

enum status parts_append(const struct parts_build *build, struct part *part)
{
    key_of(&part->c, part->key);
    return parts_add(build->out, part);
}

/* The layer's problem for one micro-batch of this plan, without mask. */
static void set_heads(const struct parts_build *build, struct part *part, bool backward)
{
    const struct problem *whole = &build->request->problem;
    struct problem *p = &part->c.problem;
    p->batch = build->plan->micro_batch;
    p->seq = whole->seq;
    p->heads = whole->heads;
    p->kv_heads = whole->kv_heads;
    p->head_dim = whole->head_dim;
    p->head_dim_v = whole->head_dim_v;
    p->causal = true;
    p->direction = backward ? PROBLEM_BACKWARD : PROBLEM_FORWARD;
}

static void set_mask(const struct parts_build *build, struct part *part, int64_t window)
{
    const struct problem *whole = &build->request->problem;
    struct problem *p = &part->c.problem;
    p->causal = whole->causal;
    p->window = window;
    p->docs = whole->docs;
    memcpy(p->doc_len, whole->doc_len, sizeof p->doc_len);
}

/* At sp 1 nothing is exchanged, so there plans differ in no exchange. */
static void set_exchange(const struct parts_build *build, struct part *part)
{
    const struct exchange *first = build->plan->sp == 1 ? exchange_first(build->request->dev) : NULL;
    text_print(part->c.plan.exchange, sizeof part->c.plan.exchange, "%s",
               first != NULL ? first->name : build->plan->exchange);
    part->c.plan.chunks = build->plan->chunks;
}

static void set_attention(const struct parts_build *build, struct part *part)
{
    text_print(part->c.plan.attention, sizeof part->c.plan.attention, "%s", build->plan->attention);
}

int parts_kinds(const struct request *request, struct parts_kind out[2])
{
    const struct model *model = &request->model;
    bool slides = model->window > 0 && model->window < request->problem.seq;
    int n = 0, windowed = slides ? model->window_layers : 0;
    windowed = windowed < model->layers ? windowed : model->layers;
    if (model->layers > windowed)
        out[n++] = (struct parts_kind){0, model->layers - windowed};
    if (windowed > 0)
        out[n++] = (struct parts_kind){model->window, windowed};
    return n;
}

int parts_sp_here(const struct request *request, const struct plan *plan)
{
    int here = plan->sp < request->ranks ? plan->sp : request->ranks;
    for (; here > 1; here--) {
        struct verdict verdict =
            model_sp_heads(request->problem.heads, request->problem.kv_heads, here, request->ranks);
        if (plan->method == PLAN_METHOD_RING ? request->ranks % here == 0 : verdict_ok(&verdict))
            break;
    }
    return here > 1 ? here : 1;
}

/* A shorter row: as many whole documents as fit, then a part of the next; a window that no longer limits anything goes.
 */
static void shorten(struct problem *problem, int64_t seq)
{
    int64_t left = seq;
    int n = 0;
    while (n < problem->docs && left > 0) {
        problem->doc_len[n] = problem->doc_len[n] < left ? problem->doc_len[n] : left;
        left -= problem->doc_len[n++];
    }
    problem->seq = seq;
    problem->docs = problem->docs > 0 ? n : 0;
    problem->window = problem->window < seq ? problem->window : 0;
}

/* Whole heads of a rank, fewer, or part of a group: what a subject can time (bench/subject.h). */
static int heads_legal(int heads, int group)
{
    return heads > group ? heads / group * group : heads;
}

/* Heads of a rank that are timed; groups of another size than the plan's give a rank as many heads as the plan does. A rank of a ring
 * has all heads and a part of the keys: as much as a part of the heads with all keys. */
static void set_heads_timed(const struct parts_build *build, const struct parts_scale *scale, struct part *part)
{
    const struct problem *p = &part->c.problem;
    int group = p->heads / p->kv_heads, share = p->heads / build->plan->sp, here = p->heads / part->c.plan.sp;
    int asked = plan_ring(build->plan) > 1 ? heads_legal(share > 1 ? share : 1, group) : share;
    int timed = scale->heads_timed > 0 && scale->heads_timed < asked ? heads_legal(scale->heads_timed, group) : asked;
    part->c.heads_timed = timed == here ? 0 : timed;
    if (timed < asked)
        part->slack = SLACK_PART;
}

static void set_length(int64_t seq, struct part *part)
{
    if (seq <= 0 || seq >= part->c.problem.seq)
        return;
    shorten(&part->c.problem, seq);
    part->slack = SLACK_LENGTH;
    part->source = RECOMMEND_EXTRAPOLATED;
}

/* One sample for every plan: heads of the unsplit problem. */
static void set_coarse(const struct coarse *coarse, struct part *part)
{
    part->c.heads_timed = coarse->all_heads ? 0 : part->c.problem.heads / part->c.problem.kv_heads;
    if (part->c.heads_timed == part->c.problem.heads)
        part->c.heads_timed = 0;
    part->c.problem.batch = 1;
    set_length(coarse->seq, part);
    part->slack = SLACK_RATE;
    part->source = RECOMMEND_ASSUMED;
}

/* Some heads of a rank, or a shorter row, are the same call whatever the size of the group: one sample for all plans,
 * and what disturbs it disturbs them alike. */
static void set_part(const struct parts_build *build, const struct parts_scale *scale, struct part *part)
{
    bool ring = plan_ring(build->plan) > 1, some = scale->heads_timed > 0 || scale->seq_timed > 0 || ring;
    int here = parts_sp_here(build->request, build->plan);
    part->c.plan.sp = some ? 1 : here;
    part->c.plan.dp_shard = build->request->ranks / part->c.plan.sp;
    set_heads_timed(build, scale, part);
    if (here != build->plan->sp || ring) { /* as many heads, but fewer ranks at work on the host */
        part->slack = SLACK_LENGTH;
        part->source = RECOMMEND_EXTRAPOLATED;
    }
    set_length(scale->seq_timed, part);
    if (some)
        part->c.problem.batch = 1; /* rows are independent */
}

static enum status add_attention(const struct parts_build *build, const struct parts_kind *kind,
                                 const struct parts_scale *scale)
{
    const struct plan *plan = build->plan;
    for (int backward = 0; backward < 2; backward++) {
        struct part part = parts_base(build, "attention", "", 1);
        struct problem *p = &part.c.problem;
        set_heads(build, &part, backward);
        set_mask(build, &part, kind->window);
        set_attention(build, &part);
        part.part = PRICE_ATTENTION;
        part.slack_kind = PARTS_SLACK_ATTENTION;
        double asked = work_attention_flops(p, plan, backward);
        if (build->coarse)
            set_coarse(&coarse_of[build->request->dev], &part);
        else
            set_part(build, scale, &part);
        double timed =
            work_attention_flops(p, &part.c.plan, backward); /* a sample of some heads is scaled to all of them */
        part.times =
            asked / timed * kind->layers * (double)plan->accumulate * (backward ? 1 : work_forward_passes(plan));
        part.flops = timed * (part.c.heads_timed > 0 ? (double)part.c.heads_timed * part.c.plan.sp / p->heads : 1);
        TRY(parts_append(build, &part));
    }
    return STATUS_OK;
}

/* Fewer tokens than the micro-batch has. */
static void set_exchange_length(const struct parts_build *build, int64_t tokens, struct part *part)
{
    struct problem *p = &part->c.problem;
    if (tokens <= 0 || p->seq <= tokens / p->batch)
        return;
    p->batch = 1;
    p->seq = p->seq < tokens ? p->seq : tokens;
    part->slack = build->coarse ? SLACK_EXCHANGE : SLACK_LENGTH;
    part->source = build->coarse ? RECOMMEND_ASSUMED : RECOMMEND_EXTRAPOLATED;
}

/* in and out as two samples each way. Groups larger than what is here are scaled from the largest that is, by the bytes
 * that leave a rank: as if each rank's link kept its rate. */
static enum status add_exchange(const struct parts_build *build, const struct parts_scale *scale)
{
    const struct plan *plan = build->plan;
    int here = parts_sp_here(build->request, plan);
    for (int i = 0; i < 4; i++) {
        bool backward = i >= 2, out = i % 2 == 1;
        struct part part = parts_base(build, "exchange", out ? "out" : "in", here > 1 ? here : plan->sp);
        struct work_exchange asked, timed;
        set_heads(build, &part, backward);
        set_exchange(build, &part);
        part.part = out ? PRICE_EXCHANGE_OUT : PRICE_EXCHANGE_IN;
        part.slack_kind = PARTS_SLACK_EXCHANGE;
        part.possible = here > 1;
        work_exchange(&part.c.problem, plan, backward, &asked);
        set_exchange_length(build, build->coarse ? coarse_of[build->request->dev].exchange : scale->seq_exchange, &part);
        work_exchange(&part.c.problem, &part.c.plan, backward, &timed);
        if (here != plan->sp) {
            part.slack = SLACK_RANKS;
            part.source = build->coarse ? RECOMMEND_ASSUMED : RECOMMEND_EXTRAPOLATED;
        }
        part.bytes = (double)(out ? timed.bytes_out : timed.bytes_in);
        part.times =
            out ? (double)asked.wire_out / (double)timed.wire_out : (double)asked.wire_in / (double)timed.wire_in;
        part.times *=
            build->request->model.layers * (double)plan->accumulate * (backward ? 1 : work_forward_passes(plan));
        TRY(parts_append(build, &part));
    }
    return STATUS_OK;
}

/* What a ring passes on, one call for each step, and the gathers and sums of rows of split_gather, two calls each way: none of it hidden
 * behind what computes, so an upper bound. A layer of a ring that is timed whole has it as it is. */
static enum status add_rows(const struct parts_build *build)
{
    const struct plan *plan = build->plan;
    bool ring = plan->method == PLAN_METHOD_RING;
    for (int i = 0; i < 4; i++) {
        bool backward = i >= 2, out = i % 2 == 1;
        struct problem problem = build->request->problem;
        struct work_exchange moved;
        problem.batch = plan->micro_batch;
        work_exchange(&problem, plan, backward, &moved);
        int64_t wire = out ? moved.wire_out : moved.wire_in, bytes = out ? moved.bytes_out : moved.bytes_in;
        int64_t calls = ring ? plan->sp - !out : out || !backward ? 2 : 4;
        double times =
            build->request->model.layers * (double)plan->accumulate * (backward ? 1 : work_forward_passes(plan));
        const struct parts_traffic traffic = {.op = ring  ? "sendrecv"
                                                    : out ? "reduce_scatter"
                                                          : "allgather",
                                              .arriving = times * (double)wire,
                                              .call = bytes / calls,
                                              .group = plan->sp,
                                              .part = out && !ring ? PRICE_EXCHANGE_OUT : PRICE_EXCHANGE_IN};
        TRY(parts_collective(build, &traffic));
    }
    return STATUS_OK;
}

static enum status add_moves(const struct parts_build *build, const struct parts_scale *scale)
{
    if (build->plan->sp == 1)
        return STATUS_OK;
    return plan_method_exchange(build->plan->method) != NULL ? add_rows(build) : add_exchange(build, scale);
}

static enum status add_layers(const struct parts_build *build, const struct parts_kind *kind)
{
    const struct plan *plan = build->plan;
    for (int backward = 0; backward < 2; backward++) {
        struct part part = parts_base(build, "layer", "", plan->sp);
        struct work_exchange moved;
        set_heads(build, &part, backward);
        set_mask(build, &part, kind->window);
        set_exchange(build, &part);
        set_attention(build, &part);
        part.c.plan.method = plan->method;
        work_exchange(&part.c.problem, plan, backward, &moved);
        part.bytes = plan->sp > 1 ? (double)moved.bytes_in + (double)moved.bytes_out : 0;
        part.flops = work_attention_flops(&part.c.problem, plan, backward);
        part.times = kind->layers * (double)plan->accumulate * (backward ? 1 : work_forward_passes(plan));
        part.part = PRICE_ATTENTION;
        part.split_layer = true;
        TRY(parts_append(build, &part));
    }
    return STATUS_OK;
}

enum status parts_list(const struct request *request, const struct plan *plan, enum parts_level level,
                       const struct parts_scale *scale, struct parts *out)
{
    struct parts_build build = {request, plan, level == PARTS_COARSE, out};
    bool installed = parts_is_installed(request, plan); /* then a layer cannot be timed whole */
    bool attends = plan->method != PLAN_METHOD_SPLIT_GATHER; /* whose layer is a block */
    bool whole = level == PARTS_LAYER && parts_sp_here(request, plan) == plan->sp && !installed && attends;
    struct parts_kind kinds[2];
    int n = parts_kinds(request, kinds);
    for (int k = 0; k < n; k++)
        TRY(whole       ? add_layers(&build, &kinds[k])
            : installed ? parts_installed(&build, &kinds[k])
                        : add_attention(&build, &kinds[k], scale));
    if (!whole)
        TRY(add_moves(&build, scale));
    TRY(parts_linear(&build));
    TRY(parts_elementwise(&build));
    return parts_states(&build);
}

char *parts_name(const struct part *part, char *buf, size_t size)
{
    const struct bench_case *c = &part->c;
    const char *way = c->problem.direction == PROBLEM_BACKWARD ? "backward" : "forward";
    char text[UNITS_BUF];
    if (strcmp(c->subject, "gemm") == 0)
        text_print(buf, size, "a product of %lld x %lld x %lld", (long long)c->m, (long long)c->n, (long long)c->k);
    else if (strcmp(c->subject, "collective") == 0 || strcmp(c->subject, "link") == 0)
        text_print(buf, size, "%s of %s", c->op, units_format_bytes((double)c->bytes, text));
    else
        text_print(buf, size, "%s%s%s %s at sp %d, %s tokens", c->subject, c->op[0] != '\0' ? " " : "", c->op, way,
                   c->plan.sp, units_format_count(c->problem.seq, text));
    return buf;
}
