/* sp/plan_check.c -- yes, or which rule forbids a plan: sizes, heads, length, kernel, exchange.
 *
 * The rules are those of docs/models.md ("Which plans are legal"); each says no with the values at hand and what would
 * be right.
 */
#include "sp/plan_check.h"

#include "kernels/attention.h"
#include "sp/exchange.h"
#include "sp/exec_chunk.h"
#include "sp/target.h"

/* Every device once. */
static struct verdict order_check(const struct problem *problem, const struct plan *plan)
{
    bool taken[PLAN_ORDER_MAX] = {false};
    if (plan->order_n == 0)
        return VERDICT_YES;
    if (plan->order_n != problem->world || plan->order_n > PLAN_ORDER_MAX)
        return verdict_no(RULE_WORLD, "a rank order of %d entries for %d processes; a plan holds up to %d",
                          plan->order_n, problem->world, PLAN_ORDER_MAX);
    for (int rank = 0; rank < plan->order_n; rank++) {
        int device = plan->order[rank];
        if (device < 0 || device >= plan->order_n || taken[device])
            return verdict_no(RULE_WORLD, "the rank order does not name every device once: rank %d on device %d", rank,
                              device);
        taken[device] = true;
    }
    return VERDICT_YES;
}

struct verdict plan_check_sizes(const struct problem *problem, const struct plan *plan)
{
    if (plan->sp < 1 || plan->dp_shard < 1 || plan->dp_replicate < 1 || plan->tp < 1)
        return verdict_no(RULE_WORLD, "sp %d, dp_shard %d, dp_replicate %d, tp %d: every size is 1 or more", plan->sp,
                          plan->dp_shard, plan->dp_replicate, plan->tp);
    if (plan->tp > 1)
        return verdict_no(RULE_TARGET_CANNOT, "tp %d: tensor parallelism is not part of this build; tp is 1", plan->tp);
    if (plan->sp > problem->world)
        return verdict_no(RULE_WORLD, "sp %d is more than the %d processes", plan->sp, problem->world);
    /* Divided, not multiplied: the product of three sizes as large as an int holds would not fit. */
    int left = problem->world / plan->sp;
    if (problem->world % plan->sp != 0 || left % plan->dp_shard != 0 || left / plan->dp_shard != plan->dp_replicate)
        return verdict_no(RULE_WORLD, "sp %d x dp_shard %d x dp_replicate %d is not the %d processes of the job",
                          plan->sp, plan->dp_shard, plan->dp_replicate, problem->world);
    return order_check(problem, plan);
}

struct verdict plan_check_sp(const struct problem *problem, int sp)
{
    struct verdict heads = model_sp_heads(problem->heads, problem->kv_heads, sp, problem->world);
    if (!verdict_ok(&heads))
        return heads;
    if (problem->seq_fixed && problem->seq % sp != 0) {
        int64_t above = problem_padded(problem, sp), below = above - sp;
        struct verdict no = below > 0 ? verdict_no(RULE_SEQ, "sp %d does not divide seq %lld; %lld and %lld would work",
                                                   sp, (long long)problem->seq, (long long)below, (long long)above)
                                      : verdict_no(RULE_SEQ, "sp %d does not divide seq %lld; %lld would work", sp,
                                                   (long long)problem->seq, (long long)above);
        no.nearest[0] = below;
        no.nearest[1] = above;
        return no;
    }
    return VERDICT_YES;
}

static struct verdict training_check(const struct plan *plan)
{
    if (plan->zero_stage < 0 || plan->zero_stage > 3)
        return verdict_no(RULE_TARGET_CANNOT, "zero stage %d does not exist; 0 to 3 do", plan->zero_stage);
    if (plan->micro_batch < 1 || plan->accumulate < 1)
        return verdict_no(RULE_GLOBAL_BATCH, "micro batch %lld, accumulation %lld: both are 1 or more",
                          (long long)plan->micro_batch, (long long)plan->accumulate);
    if ((unsigned)plan->checkpointing >= PLAN_CHECKPOINTING_COUNT || (unsigned)plan->offload >= PLAN_OFFLOAD_COUNT ||
        (unsigned)plan->loss >= PLAN_LOSS_COUNT || (unsigned)plan->mlp >= PLAN_MLP_COUNT)
        return verdict_no(RULE_TARGET_CANNOT, "a choice of checkpointing, offload, loss or mlp that does not exist");
    if (plan->offload == PLAN_OFFLOAD_PARAMS && plan->zero_stage != 3)
        return verdict_no(RULE_TARGET_CANNOT, "offload=params needs zero stage 3: stage %d keeps parameters whole",
                          plan->zero_stage);
    if (plan->offload == PLAN_OFFLOAD_OPTIMIZER && plan->zero_stage == 0)
        return verdict_no(RULE_TARGET_CANNOT, "offload=optimizer needs zero stage 1 to 3");
    return VERDICT_YES;
}

/* The call with the most heads of one rank: kernels judge widths, masks and dtypes, not the count of heads. */
static struct verdict attention_check(const struct problem *problem, const struct plan *plan, enum dev_kind dev)
{
    const struct attention *attention = attention_find(plan->attention);
    if (attention == NULL && target_class_exists(plan->attention))
        return verdict_no(RULE_NOT_MEASURED, "no kernel on this machine's %s stands in for %s", dev_kind_name(dev),
                          plan->attention);
    if (attention == NULL)
        return verdict_no(RULE_KERNEL_CANNOT, "there is no attention kernel '%s'", plan->attention);
    if (attention->dev != dev)
        return verdict_no(RULE_KERNEL_CANNOT, "attention %s runs on %s, not on %s", attention->name,
                          dev_kind_name(attention->dev), dev_kind_name(dev));
    int64_t tokens = problem_padded(problem, plan->sp);
    struct attention_shape shape = {.batch = problem->batch,
                                    .seq_q = tokens,
                                    .seq_k = tokens,
                                    .heads = problem->heads / plan->sp,
                                    .kv_heads = model_kv_local(problem->kv_heads, plan->sp),
                                    .head_dim = problem->head_dim,
                                    .head_dim_v = problem_dim_v(problem),
                                    .dtype = problem->dtype,
                                    .causal = problem->causal ? ATTENTION_BOTTOM_RIGHT : ATTENTION_FULL,
                                    .window = problem->window};
    attention_shape_fill(&shape);
    /* One document as long as the row stands for all of them: offsets differ, the kind of call does not. */
    const int64_t cu[2] = {0, problem->batch * tokens};
    if (problem->docs > 0) {
        shape.batch = 1;
        shape.seq_q = shape.seq_k = cu[1];
        shape.docs = 1;
        shape.cu_q = shape.cu_k = cu;
    }
    /* cppcheck-suppress returnDanglingLifetime -- a verdict holds no pointer */
    return attention->supports(&shape);
}

static struct verdict exchange_check(const struct problem *problem, const struct plan *plan, enum dev_kind dev)
{
    const struct exchange *exchange = exchange_find(plan->exchange);
    if (exchange == NULL)
        return verdict_no(RULE_EXCHANGE_CANNOT, "there is no exchange '%s'", plan->exchange);
    if (exchange->dev != dev)
        return verdict_no(RULE_EXCHANGE_CANNOT, "exchange %s runs on %s, not on %s", exchange->name,
                          dev_kind_name(exchange->dev), dev_kind_name(dev));
    struct exchange_shape shape = {.batch = problem->batch,
                                   .seq_local = problem_local(problem, plan->sp),
                                   .dtype = problem->dtype,
                                   .row_elems_max = exec_row_elems(problem, plan)};
    /* cppcheck-suppress returnDanglingLifetime -- a verdict holds no pointer */
    return exchange->supports(&shape, NULL);
}

static struct verdict chunks_check(const struct problem *problem, const struct plan *plan)
{
    int local = problem->heads / plan->sp;
    if (plan->chunks >= 1 && plan->chunks <= local)
        return VERDICT_YES;
    struct verdict no = verdict_no(RULE_EXCHANGE_CANNOT, "%d chunks of the %d heads that a rank holds; 1 to %d work",
                                   plan->chunks, local, local);
    no.nearest[0] = plan->chunks < 1 ? 0 : local;
    no.nearest[1] = plan->chunks < 1 ? 1 : 0;
    return no;
}

/* What holds whatever computes and moves the data. */
static struct verdict shapes_check(const struct problem *problem, const struct plan *plan)
{
    struct verdict verdict;
    if (problem_check(problem) != STATUS_OK)
        return verdict_no(RULE_KERNEL_CANNOT, "%.200s", status_last()->what);
    if (plan->method != PLAN_METHOD_ULYSSES)
        return verdict_no(RULE_KERNEL_CANNOT, "method %s is not part of this build; ulysses is",
                          plan_method_name(plan->method));
    if (plan->sp >= 1) { /* what is wrong with sp itself says more than that a product is wrong */
        verdict = plan_check_sp(problem, plan->sp);
        if (!verdict_ok(&verdict))
            return verdict;
    }
    verdict = plan_check_sizes(problem, plan);
    if (verdict_ok(&verdict))
        verdict = training_check(plan);
    return verdict_ok(&verdict) ? chunks_check(problem, plan) : verdict;
}

struct verdict plan_check(const struct problem *problem, const struct plan *plan, enum dev_kind dev)
{
    struct verdict verdict = shapes_check(problem, plan);
    if (verdict_ok(&verdict))
        verdict = attention_check(problem, plan, dev);
    if (verdict_ok(&verdict))
        verdict = exchange_check(problem, plan, dev);
    return verdict;
}

struct verdict plan_check_without_attention(const struct problem *problem, const struct plan *plan, enum dev_kind dev)
{
    struct verdict verdict = shapes_check(problem, plan);
    return verdict_ok(&verdict) ? exchange_check(problem, plan, dev) : verdict;
}
