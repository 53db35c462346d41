/* train/params.c -- memory of parameters, gradients and optimizer state, and the collectives that keep ranks alike.
 *
 * What is gathered and reduced unit by unit is called on a carrier: a queue beside the caller's, or the caller's. Forward and backward:
 *
 *     caller  | l-1    | l          | l+1        |       caller  | l+1        | l          | l-1        |
 *     beside           | gather l+1 |                    beside               | reduce l+1 | reduce l   |
 *                                                                             | gather l-1 | gather l-2 |
 *
 * Each call starts after what the caller had put on its own queue when it asked (`reached`), and whoever needs what it leaves waits for the
 * end of it (`done` of its slot). Units l and l +- 2 have one slot, so:
 *
 *   - gather l+1 is asked for before anything of l is put: the last readers of its slot, those of l-1, are in front of `reached`, and
 *     nothing else of the slot is put before its `done` was waited for. The same towards l-1.
 *   - reduce l+1 is asked for behind the last kernel that adds to its slot. The next that does is one of l-1, after its `done`; a slot
 *     alone, as in line, is waited for by l.
 *   - an update writes what gathers read, and sums over all units share the workspace of reductions: both come after all of the carrier.
 *
 * Calls of a carrier keep their order, the same on all ranks; its groups have a connection of their own. */
#include "train/params.h"

#include "base/mem.h"
#include "base/range.h"
#include "base/rng.h"
#include "base/team.h"
#include "base/units.h"
#include "train/stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 2 }; /* layers at a time: gathered; and reduced, where they are reduced beside */
enum { PASSING = 4 << 20 /* elements of offloaded states at a time: copies of 16 MiB */ };

/* Memory for a whole unit, lent to one unit at a time. */
struct slot {
    struct params *params; /* back, for a queue that calls */
    void *memory;
    int unit;               /* of weights: whose it holds or will when `done`, -1 nobody's */
    int called;             /* of the last call */
    struct dev_event *done; /* its end */
};

/* Groups as those of the same name, on one connection. */
struct links {
    struct comm *shard, *layers, *cut;
    struct comm
        *copies; /* of those that cut, ranks with the same kv heads; NULL where there are none, or all have them */
};

struct carrier {
    struct dev_queue *beside; /* NULL: the caller's carries */
    struct dev_queue *queue;  /* that carries, the one or the other */
    struct comm *job;         /* its connection; NULL: links are the caller's */
    struct links links;
    struct dev_event *reached; /* on one queue by the other */
};

struct unit {
    struct comm *group;    /* that shards it; NULL in stage 0 */
    int part;              /* which is this rank's */
    int64_t padded, per;   /* elements of all ranks of the group, and of each */
    void *weights;         /* whole, of the storage dtype; NULL where they are gathered into a slot */
    void *narrow;          /* this rank's part of them, to be gathered; in fp32 that is `master` */
    float *master, *m, *v; /* [per]; m and v, and masters that are no weights, may be in host memory */
    float *grads;          /* whole; NULL where they are lent a slot */
    float *sums;           /* [per] summed over ranks; of stage 0 this is `grads` */
};

struct params {
    const struct layout *layout;
    int stage;
    const struct groups *groups;
    struct links links;
    struct carrier carrier;
    bool beside; /* it is to have a queue */
    struct dev *dev;
    enum dtype dtype;
    int elem_bytes;
    struct dev_room room, host;
    bool offload;               /* optimizer states */
    struct stream *stream;      /* their way through the device */
    struct unit *unit;          /* [layout->units] */
    struct slot weights[SLOTS]; /* of layers, stage 3 */
    struct slot first, last;    /* of the embedding's and the last unit, stage 3 */
    struct slot grads[SLOTS];   /* of layers, stages 2 and 3: 0 whenever nobody has one; in line there is one */
    struct slot grads_first, grads_last; /* stages 2 and 3 */
    float *sum;                          /* [largest per] of one reduce */
    void *scratch;                       /* of collectives and norms */
    double *squares;                     /* device: [units + 1 + ranks that add them up] */
};

/* ---- life ---- */

/* Where optimizer states are. */
static struct dev_room *state_room(struct params *params)
{
    return params->offload ? &params->host : &params->room;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static bool is_layer(const struct params *params, int unit)
{
    return unit > 0 && unit < params->layout->units - 1;
}

/* Elements that a slot of layers holds: the largest of them. */
static int64_t largest(const struct params *params, bool layers, bool per)
{
    int64_t elems = 0;
    for (int u = 0; u < params->layout->units; u++)
        if (!layers || is_layer(params, u))
            elems = most(elems, per ? params->unit[u].per : params->unit[u].padded);
    return elems;
}

static enum status unit_alloc(struct params *params, int index)
{
    struct unit *unit = &params->unit[index];
    int64_t per = unit->per * (int64_t)sizeof(float);
    bool narrow = params->dtype != DTYPE_FP32;
    if (params->stage < 3)
        TRY(dev_room_take(&params->room, unit->padded * params->elem_bytes, "weights", &unit->weights));
    if (params->stage < 2)
        TRY(dev_room_take(&params->room, unit->padded * (int64_t)sizeof(float), "gradients", &unit->grads));
    if (params->stage == 0 && !narrow)
        unit->master = unit->weights; /* one and the same */
    else if (narrow)
        TRY(dev_room_take(state_room(params), per, "fp32 weights", &unit->master));
    else
        TRY(dev_room_take(&params->room, per, "fp32 weights", &unit->master)); /* they are gathered */
    if (params->stage > 0 && narrow)
        TRY(dev_room_take(&params->room, unit->per * params->elem_bytes, "this rank's weights", &unit->narrow));
    if (params->stage == 0)
        unit->sums = unit->grads;
    else
        TRY(dev_room_take(&params->room, per, "summed gradients", &unit->sums));
    TRY(dev_room_take(state_room(params), per, "optimizer state", &unit->m));
    return dev_room_take(state_room(params), per, "optimizer state", &unit->v);
}

static enum status slot_alloc(struct params *params, struct slot *slot, int64_t elems, int elem_bytes, const char *what)
{
    slot->params = params;
    slot->unit = -1;
    TRY(dev_room_take(&params->room, elems * elem_bytes, what, &slot->memory));
    return params->room.counts ? STATUS_OK : dev_event_create(params->dev, &slot->done);
}

static int grad_slots(const struct params *params)
{
    return params->beside ? SLOTS : 1;
}

static enum status slots_alloc(struct params *params)
{
    int last = params->layout->units - 1;
    if (params->stage == 3) {
        for (int s = 0; s < SLOTS; s++)
            TRY(slot_alloc(params, &params->weights[s], largest(params, true, false), params->elem_bytes,
                           "gathered weights"));
        TRY(slot_alloc(params, &params->first, params->unit[0].padded, params->elem_bytes, "gathered weights"));
        TRY(slot_alloc(params, &params->last, params->unit[last].padded, params->elem_bytes, "gathered weights"));
    }
    if (params->stage >= 2) {
        for (int s = 0; s < grad_slots(params); s++)
            TRY(slot_alloc(params, &params->grads[s], largest(params, true, false), sizeof(float),
                           "a layer's gradients"));
        TRY(slot_alloc(params, &params->grads_first, params->unit[0].padded, sizeof(float),
                       "the embedding's gradients"));
        TRY(slot_alloc(params, &params->grads_last, params->unit[last].padded, sizeof(float), "the head's gradients"));
    }
    return STATUS_OK;
}

/* Whose sums of squares make the norm; NULL: this rank has them all. */
static struct comm *norm_group(const struct params *params)
{
    return params->stage > 0 ? params->groups->shard : params->layout->ways > 1 ? params->groups->cut : NULL;
}

static size_t scatter_scratch(const struct params *params)
{
    size_t bytes = 0;
    for (int u = 0; u < params->layout->units; u++) {
        const struct unit *unit = &params->unit[u];
        size_t all = unit->group != NULL ? comm_reduce_scatter_scratch(unit->group, unit->per, DTYPE_FP32) : 0;
        bytes = bytes > all ? bytes : all;
    }
    return bytes;
}

static enum status scratch_alloc(struct params *params)
{
    const struct groups *groups = params->groups;
    int64_t whole = largest(params, false, false), per = largest(params, false, true);
    size_t bytes = scatter_scratch(params);
    size_t norm = nn_sum_scratch(per);
    const struct {
        const struct comm *over;
        int64_t elems;
    } sums[] = {{params->stage == 0 ? groups->world : NULL, whole},
                {groups->replicate, per},
                {params->layout->ways > 1 ? groups->cut : NULL, whole},
                {params->layout->ways > 1 ? groups->layers : NULL, whole},
                {params->links.copies, whole}};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        size_t all = sums[i].over != NULL ? comm_allreduce_scratch(sums[i].over, sums[i].elems, DTYPE_FP32) : 0;
        bytes = bytes > all ? bytes : all;
    }
    bytes = bytes > norm ? bytes : norm;
    TRY(dev_room_take(&params->room, (int64_t)bytes, "workspace of sums", &params->scratch));
    TRY(dev_room_take(&params->room, per * (int64_t)sizeof(float), "a summed part", &params->sum));
    int ranks = norm_group(params) != NULL ? comm_size(norm_group(params)) : 1;
    return dev_room_take(&params->room, (int64_t)sizeof(double) * (params->layout->units + 1 + ranks),
                         "sums of squares", &params->squares);
}

static enum status stream_open(struct params *params)
{
    int64_t per = largest(params, false, true), piece = per < PASSING ? per : PASSING;
    bool masters = params->dtype != DTYPE_FP32;
    if (!params->offload)
        return STATUS_OK;
    params->room.bytes += stream_need_bytes(piece, masters);
    return params->room.counts ? STATUS_OK : stream_create(piece, masters, params->dev, &params->stream);
}

static enum status alloc_all(struct params *params)
{
    for (int u = 0; u < params->layout->units; u++)
        TRY(unit_alloc(params, u));
    TRY(slots_alloc(params));
    TRY(stream_open(params));
    return scratch_alloc(params);
}

static enum status units_make(struct params *params)
{
    TRY(mem_alloc((size_t)params->layout->units * sizeof *params->unit, "units of parameters", (void **)&params->unit));
    for (int u = 0; u < params->layout->units; u++) {
        struct unit *unit = &params->unit[u];
        struct comm *group = is_layer(params, u) ? params->groups->layers : params->groups->shard;
        int parts = params->stage > 0 ? comm_size(group) : 1;
        int64_t elems = params->layout->unit[u].elems, step = (int64_t)parts * LAYOUT_ALIGN;
        unit->group = params->stage > 0 ? group : NULL;
        unit->part = params->stage > 0 ? comm_rank(group) : 0;
        unit->padded = (elems + step - 1) / step * step;
        unit->per = unit->padded / parts;
    }
    return STATUS_OK;
}

static enum status build(struct params *params)
{
    TRY(units_make(params));
    TRY(alloc_all(params));
    TRY(dev_event_create(params->dev, &params->carrier.reached));
    if (!params->beside)
        return STATUS_OK;
    TRY(dev_queue_create_beside(params->dev, &params->carrier.beside));
    params->carrier.queue = params->carrier.beside;
    return STATUS_OK;
}

/* The ranks of `group` on another connection. */
static enum status group_again(struct comm *job, const struct comm *group, struct comm **out)
{
    return comm_split(job, comm_job_rank(group, 0), comm_rank(group), out);
}

static enum status links_open(struct comm *job, const struct links *as, struct links *out)
{
    TRY(group_again(job, as->shard, &out->shard));
    if (as->layers == as->shard)
        out->layers = out->shard;
    else
        TRY(group_again(job, as->layers, &out->layers));
    if (as->cut != NULL)
        TRY(group_again(job, as->cut, &out->cut));
    return as->copies != NULL ? group_again(job, as->copies, &out->copies) : STATUS_OK;
}

/* Groups of the caller's connection. */
static enum status links_make(struct params *params)
{
    const struct layout *layout = params->layout;
    const struct groups *groups = params->groups;
    params->links = (struct links){groups->shard, groups->layers, groups->cut, NULL};
    if (layout->copies > 1 && layout->copies < layout->ways)
        return comm_split(groups->cut, layout->place / layout->copies, layout->place, &params->links.copies);
    return STATUS_OK;
}

static enum status connect(struct params *params)
{
    struct carrier *carrier = &params->carrier;
    TRY(links_make(params));
    carrier->links = params->links;
    if (!params->beside)
        return STATUS_OK;
    TRY(comm_open_beside(params->groups->world, &carrier->job));
    carrier->links = (struct links){0};
    return links_open(carrier->job, &params->links, &carrier->links);
}

static enum status params_new(const struct layout *layout, int zero_stage, bool offload, const struct groups *groups,
                              bool beside, struct dev *dev, struct params **out)
{
    struct params *params = NULL;
    TRY(comm_agree(groups->world, mem_alloc(sizeof *params, "parameters", (void **)&params), "prepare parameters"));
    params->layout = layout;
    params->stage = zero_stage;
    params->offload = offload;
    params->groups = groups;
    params->dev = params->room.dev = params->host.dev = dev;
    params->host.host = true;
    params->dtype = layout->block.dtype;
    params->elem_bytes = dtype_bytes(params->dtype);
    params->beside = beside && zero_stage >= 2 && comm_size(groups->shard) > 1;
    *out = params;
    return STATUS_OK;
}

enum status params_create(const struct layout *layout, int zero_stage, bool offload, const struct groups *groups,
                          bool beside, struct dev *dev, struct params **out)
{
    struct params *params;
    TRY(params_new(layout, zero_stage, offload, groups, beside, dev, &params));
    enum status status = connect(params);
    if (status == STATUS_OK)
        status = comm_agree(groups->world, build(params), "allocate parameters");
    if (status != STATUS_OK) {
        params_destroy(params);
        return status;
    }
    *out = params;
    return STATUS_OK;
}

static enum status count(struct params *params)
{
    params->room.counts = params->host.counts = true;
    TRY(units_make(params));
    return alloc_all(params);
}

enum status params_need(const struct layout *layout, int zero_stage, bool offload, const struct groups *groups,
                        bool beside, struct dev *dev, int64_t *out_bytes, int64_t *out_host_bytes)
{
    struct params *params;
    TRY(params_new(layout, zero_stage, offload, groups, beside, dev, &params));
    enum status status = links_make(params);
    if (status == STATUS_OK)
        status = comm_agree(groups->world, count(params), "count parameters");
    if (status == STATUS_OK) {
        *out_bytes = params_bytes(params);
        *out_host_bytes = params_host_bytes(params);
    }
    params_destroy(params);
    return status;
}

static void carrier_close(struct carrier *carrier)
{
    if (carrier->job != NULL) {
        comm_close(carrier->links.copies);
        comm_close(carrier->links.cut);
        if (carrier->links.layers != carrier->links.shard)
            comm_close(carrier->links.layers);
        comm_close(carrier->links.shard);
        comm_close(carrier->job);
    }
    dev_event_destroy(carrier->reached);
}

void params_destroy(struct params *params)
{
    if (params == NULL)
        return;
    /* First: on the CPU it finishes what is on it; a GPU does so before it frees. */
    dev_queue_destroy(params->carrier.beside);
    stream_destroy(params->stream);
    struct slot *slots[] = {&params->weights[0], &params->weights[1], &params->first,       &params->last,
                            &params->grads[0],   &params->grads[1],   &params->grads_first, &params->grads_last};
    for (size_t s = 0; s < sizeof slots / sizeof *slots; s++)
        dev_event_destroy(slots[s]->done);
    dev_room_free(&params->room);
    dev_room_free(&params->host);
    carrier_close(&params->carrier);
    comm_close(params->links.copies);
    free(params->unit);
    free(params);
}

int64_t params_bytes(const struct params *params)
{
    return params->room.bytes;
}

int64_t params_host_bytes(const struct params *params)
{
    return params->host.bytes;
}

struct params_shard params_shard(const struct params *params, int index)
{
    const struct unit *unit = &params->unit[index];
    return (struct params_shard){.first = unit->per * unit->part,
                                 .n = unit->per,
                                 .group = unit->group,
                                 .master = unit->master,
                                 .m = unit->m,
                                 .v = unit->v,
                                 .grads = unit->sums,
                                 .offloaded = params->offload};
}

/* ---- what is carried ---- */

/* On the carrier, after what the caller has put on its queue. */
static enum status carry(struct slot *slot, int index, enum status (*fn)(void *arg), struct dev_queue *queue)
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

/* The caller's queue goes on after all that is carried. */
static enum status carried(struct params *params, struct dev_queue *queue)
{
    struct carrier *carrier = &params->carrier;
    if (carrier->beside == NULL)
        return STATUS_OK;
    TRY(dev_event_record(carrier->reached, carrier->beside));
    return dev_event_wait(queue, carrier->reached);
}

static struct comm *group_of(const struct params *params, const struct links *links, int unit)
{
    return is_layer(params, unit) ? links->layers : links->shard;
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
    return comm_allgather(group_of(params, links, index), part_of_weights(params, unit), whole,
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
    return index == 0 ? &params->first : is_layer(params, index) ? &params->weights[index % SLOTS] : &params->last;
}

enum status params_prefetch(struct params *params, int index, struct dev_queue *queue)
{
    struct slot *slot = weights_slot(params, index);
    if (params->unit[index].weights != NULL || slot->unit == index)
        return STATUS_OK;
    TRY(dev_event_wait(queue, slot->done)); /* of a gather that nobody asked for in the end */
    slot->unit = -1;
    TRY(carry(slot, index, call_gather, queue));
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

/* Whole weights again from what ranks have: those of stages 1 and 2 now, those of stage 3 when they are asked for. */
static enum status spread(struct params *params, struct dev_queue *queue)
{
    params->first.unit = params->last.unit = -1;
    for (int s = 0; s < SLOTS; s++)
        params->weights[s].unit = -1;
    for (int u = 0; u < params->layout->units && (params->stage == 1 || params->stage == 2); u++)
        TRY(gather(params, &params->links, u, params->unit[u].weights, queue));
    return STATUS_OK;
}

enum status params_refresh(struct params *params, struct dev_queue *queue)
{
    TRY(carried(params, queue));
    for (int u = 0; u < params->layout->units; u++) {
        struct unit *unit = &params->unit[u];
        void *narrow = params->stage == 0 ? unit->weights : unit->narrow;
        if (narrow != NULL && narrow != unit->master)
            TRY(nn_convert(unit->per, DTYPE_FP32, unit->master, params->dtype, narrow, queue));
    }
    return spread(params, queue);
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

int64_t params_part(const struct params *params, const struct layout_tensor *tensor, int64_t *from, int64_t *at)
{
    struct params_shard shard = params_shard(params, tensor->unit);
    int64_t begin = most(tensor->offset, shard.first), tensor_end = tensor->offset + tensor->rows * tensor->cols;
    int64_t end = tensor_end < shard.first + shard.n ? tensor_end : shard.first + shard.n;
    *from = begin - tensor->offset;
    *at = begin - shard.first;
    return end > begin ? end - begin : 0;
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
    struct team *team = NULL;
    float *piece = NULL;
    TRY(mem_alloc((size_t)drawn_piece(params) * sizeof *piece, "initial weights", (void **)&piece));
    enum status status = STATUS_OK;
    if (team_create(cpu ? dev_threads(params->dev) : team_spare(MOST_THREADS), &team) != STATUS_OK) {
        status_clear();
        status = team_create(1, &team); /* no more threads are to be had: slower */
    }
    for (int t = 0; t < params->layout->tensors && status == STATUS_OK; t++)
        status = draw_tensor(params, t, seed, team, piece, queue);
    team_destroy(team);
    free(piece);
    return status;
}

enum status params_init(struct params *params, uint64_t seed, struct dev_queue *queue)
{
    TRY(comm_agree(params->groups->world, draw_all(params, seed, queue), "draw weights"));
    return params_refresh(params, queue);
}

/* ---- gradients ---- */

static struct slot *grads_slot(struct params *params, int index)
{
    return index == 0                ? &params->grads_first
           : is_layer(params, index) ? &params->grads[index % grad_slots(params)]
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
    return comm_reduce_scatter(group_of(params, links, index), whole, out, params->unit[index].per, DTYPE_FP32,
                               params->scratch, queue);
}

/* Stage 0: over all that have data for it. */
static enum status sum_whole(struct params *params, int index, float *whole, struct dev_queue *queue)
{
    const struct groups *groups = params->groups;
    int64_t n = params->unit[index].padded;
    if (params->layout->ways == 1 || !is_layer(params, index))
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
    return carry(grads_slot(params, index), index, call_reduce, queue);
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
    if (params->stage == 0 && params->layout->place > 0 && !is_layer(params, index))
        counted = unit->padded; /* whole on every rank */
    if (counted > first)
        skip = counted - first < unit->per ? counted - first : unit->per;
    return nn_sum(unit->per - skip, unit->sums + skip, true, out, params->scratch, queue);
}

/* Sums of units in order, then of ranks in order: every rank has the same norm, to the bit. */
static enum status norm_of(struct params *params, struct dev_queue *queue, double *norm)
{
    struct comm *group = norm_group(params);
    int units = params->layout->units, parts = group != NULL ? comm_size(group) : 1;
    double *host = NULL, squares = 0;
    TRY(mem_alloc((size_t)(units > parts ? units : parts) * sizeof *host, "sums of squares", (void **)&host));
    enum status status = STATUS_OK;
    for (int u = 0; u < units && status == STATUS_OK; u++)
        status = squares_of(params, u, params->squares + u, queue);
    if (status == STATUS_OK)
        status = dev_copy(queue, host, params->squares, (size_t)units * sizeof *host);
    if (status == STATUS_OK)
        status = dev_sync(queue, INT64_MAX);
    for (int u = 0; u < units; u++)
        squares += host[u];
    if (status == STATUS_OK && parts > 1) {
        double *mine = params->squares + units, *all = mine + 1;
        status = dev_copy(queue, mine, &squares, sizeof squares);
        if (status == STATUS_OK)
            status = comm_allgather(group, mine, all, sizeof squares, queue);
        if (status == STATUS_OK)
            status = dev_copy(queue, host, all, (size_t)parts * sizeof *host);
        if (status == STATUS_OK)
            status = dev_sync(queue, INT64_MAX);
        squares = 0;
        for (int p = 0; p < parts; p++)
            squares += host[p];
    }
    free(host);
    *norm = sqrt(squares);
    return status;
}

enum status params_finish_grads(struct params *params, struct dev_queue *queue, double *norm)
{
    TRY(carried(params, queue));
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
    if (!isfinite(found))
        return FAIL(STATUS_CHECK, "the gradients of step %lld are not finite", (long long)adamw->step);
    if (clip > 0 && found > clip)
        how.grad_scale *= (float)(clip / (found + 1e-6));
    TRY(RANGE("optimizer", update(params, &how, queue)));
    TRY(clear(params, queue));
    *norm = found;
    return RANGE("spread weights", spread(params, queue));
}

enum status params_finite(struct params *params, int unit, struct dev_queue *queue, bool *out)
{
    struct params_shard shard = params_shard(params, unit);
    double sum;
    TRY(nn_sum(shard.n, shard.grads, false, params->squares, params->scratch, queue));
    TRY(dev_copy(queue, &sum, params->squares, sizeof sum));
    TRY(dev_sync(queue, INT64_MAX));
    *out = isfinite(sum);
    return STATUS_OK;
}
