/* comm/transport_nccl_group.c -- communicators, each made of an id that one of its ranks has handed to the others; and NCCL's sums: of the
 * job by the job's, of another group by one of its own.
 *
 * An id and not ncclCommSplit, which takes all ranks of a parent at once: a group would then be made by ranks that are not in it, and
 * only where its parent has a communicator.
 */
#include "comm/transport_nccl.h"

#include "base/dev_cuda.h"

#include <stdlib.h>
#include <string.h>

/* ---- communicators ---- */

enum status nccl_id(void *state, char id[TRANSPORT_ID_BYTES])
{
    const struct nccl *nccl = state;
    ncclUniqueId made;
    _Static_assert(sizeof made <= TRANSPORT_ID_BYTES, "an id fits");
    TRY(nccl_status(nccl->api, NULL, nccl->api->ncclGetUniqueId(&made), "making a unique id"));
    memcpy(id, &made, sizeof made);
    return STATUS_OK;
}

enum status nccl_comm_open(const struct nccl *nccl, int size, int rank, const char id[TRANSPORT_ID_BYTES],
                           ncclComm_t *out)
{
    struct nccl_call *call = NULL;
    TRY(nccl_call_create(nccl, nccl_call_connect, &call));
    call->rank = rank;
    call->size = size;
    memcpy(&call->id, id, sizeof call->id);
    enum status status = nccl_call_run(nccl, &call, "making a communicator");
    if (status == STATUS_OK)
        *out = call->comm;
    else if (call != NULL) /* half made, it is ours to close */
        nccl_comm_close(nccl, call->comm);
    free(call);
    return status;
}

bool nccl_lives(const struct nccl *nccl)
{
    const struct status_message kept = *status_last();
    bool lives = !dev_cuda_stuck() && boot_poll(nccl->boot) == STATUS_OK;
    status_restore(&kept);
    return lives;
}

static ncclResult_t call_destroy(struct nccl_call *call)
{
    return call->api->ncclCommDestroy(call->comm);
}

void nccl_comm_close(const struct nccl *nccl, ncclComm_t comm)
{
    if (comm == NULL || dev_cuda_stuck())
        return;
    nccl_forget(nccl); /* another one may be there next */
    if (nccl_lives(nccl))
        nccl_call_last(nccl, &(struct nccl_call){.run = call_destroy, .comm = comm}, "closing a communicator");
    else
        nccl->api->ncclCommAbort(comm);
}

/* ---- sums: a group's are its communicator ---- */

static ncclDataType_t type_of(enum dtype dtype)
{
    return dtype == DTYPE_FP32 ? ncclFloat32 : dtype == DTYPE_BF16 ? ncclBfloat16 : ncclFloat16;
}

static enum status sums_open(void *state, int size, int rank, const char id[TRANSPORT_ID_BYTES], void **sums)
{
    ncclComm_t comm = NULL;
    TRY(nccl_comm_open(state, size, rank, id, &comm));
    *sums = comm;
    return STATUS_OK;
}

static void sums_close(void *state, void *sums)
{
    nccl_comm_close(state, sums);
}

static enum status sum(const struct nccl *nccl, void *sums, enum nccl_move_kind kind, const void *send, void *recv,
                       int64_t elems, enum dtype dtype, struct dev_queue *queue)
{
    const struct nccl_move move = {.kind = kind,
                                   .comm = sums != NULL ? sums : nccl->comm,
                                   .stream = dev_cuda_stream(queue),
                                   .send = send,
                                   .recv = recv,
                                   .count = (size_t)elems,
                                   .type = type_of(dtype)};
    return nccl_move(nccl, &move, kind == NCCL_ALL ? "an all-reduce" : "a reduce-scatter");
}

static enum status sums_scatter(void *state, void *sums, const void *send, void *recv, int64_t elems, enum dtype dtype,
                                struct dev_queue *queue)
{
    return sum(state, sums, NCCL_SCATTER, send, recv, elems, dtype, queue);
}

static enum status sums_all(void *state, void *sums, void *data, int64_t elems, enum dtype dtype,
                            struct dev_queue *queue)
{
    return sum(state, sums, NCCL_ALL, data, data, elems, dtype, queue);
}

const struct transport_sums nccl_sums = {
    .id = nccl_id,
    .open = sums_open,
    .close = sums_close,
    .scatter = sums_scatter,
    .all = sums_all,
};
