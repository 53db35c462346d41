/* tuner/parts.c -- a step as samples: which cases, how often each, how sure.
 *
 * One optimizer step of one rank, A micro-steps, L layers, F forward passes (2 with checkpointing):
 *
 *   A * L * (F * layer forward + layer backward)                 attention layer, exchanges included
 * + A * L * (F + 2) * products of a layer                        backward multiplies twice: dX and dW
 * + A * (3 or 4) * product with the vocabulary                   4 where the loss recomputes it (tiled, fused)
 * + gathers and reductions of ZeRO                               not overlapped with anything: an upper bound
 * + optimizer: 28 bytes per element it owns at the copy rate     fp32 weight, gradient, two moments read; three written
 *
 * Norms, rotary embedding and activations are not priced: they move O(s * hidden) bytes where the products above do O(s * hidden^2).
 */
#include "tuner/parts.h"

#include "sp/work.h"

#include <stdio.h>
#include <string.h>

/* Relative 95 % uncertainty of taking a rate from another size. Attention and product rates of one kernel vary by up to about a third
 * between a small and a large shape; an all-to-all between measured sizes is off by 5 to 8 % on average and up to 27 %, beyond them more
 * (held-out errors on published tables). */
static const double slack_rate = 0.35, slack_exchange = 0.30, slack_length = 0.08, slack_ranks = 0.35;

enum { SLACK_ATTENTION = 1, SLACK_GEMM, SLACK_EXCHANGE, SLACK_ZERO, SLACK_OPTIMIZER };

enum {
    COARSE_SEQ = 1024,             /* tokens of the shared attention sample */
    COARSE_ROWS = 512,             /* rows of the shared product */
    COPY_BYTES = 16 * 1024 * 1024, /* of the copy that prices the optimizer */
    ZERO_BYTES = 1024 * 1024,      /* of the gather that prices ZeRO, coarse */
    OPTIMIZER_BYTES = 28
};
static const double gemm_flops = 1.0e9; /* of one timed product: tens of milliseconds on one CPU core */

char *parts_signature(const struct bench_case *c, char buf[PARTS_SIGNATURE])
{
    const struct problem *p = &c->problem;
    uint64_t docs = 1469598103934665603u; /* FNV-1a over the lengths */
    for (int i = 0; i < p->docs; i++)
        docs = (docs ^ (uint64_t)p->doc_len[i]) * 1099511628211u;
    snprintf(buf, PARTS_SIGNATURE,
             "%s %s %lld mnk %lld %lld %lld b%lld s%lld h%d/%d d%d/%d t%d c%d w%lld docs%d:%llx dir%d W%d sp%d %s %s ch%d %d%d ht%d", c->subject,
             c->op, (long long)c->bytes, (long long)c->m, (long long)c->n, (long long)c->k, (long long)p->batch, (long long)p->seq, p->heads,
             p->kv_heads, p->head_dim, p->head_dim_v, (int)p->dtype, p->causal, (long long)p->window, p->docs, (unsigned long long)docs,
             (int)p->direction, p->world, c->plan.sp, c->plan.exchange, c->plan.attention, c->plan.chunks, (int)c->timing, (int)c->buffers,
             c->heads_timed);
    return buf;
}

struct list {
    const struct request *request;
    const struct plan *plan;
    struct part *out;
    int *n;
};

/* A case on the ranks that are here, every one of them busy: sp groups of the plan's size when they fit. */
static struct part base(const struct list *list, const char *subject, const char *op)
{
    const struct request *r = list->request;
    struct part part = {.times = 1, .source = RECOMMEND_MEASURED};
    bench_case_init(&part.c);
    snprintf(part.c.subject, sizeof part.c.subject, "%s", subject);
    snprintf(part.c.op, sizeof part.c.op, "%s", op);
    part.c.problem = r->problem;
    part.c.problem.batch = list->plan->micro_batch;
    part.c.problem.seq_fixed = false;
    part.c.problem.world = r->ranks;
    part.c.plan = *list->plan;
    part.c.plan.dp_replicate = 1;
    part.c.plan.dp_shard = r->ranks / list->plan->sp > 0 ? r->ranks / list->plan->sp : 1;
    part.c.plan.order_n = 0;
    part.c.seed = r->seed;
    return part;
}

static enum status add(struct list *list, const struct part *part)
{
    if (*list->n == PARTS_MAX)
        return FAIL(STATUS_USAGE, "a step of more than %d parts", PARTS_MAX);
    list->out[(*list->n)++] = *part;
    return STATUS_OK;
}

/* Layers with and without the window, as two kinds. */
struct kind {
    int64_t window;
    int layers;
};

static int layer_kinds(const struct model *model, struct kind out[2])
{
    int n = 0, windowed = model->window > 0 ? model->window_layers : 0;
    if (model->layers > windowed)
        out[n++] = (struct kind){0, model->layers - windowed};
    if (windowed > 0)
        out[n++] = (struct kind){model->window, windowed};
    return n;
}

/* Documents of a shorter row: as many whole ones as fit, then the rest of the length. */
static void shorten(struct problem *problem, int64_t seq)
{
    problem->seq = seq;
    int64_t left = seq;
    int n = 0;
    while (n < problem->docs && left > 0) {
        problem->doc_len[n] = problem->doc_len[n] < left ? problem->doc_len[n] : left;
        left -= problem->doc_len[n++];
    }
    problem->docs = problem->docs > 0 ? n : 0;
}

static enum status add_attention(struct list *list, const struct kind *kind, const struct parts_scale *scale, bool coarse)
{
    for (int backward = 0; backward < 2; backward++) {
        struct part part = base(list, "attention", "");
        part.c.problem.window = kind->window;
        part.c.problem.direction = backward ? PROBLEM_BACKWARD : PROBLEM_FORWARD;
        struct problem whole = part.c.problem;
        const struct plan *plan = list->plan;
        int64_t seq = coarse ? COARSE_SEQ : scale->seq_timed;
        part.source = coarse ? RECOMMEND_ASSUMED : RECOMMEND_MEASURED;
        part.slack_kind = SLACK_ATTENTION;
        if (coarse) { /* one sample for every plan: a group of heads of the unsplit problem */
            part.c.plan.sp = 1;
            part.c.plan.dp_shard = list->request->ranks;
            part.c.heads_timed = whole.heads / whole.kv_heads;
            part.c.problem.batch = 1;
            part.slack = slack_rate;
        } else {
            part.c.heads_timed = scale->heads_timed;
        }
        if (seq > 0 && seq < whole.seq) {
            shorten(&part.c.problem, seq);
            part.slack = coarse ? slack_rate : slack_length;
            part.source = coarse ? RECOMMEND_ASSUMED : RECOMMEND_EXTRAPOLATED;
        }
        part.times = work_attention_flops(&whole, plan, backward) /
                     work_attention_flops(&part.c.problem, &part.c.plan, backward);
        part.times *= (double)kind->layers * (double)plan->accumulate * (backward ? 1 : work_forward_passes(plan));
        part.part = PRICE_ATTENTION;
        TRY(add(list, &part));
    }
    return STATUS_OK;
}

/* in and out as two samples each way, at the real length: cheap, and the breakdown is measured. Groups larger than what is here are
 * scaled from the largest group that is. */
static enum status add_exchange(struct list *list, int layers, bool coarse)
{
    const struct request *r = list->request;
    const struct plan *plan = list->plan;
    if (plan->sp == 1)
        return STATUS_OK;
    for (int backward = 0; backward < 2; backward++) {
        for (int out = 0; out < 2; out++) {
            struct part part = base(list, "exchange", out ? "out" : "in");
            part.c.problem.direction = backward ? PROBLEM_BACKWARD : PROBLEM_FORWARD;
            part.c.problem.causal = true;
            part.c.problem.window = 0;
            part.c.problem.docs = 0;
            struct problem whole = part.c.problem;
            part.slack_kind = SLACK_EXCHANGE;
            if (coarse && part.c.problem.seq > 4096) {
                part.c.problem.seq = 4096;
                part.source = RECOMMEND_ASSUMED;
                part.slack = slack_exchange;
            }
            int sp = plan->sp;
            while (sp > r->ranks || r->ranks % sp != 0 || r->problem.heads % sp != 0)
                sp--; /* ends at 1 */
            if (sp != plan->sp && sp > 1) { /* with nothing to scale from, the case stays and is waived: the plan has no price */
                part.c.plan.sp = sp;
                part.c.plan.dp_shard = r->ranks / sp;
                part.source = RECOMMEND_EXTRAPOLATED;
                part.slack = slack_ranks;
            }
            struct work_exchange asked, timed;
            work_exchange(&whole, plan, backward, &asked);
            work_exchange(&part.c.problem, &part.c.plan, backward, &timed);
            double ratio = out ? (double)asked.bytes_out / (double)timed.bytes_out : (double)asked.bytes_in / (double)timed.bytes_in;
            part.times = ratio * layers * (double)plan->accumulate * (backward ? 1 : work_forward_passes(plan));
            part.part = out ? PRICE_EXCHANGE_OUT : PRICE_EXCHANGE_IN;
            TRY(add(list, &part));
        }
    }
    return STATUS_OK;
}

static enum status add_layers(struct list *list)
{
    struct kind kinds[2];
    int n = layer_kinds(&list->request->model, kinds);
    for (int k = 0; k < n; k++) {
        for (int backward = 0; backward < 2; backward++) {
            struct part part = base(list, "layer", "");
            part.c.problem.window = kinds[k].window;
            part.c.problem.direction = backward ? PROBLEM_BACKWARD : PROBLEM_FORWARD;
            part.times = (double)kinds[k].layers * (double)list->plan->accumulate *
                         (backward ? 1 : work_forward_passes(list->plan));
            part.part = PRICE_ATTENTION;
            part.split_layer = true;
            TRY(add(list, &part));
        }
    }
    return STATUS_OK;
}

/* A product of this shape, cut to what can be timed in tens of milliseconds: first columns, then rows. */
static enum status add_product(struct list *list, const struct work_gemm *gemm, double times, enum price_part where, bool coarse)
{
    struct part part = base(list, "gemm", "");
    double flops = 2.0 * (double)gemm->m * (double)gemm->n * (double)gemm->k;
    if (flops <= 0)
        return STATUS_OK;
    part.c.m = gemm->m;
    part.c.n = gemm->n;
    part.c.k = gemm->k;
    part.slack_kind = SLACK_GEMM;
    part.part = where;
    part.c.problem = (struct problem){.dtype = part.c.problem.dtype, .world = part.c.problem.world, .batch = 1};
    part.c.plan.sp = 1;
    part.c.plan.dp_shard = list->request->ranks;
    if (coarse) {
        part.c.m = COARSE_ROWS;
        part.c.n = part.c.k = 1024;
        part.source = RECOMMEND_ASSUMED;
        part.slack = slack_rate;
    } else {
        while (2.0 * (double)part.c.m * (double)part.c.n * (double)part.c.k > gemm_flops && part.c.n > 256)
            part.c.n = (part.c.n + 1) / 2;
        while (2.0 * (double)part.c.m * (double)part.c.n * (double)part.c.k > gemm_flops && part.c.m > 256)
            part.c.m = (part.c.m + 1) / 2;
    }
    part.times = times * flops / (2.0 * (double)part.c.m * (double)part.c.n * (double)part.c.k);
    return add(list, &part);
}

static enum status add_products(struct list *list, bool coarse)
{
    const struct request *r = list->request;
    const struct plan *plan = list->plan;
    struct problem problem = r->problem;
    struct work_gemm gemms[WORK_GEMMS];
    problem.batch = plan->micro_batch;
    int n = work_gemms(&r->model, &problem, plan, gemms);
    double passes = work_forward_passes(plan) + 2;
    for (int i = 0; i < n; i++)
        TRY(add_product(list, &gemms[i], (double)gemms[i].count * r->model.layers * (double)plan->accumulate * passes, PRICE_GEMM, coarse));
    struct work_gemm logits = work_logits(&r->model, &problem, plan);
    double loss_passes = plan->loss == PLAN_LOSS_PLAIN ? 3 : 4;
    return add_product(list, &logits, loss_passes * (double)plan->accumulate, PRICE_LOGITS, coarse);
}

/* Gather and reduction by the bytes that arrive; the optimizer by a copy between two buffers of one rank. */
static enum status add_states(struct list *list, bool coarse)
{
    const struct request *r = list->request;
    struct work_zero zero;
    work_zero(&r->model, &r->problem, list->plan, r->target, &zero);
    static const char *const ops[] = {"allgather", "reduce_scatter"};
    const int64_t arriving[] = {zero.gather_bytes, zero.reduce_bytes};
    int64_t unit = zero.calls > 0 ? (zero.gather_bytes + zero.reduce_bytes) / zero.calls : 0;
    int64_t bytes = coarse || unit < ZERO_BYTES ? ZERO_BYTES : unit > COPY_BYTES ? COPY_BYTES : ZERO_BYTES * 4;
    for (int i = 0; i < 2 && r->ranks > 1; i++) {
        struct part part = base(list, "collective", ops[i]);
        part.c.plan.sp = r->ranks;
        part.c.plan.dp_shard = 1;
        part.c.bytes = bytes;
        part.slack = r->world > r->ranks ? slack_ranks : coarse ? slack_exchange : slack_length;
        part.source = r->world > r->ranks ? RECOMMEND_EXTRAPOLATED : RECOMMEND_INTERPOLATED;
        part.slack_kind = SLACK_ZERO;
        double arrive = (double)bytes * (r->ranks - 1) / r->ranks; /* of both: all but the own part of the whole */
        part.times = (double)arriving[i] / arrive;
        part.part = PRICE_ZERO;
        if (part.times > 0)
            TRY(add(list, &part));
    }
    struct part copy = base(list, "collective", "alltoall");
    copy.c.plan.sp = 1;
    copy.c.plan.dp_shard = r->ranks;
    copy.c.bytes = COPY_BYTES;
    copy.c.buffers = BENCH_COLD;
    copy.slack = slack_rate;
    copy.slack_kind = SLACK_OPTIMIZER;
    copy.source = RECOMMEND_ASSUMED;
    copy.part = PRICE_OPTIMIZER;
    copy.times = (double)zero.optimizer_elems * OPTIMIZER_BYTES / (2.0 * COPY_BYTES); /* a copy reads and writes */
    return copy.times > 0 ? add(list, &copy) : STATUS_OK;
}

enum status parts_list(const struct request *request, const struct plan *plan, enum parts_level level,
                       const struct parts_scale *scale, struct part out[PARTS_MAX], int *n)
{
    struct list list = {request, plan, out, n};
    bool coarse = level == PARTS_COARSE;
    *n = 0;
    if (level == PARTS_LAYER) {
        TRY(add_layers(&list));
    } else {
        struct kind kinds[2];
        int nkinds = layer_kinds(&request->model, kinds);
        for (int k = 0; k < nkinds; k++)
            TRY(add_attention(&list, &kinds[k], scale, coarse));
        TRY(add_exchange(&list, request->model.layers, coarse));
    }
    TRY(add_products(&list, coarse));
    return add_states(&list, coarse);
}

/* Phases of a layer sample, from its conditions: shares of exchange in, attention, exchange out. */
static void layer_shares(const struct sample *sample, double share[3])
{
    static const char *const names[] = {"exchange_in_us", "attention_us", "exchange_out_us"};
    double sum = 0;
    json_t *conditions = sample->conditions != NULL ? json_loads(sample->conditions, 0, NULL) : NULL;
    for (int i = 0; i < 3; i++) {
        share[i] = json_number_value(json_object_get(conditions, names[i]));
        sum += share[i];
    }
    json_decref(conditions);
    for (int i = 0; i < 3; i++)
        share[i] = sum > 0 ? share[i] / sum : i == 1;
}

static enum status price_part(const struct part *part, int sample, const struct pool *pool, struct price *out)
{
    struct price_term term = {.sample = sample, .times = part->times, .part = part->part, .source = part->source,
                              .slack = part->slack, .slack_kind = part->slack_kind};
    if (!part->split_layer)
        return price_add(out, &term);
    static const enum price_part where[] = {PRICE_EXCHANGE_IN, PRICE_ATTENTION, PRICE_EXCHANGE_OUT};
    double share[3];
    layer_shares(pool_row(pool, sample), share);
    for (int i = 0; i < 3; i++) {
        term.part = where[i];
        term.times = part->times * share[i];
        if (term.times > 0)
            TRY(price_add(out, &term));
    }
    return STATUS_OK;
}

enum status parts_price(const struct part *parts, int n, const struct pool *pool, struct price *out, bool *complete)
{
    char signature[PARTS_SIGNATURE];
    *out = (struct price){0};
    *complete = true;
    for (int i = 0; i < n; i++) {
        int sample = pool_find(pool, parts_signature(&parts[i].c, signature));
        if (sample < 0)
            *complete = false;
        else
            TRY(price_part(&parts[i], sample, pool, out));
    }
    return STATUS_OK;
}
