/* comm/transport_nccl.c -- NCCL: a batch is one group of sends and receives by the job's communicator, on the queue's stream.
 *
 * A batch only enqueues, once its ranks have met (transport_nccl_move.c). Its deadline is that of the wait for the queue (dev_sync); a rank that
 * dies is noticed by the supervisor and the bootstrap, which end the others. A job of one rank needs no NCCL and loads none.
 */
#include "comm/transport_nccl.h"

#include "base/clock.h"
#include "base/dev_cuda.h"
#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* The id that rank 0 makes, on all of them. Who does not get it tells the others, which wait in NCCL. */
static enum status share_id(struct nccl *nccl, char id[TRANSPORT_ID_BYTES])
{
    void *data = id;
    size_t bytes = TRANSPORT_ID_BYTES;
    enum status status = nccl->rank == 0 ? nccl_id(nccl, id) : STATUS_OK;
    TRY(boot_agree(nccl->boot, status, clock_deadline(BOOT_DEADLINE_US)));
    status = boot_bcast(nccl->boot, 0, &data, &bytes, clock_deadline(BOOT_DEADLINE_US));
    if (status != STATUS_OK) {
        boot_abort(nccl->boot, status_last());
        return status;
    }
    if (nccl->rank != 0) {
        memcpy(id, data, TRANSPORT_ID_BYTES);
        free(data);
    }
    return STATUS_OK;
}

/* NCCL refuses two ranks on a GPU of one host: each is then a host of its own, which it reaches by sockets, unless the user names another
 * network. Once a process: a further job of these ranks (comm_open_beside) comes while threads of NCCL read the environment. */
static void be_apart(const struct nccl *nccl)
{
    static bool done;
    char name[CUDA_CARD_BUS];
    if (done)
        return;
    done = true;
    text_print(name, sizeof name, "sptune-rank-%d", nccl->rank);
    setenv("NCCL_HOSTID", name, 1);
    setenv("NCCL_NET", "Socket", 0);
}

static enum status connect(struct nccl *nccl)
{
    char id[TRANSPORT_ID_BYTES] = {0};
    TRY(share_id(nccl, id));
    return nccl_comm_open(nccl, nccl->size, nccl->rank, id, &nccl->comm);
}

/* docs/decisions/0008-peer-pointers.md says why it is CUDA IPC whatever the two versions are. */
static void say(const struct nccl *nccl)
{
    char version[NCCL_VERSION_TEXT];
    log_verbose(
        "NCCL %s, headers of %d.%d.%d; %s%s", nccl_version_text(nccl->api->version, version), NCCL_MAJOR, NCCL_MINOR,
        NCCL_PATCH,
        verdict_ok(&nccl->peers) ? "peers' memory by CUDA IPC" : "no peer's memory is mapped: ", nccl->peers.why);
}

static enum status meet(struct nccl *nccl)
{
    TRY(cuda_memory_probe(nccl));
    TRY(nccl_routes_probe(nccl));
    if (nccl->shared)
        be_apart(nccl);
    TRY(connect(nccl));
    say(nccl);
    return STATUS_OK;
}

static void nccl_close(void *state)
{
    struct nccl *nccl = state;
    if (nccl == NULL)
        return;
    nccl_comm_close(nccl, nccl->comm);
    free(nccl->known);
    free(nccl);
}

static enum status nccl_open(struct boot *boot, struct dev *dev, const char *prefer, void **state)
{
    struct nccl *nccl = calloc(1, sizeof *nccl);
    if (nccl != NULL)
        nccl->known = calloc(1, sizeof *nccl->known);
    enum status status =
        nccl != NULL && nccl->known != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for a transport");
    if (status == STATUS_OK && prefer != NULL)
        status = HINT(FAIL(STATUS_USAGE, "NCCL cannot be narrowed to '%s'", prefer), "NCCL's own variables do that");
    if (status == STATUS_OK && dev_kind_of(dev) != DEV_CUDA)
        status =
            FAIL(STATUS_USAGE, "NCCL moves CUDA memory, these ranks are on the %s", dev_kind_name(dev_kind_of(dev)));
    if (status == STATUS_OK) {
        nccl->boot = boot;
        nccl->dev = dev;
        nccl->rank = boot_rank(boot);
        nccl->size = boot_size(boot);
        text_print(nccl->in_use, sizeof nccl->in_use, "nccl");
        if (nccl->size > 1)
            status = nccl_load(&nccl->api);
    }
    status = boot_agree(boot, status, clock_deadline(BOOT_DEADLINE_US));
    if (status == STATUS_OK && nccl->size > 1)
        status = meet(nccl);
    if (status != STATUS_OK) {
        const struct status_message kept = *status_last();
        nccl_close(nccl);
        status_restore(&kept);
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
    static char version[NCCL_VERSION_TEXT];
    const struct nccl_api *api;
    if (nccl_load(&api) != STATUS_OK) {
        status_clear();
        return "";
    }
    return nccl_version_text(api->version, version);
}

/* By copies, in a job of one rank; what nobody takes is refused in any. */
static enum status copy_own(const struct nccl *nccl, const struct nccl_move *move, struct dev_queue *queue)
{
    struct nccl_own own = {.nsends = move->nsends, .nrecvs = move->nrecvs};
    do {
        TRY(nccl_own_next(move, &own));
        if (own.send != NULL && nccl->comm == NULL)
            TRY(dev_copy(queue, own.recv->data, own.send->data, own.send->bytes));
    } while (own.send != NULL);
    return STATUS_OK;
}

static bool any(const struct transport_xfer *xfers, int n)
{
    for (int i = 0; i < n; i++)
        if (xfers[i].bytes > 0)
            return true;
    return false;
}

static enum status nccl_batch(void *state, const struct transport_xfer *sends, int nsends,
                              const struct transport_xfer *recvs, int nrecvs, struct dev_queue *queue,
                              int64_t deadline_ns)
{
    const struct nccl *nccl = state;
    const struct nccl_move move = {.kind = NCCL_MESSAGES,
                                   .comm = nccl->comm,
                                   .stream = dev_cuda_stream(queue),
                                   .rank = nccl->rank,
                                   .sends = sends,
                                   .nsends = nsends,
                                   .recvs = recvs,
                                   .nrecvs = nrecvs,
                                   .deadline_ns = deadline_ns};
    TRY(copy_own(nccl, &move, queue));
    if (nccl->comm == NULL || (!any(sends, nsends) && !any(recvs, nrecvs)))
        return STATUS_OK;
    return nccl_move(nccl, &move, "sending and receiving");
}

static void nccl_progress(void *state)
{
    (void)state; /* NCCL has threads of its own */
}

const struct transport transport_nccl = {
    .name = "nccl",
    .dev = DEV_CUDA,
    .open = nccl_open,
    .close = nccl_close,
    .in_use = nccl_in_use,
    .version = nccl_version,
    .batch = nccl_batch,
    .progress = nccl_progress,
    .memory_verdict = cuda_memory_verdict,
    .memory_create = cuda_memory_create,
    .memory_destroy = cuda_memory_destroy,
    .memory_map = cuda_memory_map,
    .memory_unmap = cuda_memory_unmap,
    .sums = &nccl_sums,
    .routes = &nccl_routes,
};
