/* sp/exchange_push.c -- on GPUs: all tensors of a call move between the ranks' memories, layout included.
 *
 * push: every rank stores its blocks where its peers want them. pull: every rank fetches its blocks from where its peers have them.
 * Either is one launch, the barriers before and after being part of it (kernels/copy_peers.h). ce: as push, by 2-D copies of the copy
 * engines between two meetings of all ranks; the own block is copied by a kernel at the same time, on a queue beside, because engines
 * are slow within a memory (a quarter of what they reach to a peer).
 *
 *   queue    meeting | to rank + 1 | to rank + 2 | ... | wait | meeting
 *   beside           |    own      |-----------------------^
 *
 * Copies of a replicated head are fetched and summed in fp32 in rank order by their receiver in any, a launch per head. ce takes peers in
 * the order rank + 1, rank + 2, ..., so that no link is everybody's first, and relies on the own block's jobs being the last; kernels
 * are at every peer's jobs at once.
 */
#include "sp/exchange_blocks.h"
#include "sp/exchange_direct_jobs.h"

#include "base/mem.h"
#include "base/range.h"
#include "kernels/copy_engine.h"
#include "kernels/copy_peers.h"
#include "model/model.h"

#include <stdlib.h>

enum { LIMIT_US = 10 * 1000 * 1000 };
enum {
    BESIDE_BLOCKS = 64
}; /* half of an H200: they still reach the links' rate when nothing runs beside them, as before the first attention */
enum way { PUSH, PULL, ENGINE };

struct push {
    struct exchange_shape shape;
    struct comm *group;
    struct dev *dev;
    int rank, size;
    enum way way;
    struct dev_queue *beside;      /* ENGINE alone, as are the two */
    struct dev_event *begun, *own; /* all may be overwritten; the own block is copied */
    struct window *flags;
    struct copy_peers *peers;
    struct direct_memory memory;
    struct copy_job *jobs; /* [size * EXCHANGE_TENSORS_MAX] */
    const void **copies;   /* [size] */
    struct dev_event *mark[2];
    bool marked;
};

static struct verdict push_supports(const struct exchange_shape *shape, const struct comm *group)
{
    struct verdict verdict = exchange_can(DEV_CUDA, shape, group);
    if (!verdict_ok(&verdict))
        return verdict;
    if (group != NULL && comm_size(group) > COPY_PEERS_RANKS)
        return verdict_no(RULE_EXCHANGE_CANNOT, "%d ranks; at most %d", comm_size(group), COPY_PEERS_RANKS);
    return group != NULL ? window_verdict(group) : VERDICT_YES;
}

static void push_destroy(void *state)
{
    struct push *push = state;
    if (push == NULL)
        return;
    copy_peers_close(push->peers);
    direct_memory_destroy(&push->memory);
    window_destroy(push->flags);
    dev_queue_destroy(push->beside);
    dev_event_destroy(push->begun);
    dev_event_destroy(push->own);
    for (int m = 0; m < 2; m++)
        dev_event_destroy(push->mark[m]);
    free(push->copies);
    free(push->jobs);
    free(push);
}

/* What can fail on this rank alone. *out is set, half-built too. */
static enum status prepare(const struct exchange_shape *shape, struct comm *group, enum way way, struct push **out)
{
    struct push *push = NULL;
    TRY(mem_alloc(sizeof *push, "an exchange", (void **)&push));
    *out = push;
    push->shape = *shape;
    push->group = push->memory.group = group;
    push->dev = comm_dev(group);
    push->rank = comm_rank(group);
    push->size = comm_size(group);
    push->way = way;
    for (int m = 0; m < 2; m++)
        TRY(dev_event_create(push->dev, &push->mark[m]));
    if (way == ENGINE) {
        TRY(dev_event_create(push->dev, &push->begun));
        TRY(dev_event_create(push->dev, &push->own));
        TRY(dev_queue_create_beside(push->dev, &push->beside));
    }
    size_t size = (size_t)push->size;
    TRY(mem_alloc(size * EXCHANGE_TENSORS_MAX * sizeof *push->jobs, "jobs of an exchange", (void **)&push->jobs));
    return mem_alloc(size * sizeof *push->copies, "copies of a head", (void **)&push->copies);
}

static enum status open_peers(struct push *push)
{
    void *flags[COPY_PEERS_RANKS];
    for (int r = 0; r < push->size; r++)
        flags[r] = window_peer(push->flags, r);
    return copy_peers_open(push->dev, push->rank, push->size, flags, LIMIT_US, &push->peers);
}

static enum status create(const struct exchange_shape *shape, struct comm *group, enum way way, void **state)
{
    struct push *push = NULL;
    struct exchange_blocks blocks;
    enum status status;
    struct verdict verdict = push_supports(shape, group);
    if (!verdict_ok(&verdict))
        return FAIL(STATUS_UNSUPPORTED, "%s", verdict.why);
    TRY_OUT(comm_agree(group, prepare(shape, group, way, &push), "prepare an exchange"));
    TRY_OUT(window_create(group, copy_peers_flag_bytes(push->size), "flags of an exchange", &push->flags));
    TRY_OUT(comm_agree(group, open_peers(push), "prepare an exchange"));
    TRY_OUT(exchange_blocks_agree(group, copy_peers_multiprocessors(push->peers), shape->beside ? BESIDE_BLOCKS : 0,
                                  &blocks));
    TRY_OUT(comm_agree(group, copy_peers_blocks(push->peers, blocks.exactly, blocks.most), "prepare an exchange"));
    *state = push;
    return STATUS_OK;
out:
    push_destroy(push);
    return status;
}

static enum status push_create(const struct exchange_shape *shape, struct comm *group, void **state)
{
    return create(shape, group, PUSH, state);
}

static enum status pull_create(const struct exchange_shape *shape, struct comm *group, void **state)
{
    return create(shape, group, PULL, state);
}

static enum status ce_create(const struct exchange_shape *shape, struct comm *group, void **state)
{
    return create(shape, group, ENGINE, state);
}

static enum status push_alloc(void *state, size_t bytes, const char *what, void **out)
{
    return direct_memory_alloc(&((struct push *)state)->memory, bytes, what, out);
}

static void push_free(void *state, void *memory)
{
    direct_memory_free(&((struct push *)state)->memory, memory);
}

/* Starting with the head this rank holds: ranks begin at different ones. */
static enum status pull_sums(const struct push *push, const struct direct_call *call, struct dev_queue *queue)
{
    for (int i = 0; i < call->n; i++) {
        const struct exchange_tensor *tensor = &call->tensors[i];
        int own = model_kv_first(tensor->heads, push->size, push->rank);
        if (!direct_merges(call, i) || !direct_moves(call, i))
            continue;
        for (int h = 0; h < tensor->heads; h++) {
            struct copy_sum sum;
            direct_sum(call, i, (own + h) % tensor->heads, push->copies, &sum);
            TRY(copy_peers_run(push->peers, NULL, 0, &sum, 1, 0, queue));
        }
    }
    return STATUS_OK;
}

/* The last `own` of n jobs stay within this rank's memory. */
static enum status by_engines(const struct push *push, int n, int own, struct dev_queue *queue)
{
    TRY(copy_peers_meet(push->peers, queue));
    TRY(dev_event_record(push->begun, queue));
    TRY(dev_event_wait(push->beside, push->begun));
    TRY(copy_run(DEV_CUDA, push->jobs + n - own, own, push->beside));
    TRY(dev_event_record(push->own, push->beside));
    TRY(copy_engine_run(push->jobs, n - own, queue));
    TRY(dev_event_wait(queue, push->own));
    return copy_peers_meet(push->peers, queue);
}

static enum status move(const struct push *push, const struct direct_call *call, struct dev_queue *queue)
{
    int n = 0, before = 0;
    for (int step = 1; step <= push->size; step++) {
        int p = (push->rank + step) % push->size;
        before = n;
        n += push->way == PULL ? direct_pull_jobs(call, p, push->jobs + n) : direct_push_jobs(call, p, push->jobs + n);
    }
    if (n > 0)
        TRY(push->way == ENGINE ? by_engines(push, n, n - before, queue)
                                : copy_peers_run(push->peers, push->jobs, n, NULL, 0, 0, queue));
    return pull_sums(push, call, queue);
}

static enum status push_run(void *state, enum exchange_direction direction, const struct exchange_tensor *tensors,
                            int n, struct dev_queue *queue)
{
    struct push *push = state;
    struct direct_call call = {&push->shape, &push->memory, push->rank, push->size, direction, tensors, n};
    TRY(direct_check(&call));
    TRY(dev_mark(push->mark[0], queue));
    TRY(RANGE("transfer", move(push, &call, queue)));
    push->marked = true;
    return dev_mark(push->mark[1], queue);
}

static void push_phases(void *state, double *pack_us, double *transfer_us, double *unpack_us)
{
    const struct push *push = state;
    *pack_us = *transfer_us = *unpack_us = 0;
    if (push->marked && dev_event_us(push->mark[0], push->mark[1], transfer_us) != STATUS_OK)
        *transfer_us = 0;
}

#define ROW(name_, about_, create_)                                                                                    \
    {                                                                                                                  \
        .name = name_, .dev = DEV_CUDA, .tensors_together = 3, .windows = true, .about = about_,                       \
        .supports = push_supports, .create = create_, .destroy = push_destroy, .alloc = push_alloc, .free = push_free, \
        .run = push_run, .phases = push_phases                                                                         \
    }

const struct exchange exchange_push =
    ROW("push", "one launch stores all blocks where the peers want them", push_create);
const struct exchange exchange_pull =
    ROW("pull", "one launch fetches all blocks from where the peers have them", pull_create);
const struct exchange exchange_ce = ROW("ce", "copy engines put all blocks where the peers want them", ce_create);
