/* bench/check_plan.c -- every plan that can be enumerated, on small problems: a whole layer forward and backward against the oracle.
 *
 * Each rank checks every output it holds: o and dq of its tokens, dk and dv complete after the copies were summed, and the layout in
 * the middle. What else a plan says (ZeRO stage, checkpointing ...) does not change how a layer runs.
 */
#include "bench/check_parts.h"

#include "base/clock.h"
#include "base/text.h"
#include "bench/data.h"
#include "bench/group.h"
#include "bench/mirror.h"
#include "bench/spot.h"
#include "bench/subject.h"
#include "sp/exchange.h"
#include "sp/exec.h"
#include "sp/exec_chunk.h"

#include <stdlib.h>
#include <string.h>

enum { SYNC_US = 60 * 1000 * 1000, CHUNKS = 3, LOCAL = 4, LOCAL_MAX = 16 /* more chunks than that run as that many */ };

/* kv: query heads per kv head; 0: one kv head for all ranks, -2: one for every two ranks. */
static const struct {
    int64_t batch, seq;
    int kv, dim, dim_v;
    enum dtype dtype;
    bool causal;
    int64_t window;
    int docs;
    int64_t doc_len[4];
} problems[CHECK_PROBLEMS] = {
    {1, 24, 1, 8, 8, DTYPE_FP32, true, 0, 0, {0}},
    {1, 24, 1, 8, 8, DTYPE_BF16, false, 0, 0, {0}},
    {2, 17, 2, 8, 8, DTYPE_FP32, true, 0, 0, {0}},  /* odd length: padded */
    {1, 19, 2, 8, 8, DTYPE_FP32, false, 0, 0, {0}}, /* padding that a full mask would see */
    {1, 32, 2, 16, 16, DTYPE_BF16, true, 5, 0, {0}},
    {1, 31, 2, 8, 8, DTYPE_FP32, true, 0, 3, {3, 23, 5}},
    {2, 16, 2, 8, 8, DTYPE_BF16, true, 0, 3, {9, 0, 7}},
    {1, 21, 0, 8, 8, DTYPE_FP32, true, 0, 0, {0}}, /* copies of the only kv head */
    {2, 12, -2, 8, 8, DTYPE_BF16, true, 0, 2, {5, 7}},
    {1, 13, 1, 16, 8, DTYPE_FP32, true, 0, 0, {0}},  /* v narrower than q and k */
    {1, 41, 2, 64, 64, DTYPE_BF16, true, 0, 0, {0}}, /* heads that kernels of tensor cores take */
    {2, 20, -2, 64, 64, DTYPE_BF16, true, 0, 2, {7, 13}},
    {1, 45, 2, 64, 64, DTYPE_BF16, true, 9, 0, {0}},
    {2, 48, 1, 64, 64, DTYPE_BF16, false, 0, 0, {0}},
};

void check_problem(int index, int sp, int world, int local, struct problem *out)
{
    int kv = problems[index].kv, heads = local * sp;
    memset(out, 0, sizeof *out);
    out->batch = problems[index].batch;
    out->seq = problems[index].seq;
    out->heads = heads;
    out->kv_heads = kv > 0 ? heads / kv : kv == 0 || sp % 2 != 0 ? 1 : sp / 2;
    out->head_dim = problems[index].dim;
    out->head_dim_v = problems[index].dim_v;
    out->dtype = problems[index].dtype;
    out->causal = problems[index].causal;
    out->window = problems[index].window;
    out->docs = problems[index].docs;
    memcpy(out->doc_len, problems[index].doc_len, sizeof problems[index].doc_len);
    out->direction = PROBLEM_BOTH;
    out->world = world;
}

/* ---- one plan ---- */

struct trial {
    const struct group *group;
    const struct problem *problem;
    struct exec *exec;
    struct dev_queue *queue;
    struct attention_shape shape;
    int64_t *cu;
    struct spot spot;
    struct mirror o, dq, dk, dv; /* what the host has of the outputs */
    struct oracle_error errors[ORACLE_OUTPUTS];
    struct oracle_scale scale;
    int parts; /* of a kv head's gradients that are rounded before they are added up */
};

static struct data_side side_of(const struct trial *t, void *base, int heads, int dim)
{
    const struct exec_tensors *x = exec_tensors(t->exec);
    return (struct data_side){.base = base,
                              .dtype = t->problem->dtype,
                              .batch = t->problem->batch,
                              .seq = x->seq_local,
                              .heads = heads,
                              .dim = dim,
                              .token_stride = (int64_t)heads * dim,
                              .batch_first = t->group->index * t->problem->batch};
}

static enum status fill(const struct trial *t, enum data_tensor tensor, void *base, int heads, int dim)
{
    struct data_side side = side_of(t, base, heads, dim);
    return mirror_shard_fill(dev_queue_dev(t->queue), t->spot.seed, tensor, &side, &t->spot.shard);
}

static enum status inputs_fill(const struct trial *t)
{
    const struct exec_tensors *x = exec_tensors(t->exec);
    const struct problem *p = t->problem;
    TRY(fill(t, DATA_Q, x->q, p->heads, p->head_dim));
    TRY(fill(t, DATA_K, x->k, p->kv_heads, p->head_dim));
    TRY(fill(t, DATA_V, x->v, p->kv_heads, problem_dim_v(p)));
    TRY(fill(t, DATA_DO, x->d_o, p->heads, problem_dim_v(p)));
    TRY(dev_fill(t->queue, x->o, 0xff, x->o_bytes));
    TRY(dev_fill(t->queue, x->dq, 0xff, x->q_bytes));
    TRY(dev_fill(t->queue, x->dk, 0xff, x->k_bytes));
    TRY(dev_fill(t->queue, x->dv, 0xff, x->v_bytes));
    return dev_sync(t->queue, clock_deadline(SYNC_US));
}

static enum status output_load(const struct trial *t, void *device, size_t bytes, struct mirror *out)
{
    TRY(mirror_open(dev_queue_dev(t->queue), device, bytes, out));
    return mirror_load(out);
}

static enum status outputs_load(struct trial *t)
{
    const struct exec_tensors *x = exec_tensors(t->exec);
    TRY(output_load(t, x->o, x->o_bytes, &t->o));
    TRY(output_load(t, x->dq, x->q_bytes, &t->dq));
    TRY(output_load(t, x->dk, x->k_bytes, &t->dk));
    return output_load(t, x->dv, x->v_bytes, &t->dv);
}

/* q, k, v between exchange in and attention: exact. */
static enum status middle_compare(const struct trial *t, struct tally *tally, const char *what)
{
    const struct exec_middle m = exec_middle(t->exec);
    const struct problem *p = t->problem;
    const void *base[] = {m.q, m.k, m.v};
    const int dims[] = {p->head_dim, p->head_dim, problem_dim_v(p)};
    for (int i = 0; i < 3; i++) {
        struct data_side side = side_of(t, (void *)(uintptr_t)base[i], i == 0 ? m.heads : m.kv_heads, dims[i]);
        struct data_errors errors;
        char why[256];
        side.seq = m.shard.local;
        side.head_first = i == 0 ? m.head_first : m.kv_first;
        TRY(mirror_shard_compare(dev_queue_dev(t->queue), t->spot.seed, (enum data_tensor)(DATA_Q + i), &side, &m.shard, 1, &errors));
        if (!data_verdict(&errors, (enum data_tensor)(DATA_Q + i), "in the middle", why))
            tally_wrong(tally, "%.90s: %.160s", what, why);
    }
    return STATUS_OK;
}

/* Element of a tensor here where a row of `token` and `head` starts. */
static int64_t row_at(const struct trial *t, int64_t token, int heads, int head, int dim)
{
    return (spot_here(&t->spot, token) * heads + head) * dim;
}

static void row_compare(struct trial *t, int which, const void *base, int64_t at, int dim, const double *exact,
                        const double *plain, int64_t token, int head)
{
    for (int i = 0; i < dim; i++)
        oracle_compare(&t->errors[which], (double)dtype_get(t->problem->dtype, base, at + i), exact[i], plain[i], token, head);
}

/* All queries and keys of a segment for one kv head. */
static enum status segment_compare(struct trial *t, int64_t segment, int kv)
{
    const struct attention_shape *s = &t->shape;
    struct oracle_source source = spot_source(&t->spot);
    struct oracle_truth truth;
    int dim = s->head_dim, dim_v = s->head_dim_v;
    enum status status = oracle_truth_make(s, &source, segment, kv, t->parts, &truth, &t->scale);
    for (int64_t a = 0; a < truth.n && status == STATUS_OK; a++) {
        const struct oracle_query *q = &truth.queries[a];
        int64_t token = attention_q_token(s, &truth.segment, q->i);
        if (spot_here(&t->spot, token) < 0)
            continue;
        row_compare(t, ORACLE_O, t->o.host, row_at(t, token, s->heads, q->head, dim_v), dim_v, q->o, q->o + dim_v, token, q->head);
        row_compare(t, ORACLE_DQ, t->dq.host, row_at(t, token, s->heads, q->head, dim), dim, q->dq, q->dq + dim, token, q->head);
    }
    int64_t seq_k = truth.segment.seq_k;
    const double *dk = truth.keys.dk, *dv = truth.keys.dv;
    for (int64_t j = 0; j < seq_k && status == STATUS_OK; j++) {
        int64_t token = attention_k_token(s, &truth.segment, j);
        if (spot_here(&t->spot, token) < 0)
            continue;
        row_compare(t, ORACLE_DK, t->dk.host, row_at(t, token, s->kv_heads, kv, dim), dim, dk + j * dim, dk + (seq_k + j) * dim, token,
                    kv);
        row_compare(t, ORACLE_DV, t->dv.host, row_at(t, token, s->kv_heads, kv, dim_v), dim_v, dv + j * dim_v,
                    dv + (seq_k + j) * dim_v, token, kv);
    }
    oracle_truth_free(&truth);
    return status;
}

static void problem_text(const struct problem *p, const struct plan *plan, char buf[128])
{
    text_print(buf, 128, "%lld x %lld, %d/%d heads, %s%s, window %lld, %d docs, chunks %d", (long long)p->batch, (long long)p->seq,
               p->heads, p->kv_heads, dtype_name(p->dtype), p->causal ? " causal" : "", (long long)p->window, p->docs,
               plan->chunks);
}

static enum status trial_run(struct trial *t, const struct plan *plan, struct tally *tally)
{
    char what[128], why[256];
    problem_text(t->problem, plan, what);
    TRY(inputs_fill(t));
    TRY(exec_forward(t->exec, t->queue));
    TRY(dev_sync(t->queue, clock_deadline(SYNC_US)));
    TRY(middle_compare(t, tally, what));
    TRY(exec_backward(t->exec, t->queue));
    TRY(dev_sync(t->queue, clock_deadline(SYNC_US)));
    TRY(outputs_load(t));
    for (int64_t segment = 0; segment < attention_segment_count(&t->shape); segment++)
        for (int kv = 0; kv < t->shape.kv_heads; kv++)
            TRY(tally_status(tally, segment_compare(t, segment, kv)));
    tally->cases++;
    if (!oracle_all_agree(&t->shape, t->errors, &t->scale, why))
        tally_wrong(tally, "%.100s: %.150s", what, why);
    return STATUS_OK;
}

/* The copies of a kv head, each a rank's; of a kernel that rounds what each of its calls adds, also the calls that add to it: chunks of a
 * rank, or steps of a ring. */
static int parts_of(const struct group *group, const struct problem *problem, const struct plan *plan)
{
    const struct attention *attention = attention_find(plan->attention);
    bool rounds = attention != NULL && attention->rounds_calls;
    int head_ranks = plan_head_ranks(plan), calls = plan_ring(plan);
    if (exec_chunk_shared(problem, plan, group->rank % head_ranks))
        calls *= plan->chunks;
    return model_kv_copies(problem->kv_heads, head_ranks) * (rounds ? calls : 1);
}

enum status check_plan_run(struct bench_env *env, const struct group *group, const struct problem *problem,
                           const struct plan *plan, uint64_t seed, struct tally *tally)
{
    struct trial t = {.group = group, .problem = problem, .parts = parts_of(group, problem, plan)};
    oracle_errors_init(t.errors);
    enum status status = exec_create(problem, plan, group->comm, env->dev, &t.exec);
    if (status != STATUS_OK)
        return tally_status(tally, status); /* the group agreed on it */
    const struct exec_tensors *x = exec_tensors(t.exec);
    status = dev_queue_create(env->dev, &t.queue);
    if (status == STATUS_OK)
        status = subject_whole_shape(problem, x->seq, &t.shape, &t.cu);
    t.spot = (struct spot){.shape = &t.shape,
                           .seed = seed,
                           .padded = x->seq,
                           .batch_first = group->index * problem->batch,
                           .shard = x->shard};
    if (status == STATUS_OK)
        status = trial_run(&t, plan, tally);
    mirror_close(&t.o);
    mirror_close(&t.dq);
    mirror_close(&t.dk);
    mirror_close(&t.dv);
    free(t.cu);
    dev_queue_destroy(t.queue);
    exec_destroy(t.exec);
    return status;
}

/* ---- rows ---- */

/* Plans of one exchange and one attention on groups of sp ranks. */
struct visit {
    struct bench_env *env;
    const struct group *group;
    const struct problem *problem;
    uint64_t seed;
    struct tally *tally;
};

static enum status visit_plan(void *arg, const struct plan *plan, const struct verdict *verdict)
{
    struct visit *v = arg;
    return verdict_ok(verdict) ? check_plan_run(v->env, v->group, v->problem, plan, v->seed, v->tally) : STATUS_OK;
}

static void space_make(const struct bench_env *env, const struct plan *base, const struct plan *only, struct plan_space *out)
{
    static const int chunks[CHUNKS] = {1, 2, 3};
    *out = (struct plan_space){.dev = dev_kind_of(env->dev), .base = *base, .nsp = 1, .sp = {base->sp}};
    out->nchunks = only != NULL || plan_ring(base) > 1 ? 1 : CHUNKS;
    for (int i = 0; i < out->nchunks; i++)
        out->chunks[i] = only == NULL ? chunks[i] : only->chunks < LOCAL_MAX ? only->chunks : LOCAL_MAX;
}

static void row_text(const struct plan *base, const char *chunks, char what[192])
{
    char ring[24] = "";
    if (base->method == PLAN_METHOD_ULYSSES_RING)
        text_print(ring, sizeof ring, " ring=%d", base->ring);
    text_print(what, 192, "%s sp=%d%s %s %s chunks=%s", plan_method_name(base->method), base->sp, ring, base->exchange, base->attention,
               chunks);
}

/* Can the ranks move what the plans of a row move? Some exchanges find out only when they are made. */
static enum status path_check(const struct plan *base, const struct group *group, struct tally *tally)
{
    const struct exchange_shape shape = {.batch = 1, .seq_local = 1, .dtype = DTYPE_FP32, .row_elems_max = 1};
    const struct exchange *exchange = exchange_find(base->exchange);
    void *state = NULL;
    if (plan_head_ranks(base) == 1 || exchange == NULL)
        return STATUS_OK;
    enum status status = exchange->create(&shape, group->comm, &state);
    if (status == STATUS_OK)
        exchange->destroy(state);
    if (status != STATUS_UNSUPPORTED)
        return status;
    tally_cannot(tally, status_last()->what);
    status_clear();
    return STATUS_OK;
}

static enum status plan_row(struct bench_env *env, const struct check_order *order, const struct plan *base,
                            struct check_report *report)
{
    struct tally tally = {0};
    struct plan_space space;
    struct group group;
    char what[192];
    space_make(env, base, check_only(order), &space);
    char chunks[16] = "1,2,3";
    if (space.nchunks == 1)
        text_print(chunks, sizeof chunks, "%d", space.chunks[0]);
    row_text(base, chunks, what);
    if (!check_asked(order, what))
        return STATUS_OK;
    check_begins(report, "plan", what);
    int local = space.chunks[0] > LOCAL ? space.chunks[0] + space.chunks[0] % 2 : LOCAL; /* pairs of heads share a kv head */
    TRY(group_open(env, base->sp, &group));
    enum status status = tally_status(&tally, path_check(base, &group, &tally));
    for (int i = 0; i < CHECK_PROBLEMS && status == STATUS_OK && !tally.cannot; i++) {
        struct problem problem;
        check_problem(i, base->sp, comm_size(env->world), local, &problem);
        struct visit visit = {
            .env = env, .group = &group, .problem = &problem, .seed = order->seed + (uint64_t)i, .tally = &tally};
        status = tally_status(&tally, plan_enumerate(&problem, &space, visit_plan, &visit));
    }
    group_close(&group);
    TRY(status);
    return check_row_add(env, report, "plan", what, &tally, false);
}

static bool wanted(const char *only, const char *name)
{
    return only == NULL || strcmp(only, name) == 0;
}

/* Is there a problem that such a plan takes? Else why not the last of them: bf16 and heads of 64, which every kernel of a GPU computes. */
static struct verdict taken(const struct bench_env *env, const struct plan *base)
{
    struct verdict verdict = VERDICT_YES;
    for (int i = 0; i < CHECK_PROBLEMS; i++) {
        struct problem problem;
        struct plan plan = *base;
        check_problem(i, base->sp, comm_size(env->world), LOCAL, &problem);
        plan.dp_shard = problem.world / plan.sp;
        verdict = plan_check(&problem, &plan, dev_kind_of(env->dev));
        if (verdict_ok(&verdict))
            break;
    }
    return verdict;
}

/* A ring of kernels that cannot be part of one is a row that says so. */
static enum status ring_row(struct bench_env *env, const struct check_order *order, const struct plan *base,
                            struct check_report *report)
{
    char what[192];
    struct verdict verdict = taken(env, base);
    if (verdict_ok(&verdict))
        return plan_row(env, order, base, report);
    row_text(base, "1", what);
    return check_row_waive(order, report, "plan", what, verdict.rule, verdict.why);
}

/* All plans of an attention on groups of sp ranks: every exchange under ulysses (one where a rank alone exchanges nothing), a ring, and
 * rings whose places exchange. */
static enum status attention_rows(struct bench_env *env, const struct check_order *order, struct plan base,
                                  struct check_report *report)
{
    const struct plan *only = check_only(order);
    bool ulysses = only == NULL || only->method == PLAN_METHOD_ULYSSES, ring = only == NULL || only->method == PLAN_METHOD_RING;
    bool both = only == NULL || only->method == PLAN_METHOD_ULYSSES_RING;
    for (int e = 0; exchanges[e] != NULL; e++) {
        text_print(base.exchange, sizeof base.exchange, "%s", exchanges[e]->name);
        if (exchanges[e]->dev != dev_kind_of(env->dev) || !wanted(only != NULL ? only->exchange : NULL, base.exchange))
            continue;
        base.method = PLAN_METHOD_ULYSSES;
        if (ulysses)
            TRY(plan_row(env, order, &base, report));
        ulysses = ulysses && base.sp > 1;
        base.method = PLAN_METHOD_ULYSSES_RING;
        for (base.ring = 2; base.ring < base.sp && both; base.ring++)
            if (base.sp % base.ring == 0 && (only == NULL || only->ring == base.ring))
                TRY(ring_row(env, order, &base, report));
    }
    base.method = PLAN_METHOD_RING;
    text_print(base.exchange, sizeof base.exchange, "%s", PLAN_RING_EXCHANGE);
    return ring && base.sp > 1 ? ring_row(env, order, &base, report) : STATUS_OK;
}

static enum status plan_rows(struct bench_env *env, const struct check_order *order, int sp,
                             struct check_report *report)
{
    const struct plan *only = check_only(order);
    enum dev_kind dev = dev_kind_of(env->dev);
    bool kernels = false;
    for (int a = 0; attentions[a] != NULL; a++)
        kernels = kernels || attentions[a]->dev == dev;
    if (!kernels && sp == comm_size(env->world))
        TRY(check_row_waive(order, report, "plan", "layers", RULE_ABSENT,
                            "this build has no attention kernel for this device"));
    for (int a = 0; attentions[a] != NULL; a++) {
        struct plan base;
        plan_default(&base);
        base.sp = sp;
        text_print(base.attention, sizeof base.attention, "%s", attentions[a]->name);
        if (attentions[a]->dev == dev && wanted(only != NULL ? only->attention : NULL, base.attention))
            TRY(attention_rows(env, order, base, report));
    }
    return STATUS_OK;
}

/* By any attention of this device? */
static struct verdict method_taken(const struct bench_env *env, enum plan_method method)
{
    struct verdict verdict = verdict_no(RULE_ABSENT, "this build has no attention kernel for this device");
    struct plan plan;
    plan_default(&plan);
    plan.method = method;
    const struct exchange *first = exchange_first(dev_kind_of(env->dev));
    const char *own = plan_method_exchange(method) != NULL ? plan_method_exchange(method)
                      : first != NULL                      ? first->name
                                                           : "";
    text_print(plan.exchange, sizeof plan.exchange, "%s", own);
    for (int a = 0; attentions[a] != NULL; a++) {
        if (attentions[a]->dev != dev_kind_of(env->dev))
            continue;
        text_print(plan.attention, sizeof plan.attention, "%s", attentions[a]->name);
        verdict = taken(env, &plan);
        if (verdict_ok(&verdict))
            break;
    }
    return verdict;
}

/* What cannot run here, and why. */
static enum status waive_rest(struct bench_env *env, const struct check_order *order, struct check_report *report)
{
    int ranks = comm_size(env->world);
    char what[192], why[256];
    for (int sp = 2; sp <= 8; sp *= 2) {
        if (ranks % sp == 0)
            continue;
        text_print(what, sizeof what, "ulysses sp=%d", sp);
        text_print(why, sizeof why, "sp %d does not divide the %d ranks; %d ranks check it", sp, ranks, sp);
        TRY(check_row_waive(order, report, "plan", what, RULE_WORLD, why));
    }
    for (int method = 0; method < PLAN_METHOD_COUNT; method++) {
        struct verdict verdict = method_taken(env, (enum plan_method)method);
        text_print(what, sizeof what, "method %s", plan_method_name((enum plan_method)method));
        if (!verdict_ok(&verdict))
            TRY(check_row_waive(order, report, "plan", what, verdict.rule, verdict.why));
    }
    return STATUS_OK;
}

static enum status plan_run(struct bench_env *env, const struct check_order *order, struct check_report *report)
{
    const struct plan *only = check_only(order);
    int ranks = comm_size(env->world);
    for (int sp = 1; sp <= ranks; sp++)
        if (ranks % sp == 0 && (only == NULL || only->sp == sp))
            TRY(plan_rows(env, order, sp, report));
    return only == NULL ? waive_rest(env, order, report) : STATUS_OK;
}

const struct check check_plan = {.area = "plan", .run = plan_run};
