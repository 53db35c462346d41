/* comm/transport_nccl_move.c -- what NCCL is to enqueue: messages of one group, a sum, an all-to-all.
 *
 * NCCL enqueues and returns, but for what is new to it: ranks that have not met are connected and memory is mapped first, which waits in the
 * caller's thread, and without an end, for ranks that may have failed. So what has not been asked for before goes by a thread of its own,
 * and the job's end is seen meanwhile. What is known: a hash of all that may be new; a place for it that was given to another costs a thread.
 */
#include "comm/transport_nccl.h"

#include "base/clock.h"
#include "base/dev_cuda.h"

#include <stdlib.h>
#include <string.h>

#define MEET_US                                                                                                        \
    (INT64_C(1800) * 1000 * 1000) /* ranks of a training run may read and draw a model's weights for so long */

/* ---- in NCCL's terms ---- */

/* Messages to oneself are NCCL's too: it copies them in the kernel that sends the others, beside them; a copy ahead of that would come
 * first. */
static ncclResult_t post(const struct nccl_api *api, const struct nccl_move *move)
{
    ncclResult_t code = ncclSuccess;
    struct nccl_own own = {.nsends = move->nsends, .nrecvs = move->nrecvs};
    for (int i = 0; i < move->nrecvs && code == ncclSuccess; i++) {
        const struct transport_xfer *x = &move->recvs[i];
        if (x->peer != move->rank && x->bytes > 0)
            code = api->ncclRecv(x->data, x->bytes, ncclInt8, x->peer, move->comm, move->stream);
    }
    for (int i = 0; i < move->nsends && code == ncclSuccess; i++) {
        const struct transport_xfer *x = &move->sends[i];
        if (x->peer != move->rank && x->bytes > 0)
            code = api->ncclSend(x->data, x->bytes, ncclInt8, x->peer, move->comm, move->stream);
    }
    while (code == ncclSuccess && nccl_own_next(move, &own) == STATUS_OK && own.send != NULL) {
        code = api->ncclRecv(own.recv->data, own.recv->bytes, ncclInt8, move->rank, move->comm, move->stream);
        if (code == ncclSuccess)
            code = api->ncclSend(own.send->data, own.send->bytes, ncclInt8, move->rank, move->comm, move->stream);
    }
    return code;
}

static ncclResult_t messages(const struct nccl_api *api, const struct nccl_move *move)
{
    ncclResult_t code = api->ncclGroupStart();
    if (code != ncclSuccess)
        return code;
    code = post(api, move);
    ncclResult_t end = api->ncclGroupEnd();
    return code != ncclSuccess ? code : end;
}

static ncclResult_t enqueue(const struct nccl_api *api, const struct nccl_move *move)
{
    const void *send = move->send;
    switch (move->kind) {
    case NCCL_MESSAGES:
        return messages(api, move);
    case NCCL_SCATTER:
        return api->ncclReduceScatter(send, move->recv, move->count, move->type, ncclSum, move->comm, move->stream);
    case NCCL_ALL:
        return api->ncclAllReduce(send, move->recv, move->count, move->type, ncclSum, move->comm, move->stream);
    case NCCL_ALLTOALL:
#if NCCL_VERSION_CODE >= 22800
        return api->ncclAlltoAll(send, move->recv, move->count, move->type, move->comm, move->stream);
#endif
        break;
    }
    return ncclInvalidArgument;
}

enum status nccl_own_next(const struct nccl_move *move, struct nccl_own *own)
{
    do {
        while (own->s < own->nsends && move->sends[own->s].peer != move->rank)
            own->s++;
        while (own->r < own->nrecvs && move->recvs[own->r].peer != move->rank)
            own->r++;
        bool sends_on = own->s < own->nsends, recvs_on = own->r < own->nrecvs;
        own->send = sends_on ? &move->sends[own->s++] : NULL;
        own->recv = recvs_on ? &move->recvs[own->r++] : NULL;
        if (sends_on != recvs_on || (sends_on && own->send->bytes != own->recv->bytes))
            return FAIL(STATUS_USAGE, "a message of %zu bytes to oneself that nobody takes",
                        (sends_on ? own->send : own->recv)->bytes);
    } while (own->send != NULL && (own->send->data == own->recv->data || own->send->bytes == 0));
    return STATUS_OK;
}

/* ---- what is known ---- */

static void mix(uint64_t *hash, uint64_t word)
{
    *hash = (*hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    *hash ^= *hash >> 29;
}

static void mix_memory(uint64_t *hash, const struct nccl_move *move, const void *memory)
{
    if (move->told)
        mix(hash, (uint64_t)(uintptr_t)memory);
}

/* Messages connect ranks, whatever their size; only large ones go from memory to memory, which is then mapped. */
static void mix_messages(uint64_t *hash, const struct nccl_move *move, const struct transport_xfer *xfers, int n)
{
    mix(hash, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        mix(hash, xfers[i].bytes > 0 ? (uint64_t)xfers[i].peer + 1 : 0);
        mix(hash, move->told ? xfers[i].bytes : 0);
        mix_memory(hash, move, xfers[i].data);
    }
}

uint64_t nccl_move_hash(const struct nccl_move *move)
{
    uint64_t hash = 0;
    mix(&hash, (uint64_t)move->kind);
    mix(&hash, (uint64_t)(uintptr_t)move->comm);
    mix(&hash, move->told);
    mix_memory(&hash, move, move->send);
    mix_memory(&hash, move, move->recv);
    mix(&hash, move->count); /* its algorithm goes by the size */
    mix(&hash, (uint64_t)move->type);
    mix_messages(&hash, move, move->sends, move->nsends);
    mix_messages(&hash, move, move->recvs, move->nrecvs);
    return hash | 1; /* 0: an empty place */
}

/* One of the places next to each other where it may be; the first of them is given up for it where none is. */
static uint64_t *place_of(const struct nccl *nccl, uint64_t hash)
{
    enum { WAYS = 8 };
    if (nccl->known == NULL)
        return NULL;
    uint64_t *set = &nccl->known->hash[hash / 2 % (NCCL_KNOWN / WAYS) * WAYS], *empty = NULL;
    for (int i = 0; i < WAYS; i++) {
        if (set[i] == hash)
            return &set[i];
        if (set[i] == 0 && empty == NULL)
            empty = &set[i];
    }
    return empty != NULL ? empty : &set[0];
}

static bool is_captured(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &now) != cudaSuccess)
        (void)cudaGetLastError();
    return now == cudaStreamCaptureStatusActive;
}

void nccl_forget(const struct nccl *nccl)
{
    if (nccl->known != NULL)
        memset(nccl->known, 0, sizeof *nccl->known);
}

/* ---- by a thread ---- */

static ncclResult_t call_enqueue(struct nccl_call *call)
{
    return enqueue(call->api, call->move);
}

/* In one piece, for a thread that may stay in NCCL for ever. */
static struct nccl_move *copy_of(const struct nccl_move *move)
{
    size_t sends = (size_t)move->nsends * sizeof *move->sends, recvs = (size_t)move->nrecvs * sizeof *move->recvs;
    struct nccl_move *copy = malloc(sizeof *copy + sends + recvs);
    if (copy == NULL)
        return NULL;
    struct transport_xfer *lists = (struct transport_xfer *)(copy + 1);
    *copy = *move;
    if (sends > 0)
        memcpy(lists, move->sends, sends);
    if (recvs > 0)
        memcpy(lists + move->nsends, move->recvs, recvs);
    copy->sends = lists;
    copy->recvs = lists + move->nsends;
    return copy;
}

/* *done: it was asked for, well or not. */
static enum status enqueue_apart(const struct nccl *nccl, const struct nccl_move *move, const char *what, bool *done)
{
    struct nccl_call *call = nccl_call_make(nccl, call_enqueue);
    struct nccl_move *copy = copy_of(move);
    enum status status = STATUS_OK;
    *done = false;
    if (call != NULL && copy != NULL) {
        call->comm = move->comm;
        call->move = copy;
        int64_t deadline_ns = move->deadline_ns > 0 ? move->deadline_ns : clock_deadline(MEET_US);
        status = nccl_call_try(nccl, &call, deadline_ns, what, done);
        if (call == NULL)
            return status; /* both are the thread's */
    }
    free(call);
    free(copy);
    return status;
}

/* Captured memory NCCL maps for each graph anew. Where there is no thread to be had, it is asked here. */
enum status nccl_move(const struct nccl *nccl, const struct nccl_move *move, const char *what)
{
    const bool captured = is_captured(move->stream);
    const uint64_t hash = nccl_move_hash(move);
    uint64_t *place = captured ? NULL : place_of(nccl, hash);
    bool done = false;
    if (place == NULL || *place != hash) {
        TRY(enqueue_apart(nccl, move, what, &done));
        if (place != NULL && done)
            *place = hash;
    }
    return done ? STATUS_OK : nccl_status(nccl->api, move->comm, enqueue(nccl->api, move), what);
}
