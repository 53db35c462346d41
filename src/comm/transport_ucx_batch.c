/* comm/transport_ucx_batch.c -- messages posted together and completed together.
 *
 * All receives are posted first, then sends, starting behind this rank so that no peer is everybody's first target;
 * those to one peer keep their order. The tag carries the caller's tag and the source rank; UCX keeps the order of equal tags between two ranks. After a
 * failure with messages under way the transport is broken: what arrives late must not be taken for something newer.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "comm/nap.h"
#include "comm/transport_ucx.h"

#include <string.h>
#include <time.h>

enum {
    CLOCK_EVERY = 32, /* looks between two looks at the clock */
    CANCEL_US = 100 * 1000,
    VERDICT_US = 1000 * 1000,
    WORK_US = 600 * 1000 * 1000, /* that a device takes for what was computed before, at most */
};

/* ---- a broken connection ---- */

/* An endpoint broke. The bootstrap knows more in a moment: which rank ended first. */
static enum status await_verdict(struct ucx *ucx, int peer, const char *what)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    char why[128];
    text_print(why, sizeof why, "%s", what); /* perhaps part of the message that the verdict replaces */
    int64_t deadline_ns = clock_deadline(VERDICT_US);
    while (!clock_passed(deadline_ns)) {
        TRY(boot_poll(ucx->boot));
        nanosleep(&nap, NULL);
    }
    return status_rank(FAIL(STATUS_PEER, "the connection to rank %d broke: %s", peer, why), peer);
}

/* ---- posting ---- */

static ucp_tag_t tag_of(uint32_t tag, int source)
{
    return (ucp_tag_t)tag << 32 | (uint32_t)source;
}

static ucs_memory_type_t memory_type(const struct ucx *ucx)
{
    return dev_kind_of(ucx->dev) == DEV_CUDA ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

static void done(struct ucx_slot *slot, ucs_status_t status, size_t got)
{
    slot->done = true;
    slot->status = status;
    slot->got = got;
    slot->ucx->pending--;
}

static void on_send(void *request, ucs_status_t status, void *user_data)
{
    struct ucx_slot *slot = user_data;
    done(slot, status, slot->bytes);
    slot->request = NULL;
    slot->ucx->api->ucp_request_free(request);
}

static void on_recv(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data)
{
    struct ucx_slot *slot = user_data;
    done(slot, status, status == UCS_OK ? info->length : 0);
    slot->request = NULL;
    slot->ucx->api->ucp_request_free(request);
}

/* The callback may have come already. */
static void posted(struct ucx_slot *slot, ucs_status_ptr_t request)
{
    if (slot->done)
        return;
    if (UCS_PTR_IS_PTR(request))
        slot->request = request;
    else
        done(slot, UCS_PTR_STATUS(request), slot->bytes);
}

/* Always by the callback: the length of a message that came early is not to be had otherwise (UCX 1.13). */
static void post_recv(struct ucx *ucx, struct ucx_slot *slot, const struct transport_xfer *xfer)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb = {.recv = on_recv},
        .user_data = slot,
        .memory_type = memory_type(ucx),
    };
    *slot = (struct ucx_slot){.ucx = ucx, .peer = xfer->peer, .is_recv = true, .bytes = xfer->bytes};
    ucx->pending++;
    posted(slot, ucx->api->ucp_tag_recv_nbx(ucx->worker, xfer->data, xfer->bytes, tag_of(xfer->tag, xfer->peer),
                                            UINT64_MAX, &param));
}

static enum status post_send(struct ucx *ucx, struct ucx_slot *slot, const struct transport_xfer *xfer)
{
    ucp_ep_h ep;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb = {.send = on_send},
        .user_data = slot,
        .memory_type = memory_type(ucx),
    };
    if (ucx_ep(ucx, xfer->peer, &ep) != STATUS_OK)
        return await_verdict(ucx, xfer->peer, status_last()->what);
    *slot = (struct ucx_slot){.ucx = ucx, .peer = xfer->peer, .bytes = xfer->bytes};
    ucx->pending++;
    posted(slot, ucx->api->ucp_tag_send_nbx(ep, xfer->data, xfer->bytes, tag_of(xfer->tag, ucx->rank), &param));
    return STATUS_OK;
}

static bool travels(const struct ucx *ucx, const struct transport_xfer *xfer)
{
    return xfer->bytes > 0 && xfer->peer != ucx->rank;
}

static enum status post_all(struct ucx *ucx, const struct transport_xfer *sends, int nsends,
                            const struct transport_xfer *recvs, int nrecvs, int *count)
{
    struct ucx_slot *slot = ucx->slots;
    enum status status = STATUS_OK;
    for (int i = 0; i < nrecvs; i++)
        if (travels(ucx, &recvs[i]))
            post_recv(ucx, slot++, &recvs[i]);
    for (int lower = 0; lower < 2; lower++) /* ranks above this one, then those below, each in the order of the list */
        for (int i = 0; i < nsends && status == STATUS_OK; i++)
            if (travels(ucx, &sends[i]) && (sends[i].peer < ucx->rank) == (lower != 0))
                status = post_send(ucx, slot++, &sends[i]);
    *count = (int)(slot - ucx->slots) - (status != STATUS_OK);
    return status;
}

/* Messages to this rank itself, in the order they stand in. */
static enum status copy_own(const struct ucx *ucx, const struct transport_xfer *sends, int nsends,
                            const struct transport_xfer *recvs, int nrecvs, struct dev_queue *queue)
{
    int at = 0;
    for (int i = 0; i < nsends; i++) {
        if (sends[i].peer != ucx->rank || sends[i].bytes == 0)
            continue;
        while (at < nrecvs && (recvs[at].peer != ucx->rank || recvs[at].bytes == 0))
            at++;
        if (at == nrecvs || recvs[at].tag != sends[i].tag || recvs[at].bytes != sends[i].bytes)
            return status_rank(FAIL(STATUS_USAGE, "rank %d sends itself %zu bytes that it does not receive", ucx->rank,
                                    sends[i].bytes),
                               ucx->rank);
        TRY(dev_copy(queue, recvs[at].data, sends[i].data, sends[i].bytes));
        at++;
    }
    return STATUS_OK;
}

/* ---- waiting ---- */

/* What is sent has been computed, what is overwritten has been read. That is no rank's delay: the messages have their time afterwards. */
static enum status await_work(struct dev_queue *queue, int64_t *deadline_ns)
{
    const int64_t from_ns = clock_ns();
    TRY(dev_sync(queue, clock_deadline(WORK_US)));
    const int64_t took_ns = clock_ns() - from_ns;
    *deadline_ns = *deadline_ns < INT64_MAX - took_ns ? *deadline_ns + took_ns : INT64_MAX;
    return STATUS_OK;
}

static const struct ucx_slot *first_late(const struct ucx *ucx, int count)
{
    for (int i = 0; i < count; i++)
        if (!ucx->slots[i].done)
            return &ucx->slots[i];
    return &ucx->slots[0];
}

static enum status name_late(const struct ucx *ucx, int count)
{
    const struct ucx_slot *late = first_late(ucx, count);
    return status_rank(FAIL(STATUS_TIMEOUT, "rank %d did not %s %zu bytes %s rank %d in time (%s)", late->peer,
                            late->is_recv ? "send" : "take", late->bytes, late->is_recv ? "to" : "from", ucx->rank,
                            ucx->in_use[0] ? ucx->in_use : "ucx"),
                       late->peer);
}

static enum status wait_all(struct ucx *ucx, int count, int64_t deadline_ns)
{
    struct nap nap = {0};
    for (unsigned looks = 0; ucx->pending > 0; looks++) {
        if (ucx->api->ucp_worker_progress(ucx->worker)) {
            nap.looks = 0;
            if (looks % CLOCK_EVERY)
                continue;
        } else {
            nap_take(&nap);
        }
        if (looks % CLOCK_EVERY && nap.looks < NAP_SPINS)
            continue;
        TRY(boot_poll(ucx->boot));
        if (clock_passed(deadline_ns))
            return name_late(ucx, count);
    }
    return STATUS_OK;
}

static enum status check_slots(struct ucx *ucx, int count)
{
    for (int i = 0; i < count; i++) {
        const struct ucx_slot *slot = &ucx->slots[i];
        if (slot->status == UCS_ERR_MESSAGE_TRUNCATED)
            return status_rank(FAIL(STATUS_MACHINE, "rank %d sent more than the %zu bytes that rank %d expects",
                                    slot->peer, slot->bytes, ucx->rank),
                               slot->peer);
        if (slot->status != UCS_OK)
            return await_verdict(ucx, slot->peer, ucx->api->ucs_status_string(slot->status));
        if (slot->got != slot->bytes)
            return status_rank(FAIL(STATUS_MACHINE, "rank %d sent %zu bytes where rank %d expects %zu", slot->peer,
                                    slot->got, ucx->rank, slot->bytes),
                               slot->peer);
    }
    return STATUS_OK;
}

/* Nothing of this batch may touch the caller's memory afterwards. Receives can be cancelled; sends get a moment, and
 * what is left of them is never progressed again. */
static void cancel_all(struct ucx *ucx, int count)
{
    int64_t deadline_ns = clock_deadline(CANCEL_US);
    for (int i = 0; i < count; i++)
        if (!ucx->slots[i].done && ucx->slots[i].request)
            ucx->api->ucp_request_cancel(ucx->worker, ucx->slots[i].request);
    struct nap nap = {0};
    for (; ucx->pending > 0 && !clock_passed(deadline_ns); nap_take(&nap))
        ucx->api->ucp_worker_progress(ucx->worker);
}

static enum status reserve(struct ucx *ucx, int nsends, int nrecvs)
{
    void *slots = ucx->slots;
    enum status status = mem_grow(&slots, &ucx->slots_cap, (size_t)nsends + (size_t)nrecvs, sizeof *ucx->slots);
    ucx->slots = slots;
    return status;
}

static enum status fail(struct ucx *ucx, enum status status, int count)
{
    ucx->why = *status_last();
    ucx->broken = ucx->pending > 0;
    if (ucx->broken)
        cancel_all(ucx, count);
    status_restore(&ucx->why);
    return status;
}

enum status ucx_batch(void *state, const struct transport_xfer *sends, int nsends, const struct transport_xfer *recvs,
                      int nrecvs, struct dev_queue *queue, int64_t deadline_ns)
{
    struct ucx *ucx = state;
    int count = 0;
    queue = queue ? queue : ucx->queue;
    if (ucx->broken) {
        status_restore(&ucx->why);
        return ucx->why.code;
    }
    TRY(reserve(ucx, nsends, nrecvs));
    TRY(await_work(queue, &deadline_ns));
    enum status status = post_all(ucx, sends, nsends, recvs, nrecvs, &count);
    if (status == STATUS_OK)
        status = copy_own(ucx, sends, nsends, recvs, nrecvs, queue);
    if (status == STATUS_OK)
        status = wait_all(ucx, count, deadline_ns);
    if (status == STATUS_OK)
        status = check_slots(ucx, count);
    if (status == STATUS_OK)
        status = dev_sync(queue, deadline_ns); /* the own copy */
    return status == STATUS_OK ? STATUS_OK : fail(ucx, status, count);
}
