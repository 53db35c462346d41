/* comm/transport_nccl_route.c -- memory that NCCL is told of before it moves it: registered, or in symmetric windows; and copies by
 * NCCL's copy engines.
 *
 * registered   ncclCommRegister with the job's communicator: grouped sends and receives go from memory to memory
 * window       ncclCommWindowRegister with a communicator of the group, since all its ranks register alike; moved as above
 * engine       the same, the communicator's policy being zero CTAs: ncclAlltoAll then goes by copy engines, on one host, between windows
 *              of the collective kind, with a driver of CUDA 12.5 or later. Its waits for other ranks are those of the stream, without an
 *              end of their own: the deadline of the wait for the queue ends them.
 *
 * Where NCCL has no symmetric memory, 2.28 answers a window with a mere registration and goes by its kernels without a word. A window
 * that is one lives on the device, so the pointer tells; a first all-to-all at opening shows that, and connects the ranks under a
 * deadline. All memory is NCCL's own (ncclMemAlloc), in pages of 2 MiB, as windows must be. NVLS stays as transport_nccl_load.c sets it.
 */
#include "comm/transport_nccl.h"

#include "base/dev_cuda.h"

#include <stdlib.h>
#include <string.h>

static struct verdict route_verdict(void *state, enum transport_route kind)
{
    return ((const struct nccl *)state)->routes[kind];
}

#if NCCL_VERSION_CODE >= 22800

enum { PAGE_BYTES = 4096, TRY_BYTES = 1024 };

/* ---- the communicator ---- */

struct known { /* memory of a route */
    struct known *next;
    void *memory, *told; /* told: the handle or window, NULL: not yet */
    size_t bytes;
};

struct route {
    struct nccl *nccl;
    enum transport_route kind;
    ncclComm_t comm; /* the job's, or one of its own */
    int *peers;      /* [size] its ranks in comm */
    struct transport_xfer *sends, *recvs; /* [size] of one all-to-all */
    int size, rank;
    struct known *known;
};

static enum status route_id(void *state, enum transport_route kind, char id[TRANSPORT_ID_BYTES])
{
    return kind == TRANSPORT_REGISTERED ? STATUS_OK : nccl_id(state, id); /* that has no communicator of its own */
}

static ncclResult_t call_window(struct nccl_call *call)
{
    ncclWindow_t window = NULL; /* stays so where NCCL has none and says success */
    ncclResult_t code =
        call->api->ncclCommWindowRegister(call->comm, call->memory, call->bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
    call->told = window;
    return code;
}

/* Is it a window, or a mere registration? */
static bool is_symmetric(const void *window)
{
    struct cudaPointerAttributes where = {.type = cudaMemoryTypeUnregistered};
    bool on_device =
        window != NULL && cudaPointerGetAttributes(&where, window) == cudaSuccess && where.type == cudaMemoryTypeDevice;
    (void)cudaGetLastError();
    return on_device;
}

static ncclResult_t alltoall_once(struct nccl_call *call)
{
    cudaStream_t stream = NULL;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
        return ncclUnhandledCudaError;
    char *half = (char *)call->memory + call->bytes / 2;
    ncclResult_t code = call->api->ncclAlltoAll(call->memory, half, TRY_BYTES, ncclInt8, call->comm, stream);
    if (code == ncclSuccess && cudaStreamSynchronize(stream) != cudaSuccess)
        code = ncclUnhandledCudaError;
    cudaStreamDestroy(stream);
    return code;
}

/* Connects, and where there are windows uses one once; else told stays NULL. */
static ncclResult_t call_open(struct nccl_call *call)
{
    const struct nccl_api *api = call->api;
    ncclResult_t code = nccl_call_connect(call);
    if (code != ncclSuccess)
        return code;
    call->bytes = 2 * (((size_t)call->size * TRY_BYTES + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
    code = api->ncclMemAlloc(&call->memory, call->bytes);
    if (code != ncclSuccess)
        return code;
    code = call_window(call);
    void *window = call->told;
    call->told = is_symmetric(window) ? window : NULL;
    if (code == ncclSuccess && call->told != NULL)
        code = alltoall_once(call);
    if (window != NULL)
        api->ncclCommWindowDeregister(call->comm, window);
    api->ncclMemFree(call->memory);
    return code;
}

static enum status no_windows(const struct nccl *nccl)
{
    char version[NCCL_VERSION_TEXT];
    return FAIL(STATUS_UNSUPPORTED, "NCCL %s has no symmetric windows between these GPUs",
                nccl_version_text(nccl->api->version, version));
}

static enum status communicator(struct route *route, const char *id)
{
    struct nccl_call *call = NULL;
    TRY(nccl_call_create(route->nccl, call_open, &call));
    call->rank = route->rank;
    call->size = route->size;
    call->engine = route->kind == TRANSPORT_ENGINE;
    memcpy(&call->id, id, sizeof call->id);
    enum status status = nccl_call_run(route->nccl, &call, "making a communicator of a group, with windows");
    if (call != NULL) /* made or not, it is ours to close */
        route->comm = call->comm;
    if (status == STATUS_OK && call->told == NULL)
        status = no_windows(route->nccl);
    free(call);
    return status;
}

static void route_close(void *handle)
{
    struct route *route = handle;
    if (route == NULL)
        return;
    if (route->comm != route->nccl->comm)
        nccl_comm_close(route->nccl, route->comm);
    free(route->peers);
    free(route->sends);
    free(route);
}

static enum status route_create(struct nccl *nccl, enum transport_route kind, const int *ranks, int size, int rank,
                                struct route **out)
{
    struct route *route = calloc(1, sizeof *route);
    int *peers = calloc((size_t)size, sizeof *peers);
    struct transport_xfer *xfers = calloc((size_t)size * 2, sizeof *xfers);
    if (route == NULL || peers == NULL || xfers == NULL) {
        free(route);
        free(peers);
        free(xfers);
        enum status status = FAIL(STATUS_NOMEM, "no memory for a route between ranks");
        boot_abort(nccl->boot, status_last()); /* the other ranks wait in NCCL */
        return status;
    }
    *route = (struct route){
        .nccl = nccl, .kind = kind, .peers = peers, .sends = xfers, .recvs = xfers + size, .size = size, .rank = rank};
    for (int r = 0; r < size; r++)
        peers[r] = kind == TRANSPORT_REGISTERED ? ranks[r] : r;
    *out = route;
    return STATUS_OK;
}

static enum status route_open(void *state, enum transport_route kind, const int *ranks, int size, int rank,
                              const char id[TRANSPORT_ID_BYTES], void **out)
{
    struct nccl *nccl = state;
    struct route *route = NULL;
    enum status status = STATUS_OK;
    TRY(route_create(nccl, kind, ranks, size, rank, &route));
    if (kind == TRANSPORT_REGISTERED)
        route->comm = nccl->comm;
    else
        status = communicator(route, id);
    if (status != STATUS_OK) {
        route_close(route);
        return status;
    }
    *out = route;
    return STATUS_OK;
}

/* ---- memory ---- */

static enum status zero(void *memory, size_t bytes, const char *what)
{
    TRY(dev_cuda_status(cudaMemset(memory, 0, bytes), what));
    return dev_cuda_status(cudaStreamSynchronize(cudaStreamLegacy), what); /* queues do not wait for it */
}

static enum status route_alloc(void *handle, size_t bytes, const char *what, void **memory)
{
    struct route *route = handle;
    const struct nccl_api *api = route->nccl->api;
    struct known *known = calloc(1, sizeof *known);
    if (known == NULL)
        return FAIL(STATUS_NOMEM, "no memory for %s", what);
    known->bytes = bytes > 0 ? (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES : PAGE_BYTES;
    ncclResult_t code = api->ncclMemAlloc(&known->memory, known->bytes);
    (void)cudaGetLastError();
    if (code != ncclSuccess) {
        free(known);
        return FAIL(STATUS_NOMEM, "no GPU memory for %s (%zu bytes): NCCL: %s", what, bytes,
                    api->ncclGetErrorString(code));
    }
    enum status status = zero(known->memory, known->bytes, what);
    if (status != STATUS_OK) {
        api->ncclMemFree(known->memory);
        free(known);
        return status;
    }
    known->next = route->known;
    route->known = known;
    *memory = known->memory;
    return STATUS_OK;
}

static struct known **find(struct route *route, const void *memory)
{
    struct known **at = &route->known;
    while (*at != NULL && (*at)->memory != memory)
        at = &(*at)->next;
    return at;
}

static enum status tell_window(const struct route *route, struct known *known)
{
    struct nccl_call *call = NULL;
    TRY(nccl_call_create(route->nccl, call_window, &call));
    call->comm = route->comm;
    call->memory = known->memory;
    call->bytes = known->bytes;
    enum status status = nccl_call_run(route->nccl, &call, "registering a window");
    if (status == STATUS_OK)
        known->told = call->told;
    free(call);
    return status;
}

static enum status route_tell(void *handle, void *memory)
{
    struct route *route = handle;
    struct known *known = *find(route, memory);
    if (known == NULL)
        return FAIL(STATUS_USAGE, "memory that is not of this route");
    if (route->kind != TRANSPORT_REGISTERED)
        return tell_window(route, known);
    return nccl_status(route->nccl->api, route->comm,
                       route->nccl->api->ncclCommRegister(route->comm, known->memory, known->bytes, &known->told),
                       "registering memory");
}

static ncclResult_t call_deregister(struct nccl_call *call)
{
    return call->api->ncclCommDeregister(call->comm, call->told);
}

static ncclResult_t call_close_window(struct nccl_call *call)
{
    return call->api->ncclCommWindowDeregister(call->comm, call->told);
}

/* Peers take part in letting it go, each by a thread of its NCCL: once the job is over the memory stays, until the process ends. */
static void route_free(void *handle, void *memory)
{
    struct route *route = handle;
    struct known **at = find(route, memory), *known = *at;
    if (known == NULL)
        return;
    *at = known->next;
    if (known->told != NULL && nccl_lives(route->nccl)) {
        const struct nccl_call call = {.run = route->kind == TRANSPORT_REGISTERED ? call_deregister : call_close_window,
                                       .comm = route->comm,
                                       .told = known->told};
        nccl_call_last(route->nccl, &call, "letting memory go");
        nccl_forget(route->nccl);
    }
    if (nccl_lives(route->nccl))
        route->nccl->api->ncclMemFree(known->memory);
    free(known);
}

/* ---- moving ---- */

static enum status engine_alltoall(const struct route *route, const void *const *send, void *const *recv, size_t bytes,
                                   cudaStream_t stream)
{
    const struct nccl_move move = {.kind = NCCL_ALLTOALL,
                                   .comm = route->comm,
                                   .stream = stream,
                                   .send = send[0],
                                   .recv = recv[0],
                                   .count = bytes,
                                   .type = ncclInt8,
                                   .told = true};
    for (int r = 1; r < route->size; r++)
        if ((const char *)send[r] != (const char *)send[0] + (size_t)r * bytes ||
            (char *)recv[r] != (char *)recv[0] + (size_t)r * bytes)
            return FAIL(STATUS_USAGE, "an all-to-all by copy engines of blocks that do not follow each other");
    return nccl_move(route->nccl, &move, "an all-to-all");
}

static struct transport_xfer message(const struct route *route, int r, const void *data, size_t bytes)
{
    union { /* as in group_xfer: sends only read */
        const void *in;
        void *out;
    } both = {.in = data};
    return (struct transport_xfer){.peer = route->peers[r], .data = both.out, .bytes = r != route->rank ? bytes : 0};
}

static enum status route_alltoall(void *handle, const void *const *send, void *const *recv, size_t bytes,
                                  struct dev_queue *queue)
{
    const struct route *route = handle;
    if (route->kind == TRANSPORT_ENGINE)
        return engine_alltoall(route, send, recv, bytes, dev_cuda_stream(queue));
    for (int r = 0; r < route->size; r++) {
        route->sends[r] = message(route, r, send[r], bytes);
        route->recvs[r] = message(route, r, recv[r], bytes);
    }
    const struct nccl_move move = {.kind = NCCL_MESSAGES,
                                   .comm = route->comm,
                                   .stream = dev_cuda_stream(queue),
                                   .rank = -1,
                                   .sends = route->sends,
                                   .nsends = route->size,
                                   .recvs = route->recvs,
                                   .nrecvs = route->size,
                                   .told = true};
    return nccl_move(route->nccl, &move, "sending and receiving");
}

const struct transport_routes nccl_routes = {
    .verdict = route_verdict,
    .id = route_id,
    .open = route_open,
    .close = route_close,
    .alloc = route_alloc,
    .tell = route_tell,
    .free = route_free,
    .alltoall = route_alltoall,
};

#else /* no routes in these headers: transport_nccl_can.c says so */

const struct transport_routes nccl_routes = {.verdict = route_verdict};

#endif
