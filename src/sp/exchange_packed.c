/* sp/exchange_packed.c -- pack, all-to-all, unpack: q, k and v together (packed; on GPUs nccl, with staging that NCCL was told of
 * nccl-registered, nccl-window, nccl-ce; by messages of UCX ucx), or one after another (packed-separate; nccl-separate).
 *
 * packed moves all tensors of a call in one all-to-all. Staging holds, per peer, the tensors' blocks one after another:
 *
 *     [peer 0: q rows | k rows | v rows][peer 1: q rows | k rows | v rows] ...
 *
 * The own block never travels: it is copied from side to side in the pack pass. A single tensor whose block is flat on
 * a side is sent from there, or received there. packed-separate does neither: it stands for what trainers do with
 * torch.distributed, which permute into a send buffer, exchange everything (the own block too) and permute out of the
 * receive buffer.
 *
 * Over a route (comm/route.h) both sides and staging are memory of that route. The one by copy engines moves the own block too. It is
 * copied from side to side in the pack pass all the same, and what arrives of it is not looked at, but where it can only come that way:
 * into the sums, and into a side that receives without staging.
 *
 * Copies of a replicated head come back from P/heads ranks; they meet in staging and are summed from there in rank
 * order.
 */
#include "sp/exchange_packed.h"
#include "sp/exchange_block.h"

#include "base/mem.h"
#include "base/range.h"
#include "kernels/copy.h"

#include <stdlib.h>

enum { MARKS = 4 }; /* before pack, after pack, after transfer, after unpack */

struct packed {
    struct exchange_shape shape;
    struct comm *group;
    struct dev *dev;
    int rank, size;
    int route;             /* enum transport_route, or PACKED_PLAIN */
    int64_t staging_bytes; /* of each of the two */
    char *out, *in;        /* staging: size x the block of one peer */
    struct copy_job *jobs; /* size x EXCHANGE_TENSORS_MAX */
    const void **send;     /* [size] each, from here on */
    void **recv;
    const void **copies;
    size_t *send_bytes, *recv_bytes;
    struct dev_event *mark[EXCHANGE_TENSORS_MAX][MARKS];
    int marked; /* rows of mark that the last run recorded */
};

static struct verdict packed_supports(const struct exchange_shape *shape, const struct comm *group)
{
    return exchange_can(DEV_CPU, shape, group);
}

void packed_destroy(void *state)
{
    struct packed *packed = state;
    if (packed == NULL)
        return;
    for (int i = 0; i < EXCHANGE_TENSORS_MAX; i++)
        for (int m = 0; m < MARKS; m++)
            dev_event_destroy(packed->mark[i][m]);
    if (packed->group != NULL) {
        packed_free(packed, packed->in);
        packed_free(packed, packed->out);
    }
    free(packed->recv_bytes);
    free(packed->send_bytes);
    free(packed->copies);
    free(packed->recv);
    free(packed->send);
    free(packed->jobs);
    free(packed);
}

static enum status staging_size(struct packed *packed)
{
    int64_t bytes, per_peer;
    if (packed->size == 1)
        return STATUS_OK;
    TRY(mem_mul(packed->shape.batch, packed->shape.seq_local, "tokens of an exchange", &bytes));
    TRY(mem_mul(bytes, packed->shape.row_elems_max * dtype_bytes(packed->shape.dtype), "block of an exchange",
                &per_peer));
    return mem_mul(per_peer, packed->size, "staging of an exchange", &packed->staging_bytes);
}

static enum status staging_alloc(struct packed *packed)
{
    size_t bytes = (size_t)packed->staging_bytes;
    if (packed->size == 1)
        return STATUS_OK;
    TRY(packed_alloc(packed, bytes, "exchange send staging", (void **)&packed->out));
    return packed_alloc(packed, bytes, "exchange receive staging", (void **)&packed->in);
}

/* What can fail on this rank alone. *out is set, half-built too. */
static enum status prepare(const struct exchange_shape *shape, struct comm *group, int route, struct packed **out)
{
    struct packed *packed = NULL;
    TRY(mem_alloc(sizeof *packed, "an exchange", (void **)&packed));
    *out = packed;
    packed->shape = *shape;
    packed->group = group;
    packed->dev = comm_dev(group);
    packed->rank = comm_rank(group);
    packed->size = comm_size(group);
    packed->route = route;
    size_t size = (size_t)packed->size;
    TRY(mem_alloc(size * EXCHANGE_TENSORS_MAX * sizeof *packed->jobs, "copies of an exchange", (void **)&packed->jobs));
    TRY(mem_alloc(size * sizeof *packed->send, "blocks of an exchange", (void **)&packed->send));
    TRY(mem_alloc(size * sizeof *packed->recv, "blocks of an exchange", (void **)&packed->recv));
    TRY(mem_alloc(size * sizeof *packed->copies, "blocks of an exchange", (void **)&packed->copies));
    TRY(mem_alloc(size * sizeof *packed->send_bytes, "blocks of an exchange", (void **)&packed->send_bytes));
    TRY(mem_alloc(size * sizeof *packed->recv_bytes, "blocks of an exchange", (void **)&packed->recv_bytes));
    for (int i = 0; i < EXCHANGE_TENSORS_MAX; i++)
        for (int m = 0; m < MARKS; m++)
            TRY(dev_event_create(packed->dev, &packed->mark[i][m]));
    return staging_size(packed);
}

enum status packed_create_over(const struct exchange_shape *shape, struct comm *group, int route, void **state)
{
    struct packed *packed = NULL;
    enum status status;
    struct verdict verdict = exchange_can(dev_kind_of(comm_dev(group)), shape, group);
    if (!verdict_ok(&verdict))
        return FAIL(STATUS_UNSUPPORTED, "%s", verdict.why);
    TRY_OUT(comm_agree(group, prepare(shape, group, route, &packed), "prepare an exchange"));
    if (route != PACKED_PLAIN)
        TRY_OUT(route_open(group, (enum transport_route)route));
    TRY_OUT(staging_alloc(packed));
    *state = packed;
    return STATUS_OK;
out:
    packed_destroy(packed);
    return status;
}

enum status packed_create(const struct exchange_shape *shape, struct comm *group, void **state)
{
    return packed_create_over(shape, group, PACKED_PLAIN, state);
}

enum status packed_create_beside(const struct exchange_shape *shape, struct comm *group, void **state)
{
    struct comm *beside = group;
    if (comm_size(group) > 1)
        TRY(comm_beside(group, &beside));
    return packed_create_over(shape, beside, PACKED_PLAIN, state);
}

const char *packed_in_use(const void *state)
{
    return comm_transport(((const struct packed *)state)->group);
}

enum status packed_alloc(void *state, size_t bytes, const char *what, void **out)
{
    struct packed *packed = state;
    if (packed->route != PACKED_PLAIN)
        return route_alloc(packed->group, (enum transport_route)packed->route, bytes, what, out);
    return dev_alloc(packed->dev, bytes, what, out);
}

void packed_free(void *state, void *memory)
{
    struct packed *packed = state;
    if (packed->route != PACKED_PLAIN)
        route_free(packed->group, (enum transport_route)packed->route, memory);
    else
        dev_free(packed->dev, memory);
}

int64_t packed_staging(const void *state)
{
    return 2 * ((const struct packed *)state)->staging_bytes;
}

/* One call: the tensors that move together, and the offset of each one's block within a peer's staging. */
struct call {
    struct packed *packed;
    enum exchange_direction direction;
    const struct exchange_tensor *tensors;
    int n;
    int64_t offset[EXCHANGE_TENSORS_MAX + 1];
    bool whole; /* the own block travels too, and nothing goes straight */
    struct dev_event **mark;
    struct dev_queue *queue;
};

static struct exchange_block block_from(const struct call *call, int i, int peer)
{
    const struct packed *packed = call->packed;
    return call->direction == EXCHANGE_TO_HEADS
               ? exchange_block_seq(&packed->shape, &call->tensors[i], packed->size, peer)
               : exchange_block_head(&packed->shape, &call->tensors[i], packed->size, peer);
}

static struct exchange_block block_to(const struct call *call, int i, int peer)
{
    const struct packed *packed = call->packed;
    return call->direction == EXCHANGE_TO_HEADS
               ? exchange_block_head(&packed->shape, &call->tensors[i], packed->size, peer)
               : exchange_block_seq(&packed->shape, &call->tensors[i], packed->size, peer);
}

/* Where the block of tensor i for or from `peer` waits in staging. */
static char *staged(const struct call *call, char *staging, int i, int peer)
{
    return staging + peer * call->offset[call->n] + call->offset[i];
}

/* Do several ranks bring the same heads of this tensor? Then one place cannot receive them all. */
static bool merges(const struct call *call, int i)
{
    return exchange_merges(&call->tensors[i], call->direction, call->packed->size);
}

static struct copy_job job_of(const struct exchange_block *from, const struct exchange_block *to)
{
    return (struct copy_job){.src = from->base,
                             .dst = to->base,
                             .n = {1, from->batch, from->seq},
                             .src_stride = {0, from->batch_stride, from->token_stride},
                             .dst_stride = {0, to->batch_stride, to->token_stride},
                             .row_bytes = (size_t)from->row_bytes};
}

static bool by_engine(const struct call *call)
{
    return call->packed->route == TRANSPORT_ENGINE;
}

/* Flat blocks go, or come, as they lie. Copy engines want them one behind the other as well. */
static bool is_straight(const struct call *call, struct exchange_block (*block)(const struct call *, int, int))
{
    struct exchange_block first = block(call, 0, 0);
    if (call->whole || call->n > 1 || !exchange_block_is_flat(&first))
        return false;
    for (int p = 1; by_engine(call) && p < call->packed->size; p++)
        if (block(call, 0, p).base != first.base + p * call->offset[1])
            return false;
    return true;
}

static bool sends_straight(const struct call *call)
{
    return is_straight(call, block_from);
}

static bool receives_straight(const struct call *call)
{
    return !merges(call, 0) && is_straight(call, block_to);
}

/* Does the own block of tensor i leave like those of the peers? */
static bool own_leaves(const struct call *call, int i)
{
    return call->whole || (by_engine(call) && (merges(call, i) || receives_straight(call)));
}

/* One pass over everything that leaves: peers' blocks into staging, the own block to where it belongs. */
static enum status pack(const struct call *call)
{
    struct packed *packed = call->packed;
    bool straight = sends_straight(call);
    int njobs = 0;
    for (int p = 0; p < packed->size; p++) {
        for (int i = 0; i < call->n; i++) {
            struct exchange_block from = block_from(call, i, p), to = exchange_block_flat(&from, NULL);
            bool own = p == packed->rank && !own_leaves(call, i);
            if (own && !merges(call, i))
                to = block_to(call, i, p);
            else if (own)
                to.base = staged(call, packed->in, i, p);
            else if (straight)
                continue;
            else
                to.base = staged(call, packed->out, i, p);
            packed->jobs[njobs++] = job_of(&from, &to);
        }
    }
    return copy_run(dev_kind_of(packed->dev), packed->jobs, njobs, call->queue);
}

static enum status transfer(const struct call *call)
{
    struct packed *packed = call->packed;
    bool send_straight = sends_straight(call), receive_straight = receives_straight(call);
    size_t bytes = (size_t)call->offset[call->n];
    if (call->whole)
        return comm_alltoall(packed->group, packed->out, packed->in, bytes, call->queue);
    for (int p = 0; p < packed->size; p++) {
        packed->send[p] = send_straight ? block_from(call, 0, p).base : staged(call, packed->out, 0, p);
        packed->recv[p] = receive_straight ? block_to(call, 0, p).base : staged(call, packed->in, 0, p);
        packed->send_bytes[p] = packed->recv_bytes[p] = p == packed->rank ? 0 : bytes;
    }
    if (packed->route != PACKED_PLAIN)
        return route_alltoall(packed->group, (enum transport_route)packed->route, packed->send, packed->recv, bytes,
                              call->queue);
    return comm_alltoallv(packed->group, packed->send, packed->send_bytes, packed->recv, packed->recv_bytes,
                          call->queue);
}

/* Copies of head j come from the ranks j*copies .. j*copies + copies-1. */
static enum status unpack_sums(const struct call *call, int i)
{
    struct packed *packed = call->packed;
    const struct exchange_tensor *tensor = &call->tensors[i];
    int copies = model_kv_copies(tensor->heads, packed->size);
    for (int head = 0; head < tensor->heads; head++) {
        int first = head * copies;
        struct exchange_block to = block_to(call, i, first), from = exchange_block_flat(&to, NULL);
        for (int c = 0; c < copies; c++)
            packed->copies[c] = staged(call, packed->in, i, first + c);
        struct copy_sum sum = {.srcs = packed->copies,
                               .copies = tensor->sum ? copies : 1,
                               .dst = to.base,
                               .n = {1, to.batch, to.seq},
                               .src_stride = {0, from.batch_stride, from.token_stride},
                               .dst_stride = {0, to.batch_stride, to.token_stride},
                               .elems = (int64_t)tensor->count * tensor->dim,
                               .dtype = packed->shape.dtype};
        TRY(copy_sum_run(dev_kind_of(packed->dev), &sum, call->queue));
    }
    return STATUS_OK;
}

static enum status unpack(const struct call *call)
{
    struct packed *packed = call->packed;
    int njobs = 0;
    for (int i = 0; i < call->n; i++)
        if (merges(call, i) && call->tensors[i].count > 0)
            TRY(unpack_sums(call, i));
    if (receives_straight(call))
        return STATUS_OK;
    for (int p = 0; p < packed->size; p++) {
        if (p == packed->rank && !call->whole)
            continue;
        for (int i = 0; i < call->n; i++) {
            if (merges(call, i))
                continue;
            struct exchange_block to = block_to(call, i, p);
            struct exchange_block from = exchange_block_flat(&to, staged(call, packed->in, i, p));
            packed->jobs[njobs++] = job_of(&from, &to);
        }
    }
    return copy_run(dev_kind_of(packed->dev), packed->jobs, njobs, call->queue);
}

/* One rank alone: the two sides are the same layout. */
static enum status run_alone(const struct call *call)
{
    struct packed *packed = call->packed;
    int njobs = 0;
    for (int i = 0; i < call->n; i++) {
        struct exchange_block from = block_from(call, i, 0), to = block_to(call, i, 0);
        if (from.base != to.base)
            packed->jobs[njobs++] = job_of(&from, &to);
    }
    return copy_run(dev_kind_of(packed->dev), packed->jobs, njobs, call->queue);
}

static enum status run_call(struct call *call)
{
    struct packed *packed = call->packed;
    call->offset[0] = 0;
    for (int i = 0; i < call->n; i++)
        call->offset[i + 1] = call->offset[i] + packed->shape.batch * packed->shape.seq_local *
                                                    exchange_row_bytes(&packed->shape, &call->tensors[i]);
    if (packed->size > 1 && call->offset[call->n] > packed->staging_bytes / packed->size)
        return HINT(FAIL(STATUS_USAGE, "an exchange of %lld bytes per peer with staging for %lld",
                         (long long)call->offset[call->n], (long long)(packed->staging_bytes / packed->size)),
                    "row_elems_max of the shape covers the widest call");
    TRY(dev_mark(call->mark[0], call->queue));
    TRY(RANGE("pack", packed->size == 1 ? run_alone(call) : pack(call)));
    TRY(dev_mark(call->mark[1], call->queue));
    if (packed->size > 1)
        TRY(RANGE("transfer", transfer(call)));
    TRY(dev_mark(call->mark[2], call->queue));
    if (packed->size > 1)
        TRY(RANGE("unpack", unpack(call)));
    return dev_mark(call->mark[3], call->queue);
}

enum status packed_run(void *state, enum exchange_direction direction, const struct exchange_tensor *tensors, int n,
                       struct dev_queue *queue)
{
    struct packed *packed = state;
    struct call call = {.packed = packed, .direction = direction, .tensors = tensors, .n = n, .queue = queue};
    TRY(exchange_check_tensors(tensors, n, packed->size));
    packed->marked = 1;
    call.mark = packed->mark[0];
    return run_call(&call);
}

enum status packed_run_separate(void *state, enum exchange_direction direction, const struct exchange_tensor *tensors,
                                int n, struct dev_queue *queue)
{
    struct packed *packed = state;
    TRY(exchange_check_tensors(tensors, n, packed->size));
    packed->marked = n;
    for (int i = 0; i < n; i++) {
        struct call call = {.packed = packed,
                            .direction = direction,
                            .tensors = &tensors[i],
                            .n = 1,
                            .whole = true,
                            .mark = packed->mark[i],
                            .queue = queue};
        TRY(run_call(&call));
    }
    return STATUS_OK;
}

void packed_phases(void *state, double *pack_us, double *transfer_us, double *unpack_us)
{
    const struct packed *packed = state;
    double *const phase[MARKS - 1] = {pack_us, transfer_us, unpack_us};
    for (int m = 0; m < MARKS - 1; m++) {
        *phase[m] = 0;
        for (int i = 0; i < packed->marked; i++) {
            double us;
            if (dev_event_us(packed->mark[i][m], packed->mark[i][m + 1], &us) == STATUS_OK)
                *phase[m] += us;
        }
    }
}

const struct exchange exchange_packed =
    PACKED("packed", DEV_CPU, 3, "pack, one all-to-all of q, k and v together, unpack", packed_supports, packed_create,
           packed_run);
const struct exchange exchange_packed_separate =
    PACKED("packed-separate", DEV_CPU, 1, "as packed, one tensor after another, permuted on both sides as trainers do",
           packed_supports, packed_create, packed_run_separate);
