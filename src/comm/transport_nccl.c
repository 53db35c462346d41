/* comm/transport_nccl.c -- NCCL: one communicator for the job, a batch is one group of sends and receives on the queue's stream.
 *
 * A batch only enqueues. Its deadline is that of the wait for the queue (dev_sync); a rank that dies is noticed by the
 * supervisor and the bootstrap, which end the others. Messages to oneself are copies.
 */
#include "comm/transport_nccl.h"

#include "base/clock.h"
#include "base/dev_cuda.h"
#include "base/text.h"
#include "base/thread.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { INIT_US = 120 * 1000 * 1000, LOOK_NS = 200 * 1000 };

static enum status explain(const struct nccl *nccl, ncclResult_t code, const char *what)
{
    if (code == ncclSuccess)
        return STATUS_OK;
    const char *last = nccl->comm != NULL ? nccl->api->ncclGetLastError(nccl->comm) : "";
    return FAIL(STATUS_MACHINE, "NCCL: %s: %s%s%.200s", what, nccl->api->ncclGetErrorString(code), last[0] ? ": " : "", last);
}

/* ---- making the communicator, which blocks until all ranks do: on a thread of its own, so that a dead peer ends the wait ---- */

struct init { /* all that the thread reads */
    const struct nccl_api *api;
    int rank, size;
    ncclUniqueId id;
    int device;
    ncclComm_t comm;
    ncclResult_t code;
    atomic_int done;
};

static void *init_run(void *arg)
{
    struct init *init = arg;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    cudaSetDevice(init->device);
    init->code = init->api->ncclCommInitRankConfig(&init->comm, init->size, init->id, init->rank, &config);
    atomic_store(&init->done, 1);
    return NULL;
}

static enum status init_wait(struct nccl *nccl, struct init *init)
{
    const struct timespec look = {.tv_nsec = LOOK_NS};
    int64_t deadline_ns = clock_deadline(INIT_US);
    while (!atomic_load(&init->done)) {
        TRY(boot_poll(nccl->boot));
        if (clock_passed(deadline_ns))
            return FAIL(STATUS_TIMEOUT, "NCCL did not connect %d ranks within %d s", nccl->size, INIT_US / 1000000);
        nanosleep(&look, NULL);
    }
    return STATUS_OK;
}

/* When the wait fails *init is left to its thread, which NCCL may hold for ever. */
static enum status init_comm(struct nccl *nccl, struct init **init)
{
    pthread_t thread;
    if (thread_start(&thread, init_run, *init) != 0)
        return FAIL(STATUS_MACHINE, "no thread for making an NCCL communicator");
    enum status status = init_wait(nccl, *init);
    if (status != STATUS_OK) {
        pthread_detach(thread);
        *init = NULL;
        return status;
    }
    pthread_join(thread, NULL);
    nccl->comm = (*init)->comm;
    return explain(nccl, (*init)->code, "making a communicator");
}

static enum status connect(struct nccl *nccl)
{
    struct init *init = calloc(1, sizeof *init);
    int64_t deadline_ns = clock_deadline(BOOT_DEADLINE_US);
    enum status status = init != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for a communicator");
    if (status == STATUS_OK && nccl->rank == 0)
        status = explain(nccl, nccl->api->ncclGetUniqueId(&init->id), "making a unique id");
    status = boot_agree(nccl->boot, status, deadline_ns);
    if (status != STATUS_OK) {
        free(init);
        return status;
    }
    void *data = &init->id;
    size_t bytes = sizeof init->id;
    status = boot_bcast(nccl->boot, 0, &data, &bytes, deadline_ns);
    if (status == STATUS_OK && nccl->rank != 0) {
        memcpy(&init->id, data, sizeof init->id);
        free(data);
    }
    init->api = nccl->api;
    init->rank = nccl->rank;
    init->size = nccl->size;
    init->device = dev_cuda_index(nccl->dev);
    if (status == STATUS_OK)
        status = init_comm(nccl, &init);
    free(init);
    if (status != STATUS_OK) /* the others wait in NCCL, not for an agreement: this ends them with the cause */
        boot_abort(nccl->boot, status_last());
    return status;
}

static enum status load(struct nccl *nccl)
{
    TRY(nccl_load(&nccl->api));
    text_print(nccl->in_use, sizeof nccl->in_use, "nccl");
    return STATUS_OK;
}

static void nccl_close(void *state)
{
    struct nccl *nccl = state;
    if (nccl == NULL)
        return;
    if (nccl->comm != NULL) {
        if (boot_poll(nccl->boot) == STATUS_OK)
            nccl->api->ncclCommDestroy(nccl->comm);
        else
            nccl->api->ncclCommAbort(nccl->comm);
    }
    free(nccl);
}

static enum status nccl_open(struct boot *boot, struct dev *dev, const char *prefer, void **state)
{
    struct nccl *nccl = calloc(1, sizeof *nccl);
    enum status status = nccl != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for a transport");
    if (status == STATUS_OK && prefer != NULL)
        status = HINT(FAIL(STATUS_USAGE, "NCCL cannot be narrowed to '%s'", prefer), "NCCL's own variables do that");
    if (status == STATUS_OK && dev_kind_of(dev) != DEV_CUDA)
        status = FAIL(STATUS_USAGE, "NCCL moves CUDA memory, these ranks are on the %s", dev_kind_name(dev_kind_of(dev)));
    if (status == STATUS_OK) {
        nccl->boot = boot;
        nccl->dev = dev;
        nccl->rank = boot_rank(boot);
        nccl->size = boot_size(boot);
        status = load(nccl);
    }
    status = boot_agree(boot, status, clock_deadline(BOOT_DEADLINE_US));
    if (status == STATUS_OK)
        status = cuda_memory_probe(nccl);
    if (status == STATUS_OK && nccl->size > 1)
        status = connect(nccl);
    if (status != STATUS_OK) {
        free(nccl);
        return status;
    }
    *state = nccl;
    return STATUS_OK;
}

static const char *nccl_in_use(void *state)
{
    return ((struct nccl *)state)->in_use;
}

static const char *nccl_version(void)
{
    static char version[32];
    const struct nccl_api *api;
    if (nccl_load(&api) != STATUS_OK) {
        status_clear();
        return "";
    }
    text_print(version, sizeof version, "%d.%d.%d", api->version / 10000, api->version / 100 % 100, api->version % 100);
    return version;
}

/* The i-th message to oneself meets the i-th from oneself. */
static enum status copy_own(const struct nccl *nccl, const struct transport_xfer *sends, int nsends,
                            const struct transport_xfer *recvs, int nrecvs, struct dev_queue *queue)
{
    int r = 0;
    for (int s = 0; s < nsends; s++) {
        if (sends[s].peer != nccl->rank)
            continue;
        while (r < nrecvs && recvs[r].peer != nccl->rank)
            r++;
        if (r == nrecvs || recvs[r].bytes != sends[s].bytes)
            return FAIL(STATUS_USAGE, "a message of %zu bytes to oneself that nobody takes", sends[s].bytes);
        if (recvs[r].data != sends[s].data)
            TRY(dev_copy(queue, recvs[r].data, sends[s].data, sends[s].bytes));
        r++;
    }
    return STATUS_OK;
}

static ncclResult_t post(const struct nccl *nccl, const struct transport_xfer *sends, int nsends,
                         const struct transport_xfer *recvs, int nrecvs, cudaStream_t stream)
{
    const struct nccl_api *api = nccl->api;
    ncclResult_t code = ncclSuccess;
    for (int i = 0; i < nrecvs && code == ncclSuccess; i++)
        if (recvs[i].peer != nccl->rank && recvs[i].bytes > 0)
            code = api->ncclRecv(recvs[i].data, recvs[i].bytes, ncclInt8, recvs[i].peer, nccl->comm, stream);
    for (int i = 0; i < nsends && code == ncclSuccess; i++)
        if (sends[i].peer != nccl->rank && sends[i].bytes > 0)
            code = api->ncclSend(sends[i].data, sends[i].bytes, ncclInt8, sends[i].peer, nccl->comm, stream);
    return code;
}

static bool leaves(const struct nccl *nccl, const struct transport_xfer *xfers, int n)
{
    for (int i = 0; i < n; i++)
        if (xfers[i].peer != nccl->rank && xfers[i].bytes > 0)
            return true;
    return false;
}

static enum status nccl_batch(void *state, const struct transport_xfer *sends, int nsends,
                              const struct transport_xfer *recvs, int nrecvs, struct dev_queue *queue,
                              int64_t deadline_ns)
{
    struct nccl *nccl = state;
    (void)deadline_ns;
    TRY(copy_own(nccl, sends, nsends, recvs, nrecvs, queue));
    if (!leaves(nccl, sends, nsends) && !leaves(nccl, recvs, nrecvs))
        return STATUS_OK;
    TRY(explain(nccl, nccl->api->ncclGroupStart(), "opening a group"));
    ncclResult_t code = post(nccl, sends, nsends, recvs, nrecvs, dev_cuda_stream(queue));
    ncclResult_t end = nccl->api->ncclGroupEnd();
    return explain(nccl, code != ncclSuccess ? code : end, "sending and receiving");
}

static ncclDataType_t type_of(enum dtype dtype)
{
    return dtype == DTYPE_FP32 ? ncclFloat32 : dtype == DTYPE_BF16 ? ncclBfloat16 : ncclFloat16;
}

static enum status nccl_sum_scatter(void *state, const void *send, void *recv, int64_t elems, enum dtype dtype,
                                    struct dev_queue *queue)
{
    struct nccl *nccl = state;
    return explain(nccl,
                   nccl->api->ncclReduceScatter(send, recv, (size_t)elems, type_of(dtype), ncclSum, nccl->comm,
                                                dev_cuda_stream(queue)),
                   "a reduce-scatter");
}

static enum status nccl_sum_all(void *state, void *data, int64_t elems, enum dtype dtype, struct dev_queue *queue)
{
    struct nccl *nccl = state;
    return explain(nccl,
                   nccl->api->ncclAllReduce(data, data, (size_t)elems, type_of(dtype), ncclSum, nccl->comm,
                                            dev_cuda_stream(queue)),
                   "an all-reduce");
}

static void nccl_progress(void *state)
{
    (void)state; /* NCCL has threads of its own */
}

const struct transport transport_nccl = {
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .in_use = nccl_in_use,
    .version = nccl_version,
    .batch = nccl_batch,
    .sum_scatter = nccl_sum_scatter,
    .sum_all = nccl_sum_all,
    .progress = nccl_progress,
    .memory_verdict = cuda_memory_verdict,
    .memory_create = cuda_memory_create,
    .memory_destroy = cuda_memory_destroy,
    .memory_map = cuda_memory_map,
    .memory_unmap = cuda_memory_unmap,
};
