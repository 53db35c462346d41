/* train/params_weights.c -- weights of a unit, gathered while they are used; initial weights. */
#include "train/params_state.h"

#include "base/mem.h"
#include "base/range.h"
#include "base/rng.h"
#include "base/team.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is carried ---- */

enum status params_carry(struct slot *slot, int index, enum status (*fn)(void *arg), struct dev_queue *queue)
{
    struct carrier *carrier = &slot->params->carrier;
    if (carrier->beside == NULL)
        carrier->queue = queue;
    slot->called = index;
    TRY(dev_event_record(carrier->reached, queue));
    TRY(dev_event_wait(carrier->queue, carrier->reached));
    TRY(dev_call(carrier->queue, fn, slot));
    return dev_event_record(slot->done, carrier->queue);
}

enum status params_carried(struct params *params, struct dev_queue *queue)
{
    struct carrier *carrier = &params->carrier;
    if (carrier->beside == NULL)
        return STATUS_OK;
    TRY(dev_event_record(carrier->reached, carrier->beside));
    return dev_event_wait(queue, carrier->reached);
}

/* ---- weights ---- */

/* What a rank of the group gives to the others. */
static const void *part_of_weights(const struct params *params, const struct unit *unit)
{
    return params->dtype == DTYPE_FP32 ? (const void *)unit->master : unit->narrow;
}

static enum status gather(struct params *params, const struct links *links, int index, void *whole,
                          struct dev_queue *queue)
{
    const struct unit *unit = &params->unit[index];
    return comm_allgather(params_group(params, links, index), part_of_weights(params, unit), whole,
                          (size_t)(unit->per * params->elem_bytes), queue);
}

static enum status call_gather(void *arg)
{
    struct slot *slot = arg;
    struct params *params = slot->params;
    const struct carrier *carrier = &params->carrier;
    return RANGE_AT("gather weights", slot->called,
                    gather(params, &carrier->links, slot->called, slot->memory, carrier->queue));
}

static struct slot *weights_slot(struct params *params, int index)
{
    return index == 0                       ? &params->first
           : params_is_layer(params, index) ? &params->weights[index % PARAMS_SLOTS]
                                            : &params->last;
}

enum status params_prefetch(struct params *params, int index, struct dev_queue *queue)
{
    struct slot *slot = weights_slot(params, index);
    if (params->unit[index].weights != NULL || slot->unit == index)
        return STATUS_OK;
    TRY(dev_event_wait(queue, slot->done)); /* of a gather that nobody asked for in the end */
    slot->unit = -1;
    TRY(params_carry(slot, index, call_gather, queue));
    slot->unit = index;
    return STATUS_OK;
}

enum status params_weights(struct params *params, int index, struct dev_queue *queue, const void **out)
{
    struct slot *slot = weights_slot(params, index);
    *out = params->unit[index].weights;
    if (*out != NULL)
        return STATUS_OK;
    TRY(params_prefetch(params, index, queue));
    TRY(dev_event_wait(queue, slot->done));
    *out = slot->memory;
    return STATUS_OK;
}

enum status params_spread(struct params *params, struct dev_queue *queue)
{
    params->first.unit = params->last.unit = -1;
    for (int s = 0; s < PARAMS_SLOTS; s++)
        params->weights[s].unit = -1;
    for (int u = 0; u < params->layout->units && (params->stage == 1 || params->stage == 2); u++)
        TRY(gather(params, &params->links, u, params->unit[u].weights, queue));
    return STATUS_OK;
}

enum status params_refresh(struct params *params, struct dev_queue *queue)
{
    TRY(params_carried(params, queue));
    for (int u = 0; u < params->layout->units; u++) {
        struct unit *unit = &params->unit[u];
        void *narrow = params->stage == 0 ? unit->weights : unit->narrow;
        if (narrow != NULL && narrow != unit->master)
            TRY(nn_convert(unit->per, DTYPE_FP32, unit->master, params->dtype, narrow, queue));
    }
    return params_spread(params, queue);
}

/* ---- initial weights ---- */

static float drawn(uint64_t key, int64_t element)
{
    const double pi = 3.14159265358979323846;
    double u = ((double)(rng_hash(key, (uint64_t)element * 2) >> 11) + 0.5) * 0x1p-53;
    double w = (double)(rng_hash(key, (uint64_t)element * 2 + 1) >> 11) * 0x1p-53;
    return (float)(0.02 * sqrt(-2 * log(u)) * cos(2 * pi * w));
}

/* Elements [from, from + n) of what is here of a tensor: the whole tensor is the same however it is cut. */
static void draw(const struct layout *layout, const struct layout_tensor *tensor, uint64_t key, int64_t from, int64_t n,
                 float *out)
{
    bool norm = !tensor->matrix && strstr(tensor->name, "norm") != NULL;
    for (int64_t done = 0; done < n;) {
        int64_t whole, run = layout_run(layout, tensor, from + done, n - done, &whole);
        for (int64_t i = 0; i < run; i++)
            out[done + i] = tensor->matrix ? drawn(key, whole + i) : norm ? 1.0f : 0.0f;
        done += run;
    }
}

struct drawing {
    const struct layout *layout;
    const struct layout_tensor *tensor;
    uint64_t key;
    int64_t from, n;
    float *out;
};

enum { DRAWN_PIECE = 1 << 22, DRAWN_SLICE = 1 << 14 };

static void draw_slice(void *arg, int64_t task, int thread)
{
    const struct drawing *d = arg;
    int64_t begin = task * DRAWN_SLICE, n = d->n - begin < DRAWN_SLICE ? d->n - begin : DRAWN_SLICE;
    (void)thread;
    draw(d->layout, d->tensor, d->key, d->from + begin, n, d->out + begin);
}

/* Billions of logarithms and cosines: threads share them. */
static enum status draw_tensor(struct params *params, int index, uint64_t seed, struct team *team, float *piece,
                               struct dev_queue *queue)
{
    const struct layout_tensor *tensor = &params->layout->tensor[index];
    int64_t from, at, n = params_part(params, tensor, &from, &at);
    for (int64_t done = 0; done < n; done += DRAWN_PIECE) {
        int64_t some = n - done < DRAWN_PIECE ? n - done : DRAWN_PIECE;
        struct drawing drawing = {params->layout, tensor, rng_hash(seed, (uint64_t)index), from + done, some, piece};
        team_run(team, (some + DRAWN_SLICE - 1) / DRAWN_SLICE, draw_slice, &drawing);
        TRY(dev_copy(queue, params->unit[tensor->unit].master + at + done, piece, (size_t)some * sizeof *piece));
    }
    return STATUS_OK;
}

/* Elements drawn before they are copied: no more than the longest tensor has here. */
static int64_t drawn_piece(const struct params *params)
{
    int64_t longest = 0, from, at;
    for (int t = 0; t < params->layout->tensors && longest < DRAWN_PIECE; t++) {
        int64_t n = params_part(params, &params->layout->tensor[t], &from, &at);
        longest = n > longest ? n : longest;
    }
    return longest < DRAWN_PIECE ? longest : DRAWN_PIECE;
}

static enum status draw_all(struct params *params, uint64_t seed, struct dev_queue *queue)
{
    enum { MOST_THREADS = 16 };
    bool cpu = dev_kind_of(params->dev) == DEV_CPU;
    float *piece = NULL;
    TRY(mem_alloc((size_t)drawn_piece(params) * sizeof *piece, "initial weights", (void **)&piece));
    enum status status = STATUS_OK;
    struct team *team = team_or_alone(cpu ? dev_threads(params->dev) : team_spare(MOST_THREADS));
    for (int t = 0; t < params->layout->tensors && status == STATUS_OK; t++)
        status = draw_tensor(params, t, seed, team, piece, queue);
    team_destroy(team);
    free(piece);
    return status;
}

enum status params_init(struct params *params, uint64_t seed, struct dev_queue *queue)
{
    TRY(groups_await(params->groups, draw_all(params, seed, queue), "draw weights"));
    return params_refresh(params, queue);
}
