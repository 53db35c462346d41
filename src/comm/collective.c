/* comm/collective.c -- collectives made of batches of messages. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/range.h"
#include "comm/comm_group.h"
#include "comm/reduce.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_AT_ONCE = GROUP_SLOT_BYTES / (int)sizeof(double) };

enum status group_batch(struct comm *comm, int nsends, int nrecvs, struct dev_queue *queue)
{
    struct comm_job *job = comm->job;
    return job->transport->batch(job->state, comm->sends, nsends, comm->recvs, nrecvs, queue ? queue : comm->queue,
                                 clock_deadline(comm->after_us));
}

static const char *at(const void *base, size_t bytes)
{
    return bytes ? (const char *)base + bytes : base;
}

static enum status check_rank(const struct comm *comm, int rank)
{
    if (rank >= 0 && rank < comm->size)
        return STATUS_OK;
    return FAIL(STATUS_USAGE, "rank %d is not one of this group's %d", rank, comm->size);
}

/* ---- data to and from everybody ---- */

enum status comm_alltoall(struct comm *comm, const void *send, void *recv, size_t bytes, struct dev_queue *queue)
{
    for (int r = 0; r < comm->size; r++) {
        comm->sends[r] = group_xfer(comm, GROUP_ALLTOALL, r, at(send, (size_t)r * bytes), bytes);
        comm->recvs[r] = group_xfer(comm, GROUP_ALLTOALL, r, at(recv, (size_t)r * bytes), bytes);
    }
    return RANGE("all-to-all", group_batch(comm, comm->size, comm->size, queue));
}

enum status comm_alltoallv(struct comm *comm, const void *const *send, const size_t *send_bytes, void *const *recv,
                           const size_t *recv_bytes, struct dev_queue *queue)
{
    for (int r = 0; r < comm->size; r++) {
        comm->sends[r] = group_xfer(comm, GROUP_ALLTOALL, r, send[r], send_bytes[r]);
        comm->recvs[r] = group_xfer(comm, GROUP_ALLTOALL, r, recv[r], recv_bytes[r]);
    }
    return RANGE("all-to-all", group_batch(comm, comm->size, comm->size, queue));
}

enum status comm_allgather(struct comm *comm, const void *send, void *recv, size_t bytes, struct dev_queue *queue)
{
    for (int r = 0; r < comm->size; r++) {
        comm->sends[r] = group_xfer(comm, GROUP_ALLGATHER, r, send, bytes);
        comm->recvs[r] = group_xfer(comm, GROUP_ALLGATHER, r, at(recv, (size_t)r * bytes), bytes);
    }
    return RANGE("all-gather", group_batch(comm, comm->size, comm->size, queue));
}

/* ---- sums ---- */

/* Bytes of n blocks of elems elements; refuses what no memory can hold. */
static enum status block_bytes(int n, int64_t elems, enum dtype dtype, size_t *out_block)
{
    int64_t block, all;
    TRY(mem_mul(elems, dtype_bytes(dtype), "elements of a sum", &block));
    TRY(mem_mul(block, n, "bytes of a sum", &all));
    *out_block = (size_t)block;
    return STATUS_OK;
}

static enum status reduce_scatter(struct comm *comm, const void *send, void *recv, int64_t elems, enum dtype dtype,
                                  void *scratch, struct dev_queue *queue)
{
    size_t block;
    TRY(block_bytes(comm->size, elems, dtype, &block));
    if (comm->size == 1) /* other devices' memory would go through the host */
        return dev_copy(queue, recv, send, block);
    for (int r = 0; r < comm->size; r++) {
        bool own = r == comm->rank; /* read where it is */
        comm->sends[r] = group_xfer(comm, GROUP_REDUCE, r, at(send, (size_t)r * block), own ? 0 : block);
        comm->recvs[r] = group_xfer(comm, GROUP_REDUCE, r, at(scratch, (size_t)r * block), own ? 0 : block);
        comm->sources[r] = own ? comm->sends[r].data : comm->recvs[r].data;
    }
    TRY(group_batch(comm, comm->size, comm->size, queue));
    return reduce_sum(comm->job->dev, queue, dtype, comm->sources, comm->size, recv, elems);
}

bool comm_sums_natively(const struct comm *comm)
{
    return comm->job->transport->sums != NULL && comm->size > 1;
}

static bool is_job(const struct comm *comm)
{
    for (int r = 0; r < comm->size; r++)
        if (comm->ranks[r] != r)
            return false;
    return comm->size == boot_size(comm->job->boot);
}

enum status comm_sums_open(struct comm *comm)
{
    const struct transport_sums *sums = comm->job->transport->sums;
    char id[TRANSPORT_ID_BYTES] = {0};
    if (!comm_sums_natively(comm) || comm->sums != NULL || is_job(comm))
        return STATUS_OK;
    enum status status = comm->rank == 0 ? sums->id(comm->job->state, id) : STATUS_OK;
    TRY(group_id(comm, status, id));
    return sums->open(comm->job->state, comm->size, comm->rank, id, &comm->sums);
}

static bool needs_scratch(const struct comm *comm, int64_t elems)
{
    return elems > 0 && comm->size > 1 && !comm_sums_natively(comm);
}

size_t comm_reduce_scatter_scratch(const struct comm *comm, int64_t elems, enum dtype dtype)
{
    return needs_scratch(comm, elems) ? (size_t)comm->size * (size_t)elems * (size_t)dtype_bytes(dtype) : 0;
}

enum status comm_reduce_scatter(struct comm *comm, const void *send, void *recv, int64_t elems, enum dtype dtype,
                                void *scratch, struct dev_queue *queue)
{
    const struct comm_job *job = comm->job;
    if (queue == NULL)
        queue = comm->queue;
    if (!comm_sums_natively(comm))
        return RANGE("reduce-scatter", reduce_scatter(comm, send, recv, elems, dtype, scratch, queue));
    TRY(comm_sums_open(comm));
    return RANGE("reduce-scatter",
                 job->transport->sums->scatter(job->state, comm->sums, send, recv, elems, dtype, queue));
}

/* Rank r sums elements [first, first + count) of an all-reduce. */
struct share {
    int64_t first, count;
};

static int64_t share_elems(const struct comm *comm, int64_t elems)
{
    return elems / comm->size + (elems % comm->size != 0);
}

static struct share share_of(const struct comm *comm, int64_t elems, int rank)
{
    int64_t per = share_elems(comm, elems), first = per * rank;
    if (first > elems)
        first = elems;
    return (struct share){.first = first, .count = elems - first < per ? elems - first : per};
}

size_t comm_allreduce_scratch(const struct comm *comm, int64_t elems, enum dtype dtype)
{
    return needs_scratch(comm, elems)
               ? (size_t)comm->size * (size_t)share_elems(comm, elems) * (size_t)dtype_bytes(dtype)
               : 0;
}

/* Everybody's copy of my share, beside my own, becomes its sum in place. */
static enum status reduce_share(struct comm *comm, char *data, int64_t elems, enum dtype dtype, char *scratch,
                                struct dev_queue *queue)
{
    const size_t width = (size_t)dtype_bytes(dtype);
    const struct share mine = share_of(comm, elems, comm->rank);
    char *own = data + (size_t)mine.first * width;
    for (int r = 0; r < comm->size; r++) {
        const struct share his = share_of(comm, elems, r);
        bool self = r == comm->rank;
        comm->sends[r] =
            group_xfer(comm, GROUP_REDUCE, r, data + (size_t)his.first * width, self ? 0 : (size_t)his.count * width);
        comm->recvs[r] = group_xfer(comm, GROUP_REDUCE, r, scratch + (size_t)r * (size_t)mine.count * width,
                                    self ? 0 : (size_t)mine.count * width);
        comm->sources[r] = self ? own : comm->recvs[r].data;
    }
    TRY(group_batch(comm, comm->size, comm->size, queue));
    return reduce_sum(comm->job->dev, queue, dtype, comm->sources, comm->size, own, mine.count);
}

static enum status spread_shares(struct comm *comm, char *data, int64_t elems, enum dtype dtype,
                                 struct dev_queue *queue)
{
    const size_t width = (size_t)dtype_bytes(dtype);
    const struct share mine = share_of(comm, elems, comm->rank);
    for (int r = 0; r < comm->size; r++) {
        const struct share his = share_of(comm, elems, r);
        bool self = r == comm->rank;
        comm->sends[r] = group_xfer(comm, GROUP_ALLGATHER, r, data + (size_t)mine.first * width,
                                    self ? 0 : (size_t)mine.count * width);
        comm->recvs[r] = group_xfer(comm, GROUP_ALLGATHER, r, data + (size_t)his.first * width,
                                    self ? 0 : (size_t)his.count * width);
    }
    return group_batch(comm, comm->size, comm->size, queue);
}

static enum status allreduce(struct comm *comm, void *data, int64_t elems, enum dtype dtype, void *scratch,
                             struct dev_queue *queue)
{
    size_t bytes;
    TRY(block_bytes(1, elems, dtype, &bytes));
    if (comm->size == 1)
        return STATUS_OK;
    TRY(reduce_share(comm, data, elems, dtype, scratch, queue));
    return spread_shares(comm, data, elems, dtype, queue);
}

enum status comm_allreduce(struct comm *comm, void *data, int64_t elems, enum dtype dtype, void *scratch,
                           struct dev_queue *queue)
{
    const struct comm_job *job = comm->job;
    if (queue == NULL)
        queue = comm->queue;
    if (!comm_sums_natively(comm))
        return RANGE("all-reduce", allreduce(comm, data, elems, dtype, scratch, queue));
    TRY(comm_sums_open(comm));
    return RANGE("all-reduce", job->transport->sums->all(job->state, comm->sums, data, elems, dtype, queue));
}

/* ---- pairs, one to all ---- */

enum status comm_sendrecv(struct comm *comm, const void *send, int to, void *recv, int from, size_t bytes,
                          struct dev_queue *queue)
{
    TRY(check_rank(comm, to));
    TRY(check_rank(comm, from));
    comm->sends[0] = group_xfer(comm, GROUP_SENDRECV, to, send, bytes);
    comm->recvs[0] = group_xfer(comm, GROUP_SENDRECV, from, recv, bytes);
    return RANGE("send-recv", group_batch(comm, 1, 1, queue));
}

/* A binomial tree: ranks counted from the root; each one that has the data sends to the one `step` further on. */
static enum status broadcast(struct comm *comm, int root, void *data, size_t bytes, struct dev_queue *queue)
{
    int place = (comm->rank - root + comm->size) % comm->size, step = 1;
    while (step < comm->size && !(place & step))
        step *= 2;
    if (place != 0) {
        comm->recvs[0] = group_xfer(comm, GROUP_BCAST, (place - step + root) % comm->size, data, bytes);
        TRY(group_batch(comm, 0, 1, queue));
    }
    int nsends = 0;
    for (step /= 2; step > 0; step /= 2)
        if (place + step < comm->size)
            comm->sends[nsends++] = group_xfer(comm, GROUP_BCAST, (place + step + root) % comm->size, data, bytes);
    return group_batch(comm, nsends, 0, queue);
}

enum status comm_bcast(struct comm *comm, int root, void *data, size_t bytes, struct dev_queue *queue)
{
    TRY(check_rank(comm, root));
    return RANGE("broadcast", broadcast(comm, root, data, bytes, queue));
}

/* ---- ranks together ---- */

static enum status disseminate(struct comm *comm, struct dev_queue *queue)
{
    for (int step = 1; step < comm->size; step *= 2) {
        int to = (comm->rank + step) % comm->size, from = (comm->rank - step + comm->size) % comm->size;
        comm->sends[0] = group_xfer(comm, GROUP_BARRIER, to, comm->slots, 1);
        comm->recvs[0] = group_xfer(comm, GROUP_BARRIER, from, comm->slots + GROUP_SLOT_BYTES, 1);
        TRY(group_batch(comm, 1, 1, queue));
    }
    return STATUS_OK;
}

/* Twice: the first pass waits for the last rank, perhaps asleep; in the second one everybody is awake. */
static enum status barrier(struct comm *comm, struct dev_queue *queue)
{
    TRY(disseminate(comm, queue));
    return disseminate(comm, queue);
}

enum status comm_barrier(struct comm *comm, struct dev_queue *queue)
{
    return RANGE("barrier", barrier(comm, queue));
}

enum status group_share(struct comm *comm, const void *mine, size_t bytes, void *all)
{
    char *own = comm->slots + (size_t)comm->size * GROUP_SLOT_BYTES;
    TRY(dev_copy(comm->queue, own, mine, bytes));
    for (int r = 0; r < comm->size; r++) {
        comm->sends[r] = group_xfer(comm, GROUP_SHARE, r, own, bytes);
        comm->recvs[r] = group_xfer(comm, GROUP_SHARE, r, comm->slots + (size_t)r * bytes, bytes);
    }
    TRY(group_batch(comm, comm->size, comm->size, comm->queue));
    return dev_copy_now(comm->queue, all, comm->slots, (size_t)comm->size * bytes, clock_deadline(comm->after_us));
}

enum status group_id(struct comm *comm, enum status mine, char id[TRANSPORT_ID_BYTES])
{
    _Static_assert((int)TRANSPORT_ID_BYTES <= (int)GROUP_SLOT_BYTES, "an id fits its slot");
    TRY(comm_agree(comm, mine, "make an id"));
    TRY(group_share(comm, id, TRANSPORT_ID_BYTES, comm->shared));
    memcpy(id, comm->shared, TRANSPORT_ID_BYTES);
    return STATUS_OK;
}

/* A value that is not a number stays one: a broken time must not vanish in a maximum. */
static double larger(double a, double b)
{
    return a > b || a != a ? a : b;
}

static enum status max_some(struct comm *comm, double *values, int n)
{
    double *all = (double *)(void *)comm->shared;
    TRY(group_share(comm, values, (size_t)n * sizeof *values, all));
    for (int i = 0; i < n; i++) {
        double most = all[i];
        for (int r = 1; r < comm->size; r++)
            most = larger(most, all[r * n + i]);
        values[i] = most;
    }
    return STATUS_OK;
}

enum status comm_max(struct comm *comm, double *values, int n)
{
    for (int done = 0; done < n; done += MAX_AT_ONCE)
        TRY(max_some(comm, values + done, n - done < MAX_AT_ONCE ? n - done : MAX_AT_ONCE));
    return STATUS_OK;
}

/* The words of one rank reach all: six bytes are a number that a double holds exactly, and a maximum takes it from the one who has it. */
static enum status share_words(struct comm *comm, bool mine, struct status_message *message)
{
    enum { SIX = 6, N = (sizeof *message + SIX - 1) / SIX };
    unsigned char bytes[N * SIX] = {0};
    double numbers[N] = {0};
    if (mine)
        memcpy(bytes, message, sizeof *message);
    for (int i = 0; i < N; i++)
        for (int b = SIX - 1; b >= 0; b--)
            numbers[i] = numbers[i] * 256 + bytes[i * SIX + b];
    TRY(comm_max(comm, numbers, N));
    for (int i = 0; i < N; i++) {
        uint64_t number = (uint64_t)numbers[i];
        for (int b = 0; b < SIX; b++)
            bytes[i * SIX + b] = (unsigned char)(number >> (8 * b) & 255);
    }
    memcpy(message, bytes, sizeof *message);
    return STATUS_OK;
}

/* What another rank said, with its name in front. */
static enum status say_theirs(enum status theirs, const struct status_message *words, int rank, const char *doing)
{
    enum status status = FAIL(theirs, "rank %d could not %s: %s", rank, doing,
                              words->what[0] != '\0' ? words->what : status_text(theirs));
    if (words->where[0] != '\0')
        status = WHERE(status, "%s", words->where);
    if (words->hint[0] != '\0')
        status = HINT(status, "%s", words->hint);
    return status_rank(status, rank);
}

/* One number carries the worst status and the first rank that has it, so that both come from the same rank. */
enum status comm_agree(struct comm *comm, enum status mine, const char *doing)
{
    const struct status_message kept = *status_last();
    const int size = comm->size;
    double worst = (double)((int)mine * size + size - 1 - comm->rank);
    if (size == 1)
        return group_known(comm, mine);
    enum status status = comm_max(comm, &worst, 1);
    enum status theirs = (enum status)((int)worst / size);
    int first = size - 1 - (int)worst % size;
    struct status_message words = kept;
    if (kept.code != mine)
        words.what[0] = words.where[0] = words.hint[0] = '\0';
    if (status == STATUS_OK && theirs != STATUS_OK)
        status = share_words(comm, comm->rank == first, &words);
    if (mine != STATUS_OK) {
        status_restore(&kept);
        return status == STATUS_OK ? group_known(comm, mine) : mine;
    }
    TRY(status);
    if (theirs == STATUS_OK)
        return STATUS_OK;
    status_restore(&words); /* made safe: bytes of another process */
    words = *status_last();
    return group_known(comm, say_theirs(theirs, &words, comm->ranks[first], doing));
}

/* A rank that ended or is late is named by what is known of it here; anything else is this rank's own, unless the job has been ended before:
 * then it followed from that. */
enum status comm_give_up(struct comm *comm, enum status mine)
{
    int rank = comm->ranks[comm->rank];
    bool own = mine != STATUS_PEER && mine != STATUS_TIMEOUT;
    if (mine == STATUS_OK)
        return mine;
    if (status_last()->code != mine)
        mine = FAIL(mine, "%s", status_text(mine));
    if (status_last()->agreed || comm->size == 1)
        return group_known(comm, mine);
    const struct status_message kept = *status_last();
    if (own && boot_poll(comm->job->boot) != STATUS_OK) {
        dev_give_up(comm_dev(comm));
        return status_last()->code;
    }
    status_restore(&kept);
    if (own && status_last()->rank < 0)
        mine = status_rank(WHERE(mine, "rank %d", rank), rank);
    dev_give_up(comm_dev(comm)); /* what is under way there may wait for ranks that will not come */
    (own ? boot_end : boot_abort)(comm->job->boot, status_last());
    return mine;
}

enum status comm_alloc(struct comm *comm, size_t bytes, const char *what, const char *doing, void **out)
{
    void *memory = NULL;
    enum status status = comm_agree(comm, mem_alloc(bytes, what, &memory), doing);
    if (status == STATUS_OK)
        *out = memory;
    else
        free(memory);
    return status;
}
