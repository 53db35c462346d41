/* comm/transport_nccl_group.c -- communicators of the job and of groups, each made of an id that one of its ranks has handed to the others. */
#include "comm/transport_nccl.h"

#include "base/dev_cuda.h"

#include <stdlib.h>
#include <string.h>

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

void nccl_comm_close(const struct nccl *nccl, ncclComm_t comm)
{
    if (comm == NULL || dev_cuda_stuck())
        return;
    if (nccl_lives(nccl))
        nccl->api->ncclCommDestroy(comm);
    else
        nccl->api->ncclCommAbort(comm);
}
