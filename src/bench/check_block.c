/* bench/check_block.c -- a whole transformer block under every method, on small problems, against the block of one rank: outputs, and the
 * gradients of rows and of every weight. One exchange and one kernel of the device each: check_plan.c has all of them.
 */
#include "bench/check_parts.h"

#include "base/clock.h"
#include "base/text.h"
#include "bench/group.h"
#include "bench/transformer.h"
#include "kernels/attention.h"

#include <string.h>

enum { SYNC_US = 60 * 1000 * 1000 };

/* heads: of a rank. kv: query heads per kv head; 0: one kv head for all ranks. */
static const struct {
    int64_t batch, seq, hidden, ffn; /* ffn: of a rank */
    int heads, kv, dim;
    enum dtype dtype;
    bool causal;
    int docs;
    int64_t doc_len[3];
} problems[] = {
    {1, 24, 48, 20, 2, 1, 8, DTYPE_FP32, true, 0, {0}},
    {2, 19, 32, 12, 4, 2, 8, DTYPE_FP32, false, 0, {0}}, /* padding that a full mask would see */
    {2, 22, 40, 16, 2, 0, 8, DTYPE_BF16, true, 3, {9, 1, 12}},
    {1, 41, 64, 32, 2, 2, 64, DTYPE_BF16, true, 0, {0}}, /* heads that kernels of tensor cores take */
};

static void problem_make(size_t i, int sp, int world, bool backward, struct problem *out)
{
    int heads = problems[i].heads * sp;
    memset(out, 0, sizeof *out);
    out->batch = problems[i].batch;
    out->seq = problems[i].seq;
    out->heads = heads;
    out->kv_heads = problems[i].kv > 0 ? heads / problems[i].kv : 1;
    out->head_dim = problems[i].dim;
    out->hidden = problems[i].hidden;
    out->ffn = problems[i].ffn * sp;
    out->dtype = problems[i].dtype;
    out->causal = problems[i].causal;
    out->docs = problems[i].docs;
    memcpy(out->doc_len, problems[i].doc_len, sizeof problems[i].doc_len);
    out->direction = backward ? PROBLEM_BACKWARD : PROBLEM_FORWARD;
    out->world = world;
}

/* Collective over the job. */
static enum status run_and_compare(struct bench_env *env, const struct group *group,
                                   const struct transformer_order *order, struct dev_queue *queue, bool *ok,
                                   char why[256])
{
    struct truth *truth = NULL;
    struct transformer *t = NULL;
    enum status status = truth_open(env, order, &truth);
    if (status == STATUS_OK)
        status = transformer_open(env, group, order, queue, &t);
    if (status == STATUS_OK)
        status = group_agree(env, transformer_poison(t, queue));
    if (status == STATUS_OK)
        status = group_agree(env, transformer_forward(t, queue));
    if (status == STATUS_OK && order->problem->direction == PROBLEM_BACKWARD)
        status = group_agree(env, transformer_prepare(t, queue));
    if (status == STATUS_OK && order->problem->direction == PROBLEM_BACKWARD)
        status = group_agree(env, transformer_backward(t, queue));
    if (status == STATUS_OK)
        status = dev_sync(queue, clock_deadline(SYNC_US));
    if (status == STATUS_OK)
        status = truth_compare(env, truth, t, ok, why);
    transformer_close(t);
    truth_close(truth);
    return status;
}

static enum status problem_check_run(struct bench_env *env, const struct group *group, const struct problem *problem,
                                     const struct plan *plan, uint64_t seed, struct dev_queue *queue,
                                     struct tally *tally)
{
    const struct transformer_order order = {.problem = problem,
                                            .plan = plan,
                                            .seed = seed,
                                            .batch_first = group->index * problem->batch,
                                            .rank = group->rank};
    char why[256];
    bool ok = true;
    enum status status = run_and_compare(env, group, &order, queue, &ok, why);
    tally->cases++;
    if (status == STATUS_OK && !ok)
        tally_wrong(tally, "%lld x %lld, %d/%d heads, %s: %.180s", (long long)problem->batch, (long long)problem->seq,
                    problem->heads, problem->kv_heads, dtype_name(problem->dtype), why);
    return tally_status(tally, status);
}

static enum status block_row(struct bench_env *env, const struct check_order *order, const struct plan *base,
                             struct check_report *report)
{
    struct tally tally = {0};
    struct group group;
    struct dev_queue *queue = NULL;
    char what[192], ring[24] = "";
    if (base->method == PLAN_METHOD_ULYSSES_RING)
        text_print(ring, sizeof ring, " ring=%d", base->ring);
    text_print(what, sizeof what, "%s sp=%d%s %s %s", plan_method_name(base->method), base->sp, ring, base->exchange,
               base->attention);
    if (!check_asked(order, what))
        return STATUS_OK;
    check_begins(report, "block", what);
    enum status status = group_agree(env, dev_queue_create(env->dev, &queue));
    if (status == STATUS_OK)
        status = group_open(env, base->sp, &group);
    if (status != STATUS_OK) {
        dev_queue_destroy(queue);
        return status;
    }
    for (size_t i = 0; i < 2 * sizeof problems / sizeof problems[0] && status == STATUS_OK; i++) {
        struct problem problem;
        struct plan plan = *base;
        problem_make(i / 2, base->sp, comm_size(env->world), i % 2 != 0, &problem);
        plan.micro_batch = problem.batch;
        struct verdict verdict = plan_check(&problem, &plan, dev_kind_of(env->dev));
        if (verdict_ok(&verdict))
            status = problem_check_run(env, &group, &problem, &plan, order->seed + i, queue, &tally);
        else
            tally_cannot(&tally, verdict.why);
    }
    group_close(&group);
    dev_queue_destroy(queue);
    TRY(status);
    return check_row_add(env, report, "block", what, &tally, false);
}

static enum status block_rows(struct bench_env *env, const struct check_order *order, int sp,
                              struct check_report *report)
{
    bool cpu = dev_kind_of(env->dev) == DEV_CPU;
    struct plan plan;
    plan_default(&plan);
    plan.sp = sp;
    plan.dp_shard = comm_size(env->world) / sp;
    text_print(plan.exchange, sizeof plan.exchange, "%s", cpu ? "packed" : "nccl");
    text_print(plan.attention, sizeof plan.attention, "%s", cpu ? "cpu" : "flash2");
    if (attention_find(plan.attention) == NULL)
        return check_row_waive(order, report, "block", "blocks", RULE_ABSENT,
                               "this build has no attention kernel for this device");
    for (int method = 0; method < PLAN_METHOD_COUNT; method++) {
        struct plan one = plan;
        one.method = (enum plan_method)method;
        one.ring = one.method == PLAN_METHOD_ULYSSES_RING ? 2 : 1;
        if (plan_method_exchange(one.method) != NULL)
            text_print(one.exchange, sizeof one.exchange, "%s", plan_method_exchange(one.method));
        bool both = one.method != PLAN_METHOD_ULYSSES_RING || (sp > 2 && sp % 2 == 0);
        if (both && (sp > 1 || one.method == PLAN_METHOD_ULYSSES))
            TRY(block_row(env, order, &one, report));
    }
    return STATUS_OK;
}

static enum status blocks_run(struct bench_env *env, const struct check_order *order, struct check_report *report)
{
    const struct plan *only = check_only(order);
    int ranks = comm_size(env->world);
    if (only != NULL && only->method == PLAN_METHOD_SPLIT_GATHER)
        return block_row(env, order, only, report);
    for (int sp = 1; sp <= ranks && only == NULL; sp++)
        if (ranks % sp == 0)
            TRY(block_rows(env, order, sp, report));
    return STATUS_OK;
}

const struct check check_block = {.area = "block", .run = blocks_run};
