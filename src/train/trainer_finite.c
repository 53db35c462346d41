/* train/trainer_finite.c -- a step whose loss or gradient is not finite: which rank, which layer.
 *
 * Nothing is watched while all is well: a NaN stays one, so the loss tells. Only then are the rows run again, and what each layer gave is
 * looked at. All ranks come here together, for they have the same loss and the same norm.
 */
#include "base/text.h"
#include "train/trainer_state.h"

#include <math.h>

/* The largest of each rank's number, and of those that have it the first rank; -1 where no rank has one above 0. */
static enum status first_of(struct trainer *t, double *value, int *rank)
{
    int ranks = comm_size(t->world);
    double all = *value > 0 ? *value * ranks + (ranks - 1 - comm_rank(t->world)) : 0;
    TRY(comm_max(t->world, &all, 1));
    *value = floor(all / ranks);
    *rank = *value > 0 ? ranks - 1 - (int)fmod(all, ranks) : -1;
    return STATUS_OK;
}

/* Forward again, micro-step by micro-step, up to one in which something is not finite before the head: *at in 0 .. layers as of
 * decoder_not_finite, -1: nothing is. */
static enum status find_layer(struct trainer *t, int *at, int *rank)
{
    int layers = t->options.model.layers;
    *at = *rank = -1;
    for (int64_t m = 0; m < t->options.plan.accumulate && *at < 0; m++) {
        const struct data_batch *b = &t->batch[m];
        struct decoder_batch batch = {b->ids, b->labels, b->positions};
        struct problem problem;
        double loss, value;
        int here = -1;
        trainer_problem(&t->options, b, comm_size(t->world), &problem);
        TRY(decoder_run(t->decoder, &problem, &batch, 0, false, t->queue, &loss));
        TRY(comm_agree(t->world, decoder_not_finite(t->decoder, t->queue, &here), "look for what is not finite"));
        value = here < 0 ? 0 : layers + 1 - here;
        TRY(first_of(t, &value, rank));
        *at = value > 0 ? layers + 1 - (int)value : -1;
    }
    return STATUS_OK;
}

/* What all ranks found alike. */
static enum status advise(enum status status)
{
    return status_agreed(
        HINT(status, "nothing was changed: a lower --lr, or other initial weights; checkpoints are as they were"));
}

enum status trainer_loss_not_finite(struct trainer *t, bool evaluation, double loss, double mine)
{
    double value = isfinite(mine) ? 0 : 1;
    int first, at, rank;
    char when[64];
    text_print(when, sizeof when, evaluation ? "evaluation after step %lld" : "step %lld",
               (long long)t->done + (evaluation ? 0 : 1));
    TRY(first_of(t, &value, &first));
    TRY(find_layer(t, &at, &rank));
    if (at < 0)
        return advise(FAIL(STATUS_CHECK, "%s: the loss is %g, by what the head of rank %d gives", when, loss, first));
    if (at == 0)
        return advise(
            FAIL(STATUS_CHECK, "%s: the loss is %g, by what the embedding of rank %d gives", when, loss, rank));
    return advise(
        FAIL(STATUS_CHECK, "%s: the loss is %g, by what layer %d of rank %d gives", when, loss, at - 1, rank));
}

/* Backward goes from the last unit to the first, so the last that is not finite was the first to be so. */
enum status trainer_grads_not_finite(struct trainer *t)
{
    double value = 0;
    int rank, layers = t->options.model.layers;
    enum status status = STATUS_OK;
    for (int u = t->layout.units - 1; u >= 0 && value <= 0 && status == STATUS_OK; u--) {
        bool finite = true;
        status = params_finite(t->params, u, t->queue, &finite);
        value = finite ? 0 : u + 1;
    }
    TRY(comm_agree(t->world, status, "look for what is not finite"));
    TRY(first_of(t, &value, &rank));
    int unit = (int)value - 1;
    if (unit > 0 && unit <= layers)
        return advise(FAIL(STATUS_CHECK,
                           "step %lld: the loss is finite, the gradient of layer %d is not (rank %d's part)",
                           (long long)t->done + 1, unit - 1, rank));
    return advise(FAIL(STATUS_CHECK, "step %lld: the loss is finite, the gradient of the %s is not (rank %d's part)",
                       (long long)t->done + 1, unit == 0 ? "embedding" : "head", rank));
}
