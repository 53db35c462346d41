/* sp/plan_check.c -- yes, or which rule forbids a plan: sizes, heads, length, kernel, exchange.
 *
 * The rules are those of docs/models.md ("Which plans are legal"); each says no with the values at hand and what would
 * be right.
 */
#include "sp/plan_check.h"

#include "kernels/attention.h"
#include "sp/exchange.h"
#include "sp/exec_chunk.h"
#include "sp/shard.h"
#include "sp/target.h"

#include <string.h>

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
    if (plan->sp > problem->world)
        return verdict_no(RULE_WORLD, "sp %d is more than the %d processes", plan->sp, problem->world);
    /* Divided, not multiplied: the product of four sizes as large as an int holds would not fit. */
    const int sizes[] = {plan->sp, plan->tp, plan->dp_shard, plan->dp_replicate};
    int left = problem->world;
    for (int i = 0; i < 4 && left > 0; i++)
        left = left % sizes[i] == 0 ? left / sizes[i] : 0;
    if (left != 1)
        return verdict_no(RULE_WORLD,
                          "sp %d x tp %d x dp_shard %d x dp_replicate %d is not the %d processes of the job", plan->sp,
                          plan->tp, plan->dp_shard, plan->dp_replicate, problem->world);
    return order_check(problem, plan);
}

/* The lengths below and above that would not have to be padded. */
static struct verdict length_check(const struct problem *problem, const struct plan *plan)
{
    int multiple = shard_multiple(plan);
    const char *whom = plan_ring(plan) > 1 ? (plan->tp > 1 ? "2 x sp x tp, the pieces of a ring's sequence, "
                                                           : "2 x sp, the pieces of a ring's sequence, ")
                       : plan->tp > 1      ? "sp x tp "
                                           : "sp ";
    if (!problem->seq_fixed || problem->seq % multiple == 0)
        return VERDICT_YES;
    int64_t above = problem_padded(problem, multiple), below = above - multiple;
    struct verdict no = below > 0
                            ? verdict_no(RULE_SEQ, "%s%d does not divide seq %lld; %lld and %lld would work", whom,
                                         multiple, (long long)problem->seq, (long long)below, (long long)above)
                            : verdict_no(RULE_SEQ, "%s%d does not divide seq %lld; %lld would work", whom, multiple,
                                         (long long)problem->seq, (long long)above);
    no.nearest[0] = below;
    no.nearest[1] = above;
    return no;
}

/* Ranks that cut a layer cut the columns of the MLP as they cut heads. */
static struct verdict ffn_check(const struct problem *problem, const struct plan *plan)
{
    int ways = plan_ways(plan);
    int64_t over = problem->ffn % ways;
    return over == 0 ? VERDICT_YES
                     : verdict_no(RULE_FFN_NOT_DIVISIBLE, "%lld columns of the MLP over %d ranks leave %lld over",
                                  (long long)problem->ffn, ways, (long long)over);
}

struct verdict plan_check_tp(const struct problem *problem, const struct plan *plan)
{
    if (plan->tp <= 1 || plan->sp < 1)
        return VERDICT_YES;
    if (plan->method == PLAN_METHOD_SPLIT_GATHER)
        return verdict_no(RULE_TARGET_CANNOT,
                          "tp %d with method split_gather, whose sp %d ranks cut layers already; tp is 1", plan->tp,
                          plan->sp);
    struct verdict cut = model_sp_heads(problem->heads, problem->kv_heads, plan->tp, problem->world);
    if (verdict_ok(&cut))
        cut = ffn_check(problem, plan);
    if (verdict_ok(&cut) && problem->world / plan->tp % plan->sp != 0)
        cut = verdict_no(RULE_WORLD, "%d processes in groups of %d x sp %d leave some over", problem->world, plan->tp,
                         plan->sp);
    return verdict_ok(&cut) ? length_check(problem, plan) : verdict_no(cut.rule, "tp %d: %s", plan->tp, cut.why);
}

/* The largest below the plan's that divides sp, or all of sp. */
static int ring_nearest(const struct plan *plan)
{
    int ring = plan->ring < plan->sp ? plan->ring : plan->sp;
    while (ring > 1 && plan->sp % ring != 0)
        ring--;
    return ring > 1 ? ring : plan->sp;
}

/* The ranks of sp that share the heads. Numbers of them near by are no sizes of sp, so none are passed on. */
static struct verdict heads_check(const struct problem *problem, const struct plan *plan)
{
    int rings = plan->method == PLAN_METHOD_ULYSSES_RING ? plan->ring : 1;
    struct verdict heads =
        model_sp_heads(problem->heads, problem->kv_heads, plan_head_ranks(plan), problem->world / rings);
    return verdict_ok(&heads) ? VERDICT_YES : verdict_no(heads.rule, "%s", heads.why);
}

struct verdict plan_check_sp(const struct problem *problem, const struct plan *plan)
{
    if (plan->method == PLAN_METHOD_ULYSSES_RING && (plan->ring < 1 || plan->sp % plan->ring != 0))
        return verdict_no(RULE_WORLD, "rings of %d ranks do not share sp %d; of %d they do", plan->ring, plan->sp,
                          ring_nearest(plan));
    if (plan_ring(plan) > 1 && problem->world % plan->sp != 0)
        return verdict_no(RULE_WORLD, "sp %d does not divide the %d processes", plan->sp, problem->world);
    struct verdict heads = heads_check(problem, plan);
    if (verdict_ok(&heads))
        heads = ffn_check(problem, plan);
    return verdict_ok(&heads) ? length_check(problem, plan) : heads;
}

/* What the ranks with the same part of a layer have to do. */
struct share {
    struct problem problem;
    struct plan plan;
};

/* The job as a whole, and what it leaves each rank. */
static struct verdict share_make(const struct problem *problem, const struct plan *plan, struct share *out)
{
    if (problem_check(problem) != STATUS_OK)
        return verdict_no(RULE_KERNEL_CANNOT, "%.200s", status_last()->what);
    if ((unsigned)plan->method >= PLAN_METHOD_COUNT)
        return verdict_no(RULE_KERNEL_CANNOT, "method %s is not one; ulysses, ring, split_gather and ulysses+ring are",
                          plan_method_name(plan->method));
    struct verdict verdict = plan_check_tp(problem, plan);
    if (!verdict_ok(&verdict))
        return verdict;
    *out = (struct share){*problem, *plan};
    if (plan->tp > 1 && plan->sp > 0 && plan_cut(&out->problem, &out->plan) != STATUS_OK)
        return verdict_no(RULE_KERNEL_CANNOT, "%.200s", status_last()->what);
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
    return VERDICT_YES;
}

/* Kernels judge widths, masks and dtypes, not the count of heads: the call with the most heads of one rank, of a row's seq_q x seq_k
 * tokens; all rows at once where the layer does that. */
static struct attention_shape call_shape(const struct problem *problem, const struct plan *plan, int64_t seq_q,
                                         int64_t seq_k, bool causal)
{
    int64_t rows = plan_ring(plan) > 1 ? 1 : problem->batch;
    struct attention_shape shape = {.batch = rows,
                                    .seq_q = seq_q,
                                    .seq_k = seq_k,
                                    .heads = problem->heads / plan_head_ranks(plan),
                                    .kv_heads = model_kv_local(problem->kv_heads, plan_head_ranks(plan)),
                                    .head_dim = problem->head_dim,
                                    .head_dim_v = problem_dim_v(problem),
                                    .dtype = problem->dtype,
                                    .causal = causal ? ATTENTION_BOTTOM_RIGHT : ATTENTION_FULL,
                                    .window = plan_ring(plan) > 1 ? 0 : problem->window};
    attention_shape_fill(&shape);
    return shape;
}

static struct verdict packed_check(const struct plan *plan, struct attention_shape shape, int docs, const int64_t *cu_q,
                                   const int64_t *cu_k)
{
    shape.batch = 1;
    shape.seq_q = cu_q[docs];
    shape.seq_k = cu_k[docs];
    shape.docs = docs;
    shape.cu_q = cu_q;
    shape.cu_k = cu_k;
    return attention_find(plan->attention)->supports(&shape);
}

static struct verdict call_check(const struct problem *problem, const struct plan *plan, int64_t seq_q, int64_t seq_k,
                                 bool causal)
{
    struct attention_shape shape = call_shape(problem, plan, seq_q, seq_k, causal);
    /* One document as long as the row stands for all of them: offsets differ, the kind of call does not. */
    const int64_t cu_q[2] = {0, shape.batch * seq_q}, cu_k[2] = {0, shape.batch * seq_k};
    return shard_packed(problem, plan) ? packed_check(plan, shape, 1, cu_q, cu_k)
                                       : attention_find(plan->attention)->supports(&shape);
}

/* Of a document that ends in a piece, other ranks have no keys: a step of theirs has queries alone, or keys. */
static struct verdict ring_documents_check(const struct problem *problem, const struct plan *plan, int64_t local)
{
    const int64_t cu_q[3] = {0, local, local}, cu_k[3] = {0, 0, local};
    struct verdict verdict = packed_check(plan, call_shape(problem, plan, local, local, false), 2, cu_q, cu_k);
    return verdict_ok(&verdict)
               ? verdict
               : verdict_no(verdict.rule,
                            "documents or padding, cut in a ring: %.160s; method ulysses has whole sequences",
                            verdict.why);
}

/* The kinds of calls that sp/ring_block.h makes. */
static struct verdict ring_calls_check(const struct problem *problem, const struct plan *plan)
{
    int64_t row = shard_padded(problem, plan), local = row / plan_ring(plan);
    if ((problem->direction & PROBLEM_BACKWARD) && attention_find(plan->attention)->own_softmax)
        return verdict_no(
            RULE_KERNEL_CANNOT,
            "the backward of attention %s makes its softmax from the keys at hand; a step of a ring needs one "
            "that takes that of all keys",
            plan->attention);
    if (problem->window > 0 && problem->window < row) /* a longer one hides nothing */
        return verdict_no(
            RULE_KERNEL_CANNOT,
            "window %lld in rows of %lld tokens: between pieces of a ring it is shifted by their distance, which no "
            "mask of a kernel is; method ulysses has whole sequences",
            (long long)problem->window, (long long)row);
    bool cut = problem->docs > 1 || (shard_packed(problem, plan) && row > problem->seq);
    struct verdict verdict = cut ? ring_documents_check(problem, plan, local) : VERDICT_YES;
    if (verdict_ok(&verdict))
        verdict = call_check(problem, plan, local, local, problem->causal);
    if (verdict_ok(&verdict) && problem->causal)
        verdict = call_check(problem, plan, local, local / 2, false);
    return verdict_ok(&verdict) && problem->causal ? call_check(problem, plan, local / 2, local, false) : verdict;
}

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
    if (plan_ring(plan) > 1)
        return ring_calls_check(problem, plan);
    int64_t tokens = shard_padded(problem, plan);
    return call_check(problem, plan, tokens, tokens, problem->causal);
}

static struct verdict exchange_check(const struct problem *problem, const struct plan *plan, enum dev_kind dev)
{
    const struct exchange *exchange = exchange_find(plan->exchange);
    if (plan->method == PLAN_METHOD_RING && strcmp(plan->exchange, PLAN_RING_EXCHANGE) != 0)
        return verdict_no(
            RULE_EXCHANGE_CANNOT,
            "method ring exchanges nothing: keys and values go to a neighbour, exchange " PLAN_RING_EXCHANGE ", not %s",
            plan->exchange);
    if (plan->method == PLAN_METHOD_SPLIT_GATHER && strcmp(plan->exchange, PLAN_GATHER_EXCHANGE) != 0)
        return verdict_no(
            RULE_EXCHANGE_CANNOT,
            "method split_gather changes no layout: its rows are gathered whole, exchange " PLAN_GATHER_EXCHANGE
            ", not %s",
            plan->exchange);
    if (plan->method == PLAN_METHOD_RING || plan->method == PLAN_METHOD_SPLIT_GATHER)
        return VERDICT_YES;
    if (strcmp(plan->exchange, PLAN_RING_EXCHANGE) == 0)
        return verdict_no(RULE_EXCHANGE_CANNOT,
                          "there is no exchange " PLAN_RING_EXCHANGE ": that is how method ring passes on");
    if (exchange == NULL)
        return verdict_no(RULE_EXCHANGE_CANNOT, "there is no exchange '%s'", plan->exchange);
    if (exchange->dev != dev)
        return verdict_no(RULE_EXCHANGE_CANNOT, "exchange %s runs on %s, not on %s", exchange->name,
                          dev_kind_name(exchange->dev), dev_kind_name(dev));
    struct exchange_shape shape = {.batch = problem->batch,
                                   .seq_local = shard_local(problem, plan),
                                   .dtype = problem->dtype,
                                   .row_elems_max = exec_row_elems(problem, plan)};
    /* cppcheck-suppress returnDanglingLifetime -- a verdict holds no pointer */
    return exchange->supports(&shape, NULL);
}

static struct verdict chunks_check(const struct problem *problem, const struct plan *plan)
{
    int local = problem->heads / plan_head_ranks(plan);
    if (plan_ring(plan) > 1 && plan->chunks != 1)
        return verdict_no(RULE_EXCHANGE_CANNOT, "%d chunks: a ring passes on while it computes; it takes 1",
                          plan->chunks);
    if (plan->method == PLAN_METHOD_SPLIT_GATHER && plan->chunks != 1)
        return verdict_no(RULE_EXCHANGE_CANNOT,
                          "%d chunks: split_gather has nothing to exchange beside attention; it takes 1", plan->chunks);
    if (plan->chunks >= 1 && plan->chunks <= local)
        return VERDICT_YES;
    struct verdict no = verdict_no(RULE_EXCHANGE_CANNOT, "%d chunks of the %d heads that a rank holds; 1 to %d work",
                                   plan->chunks, local, local);
    no.nearest[0] = plan->chunks < 1 ? 0 : local;
    no.nearest[1] = plan->chunks < 1 ? 1 : 0;
    return no;
}

/* What is wrong with a share is so because of tp, too. */
static struct verdict of_share(const struct plan *plan, struct verdict verdict)
{
    if (plan->tp <= 1 || verdict_ok(&verdict))
        return verdict;
    struct verdict no = verdict_no(verdict.rule, "beside tp %d: %s", plan->tp, verdict.why);
    memcpy(no.nearest, verdict.nearest, sizeof no.nearest);
    return no;
}

/* What holds whatever computes and moves the data. */
static struct verdict shapes_check(const struct problem *problem, const struct plan *plan, struct share *share)
{
    struct verdict verdict = share_make(problem, plan, share);
    if (!verdict_ok(&verdict))
        return verdict;
    if (plan->sp >= 1) { /* what is wrong with sp itself says more than that a product is wrong */
        verdict = of_share(plan, plan_check_sp(&share->problem, &share->plan));
        if (!verdict_ok(&verdict))
            return verdict;
    }
    verdict = plan_check_sizes(problem, plan);
    if (verdict_ok(&verdict))
        verdict = training_check(plan);
    return verdict_ok(&verdict) ? of_share(plan, chunks_check(&share->problem, &share->plan)) : verdict;
}

struct verdict plan_check(const struct problem *problem, const struct plan *plan, enum dev_kind dev)
{
    struct share share;
    struct verdict verdict = shapes_check(problem, plan, &share);
    if (verdict_ok(&verdict))
        verdict = attention_check(&share.problem, &share.plan, dev);
    if (verdict_ok(&verdict))
        verdict = exchange_check(&share.problem, &share.plan, dev);
    return verdict;
}

struct verdict plan_check_without_attention(const struct problem *problem, const struct plan *plan, enum dev_kind dev)
{
    struct share share;
    struct verdict verdict = shapes_check(problem, plan, &share);
    return verdict_ok(&verdict) ? exchange_check(&share.problem, &share.plan, dev) : verdict;
}
