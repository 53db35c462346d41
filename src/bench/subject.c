/* bench/subject.c -- rules, keys and shapes that subjects share. */
#include "bench/subject.h"

#include "base/file.h"
#include "base/text.h"
#include "base/units.h"
#include "kernels/attention_cpu.h"
#include "sp/exchange.h"
#include "sp/exec_chunk.h"
#include "sp/shard.h"

#include <string.h>

const struct bench_subject *const bench_subjects[] = {
    &subject_link,
    &subject_collective,
    &subject_exchange,
    &subject_attention,
    &subject_gemm,
    &subject_layer,
    NULL,
};

const struct bench_subject *bench_subject_find(const char *name)
{
    for (int i = 0; name != NULL && bench_subjects[i] != NULL; i++)
        if (strcmp(bench_subjects[i]->name, name) == 0)
            return bench_subjects[i];
    return NULL;
}

const struct bench_subject *subject_span(const struct bench_subject *subject, const struct bench_case *c)
{
    return subject == &subject_layer && c->span == BENCH_SPAN_BLOCK ? &span_block : subject;
}

const struct bench_subject *bench_subject_of(const struct bench_case *c)
{
    return subject_span(bench_subject_find(c->subject), c);
}

enum dev_kind subject_dev(const struct bench_env *env)
{
    return env != NULL ? dev_kind_of(env->dev) : DEV_CPU;
}

struct verdict subject_check_world(const struct bench_case *c, const struct bench_env *env)
{
    int world = c->problem.world, sp = c->plan.sp;
    int here = env != NULL && env->world != NULL ? comm_size(env->world) : world;
    if (world < 1 || world != here)
        return verdict_no(RULE_WORLD, "a case for %d ranks, measured by %d", world, here);
    if (sp < 1 || world % sp != 0)
        return verdict_no(RULE_WORLD, "sp %d does not divide the %d ranks", sp, world);
    if ((unsigned)c->problem.dtype >= DTYPE_COUNT)
        return verdict_no(RULE_KERNEL_CANNOT, "dtype %d does not exist", (int)c->problem.dtype);
    return VERDICT_YES;
}

struct verdict subject_check_paths(const struct bench_case *c, const struct bench_env *env)
{
    const struct exchange *exchange = exchange_find(c->plan.exchange);
    const struct exchange_shape shape = {.batch = c->problem.batch,
                                         .seq_local = shard_local(&c->problem, &c->plan),
                                         .dtype = c->problem.dtype,
                                         .row_elems_max = exec_row_elems(&c->problem, &c->plan)};
    if (plan_head_ranks(&c->plan) == 1 || env == NULL || exchange == NULL)
        return VERDICT_YES;
    /* cppcheck-suppress returnDanglingLifetime -- a verdict holds no pointer */
    return exchange->supports(&shape, env->world);
}

struct verdict subject_check_sums(const struct bench_env *env)
{
    if (subject_dev(env) == DEV_CPU || env->world == NULL || comm_sums_natively(env->world))
        return VERDICT_YES;
    return verdict_no(RULE_ABSENT, "sums of %s memory over %s go through the host", dev_kind_name(subject_dev(env)),
                      comm_transport(env->world));
}

bool subject_host_driven(const struct bench_subject *subject, const struct bench_case *c)
{
    const struct exchange *exchange = subject->layout_included && c->plan.sp > 1 ? exchange_find(c->plan.exchange) : NULL;
    return exchange != NULL && exchange->host_driven;
}

struct verdict bench_exchange_verdict(const struct bench_env *env, const char *name, int64_t bytes, int layers)
{
    const struct exchange *exchange = exchange_find(name);
    const struct exchange_shape shape = {.batch = 1, .dtype = DTYPE_FP32, .row_elems_max = 1};
    if (exchange == NULL)
        return verdict_no(RULE_EXCHANGE_CANNOT, "there is no exchange '%.31s'", name);
    struct verdict verdict = exchange->supports(&shape, env->world);
    return verdict_ok(&verdict) && exchange->room != NULL ? exchange->room(env->world, bytes, layers) : verdict;
}

struct verdict subject_check_heads(const struct bench_case *c, const struct bench_env *env)
{
    struct verdict verdict = subject_check_world(c, env);
    if (!verdict_ok(&verdict))
        return verdict;
    if (problem_check(&c->problem) != STATUS_OK) {
        verdict = verdict_no(RULE_KERNEL_CANNOT, "%.200s", status_last()->what);
        status_clear();
        return verdict;
    }
    verdict = VERDICT_YES;
    if (plan_ring(&c->plan) == 1) /* what a ring asks of heads and length is plan_check's to say */
        verdict = model_sp_heads(c->problem.heads, c->problem.kv_heads, c->plan.sp, c->problem.world);
    if (verdict_ok(&verdict) && c->problem.seq < 1)
        return verdict_no(RULE_SEQ, "a sequence without tokens takes no time");
    if (verdict_ok(&verdict) && c->problem.seq_fixed && c->problem.seq % c->plan.sp != 0)
        return verdict_no(RULE_SEQ, "sp %d does not divide seq %lld", c->plan.sp, (long long)c->problem.seq);
    return verdict;
}

void subject_key_common(const struct bench_case *c, struct sample *out)
{
    static const char *const timings[] = {"stream", "graph", "loop"}, *const buffers[] = {"hot", "cold", "used"};
    struct sample_key *key = &out->key;
    text_print(key->subject, sizeof key->subject, "%s", c->subject);
    key->ranks = c->problem.world;
    if ((unsigned)c->problem.dtype < DTYPE_COUNT)
        text_print(key->dtype, sizeof key->dtype, "%s", dtype_name(c->problem.dtype));
    text_print(key->timing, sizeof key->timing, "%s", (unsigned)c->timing < 3 ? timings[c->timing] : "?");
    text_print(key->buffers, sizeof key->buffers, "%s", (unsigned)c->buffers < 3 ? buffers[c->buffers] : "?");
}

void subject_key_heads(const struct bench_case *c, struct sample *out)
{
    static const char *const directions[] = {"?", "fwd", "bwd", "both"};
    const struct problem *problem = &c->problem;
    struct sample_key *key = &out->key;
    key->sp = c->plan.sp;
    key->heads = problem->heads;
    key->kv_heads = problem->kv_heads;
    key->head_dim = problem->head_dim;
    if (problem_dim_v(problem) != problem->head_dim)
        key->head_dim_v = problem_dim_v(problem);
    key->seq = problem->seq;
    key->batch = problem->batch;
    text_print(key->direction, sizeof key->direction, "%s", directions[(unsigned)problem->direction & 3u]);
    out->group = c->plan.sp;
}

void subject_key_mask(const struct bench_case *c, struct sample *out)
{
    out->key.causal = c->problem.causal;
    out->key.window = c->problem.window;
    subject_docs_text(&c->problem, out->key.docs);
}

void subject_key_plan(const struct bench_case *c, struct sample *out)
{
    struct sample_key *key = &out->key;
    const char *method = plan_method_name(c->plan.method);
    text_print(key->attention, sizeof key->attention, "%s", c->plan.attention);
    text_print(key->exchange, sizeof key->exchange, "%s", c->plan.exchange);
    if (c->plan.method == PLAN_METHOD_ULYSSES_RING)
        text_print(key->method, sizeof key->method, "%s=%d", method, c->plan.ring);
    else
        text_print(key->method, sizeof key->method, "%s", method);
    key->chunks = c->plan.chunks;
}

struct plan subject_plan(const struct bench_case *c)
{
    struct plan plan = c->plan;
    plan.dp_replicate = plan.tp = 1;
    plan.dp_shard = plan.sp > 0 ? c->problem.world / plan.sp : 1;
    plan.order_n = 0;
    plan.micro_batch = plan.micro_batch > 0 ? plan.micro_batch : 1;
    plan.accumulate = plan.accumulate > 0 ? plan.accumulate : 1;
    return plan;
}

void subject_docs_text(const struct problem *problem, char buf[SAMPLE_NAME])
{
    char length[UNITS_BUF], hash[65];
    bool fixed = true;
    if (problem->docs < 1 || problem->docs > PROBLEM_MAX_DOCS) {
        text_print(buf, SAMPLE_NAME, "none");
        return;
    }
    for (int i = 0; i < problem->docs; i++)
        fixed = fixed && (problem->doc_len[i] == problem->doc_len[0] ||
                          (i == problem->docs - 1 && problem->doc_len[i] < problem->doc_len[0]));
    if (fixed) {
        text_print(buf, SAMPLE_NAME, "fixed:%s", units_format_short(problem->doc_len[0], length));
        return;
    }
    file_sha256(problem->doc_len, (size_t)problem->docs * sizeof problem->doc_len[0], hash);
    text_print(buf, SAMPLE_NAME, "%ddocs-%.12s", problem->docs, hash);
}

struct verdict subject_timed(const struct bench_case *c, struct bench_case *out, double *scale)
{
    struct problem *p = &out->problem;
    int ranks = plan_head_ranks(&c->plan), timed = c->heads_timed, local = c->problem.heads / ranks;
    int group = c->problem.heads / c->problem.kv_heads;
    *out = *c;
    *scale = 1;
    out->heads_timed = 0;
    if (timed < 0)
        return verdict_no(RULE_KERNEL_CANNOT, "%d heads timed", timed);
    if (timed > group) /* whole groups: a part of one beside others would have no kv head of its own */
        timed -= timed % group;
    if (timed == 0 || timed >= local)
        return VERDICT_YES;
    p->heads = timed * ranks;
    if (c->problem.kv_heads >= ranks) /* else each rank keeps its copy of the kv head it has */
        p->kv_heads = timed >= group ? timed / group * ranks : ranks;
    int64_t chunks = (int64_t)c->plan.chunks * timed / local; /* as many heads in each as before, where that is possible */
    out->plan.chunks = chunks > 1 ? (int)chunks : 1;
    *scale = (double)local / timed;
    return VERDICT_YES;
}

static enum status shape_fill(const struct problem *problem, int64_t padded, int heads, int kv_heads, struct attention_shape *out,
                              int64_t **cu)
{
    int docs = 0;
    *cu = NULL;
    TRY(problem_offsets(problem, padded, cu, &docs));
    struct attention_shape shape = {.batch = docs > 0 ? 1 : problem->batch,
                                    .seq_q = docs > 0 ? problem->batch * padded : padded,
                                    .seq_k = docs > 0 ? problem->batch * padded : padded,
                                    .heads = heads,
                                    .kv_heads = kv_heads,
                                    .head_dim = problem->head_dim,
                                    .head_dim_v = problem_dim_v(problem),
                                    .dtype = problem->dtype,
                                    .causal = problem->causal ? ATTENTION_BOTTOM_RIGHT : ATTENTION_FULL,
                                    .window = problem->window,
                                    .docs = docs,
                                    .cu_q = *cu,
                                    .cu_k = *cu};
    attention_shape_fill(&shape);
    shape.group = problem->heads / problem->kv_heads;
    *out = shape;
    return STATUS_OK;
}

enum status subject_attention_shape(const struct problem *problem, int sp, int rank, struct attention_shape *out, int64_t **cu)
{
    int local = problem->heads / sp;
    TRY(shape_fill(problem, problem_padded(problem, sp), local, model_kv_local(problem->kv_heads, sp), out, cu));
    out->group_first = (int)((int64_t)rank * local % out->group);
    return STATUS_OK;
}

enum status subject_whole_shape(const struct problem *problem, int64_t padded, struct attention_shape *out, int64_t **cu)
{
    return shape_fill(problem, padded, problem->heads, problem->kv_heads, out, cu);
}

void subject_kernel_name(const struct attention *attention, char buf[64])
{
    if (strcmp(attention->name, "cpu") == 0)
        text_print(buf, 64, "%s %s", attention->name, attention_cpu_isa_name());
    else
        text_print(buf, 64, "%s", attention->name);
}
