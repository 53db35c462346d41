/* train/trainer_verify.c -- the same rows under the plan, and whole on one rank: are loss and gradients the same?
 *
 * Rank 0 does the whole with sp = 1, ZeRO 0 and the same attention; the others wait. Then the shards of each unit are gathered, from the
 * ranks of rank 0's shard group, and compared tensor by tensor there. Every rank gets the verdict.
 */
#include "base/mem.h"
#include "base/text.h"
#include "train/checkpoint.h"
#include "train/trainer_state.h"

#include <math.h>
#include <stdlib.h>

enum { PATIENCE_US = 1800 * 1000 * 1000 };

/* One rank pads nothing: the padding that the plan needs becomes tokens of the row, packed a document of its own. */
static void with_padding(const struct data_batch *batch, struct problem *problem)
{
    if (problem->docs > 0 && batch->padded > batch->seq)
        problem->doc_len[problem->docs++] = batch->padded - batch->seq;
    problem->seq = batch->padded;
}

/* All rows of the step, one row at a time as a plan of one rank sees it. */
static enum status whole_rows(struct trainer *t, struct decoder *decoder, double valid, double *loss)
{
    const struct plan *plan = &t->options.plan;
    struct data_batch batch = {0};
    struct plan whole;
    double sum = 0;
    plan_default(&whole);
    enum status status = STATUS_OK;
    for (int64_t m = 0; m < plan->accumulate && status == STATUS_OK; m++)
        for (int g = 0; g < comm_size(t->world) / plan->sp && status == STATUS_OK; g++) {
            struct problem problem;
            double here = 0, share;
            status = trainer_read(t->data, &whole, 0, m, g, 0, &batch);
            if (status != STATUS_OK)
                break;
            trainer_problem(&t->options, &batch, 1, &problem);
            struct decoder_batch rows = {batch.ids, batch.labels, batch.positions};
            with_padding(&batch, &problem);
            share = trainer_share(t, valid, batch.valid);
            status = decoder_run(decoder, &problem, &rows, (float)share, true, t->queue, &here);
            sum += share * here;
        }
    data_batch_free(&batch);
    *loss = sum;
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

/* A tensor whose gradient is nothing against the whole's norm is held against a millionth of that. */
static void compare(const struct trainer *t, int unit, const float *got, const float *whole, double norm,
                    struct trainer_verdict *verdict)
{
    const struct layout_unit *u = &t->layout.unit[unit];
    for (int i = u->first; i < u->first + u->n; i++) {
        const struct layout_tensor *tensor = &t->layout.tensor[i];
        int64_t n = tensor->rows * tensor->cols;
        double against = norm_of(whole + tensor->offset, n),
               off = difference(got + tensor->offset, whole + tensor->offset, n);
        double error = off / fmax(against, fmax(norm * 1e-6, 1e-30));
        verdict->tensors++;
        if (!(error <= verdict->worst)) {
            verdict->worst = error;
            verdict->worst_tensor = i;
        }
    }
}

/* Of one unit: device memory of all of it as the plan has it, then both on the host. */
struct unit_pair {
    float *gathered, *got, *whole;
};

static enum status pair_fill(struct trainer *t, const struct params *alone, int unit, struct unit_pair *pair)
{
    struct params_shard shard = params_shard(t->params, unit);
    size_t part = (size_t)shard.n * sizeof(float);
    const float *got = shard.grads;
    int parts = t->options.plan.zero_stage > 0 ? comm_size(t->groups.shard) : 1;
    if (parts > 1) {
        TRY(comm_allgather(t->groups.shard, shard.grads, pair->gathered, part, t->queue));
        got = pair->gathered;
    }
    if (alone == NULL)
        return STATUS_OK;
    size_t bytes = (size_t)t->layout.unit[unit].elems * sizeof(float);
    TRY(dev_copy(t->queue, pair->got, got, bytes));
    TRY(dev_copy(t->queue, pair->whole, params_shard(alone, unit).grads, bytes));
    return dev_sync(t->queue, INT64_MAX);
}

static enum status pair_alloc(struct trainer *t, struct unit_pair *pair)
{
    int64_t most = 0;
    for (int u = 0; u < t->layout.units; u++)
        most = t->layout.unit[u].elems > most ? t->layout.unit[u].elems : most;
    size_t bytes = (size_t)(most + (int64_t)comm_size(t->world) * LAYOUT_ALIGN) * sizeof(float);
    TRY(dev_alloc(t->dev, bytes, "gradients to compare", (void **)&pair->gathered));
    TRY(mem_alloc(bytes, "gradients to compare", (void **)&pair->got));
    return mem_alloc(bytes, "gradients to compare", (void **)&pair->whole);
}

static enum status compare_all(struct trainer *t, const struct params *alone, double norm,
                               struct trainer_verdict *verdict)
{
    struct unit_pair pair = {0};
    enum status status = comm_agree(t->world, pair_alloc(t, &pair), "compare gradients");
    for (int u = 0; u < t->layout.units && status == STATUS_OK; u++) {
        status = pair_fill(t, alone, u, &pair);
        if (status == STATUS_OK && alone != NULL)
            compare(t, u, pair.got, pair.whole, norm, verdict);
    }
    free(pair.whole);
    free(pair.got);
    dev_free(t->dev, pair.gathered);
    return comm_agree(t->world, status, "compare gradients");
}

/* Rank 0 alone: *params has the gradients afterwards. */
static enum status whole_run(struct trainer *t, struct groups *alone, double valid, struct params **params,
                             double *loss, double *norm)
{
    struct plan plan = t->options.plan;
    struct decoder *decoder = NULL;
    plan.sp = plan.dp_shard = plan.dp_replicate = plan.tp = 1;
    plan.method = PLAN_METHOD_ULYSSES;
    plan.ring = 1;
    text_print(plan.exchange, sizeof plan.exchange, "%s",
               dev_kind_of(t->dev) == DEV_CPU ? "packed" : "nccl"); /* moves nothing */
    plan.zero_stage = 0;
    plan.chunks = 1;
    plan.order_n = 0;
    TRY(params_create(&t->layout, 0, alone, t->dev, params));
    TRY(params_init(*params, t->options.seed, t->queue));
    if (t->options.from[0] != '\0') {
        TRY(checkpoint_load(t->options.from, false, &t->layout, *params, t->queue));
        TRY(params_refresh(*params, t->queue));
    }
    enum status status = decoder_create(&t->layout, *params, &plan, alone->sp, t->dev, &decoder);
    if (status == STATUS_OK)
        status = whole_rows(t, decoder, valid, loss);
    if (status == STATUS_OK)
        status = params_finish_grads(*params, t->queue, norm);
    decoder_destroy(decoder);
    return status;
}

/* Rank 0's numbers become everybody's: what the others add is 0. */
static enum status tell_all(struct trainer *t, struct trainer_verdict *v)
{
    double all[] = {v->loss, v->whole_loss, v->loss_error, v->worst, v->worst_tensor, v->norm_error, v->tensors};
    enum { N = sizeof all / sizeof *all };
    for (int i = 0; i < N && comm_rank(t->world) != 0; i++)
        all[i] = 0;
    TRY(groups_sum(&t->groups, all, N, t->queue));
    *v = (struct trainer_verdict){all[0], all[1], all[2], all[3], (int)all[4], all[5], (int)all[6]};
    return STATUS_OK;
}

enum status trainer_verify(struct trainer *t, struct trainer_verdict *out)
{
    struct groups alone = {0};
    struct params *params = NULL;
    struct trainer_verdict verdict = {0};
    double norm, whole_norm = 0, valid = 0;
    enum status status;
    TRY(trainer_gradients(t, 0, &verdict.loss, &norm));
    for (int64_t m = 0; m < t->options.plan.accumulate; m++)
        valid += data_index(comm_rank(t->world), t->options.plan.sp) == 0 ? (double)t->batch[m].valid : 0;
    TRY(groups_sum(&t->groups, &valid, 1, t->queue));
    comm_set_deadline(t->world, PATIENCE_US);
    TRY_OUT(groups_create_alone(t->world, t->dev, &alone));
    alone.world = alone.sp; /* nobody else takes part */
    status =
        comm_rank(t->world) == 0 ? whole_run(t, &alone, valid, &params, &verdict.whole_loss, &whole_norm) : STATUS_OK;
    TRY_OUT(comm_agree(t->world, status, "run the rows whole"));
    TRY_OUT(compare_all(t, params, whole_norm, &verdict));
    verdict.loss_error = fabs(verdict.loss - verdict.whole_loss) / fmax(fabs(verdict.whole_loss), 1e-30);
    verdict.norm_error = fabs(norm - whole_norm) / fmax(whole_norm, 1e-30);
    TRY_OUT(tell_all(t, &verdict));
    *out = verdict;
out:
    params_destroy(params);
    groups_destroy(&alone);
    return status;
}
