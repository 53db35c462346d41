/* sp/work_step.c -- what one optimizer step moves between data-parallel ranks, how many tokens it sees, how often
 * layers run. */
#include "sp/work.h"

#include "base/units.h"
#include "model/model.h"

#include <math.h>

/* Matrices of a layer on one of the ranks that cut it, kv heads that several have counted on each; its norms are on all. */
static double piece_of_layer(const struct model *model, const struct problem *problem, int ways)
{
    double copied = model_kv_local(problem->kv_heads, ways) - (double)problem->kv_heads / ways;
    double lanes = problem->head_dim + problem_dim_v(problem), norms = 2.0 * (double)model->hidden;
    double matrices = (double)model->params_layer - norms;
    return norms + (matrices > 0 ? matrices : 0) / ways + copied * lanes * (double)model->hidden;
}

void work_params(const struct model *model, const struct problem *problem, const struct plan *plan,
                 const struct target *target, struct work_params *out)
{
    int ranks = plan_sequence_ranks(plan), ways = plan_ways(plan);
    double layers = (double)model->params_layer * model->layers;
    *out = (struct work_params){.whole = (double)model->params,
                                .cut_group = plan->dp_shard,
                                .whole_group = target->zero_over_world ? problem->world : plan->dp_shard * ranks};
    if (ways == 1)
        return;
    out->cut_group = plan->dp_shard * ranks / ways;
    out->cut = piece_of_layer(model, problem, ways) * model->layers;
    out->whole = out->whole > layers ? out->whole - layers : 0;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return b > 0 ? a / b + (a % b != 0) : 0;
}

/* What n bytes spread over g ranks bring to one of them: all but its own part. */
static double arrives(double bytes, int g)
{
    return g > 1 ? bytes * (g - 1) / g : 0;
}

static int64_t whole(double value)
{
    const double most = 4e18;
    return value < most ? (int64_t)value : (int64_t)most;
}

static int64_t mul_saturated(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

/* Elements of the matrices that by themselves are more than a bucket: the embedding and the head, or an MLP's. Experts are counted as small. */
static double above(const struct model *model, int64_t bucket)
{
    int64_t inner = model->hidden * model->ffn, outer = model->params_embedding;
    double elems = outer > bucket ? (double)outer * (model->tied ? 1 : 2) : 0;
    return elems + (model->experts == 0 && inner > bucket ? (double)inner * (model->gated ? 3 : 2) * model->layers : 0);
}

/* Of an element of a gradient that is summed over ranks. */
static double sent_bytes(const struct problem *problem, const struct plan *plan, const struct target *target)
{
    double bytes = target->memory.reduce_bytes[plan->sp > 1];
    return bytes > 0 ? bytes : (double)dtype_bytes(problem->dtype);
}

/* What DeepSpeed 0.19.8 reads and writes of a rank's gradients in a step, besides what goes over wires (runtime/zero/stage3.py,
 * stage_1_and_2.py, runtime/comm/coalesced_collectives.py). They are copied into the bucket, but for matrices above it, and divided by the
 * ranks; in stage 3 those of a bucket are laid out by rank before that, and what is the rank's own is copied, later micro-steps' added.
 * Stages 1 and 2 round sums in fp32 back where they are. Not counted: what stages 1 and 2 do to their own part, buckets of several ranks that
 * they lay out once more, and gathered weights, most of which are not copied. */
static double copied(const struct model *model, const struct problem *problem, const struct plan *plan,
                     const struct target *target, const struct work_params *params, double own, double reduces)
{
    int64_t bucket = target->memory.reduce_elems[plan->sp > 1];
    double stored = dtype_bytes(problem->dtype), sent = sent_bytes(problem, plan, target);
    double all = params->whole + params->cut, steps = (double)plan->accumulate;
    double fit = all - above(model, bucket), converted = sent > stored ? stored + sent : 0;
    if (bucket <= 0)
        return 0;
    if (plan->zero_stage < 3)
        return reduces * (2 * stored * fit + 2 * stored * all + 2 * converted * all);
    double into = converted > 0 ? converted * all : 2 * stored * fit; /* larger ones become fp32, too */
    return steps * (into + 2 * sent * fit + 2 * sent * all + converted * own) + (3 * steps - 1) * stored * own;
}

void work_zero(const struct model *model, const struct problem *problem, const struct plan *plan,
               const struct target *target, struct work_zero *out)
{
    struct work_params params;
    work_params(model, problem, plan, target, &params);
    int stage = plan->zero_stage, group = stage > 0 ? params.whole_group : 1,
        cut_group = stage > 0 ? params.cut_group : 1;
    int ways = params.cut > 0 ? plan_ways(plan) : 1;
    double bytes = dtype_bytes(problem->dtype), sent = sent_bytes(problem, plan, target),
           steps = (double)plan->accumulate;
    int64_t units = (int64_t)model->layers + (model->tied ? 1 : 2);
    int64_t bucket = target->memory.reduce_elems[plan->sp > 1];
    int64_t buckets = ceil_div(model->params, bucket > 0 ? bucket : INT64_MAX);
    double reduces = stage >= 2 ? steps : 1; /* stages 2 and 3 keep no whole gradient to add to */
    double reduce =
        (arrives(sent * params.whole, problem->world) + arrives(sent * params.cut, problem->world / ways)) * reduces;
    double parts = arrives(bytes * params.whole, group) + arrives(bytes * params.cut, cut_group);
    double gather = 0;
    int64_t calls = mul_saturated(buckets, whole(reduces));
    if (stage == 3) { /* once for forward, once for backward (and its recomputation), each micro-step */
        gather = 2 * steps * parts;
        calls = mul_saturated(3 * units, plan->accumulate);
    } else if (stage >= 1) { /* updated parameters, once */
        gather = parts;
        calls = calls > INT64_MAX - buckets ? INT64_MAX : calls + buckets;
    }
    if (stage == 0 || (stage < 3 && target->sums_whole)) /* all-reduce: reduce-scatter and all-gather of the sums */
        reduce *= 2;
    double own = ceil(params.whole / group + params.cut / cut_group);
    double cleared = stage == 1 ? target->cleared_bytes * (params.whole + params.cut) : 0;
    *out = (struct work_zero){.gather_bytes = whole(gather),
                              .reduce_bytes = whole(reduce),
                              .group = group,
                              .calls = problem->world > 1 ? (int)(calls < INT32_MAX ? calls : INT32_MAX) : 0,
                              .optimizer_elems = whole(own),
                              .optimizer_bytes = own * target->optimizer_bytes,
                              .gradient_bytes = copied(model, problem, plan, target, &params, own, reduces) + cleared};
}

int work_loss_products(const struct plan *plan)
{
    return plan->loss == PLAN_LOSS_TILED ? 4 : 3;
}

int work_forward_passes(const struct plan *plan)
{
    return plan->checkpointing == PLAN_CHECKPOINTING_NONE ? 1 : 2;
}

enum work_fit work_fit(int64_t peak_bytes, int64_t limit_bytes)
{
    double share = limit_bytes > 0 ? (double)peak_bytes / (double)limit_bytes : 2;
    return share <= 0.80 ? WORK_FITS : share <= 0.95 ? WORK_MEASURE_FIRST : WORK_DOES_NOT_FIT;
}

/* S * B * W / P: what all ranks see in one micro-step. */
static int64_t micro_tokens(const struct problem *problem, const struct plan *plan)
{
    int64_t groups = plan->sp > 0 ? problem->world / plan->sp : 0;
    return mul_saturated(mul_saturated(problem->seq, problem->batch), groups);
}

int64_t work_step_tokens(const struct problem *problem, const struct plan *plan)
{
    return mul_saturated(micro_tokens(problem, plan), plan->accumulate);
}

struct verdict work_accumulate(const struct problem *problem, const struct plan *plan, int64_t global_tokens,
                               int64_t *out_accumulate)
{
    int64_t unit = micro_tokens(problem, plan);
    char asked[UNITS_BUF], step[UNITS_BUF];
    if (unit >= 1 && global_tokens >= unit && global_tokens % unit == 0) {
        *out_accumulate = global_tokens / unit;
        return VERDICT_YES;
    }
    struct verdict no = verdict_no(
        RULE_GLOBAL_BATCH, "a global batch of %s tokens is not a multiple of the %s that sp %d sees in a micro-step",
        units_format_count(global_tokens, asked), units_format_count(unit, step), plan->sp);
    if (unit >= 1 && global_tokens >= 0) {
        no.nearest[0] = global_tokens / unit * unit;
        no.nearest[1] = no.nearest[0] <= INT64_MAX - unit ? no.nearest[0] + unit : 0;
    }
    return no;
}
