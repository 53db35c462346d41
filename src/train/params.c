/* train/params.c -- memory of parameters, gradients and optimizer state: what there is in each stage, taken and given back. */
#include "train/params_state.h"

#include "base/mem.h"

#include <stdlib.h>

enum { PASSING = 4 << 20 /* elements of offloaded states at a time: copies of 16 MiB */ };

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Where optimizer states are. */
static struct dev_room *state_room(struct params *params)
{
    return params->offload ? &params->host : &params->room;
}

/* Elements that a slot of layers holds: the largest of them. */
static int64_t largest(const struct params *params, bool layers, bool per)
{
    int64_t elems = 0;
    for (int u = 0; u < params->layout->units; u++)
        if (!layers || params_is_layer(params, u))
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

static enum status slots_alloc(struct params *params)
{
    int last = params->layout->units - 1;
    if (params->stage == 3) {
        for (int s = 0; s < PARAMS_SLOTS; s++)
            TRY(slot_alloc(params, &params->weights[s], largest(params, true, false), params->elem_bytes,
                           "gathered weights"));
        TRY(slot_alloc(params, &params->first, params->unit[0].padded, params->elem_bytes, "gathered weights"));
        TRY(slot_alloc(params, &params->last, params->unit[last].padded, params->elem_bytes, "gathered weights"));
    }
    if (params->stage >= 2) {
        for (int s = 0; s < params_grad_slots(params); s++)
            TRY(slot_alloc(params, &params->grads[s], largest(params, true, false), sizeof(float),
                           "a layer's gradients"));
        TRY(slot_alloc(params, &params->grads_first, params->unit[0].padded, sizeof(float),
                       "the embedding's gradients"));
        TRY(slot_alloc(params, &params->grads_last, params->unit[last].padded, sizeof(float), "the head's gradients"));
    }
    return STATUS_OK;
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
    if (params->stage >= 2)
        TRY(dev_room_take(&params->room, per * (int64_t)sizeof(float), "a summed part", &params->sum));
    size_t over = params_norm_group(params) != NULL ? groups_sum_room(params_norm_group(params), 1) : 0;
    return dev_room_take(&params->room, (int64_t)(((size_t)params->layout->units + over) * sizeof(double)),
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

int64_t params_per(const struct layout *layout, int unit, int ranks)
{
    int64_t step = (int64_t)ranks * LAYOUT_ALIGN;
    return (layout->unit[unit].elems + step - 1) / step * LAYOUT_ALIGN;
}

static enum status units_make(struct params *params)
{
    TRY(mem_alloc((size_t)params->layout->units * sizeof *params->unit, "units of parameters", (void **)&params->unit));
    for (int u = 0; u < params->layout->units; u++) {
        struct unit *unit = &params->unit[u];
        struct comm *group = params_is_layer(params, u) ? params->groups->layers : params->groups->shard;
        int parts = params->stage > 0 ? comm_size(group) : 1;
        unit->group = params->stage > 0 ? group : NULL;
        unit->part = params->stage > 0 ? comm_rank(group) : 0;
        unit->per = params_per(params->layout, u, parts);
        unit->padded = unit->per * parts;
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

/* Groups over which steps sum, here and in blocks (params_step.c, sp/block.h). One after another on all ranks: each is in several. */
static enum status sums_open(struct params *params)
{
    const struct groups *groups = params->groups;
    const struct links *links = params->stage < 2 ? &params->links : &params->carrier.links;
    struct comm *const all[] = {params->stage == 0 ? groups->world : links->shard,
                                params->layout->ways > 1 ? links->layers : NULL,
                                params->layout->ways > 1 || params->stage > 0 ? groups->replicate : NULL,
                                links->cut,
                                links->copies,
                                groups->cut};
    for (size_t i = 0; i < sizeof all / sizeof *all && comm_sums_natively(groups->world); i++)
        TRY(comm_agree(groups->world, all[i] != NULL ? comm_sums_open(all[i]) : STATUS_OK, "prepare sums"));
    return STATUS_OK;
}

static enum status connect(struct params *params)
{
    struct carrier *carrier = &params->carrier;
    TRY(links_make(params));
    carrier->links = params->links;
    if (params->beside) {
        TRY(comm_open_beside(params->groups->world, &carrier->job));
        carrier->links = (struct links){0};
        TRY(links_open(carrier->job, &params->links, &carrier->links));
    }
    return sums_open(params);
}

static enum status params_new(const struct layout *layout, int zero_stage, bool offload, const struct groups *groups,
                              bool beside, struct dev *dev, struct params **out)
{
    struct params *params = NULL;
    bool apart = beside && zero_stage >= 2 && comm_size(groups->shard) > 1;
    if (apart && (!dev_can_overlap(dev) || comm_size(groups->world) != boot_size(comm_boot(groups->world))))
        return status_agreed(
            FAIL(STATUS_USAGE, "collectives of parameters beside what computes, %s",
                 dev_can_overlap(dev) ? "of a part of the job" : "on a device that does one thing at a time"));
    TRY(comm_alloc(groups->world, sizeof *params, "parameters", "prepare parameters", (void **)&params));
    params->layout = layout;
    params->stage = zero_stage;
    params->offload = offload;
    params->groups = groups;
    params->dev = params->room.dev = params->host.dev = dev;
    params->host.host = true;
    params->dtype = layout->block.dtype;
    params->elem_bytes = dtype_bytes(params->dtype);
    params->beside = apart;
    *out = params;
    return STATUS_OK;
}

enum status params_create(const struct layout *layout, int zero_stage, bool offload, const struct groups *groups,
                          bool beside, struct dev *dev, struct params **out)
{
    struct params *params = NULL;
    TRY(params_new(layout, zero_stage, offload, groups, beside, dev, &params));
    enum status status = connect(params);
    if (status == STATUS_OK)
        status = groups_await(groups, build(params), "allocate parameters");
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
    struct params *params = NULL;
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

int64_t params_part(const struct params *params, const struct layout_tensor *tensor, int64_t *from, int64_t *at)
{
    struct params_shard shard = params_shard(params, tensor->unit);
    int64_t begin = most(tensor->offset, shard.first), tensor_end = tensor->offset + tensor->rows * tensor->cols;
    int64_t end = tensor_end < shard.first + shard.n ? tensor_end : shard.first + shard.n;
    *from = begin - tensor->offset;
    *at = begin - shard.first;
    return end > begin ? end - begin : 0;
}
