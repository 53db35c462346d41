/* train/trainer_verify.c -- the same rows under the plan, and whole on one rank: are loss and gradients the same?
 *
 * Rank 0 does the whole with sp = 1, ZeRO 0 and the same attention; the others wait. Where the storage type is narrower than fp32 it does it
 * in fp32 too: a plan may then be twice as far from that as the whole run in its own type is. Then
 * ZeRO's shards and tensor-parallel ones of each unit are gathered, from the ranks of rank 0's shard group, and compared tensor by tensor there.
 * Every rank gets the verdict.
 */
#include "base/interrupt.h"
#include "base/mem.h"
#include "base/text.h"
#include "kernels/attention.h"
#include "sp/exchange.h"
#include "train/checkpoint.h"
#include "train/fit.h"
#include "train/trainer_state.h"
#include "train/whole.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* One rank pads nothing: the padding that the plan needs becomes tokens of the row, packed a document of its own. */
static void with_padding(const struct data_batch *batch, struct problem *problem)
{
    if (problem->docs > 0 && batch->padded > batch->seq)
        problem->doc_len[problem->docs++] = batch->padded - batch->seq;
    problem->seq = batch->padded;
}

/* All rows of the step, one row at a time as a plan of one rank sees it. Between them rank 0 hears an interrupt, and the ranks that wait
 * are told as of any failure. */
static enum status whole_rows(struct trainer *t, struct decoder *decoder, double valid, enum dtype dtype, double *loss)
{
    const struct plan *plan = &t->options.plan;
    struct data_batch batch = {0};
    struct plan whole;
    int groups = comm_size(t->world) / plan_sequence_ranks(plan), micros = (int)plan->accumulate;
    struct loss_part *parts = NULL;
    plan_default(&whole);
    enum status status = mem_alloc((size_t)(groups * micros) * sizeof *parts, "losses", (void **)&parts);
    for (int m = 0; m < micros && status == STATUS_OK; m++)
        for (int g = 0; g < groups && status == STATUS_OK; g++) {
            struct problem problem;
            double here = 0, share;
            status = interrupt_status();
            if (status == STATUS_OK)
                status = trainer_read(t->data, &whole, 0, m, g, 0, &batch);
            if (status != STATUS_OK)
                break;
            trainer_problem(&t->options, &batch, 1, &problem);
            struct decoder_batch rows = {batch.ids, batch.labels, batch.positions};
            with_padding(&batch, &problem);
            problem.dtype = dtype;
            share = trainer_share(t, valid, batch.valid);
            status =
                decoder_run(decoder, &problem, &rows, (float)(share * loss_lift(dtype, valid)), true, t->queue, &here);
            parts[g * micros + m] = (struct loss_part){here, batch.valid};
        }
    data_batch_free(&batch);
    if (status == STATUS_OK)
        *loss = loss_combine(t->options.norm, groups, micros, parts); /* by its definition, not by shares */
    free(parts);
    return status;
}

static double norm_of(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static double difference(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum);
}

/* One rounding of the storage type. */
static double rounding(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? 0x1p-9 : 0x1p-12;
}

/* fp32: sums in another order. Narrower: twice the error of the whole run in that type against fp32, and a rounding where that error is
 * small by chance. Half of what it is held against is the most: beyond that the type itself has lost the gradient, and nothing is shown. */
static double allowance(enum dtype dtype, double plain)
{
    return dtype == DTYPE_FP32 ? 1e-5 : fmin(2 * plain + rounding(dtype), 0.5);
}

/* What a tensor is held against: its norm. Below a millionth of the whole's it is 0 by mathematics (of queries and keys, when a row sees one
 * key): rounding on both sides, as large as the whole makes it, and the last bit of the whole's norm is then an allowed error. */
static double size_of(const float *right, int64_t n, double norm, enum dtype dtype)
{
    double own = norm_of(right, n);
    return own > norm * 1e-6 ? own : fmax(norm * (double)FLT_EPSILON / allowance(dtype, 0), 1e-30);
}

/* truth: in fp32; NULL: want is. */
static void compare(int index, int64_t n, const float *got, const float *want, const float *truth, double norm,
                    enum dtype dtype, struct trainer_verdict *verdict)
{
    const float *right = truth != NULL ? truth : want;
    double size = size_of(right, n, norm, dtype);
    double error = difference(got, right, n) / size, allowed = allowance(dtype, difference(want, right, n) / size);
    verdict->tensors++;
    if (verdict->tensors == 1 ||
        (!isnan(verdict->worst / verdict->allowed) && !(error / allowed <= verdict->worst / verdict->allowed))) {
        verdict->worst = error;
        verdict->allowed = allowed;
        verdict->worst_tensor = index;
    }
}

/* The run on one rank, on rank 0 alone. */
struct alone {
    struct groups groups;
    struct layout layout;
    struct params *params;
    double loss, norm, lift; /* gradients are computed times lift; norm: without it */
};

/* Gradients of all ranks beside those of the whole run. */
struct pair {
    struct whole *split, *alone, *exact; /* the last two: rank 0 only, exact where the type is narrower than fp32 */
    float *got, *want, *truth;           /* of the largest tensor; rank 0 only */
};

static enum status pair_create(struct trainer *t, const struct alone *alone, const struct alone *exact,
                               struct pair *pair)
{
    int64_t most = 0;
    bool here = alone->params != NULL;
    TRY(whole_create(&t->layout, t->params, &t->groups, t->dev, here, &pair->split));
    if (!here)
        return STATUS_OK;
    TRY(whole_create(&alone->layout, alone->params, &alone->groups, t->dev, true, &pair->alone));
    if (exact->params != NULL)
        TRY(whole_create(&exact->layout, exact->params, &alone->groups, t->dev, true, &pair->exact));
    for (int i = 0; i < t->layout.tensors; i++) {
        int64_t n = t->layout.tensor[i].whole_rows * t->layout.tensor[i].whole_cols;
        most = n > most ? n : most;
    }
    TRY(mem_alloc((size_t)most * sizeof(float), "gradients to compare", (void **)&pair->got));
    TRY(mem_alloc((size_t)most * sizeof(float), "gradients to compare", (void **)&pair->want));
    return mem_alloc((size_t)most * sizeof(float), "gradients to compare", (void **)&pair->truth);
}

static void read_lifted(const struct whole *whole, const struct layout_tensor *tensor, double lift, int64_t n,
                        float *out)
{
    whole_read(whole, tensor, 0, n, out);
    for (int64_t i = 0; i < n && lift != 1; i++)
        out[i] /= (float)lift;
}

static enum status compare_unit(struct trainer *t, const struct alone *alone, const struct alone *exact,
                                struct pair *pair, int unit, struct trainer_verdict *verdict)
{
    const struct layout_unit *u = &t->layout.unit[unit];
    TRY(whole_gather(pair->split, unit, params_shard(t->params, unit).grads, t->queue));
    if (alone->params == NULL)
        return STATUS_OK;
    TRY(whole_gather(pair->alone, unit, params_shard(alone->params, unit).grads, t->queue));
    if (pair->exact != NULL)
        TRY(whole_gather(pair->exact, unit, params_shard(exact->params, unit).grads, t->queue));
    for (int i = u->first; i < u->first + u->n; i++) {
        int64_t n = t->layout.tensor[i].whole_rows * t->layout.tensor[i].whole_cols;
        read_lifted(pair->split, &t->layout.tensor[i], alone->lift, n, pair->got);
        read_lifted(pair->alone, &alone->layout.tensor[i], alone->lift, n, pair->want);
        if (pair->exact != NULL)
            whole_read(pair->exact, &exact->layout.tensor[i], 0, n, pair->truth);
        compare(i, n, pair->got, pair->want, pair->exact != NULL ? pair->truth : NULL, alone->norm, t->options.dtype,
                verdict);
    }
    return STATUS_OK;
}

static enum status compare_all(struct trainer *t, const struct alone *alone, const struct alone *exact,
                               struct trainer_verdict *verdict)
{
    struct pair pair = {0};
    enum status status = comm_agree(t->world, pair_create(t, alone, exact, &pair), "compare gradients");
    for (int u = 0; u < t->layout.units && status == STATUS_OK; u++)
        status = compare_unit(t, alone, exact, &pair, u, verdict);
    free(pair.truth);
    free(pair.want);
    free(pair.got);
    whole_destroy(pair.exact);
    whole_destroy(pair.alone);
    whole_destroy(pair.split);
    return comm_agree(t->world, status, "compare gradients");
}

/* The step's rows as a plan of one rank sees them; one document as long as a row stands for any. */
static void rows_alone(const struct trainer *t, enum dtype dtype, struct problem *out)
{
    struct data_batch rows = {.rows = (int)t->options.plan.micro_batch, .seq = data_padded(t->data, 0)};
    trainer_problem(&t->options, &rows, 1, out);
    out->dtype = dtype;
    out->docs = t->options.separator.n > 0;
    out->doc_len[0] = out->docs > 0 ? rows.seq : 0;
}

/* The plan's kernel, or where that does not take such rows (fp32 on GPUs) the first of the device that does. */
static void attention_alone(const struct trainer *t, enum dtype dtype, struct plan *plan)
{
    struct problem problem;
    rows_alone(t, dtype, &problem);
    const int64_t one[] = {0, problem.seq};
    bool packed = problem.docs > 0;
    struct attention_shape shape = {.batch = 1,
                                    .seq_q = problem.seq,
                                    .seq_k = problem.seq,
                                    .heads = problem.heads,
                                    .kv_heads = problem.kv_heads,
                                    .head_dim = problem.head_dim,
                                    .head_dim_v = problem.head_dim_v,
                                    .dtype = dtype,
                                    .causal = problem.causal ? ATTENTION_BOTTOM_RIGHT : ATTENTION_FULL,
                                    .window = problem.window,
                                    .docs = problem.docs,
                                    .cu_q = packed ? one : NULL,
                                    .cu_k = packed ? one : NULL};
    attention_shape_fill(&shape);
    struct verdict verdict = attention_find(plan->attention)->supports(&shape);
    for (int a = 0; attentions[a] != NULL && !verdict_ok(&verdict); a++) {
        if (attentions[a]->dev != dev_kind_of(t->dev))
            continue;
        verdict = attentions[a]->supports(&shape);
        text_print(plan->attention, sizeof plan->attention, "%s", attentions[a]->name);
    }
}

/* With one rank nothing is exchanged, but a plan names an exchange of its device. What saves memory on the way is not taken. */
static void plan_alone(const struct trainer *t, enum dtype dtype, struct plan *plan)
{
    *plan = t->options.plan;
    plan->sp = plan->dp_shard = plan->dp_replicate = plan->tp = 1;
    plan->method = PLAN_METHOD_ULYSSES;
    plan->ring = 1;
    plan->zero_stage = 0;
    plan->chunks = 1;
    plan->order_n = 0;
    if (plan->checkpointing == PLAN_CHECKPOINTING_OFFLOAD)
        plan->checkpointing = PLAN_CHECKPOINTING_FULL;
    plan->mlp = PLAN_MLP_PLAIN;
    for (int e = 0; exchanges[e] != NULL && exchange_find(plan->exchange) == NULL; e++)
        if (exchanges[e]->dev == dev_kind_of(t->dev))
            text_print(plan->exchange, sizeof plan->exchange, "%s", exchanges[e]->name);
    attention_alone(t, dtype, plan);
}

static enum status whole_fits(const struct trainer *t, enum dtype dtype, const struct plan *plan,
                              const struct groups *groups, const struct layout *layout)
{
    struct problem problem;
    struct fit_need need;
    rows_alone(t, dtype, &problem);
    TRY(fit_need(layout, plan, &problem, groups, false, false, t->dev, &need));
    return WHERE(fit_check(&need, plan, NULL, t->dev), "the run on rank 0 alone");
}

/* Rank 0 alone: alone->params has the gradients afterwards. */
static enum status whole_run(struct trainer *t, double valid, enum dtype dtype, struct groups *groups,
                             struct alone *alone)
{
    struct plan plan;
    struct decoder *decoder = NULL;
    plan_alone(t, dtype, &plan);
    TRY(layout_create(&t->options.model, dtype, &alone->layout));
    TRY(whole_fits(t, dtype, &plan, groups, &alone->layout));
    TRY(params_create(&alone->layout, 0, false, groups, false, t->dev, &alone->params));
    if (t->options.from[0] == '\0') {
        TRY(params_init(alone->params, t->options.seed, t->queue));
    } else {
        TRY(checkpoint_load(t->options.from, false, &alone->layout, alone->params, t->queue));
        TRY(params_refresh(alone->params, t->queue));
    }
    enum status status = decoder_create(&alone->layout, alone->params, &plan, groups, t->dev, &decoder);
    if (status == STATUS_OK)
        status = whole_rows(t, decoder, valid, dtype, &alone->loss);
    if (status == STATUS_OK)
        status = params_finish_grads(alone->params, t->queue, &alone->norm);
    alone->lift = loss_lift(dtype, valid);
    alone->norm /= alone->lift;
    decoder_destroy(decoder);
    return status;
}

/* Rank 0's numbers become everybody's: what the others add is 0. */
static enum status tell_all(struct trainer *t, struct trainer_verdict *v)
{
    double all[] = {v->loss,    v->whole_loss,   v->loss_error, v->worst,
                    v->allowed, v->worst_tensor, v->norm_error, v->tensors};
    enum { N = sizeof all / sizeof *all };
    for (int i = 0; i < N && comm_rank(t->world) != 0; i++)
        all[i] = 0;
    TRY(groups_sum(&t->groups, all, N, t->queue));
    *v = (struct trainer_verdict){.loss = all[0],
                                  .whole_loss = all[1],
                                  .loss_error = all[2],
                                  .worst = all[3],
                                  .allowed = all[4],
                                  .worst_tensor = (int)all[5],
                                  .norm_error = all[6],
                                  .tensors = (int)all[7]};
    return STATUS_OK;
}

enum status trainer_verify(struct trainer *t, struct trainer_verdict *out)
{
    struct alone alone = {0}, exact = {0};
    struct trainer_verdict verdict = {0};
    double norm, valid = 0;
    enum status status;
    TRY(trainer_gradients(t, 0, &verdict.loss, &norm));
    for (int64_t m = 0; m < t->options.plan.accumulate; m++)
        valid +=
            data_index(comm_rank(t->world), plan_sequence_ranks(&t->options.plan)) == 0 ? (double)t->batch[m].valid : 0;
    TRY(groups_sum(&t->groups, &valid, 1, t->queue));
    groups_deadline(&t->groups, GROUPS_PATIENCE_US);
    TRY_OUT(groups_create_alone(t->world, t->dev, &alone.groups));
    alone.groups.world = alone.groups.sp; /* nobody else takes part */
    status = STATUS_OK;
    if (comm_rank(t->world) == 0) {
        status = whole_run(t, valid, t->options.dtype, &alone.groups, &alone);
        if (status == STATUS_OK && t->options.dtype != DTYPE_FP32)
            status = whole_run(t, valid, DTYPE_FP32, &alone.groups, &exact);
    }
    TRY_OUT(comm_agree(t->world, status, "run the rows whole"));
    TRY_OUT(compare_all(t, &alone, &exact, &verdict));
    verdict.whole_loss = alone.loss;
    verdict.loss_error = fabs(verdict.loss - verdict.whole_loss) / fmax(fabs(verdict.whole_loss), 1e-30);
    verdict.norm_error = fabs(norm - alone.norm) / fmax(alone.norm, 1e-30);
    TRY_OUT(tell_all(t, &verdict));
    verdict.loss_allowed = allowance(t->options.dtype, 0);
    *out = verdict;
out:
    status = comm_give_up(t->world, status);
    params_destroy(exact.params);
    layout_free(&exact.layout);
    params_destroy(alone.params);
    layout_free(&alone.layout);
    groups_destroy(&alone.groups);
    return status;
}
