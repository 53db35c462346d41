/* sp/exchange_direct.c -- one pass: every rank stores its blocks where its peers want them, through mapped memory.
 *
 *   rank r, sequence side          rank p, head side
 *     token 0  h h [h h] h h   ->    [h h]  r's tokens        no staging, no message, q, k and v together
 *     token 1  h h [h h] h h   ->    [h h]
 *
 * Two flags per pair of ranks order a run. READY: I am in run number `epoch`, so what I have to give is complete and
 * what I receive into may be overwritten. DONE: I will not touch your memory any more in this run. A rank waits for
 * READY of the peer it is about to serve, and for DONE of all before it returns; it starts behind itself, so that no
 * peer is everybody's first target.
 *
 * Copies of a replicated head cannot all be stored to one place. There the receiver reads them from the ranks that
 * hold them and sums them in fp32, in rank order, in the same pass.
 *
 * Stores to peers bypass the cache, whatever the size: a peer holds what it read there, and on the sequence side other
 * ranks store next to every row. So does the own block, unless it is this core's to keep: while both sides of a call fit
 * its own cache, nobody else has the lines (docs/decisions/0004-direct-stores.md has the figures).
 */
#include "sp/exchange_direct_jobs.h"

#include "base/cache.h"
#include "base/mem.h"
#include "base/range.h"
#include "kernels/copy_stream.h"
#include "model/model.h"

#include <stdlib.h>

enum slot { SLOT_READY, SLOT_DONE };

struct direct {
    struct exchange_shape shape;
    struct comm *group;
    struct dev *dev;
    int rank, size;
    uint64_t epoch; /* runs so far */
    struct window *flags;
    struct direct_memory memory;
    const void **copies; /* [size] */
    struct dev_event *mark[2];
    bool marked;
};

static struct verdict direct_supports(const struct exchange_shape *shape, const struct comm *group)
{
    struct verdict verdict = exchange_can(DEV_CPU, shape, group);
    return verdict_ok(&verdict) && group != NULL ? window_verdict(group) : verdict;
}

static struct verdict direct_room(const struct comm *group, int64_t bytes, int n)
{
    return window_room(group, direct_memory_room((size_t)bytes) * (size_t)n);
}

static void direct_destroy(void *state)
{
    struct direct *direct = state;
    if (direct == NULL)
        return;
    direct_memory_destroy(&direct->memory);
    window_destroy(direct->flags);
    for (int m = 0; m < 2; m++)
        dev_event_destroy(direct->mark[m]);
    free(direct->copies);
    free(direct);
}

/* What can fail on this rank alone. *out is set, half-built too. */
static enum status prepare(const struct exchange_shape *shape, struct comm *group, struct direct **out)
{
    struct direct *direct = NULL;
    TRY(mem_alloc(sizeof *direct, "an exchange", (void **)&direct));
    *out = direct;
    direct->shape = *shape;
    direct->group = direct->memory.group = group;
    direct->dev = comm_dev(group);
    direct->rank = comm_rank(group);
    direct->size = comm_size(group);
    for (int m = 0; m < 2; m++)
        TRY(dev_event_create(direct->dev, &direct->mark[m]));
    return mem_alloc((size_t)direct->size * sizeof *direct->copies, "copies of a head", (void **)&direct->copies);
}

static enum status direct_create(const struct exchange_shape *shape, struct comm *group, void **state)
{
    struct direct *direct = NULL;
    enum status status;
    struct verdict verdict = direct_supports(shape, group);
    if (!verdict_ok(&verdict))
        return FAIL(STATUS_UNSUPPORTED, "%s", verdict.why);
    TRY_OUT(comm_agree(group, prepare(shape, group, &direct), "prepare an exchange"));
    TRY_OUT(window_create(group, 0, "flags of an exchange", &direct->flags));
    *state = direct;
    return STATUS_OK;
out:
    direct_destroy(direct);
    return status;
}

static enum status direct_alloc(void *state, size_t bytes, const char *what, void **out)
{
    return direct_memory_alloc(&((struct direct *)state)->memory, bytes, what, out);
}

static void direct_free(void *state, void *memory)
{
    direct_memory_free(&((struct direct *)state)->memory, memory);
}

/* ---- one run ---- */

struct call {
    struct direct *direct;
    struct direct_call blocks;
    struct dev_queue *queue;
};

static bool fits_core(const struct direct_call *call)
{
    int64_t bytes = 0;
    for (int i = 0; i < call->n; i++)
        bytes += exchange_bytes(call->shape, call->size, call->tensors[i].count, call->tensors[i].dim);
    return 2 * bytes <= cache_core_bytes();
}

static enum status push(const struct call *call, int p)
{
    struct copy_job jobs[EXCHANGE_TENSORS_MAX];
    int njobs = direct_push_jobs(&call->blocks, p, jobs);
    enum dev_kind dev = dev_kind_of(call->direct->dev);
    if (p == call->direct->rank && fits_core(&call->blocks))
        return copy_run(dev, jobs, njobs, call->queue);
    return copy_stream_run(dev, jobs, njobs, call->queue);
}

/* Starting with the head this rank holds: ranks begin at different ones. */
static enum status pull_sums(const struct call *call, int i)
{
    struct direct *direct = call->direct;
    const struct exchange_tensor *tensor = &call->blocks.tensors[i];
    int own = model_kv_first(tensor->heads, direct->size, direct->rank);
    for (int h = 0; direct_moves(&call->blocks, i) && h < tensor->heads; h++) {
        struct copy_sum sum;
        direct_sum(&call->blocks, i, (own + h) % tensor->heads, direct->copies, &sum);
        TRY(copy_sum_run(dev_kind_of(direct->dev), &sum, call->queue));
    }
    return STATUS_OK;
}

/* Whoever merges reads from all, so it is done with a peer only then. */
static enum status move(const struct call *call)
{
    struct direct *direct = call->direct;
    bool pulls = false;
    for (int i = 0; i < call->blocks.n; i++)
        pulls = pulls || direct_merges(&call->blocks, i);
    for (int step = 0; step < direct->size; step++) {
        int p = (direct->rank + step) % direct->size;
        if (p != direct->rank)
            TRY(window_wait(direct->flags, SLOT_READY, p, direct->epoch));
        TRY(push(call, p));
        if (!pulls)
            window_signal(direct->flags, p, SLOT_DONE, direct->epoch);
    }
    if (!pulls)
        return STATUS_OK;
    for (int i = 0; i < call->blocks.n; i++)
        if (direct_merges(&call->blocks, i))
            TRY(pull_sums(call, i));
    for (int p = 0; p < direct->size; p++)
        window_signal(direct->flags, p, SLOT_DONE, direct->epoch);
    return STATUS_OK;
}

/* One rank alone: the two sides are the same layout, perhaps the same memory. */
static enum status run_alone(const struct call *call)
{
    for (int i = 0; i < call->blocks.n; i++)
        if (call->blocks.tensors[i].seq != call->blocks.tensors[i].head) {
            struct call one = *call;
            one.blocks.tensors = &call->blocks.tensors[i];
            one.blocks.n = 1;
            TRY(push(&one, 0));
        }
    return STATUS_OK;
}

static enum status run_together(const struct call *call)
{
    struct direct *direct = call->direct;
    direct->epoch++;
    for (int p = 0; p < direct->size; p++)
        if (p != direct->rank)
            window_signal(direct->flags, p, SLOT_READY, direct->epoch);
    TRY(move(call));
    for (int p = 0; p < direct->size; p++)
        if (p != direct->rank)
            TRY(window_wait(direct->flags, SLOT_DONE, p, direct->epoch));
    return STATUS_OK;
}

static enum status direct_run(void *state, enum exchange_direction direction, const struct exchange_tensor *tensors,
                              int n, struct dev_queue *queue)
{
    struct direct *direct = state;
    struct call call = {
        direct, {&direct->shape, &direct->memory, direct->rank, direct->size, direction, tensors, n}, queue};
    TRY(direct_check(&call.blocks));
    TRY(dev_mark(direct->mark[0], queue));
    TRY(RANGE("transfer", direct->size == 1 ? run_alone(&call) : run_together(&call)));
    direct->marked = true;
    return dev_mark(direct->mark[1], queue);
}

static void direct_phases(void *state, double *pack_us, double *transfer_us, double *unpack_us)
{
    const struct direct *direct = state;
    *pack_us = *transfer_us = *unpack_us = 0;
    if (direct->marked && dev_event_us(direct->mark[0], direct->mark[1], transfer_us) != STATUS_OK)
        *transfer_us = 0;
}

const struct exchange exchange_direct = {
    .name = "direct",
    .dev = DEV_CPU,
    .tensors_together = 3,
    .windows = true,
    .about = "one pass from the layout of one side into the peers' memory of the other",
    .supports = direct_supports,
    .room = direct_room,
    .create = direct_create,
    .destroy = direct_destroy,
    .alloc = direct_alloc,
    .free = direct_free,
    .run = direct_run,
    .phases = direct_phases,
};
