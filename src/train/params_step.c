/* train/params_step.c -- gradients: lent, summed over ranks; the norm, and the step that uses them up. */
#include "train/params_state.h"

#include "base/mem.h"
#include "base/range.h"

#include <math.h>
#include <stdlib.h>

/* ---- gradients ---- */

static struct slot *grads_slot(struct params *params, int index)
{
    return index == 0                       ? &params->grads_first
           : params_is_layer(params, index) ? &params->grads[index % params_grad_slots(params)]
                                            : &params->grads_last;
}

enum status params_grads(struct params *params, int index, struct dev_queue *queue, float **out)
{
    struct slot *slot = grads_slot(params, index);
    *out = params->unit[index].grads;
    if (*out != NULL)
        return STATUS_OK;
    TRY(dev_event_wait(queue, slot->done));
    *out = slot->memory;
    return STATUS_OK;
}

/* What ranks have in common of a layer that they cut. */
static enum status sum_common(struct params *params, const struct links *links, int index, float *whole,
                              struct dev_queue *queue)
{
    const struct layout_unit *layout = &params->layout->unit[index];
    if (layout->alike > 0)
        TRY(comm_allreduce(links->cut, whole, layout->alike, DTYPE_FP32, params->scratch, queue));
    return layout->copied > 0 ? comm_allreduce(links->copies, whole + layout->alike, layout->copied, DTYPE_FP32,
                                               params->scratch, queue)
                              : STATUS_OK;
}

/* Leaves `whole` in no state to be used again. */
static enum status sum_into_part(struct params *params, const struct links *links, int index, float *whole, float *out,
                                 struct dev_queue *queue)
{
    TRY(sum_common(params, links, index, whole, queue));
    return comm_reduce_scatter(params_group(params, links, index), whole, out, params->unit[index].per, DTYPE_FP32,
                               params->scratch, queue);
}

/* Stage 0: over all that have data for it. */
static enum status sum_whole(struct params *params, int index, float *whole, struct dev_queue *queue)
{
    const struct groups *groups = params->groups;
    int64_t n = params->unit[index].padded;
    if (params->layout->ways == 1 || !params_is_layer(params, index))
        return comm_allreduce(groups->world, whole, n, DTYPE_FP32, params->scratch, queue);
    TRY(sum_common(params, &params->links, index, whole, queue));
    TRY(comm_allreduce(groups->layers, whole, n, DTYPE_FP32, params->scratch, queue));
    return comm_allreduce(groups->replicate, whole, n, DTYPE_FP32, params->scratch, queue);
}

/* Leaves the slot as the next unit wants it. */
static enum status call_reduce(void *arg)
{
    struct slot *slot = arg;
    struct params *params = slot->params;
    struct dev_queue *queue = params->carrier.queue;
    const struct unit *unit = &params->unit[slot->called];
    TRY(RANGE_AT("reduce gradients", slot->called,
                 sum_into_part(params, &params->carrier.links, slot->called, slot->memory, params->sum, queue)));
    TRY(nn_add(unit->per, DTYPE_FP32, unit->sums, params->sum, queue));
    return dev_fill(queue, slot->memory, 0, (size_t)unit->padded * sizeof(float));
}

enum status params_reduce(struct params *params, int index, struct dev_queue *queue)
{
    if (params->unit[index].grads != NULL)
        return STATUS_OK; /* at the end of the step */
    return params_carry(grads_slot(params, index), index, call_reduce, queue);
}

/* What is not summed yet. */
static enum status sum_rest(struct params *params, struct dev_queue *queue)
{
    for (int u = 0; u < params->layout->units; u++) {
        struct unit *unit = &params->unit[u];
        if (params->stage == 0) {
            TRY(sum_whole(params, u, unit->grads, queue));
            continue;
        }
        if (params->stage == 1)
            TRY(sum_into_part(params, &params->links, u, unit->grads, unit->sums, queue));
        if (comm_size(params->groups->replicate) > 1)
            TRY(comm_allreduce(params->groups->replicate, unit->sums, unit->per, DTYPE_FP32, params->scratch, queue));
    }
    return STATUS_OK;
}

/* The sum of squares of what no rank in front of this one counts. */
static enum status squares_of(struct params *params, int index, double *out, struct dev_queue *queue)
{
    const struct unit *unit = &params->unit[index];
    int64_t counted = params->layout->unit[index].counted, skip = 0, first = unit->per * unit->part;
    if (params->stage == 0 && params->layout->place > 0 && !params_is_layer(params, index))
        counted = unit->padded; /* whole on every rank */
    if (counted > first)
        skip = counted - first < unit->per ? counted - first : unit->per;
    return nn_sum(unit->per - skip, unit->sums + skip, true, out, params->scratch, queue);
}

/* Sums of units in order, then of ranks in order: every rank has the same norm, to the bit. */
static enum status norm_of(struct params *params, struct dev_queue *queue, double *norm)
{
    struct comm *group = params_norm_group(params);
    int units = params->layout->units;
    double *host = NULL, squares = 0;
    enum status status = STATUS_OK;
    TRY(mem_alloc((size_t)units * sizeof *host, "sums of squares", (void **)&host));
    for (int u = 0; u < units && status == STATUS_OK; u++)
        status = squares_of(params, u, params->squares + u, queue);
    if (status == STATUS_OK)
        status = dev_copy_now(queue, host, params->squares, (size_t)units * sizeof *host, INT64_MAX);
    for (int u = 0; u < units; u++)
        squares += host[u];
    free(host);
    if (status == STATUS_OK && group != NULL)
        status = groups_sum_over(group, &squares, 1, params->squares + units, queue);
    *norm = sqrt(squares);
    return status;
}

enum status params_finish_grads(struct params *params, struct dev_queue *queue, double *norm)
{
    TRY(params_carried(params, queue));
    TRY(RANGE("sum gradients", sum_rest(params, queue)));
    return norm_of(params, queue, norm);
}

static enum status clear(struct params *params, struct dev_queue *queue)
{
    for (int u = 0; u < params->layout->units; u++) {
        struct unit *unit = &params->unit[u];
        if (unit->grads != NULL)
            TRY(dev_fill(queue, unit->grads, 0, (size_t)unit->padded * sizeof(float)));
        if (unit->sums != unit->grads)
            TRY(dev_fill(queue, unit->sums, 0, (size_t)unit->per * sizeof(float)));
    }
    return STATUS_OK;
}

static enum status update_some(struct params *params, const struct nn_adamw *adamw, const struct unit *unit, int64_t at,
                               int64_t n, struct dev_queue *queue)
{
    char *weights = params->stage == 0 ? unit->weights : unit->narrow;
    void *weight = weights == NULL ? (void *)(unit->master + at) : weights + at * params->elem_bytes;
    float *master = unit->master + at, *m = unit->m + at, *v = unit->v + at;
    if (params->offload)
        return stream_adamw(params->stream, n, adamw, params->dtype, master, m, v, unit->sums + at, weight, queue);
    return nn_adamw(n, adamw, params->dtype, master, m, v, unit->sums + at, weight, queue);
}

/* Vectors do not decay. */
static enum status update(struct params *params, const struct nn_adamw *adamw, struct dev_queue *queue)
{
    if (params->offload)
        TRY(stream_begin(params->stream, queue));
    for (int t = 0; t < params->layout->tensors; t++) {
        const struct layout_tensor *tensor = &params->layout->tensor[t];
        int64_t from, at, n = params_part(params, tensor, &from, &at);
        struct nn_adamw how = *adamw;
        how.decay = tensor->matrix ? adamw->decay : 0;
        if (n > 0)
            TRY(update_some(params, &how, &params->unit[tensor->unit], at, n, queue));
    }
    return params->offload ? stream_end(params->stream, queue) : STATUS_OK;
}

enum status params_step(struct params *params, const struct nn_adamw *adamw, double clip, struct dev_queue *queue,
                        double *norm)
{
    struct nn_adamw how = *adamw;
    double found;
    TRY(params_finish_grads(params, queue, &found));
    found *= (double)adamw->grad_scale;
    if (!isfinite(found))
        return FAIL(STATUS_CHECK, "the gradients of step %lld are not finite", (long long)adamw->step);
    if (clip > 0 && found > clip)
        how.grad_scale *= (float)(clip / (found + 1e-6));
    TRY(RANGE("optimizer", update(params, &how, queue)));
    TRY(clear(params, queue));
    *norm = found;
    return RANGE("spread weights", params_spread(params, queue));
}

enum status params_finite(struct params *params, int unit, struct dev_queue *queue, bool *out)
{
    struct params_shard shard = params_shard(params, unit);
    double sum;
    TRY(nn_sum(shard.n, shard.grads, false, params->squares, params->scratch, queue));
    TRY(dev_copy_now(queue, &sum, params->squares, sizeof sum, INT64_MAX));
    *out = isfinite(sum);
    return STATUS_OK;
}
