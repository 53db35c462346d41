/* bench/check_transport.c -- every collective, sizes 0, 1, odd and large, over each transport of the table that can be opened here. */
#include "bench/check_parts.h"

#include "base/clock.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/data.h"
#include "bench/group.h"
#include "bench/mirror.h"

#include <math.h>
#include <string.h>

enum { SYNC_US = 60 * 1000 * 1000 };

/* Beside each other: below and above what UCX copies through a mailbox (some 8 KiB), and above what it sends by rendezvous. */
static const int64_t sizes[] = {0, 1, 3, 64, 4097, 300001};
enum { SIZES = sizeof sizes / sizeof sizes[0], LARGEST = 300001 };

struct bench {
    struct comm *comm;
    struct dev_queue *queue;
    struct tally *tally;
    uint64_t seed;
    int rank, size;
    char *send, *recv; /* size x LARGEST each, of the device */
    struct mirror out, in; /* what the host has of them */
};

static char *sent(const struct bench *b, int64_t at)
{
    return (char *)b->out.host + at;
}

static char *received(const struct bench *b, int64_t at)
{
    return (char *)b->in.host + at;
}

static enum status clear(struct bench *b)
{
    b->seed++; /* nothing of the last operation can pass for this one's */
    TRY(dev_fill(b->queue, b->recv, 0xa5, (size_t)(b->size * LARGEST)));
    return dev_sync(b->queue, clock_deadline(SYNC_US));
}

/* What was received, for the host to look at. */
static enum status arrived(struct bench *b)
{
    TRY(dev_sync(b->queue, clock_deadline(SYNC_US)));
    return mirror_load(&b->in);
}

static void expect(struct bench *b, const char *op, int from, int to, int64_t bytes, const char *got)
{
    char why[256];
    if (!data_bytes_verify(b->seed, from, to, bytes, got, "", why))
        tally_wrong(b->tally, "%s of %lld bytes: %.200s", op, (long long)bytes, why);
}

static enum status try_alltoall(struct bench *b, int64_t bytes)
{
    TRY(clear(b));
    for (int to = 0; to < b->size; to++)
        data_bytes_fill(b->seed, b->rank, to, bytes, sent(b, to * bytes));
    TRY(mirror_store(&b->out));
    TRY(comm_alltoall(b->comm, b->send, b->recv, (size_t)bytes, b->queue));
    TRY(arrived(b));
    for (int from = 0; from < b->size; from++)
        expect(b, "alltoall", from, b->rank, bytes, received(b, from * bytes));
    return STATUS_OK;
}

/* Every pair has a size of its own, some of them 0. */
static int64_t pair_bytes(int from, int to, int64_t bytes)
{
    return bytes * ((from * 3 + to * 5) % 4) / 3;
}

static enum status try_alltoallv(struct bench *b, int64_t bytes)
{
    enum { RANKS_MAX = 64 };
    const void *send[RANKS_MAX];
    void *recv[RANKS_MAX];
    size_t out[RANKS_MAX], in[RANKS_MAX];
    if (b->size > RANKS_MAX)
        return STATUS_OK;
    TRY(clear(b));
    for (int peer = 0; peer < b->size; peer++) {
        send[peer] = b->send + peer * LARGEST;
        recv[peer] = b->recv + peer * LARGEST;
        out[peer] = (size_t)pair_bytes(b->rank, peer, bytes);
        in[peer] = (size_t)pair_bytes(peer, b->rank, bytes);
        data_bytes_fill(b->seed, b->rank, peer, (int64_t)out[peer], sent(b, peer * LARGEST));
    }
    TRY(mirror_store(&b->out));
    TRY(comm_alltoallv(b->comm, send, out, recv, in, b->queue));
    TRY(arrived(b));
    for (int peer = 0; peer < b->size; peer++)
        expect(b, "alltoallv", peer, b->rank, (int64_t)in[peer], received(b, peer * LARGEST));
    return STATUS_OK;
}

static enum status try_allgather(struct bench *b, int64_t bytes)
{
    TRY(clear(b));
    data_bytes_fill(b->seed, b->rank, 0, bytes, sent(b, 0));
    TRY(mirror_store(&b->out));
    TRY(comm_allgather(b->comm, b->send, b->recv, (size_t)bytes, b->queue));
    TRY(arrived(b));
    for (int from = 0; from < b->size; from++)
        expect(b, "allgather", from, 0, bytes, received(b, from * bytes));
    return STATUS_OK;
}

static enum status try_sendrecv(struct bench *b, int64_t bytes)
{
    int to = (b->rank + 1) % b->size, from = (b->rank + b->size - 1) % b->size;
    TRY(clear(b));
    data_bytes_fill(b->seed, b->rank, to, bytes, sent(b, 0));
    TRY(mirror_store(&b->out));
    TRY(comm_sendrecv(b->comm, b->send, to, b->recv, from, (size_t)bytes, b->queue));
    TRY(arrived(b));
    expect(b, "sendrecv", from, b->rank, bytes, received(b, 0));
    return STATUS_OK;
}

static enum status try_bcast(struct bench *b, int64_t bytes)
{
    for (int root = 0; root < b->size; root++) {
        TRY(clear(b));
        if (b->rank == root) {
            data_bytes_fill(b->seed, root, 0, bytes, received(b, 0));
            TRY(mirror_store(&b->in));
        }
        TRY(comm_bcast(b->comm, root, b->recv, (size_t)bytes, b->queue));
        TRY(arrived(b));
        expect(b, "bcast", root, 0, bytes, received(b, 0));
    }
    return STATUS_OK;
}

/* Integers of 0 to 3: sums are exact in every type, whatever the order. */
static float term(const struct bench *b, int rank, int64_t i)
{
    return (float)(rng_hash(rng_hash(b->seed, (uint64_t)rank), (uint64_t)i) & 3);
}

static void expect_sums(struct bench *b, const char *op, enum dtype dtype, int64_t first, int64_t elems, const void *got)
{
    for (int64_t i = 0; i < elems; i++) {
        float want = 0;
        for (int r = 0; r < b->size; r++)
            want += term(b, r, first + i);
        if (dtype_get(dtype, got, i) != want) {
            tally_wrong(b->tally, "%s of %lld %s: element %lld is %g, not %g", op, (long long)elems, dtype_name(dtype),
                        (long long)i, (double)dtype_get(dtype, got, i), (double)want);
            return;
        }
    }
}

static enum status try_reduce(struct bench *b, int64_t elems, enum dtype dtype)
{
    void *scratch = NULL;
    size_t bytes = comm_allreduce_scratch(b->comm, elems, dtype), need = (size_t)(elems * b->size * dtype_bytes(dtype));
    TRY(dev_alloc(comm_dev(b->comm), bytes > need ? bytes : need, "scratch of a check", &scratch));
    enum status status = clear(b);
    for (int64_t i = 0; i < elems * b->size; i++)
        dtype_set(dtype, sent(b, 0), i, term(b, b->rank, i));
    if (status == STATUS_OK)
        status = mirror_store(&b->out);
    if (status == STATUS_OK)
        status = comm_reduce_scatter(b->comm, b->send, b->recv, elems, dtype, scratch, b->queue);
    if (status == STATUS_OK)
        status = arrived(b);
    if (status == STATUS_OK)
        expect_sums(b, "reduce_scatter", dtype, b->rank * elems, elems, received(b, 0));
    if (status == STATUS_OK)
        status = comm_allreduce(b->comm, b->send, elems, dtype, scratch, b->queue);
    if (status == STATUS_OK)
        status = dev_sync(b->queue, clock_deadline(SYNC_US));
    if (status == STATUS_OK)
        status = mirror_load(&b->out);
    if (status == STATUS_OK)
        expect_sums(b, "allreduce", dtype, 0, elems, sent(b, 0));
    dev_free(comm_dev(b->comm), scratch);
    return status;
}

static enum status try_max(struct bench *b)
{
    double values[3] = {(double)b->rank, -(double)b->rank, b->rank == b->size - 1 ? 1e300 : -1e300};
    TRY(comm_max(b->comm, values, 3));
    if (values[0] != (double)(b->size - 1) || fabs(values[1]) > 0 || values[2] != 1e300)
        tally_wrong(b->tally, "max gives %g %g %g", values[0], values[1], values[2]);
    return STATUS_OK;
}

static enum status try_all(struct bench *b)
{
    enum status (*const ops[])(struct bench *, int64_t) = {try_alltoall, try_alltoallv, try_allgather, try_sendrecv, try_bcast};
    static const int64_t elems[] = {0, 1, 7, 1001, 20011};
    for (int i = 0; i < SIZES; i++)
        for (size_t op = 0; op < sizeof ops / sizeof ops[0]; op++) {
            TRY(ops[op](b, sizes[i]));
            b->tally->cases++;
        }
    for (size_t i = 0; i < sizeof elems / sizeof elems[0]; i++)
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
            TRY(try_reduce(b, elems[i], (enum dtype)dtype));
            b->tally->cases += 2;
        }
    TRY(try_max(b));
    TRY(comm_barrier(b->comm, b->queue));
    b->tally->cases += 2;
    return dev_sync(b->queue, clock_deadline(SYNC_US));
}

enum status check_collectives(struct comm *comm, uint64_t seed, struct tally *tally)
{
    struct bench b = {.comm = comm, .tally = tally, .seed = seed, .rank = comm_rank(comm), .size = comm_size(comm)};
    struct dev *dev = comm_dev(comm);
    enum status status = dev_queue_create(dev, &b.queue);
    if (status == STATUS_OK)
        status = dev_alloc(dev, (size_t)(b.size * LARGEST), "check of a transport", (void **)&b.send);
    if (status == STATUS_OK)
        status = dev_alloc(dev, (size_t)(b.size * LARGEST), "check of a transport", (void **)&b.recv);
    if (status == STATUS_OK)
        status = mirror_open(dev, b.send, (size_t)(b.size * LARGEST), &b.out);
    if (status == STATUS_OK)
        status = mirror_open(dev, b.recv, (size_t)(b.size * LARGEST), &b.in);
    if (status == STATUS_OK) {
        memset(b.out.host, 0, (size_t)(b.size * LARGEST)); /* all of it is stored, of which each check makes a part */
        status = try_all(&b);
    }
    mirror_close(&b.out);
    mirror_close(&b.in);
    dev_free(dev, b.send);
    dev_free(dev, b.recv);
    dev_queue_destroy(b.queue);
    return status;
}

/* The job, then halves of it, then every second rank: groups do not disturb each other. */
static enum status try_groups(struct comm *job, uint64_t seed, struct tally *tally)
{
    int size = comm_size(job), rank = comm_rank(job);
    TRY(check_collectives(job, seed, tally));
    for (int way = 0; way < 2 && size >= 4 && size % 2 == 0; way++) {
        struct comm *group = NULL;
        TRY(comm_split(job, way == 0 ? rank / (size / 2) : rank % 2, rank, &group));
        enum status status = check_collectives(group, seed + 1000, tally);
        comm_close(group);
        TRY(status);
    }
    return STATUS_OK;
}

enum { WAY = 64 };

/* What carries data, as rank 0 sees it: between hosts ranks see different things, and all are to decide alike. */
static enum status way_of(struct comm *job, char out[WAY])
{
    char mine[WAY] = {0};
    void *data = mine;
    size_t bytes = sizeof mine;
    text_print(mine, sizeof mine, "%s", comm_transport(job));
    TRY(boot_bcast(comm_boot(job), 0, &data, &bytes, clock_deadline(BOOT_DEADLINE_US)));
    text_print(out, WAY, "%s", (const char *)data);
    if (data != mine)
        free(data);
    return STATUS_OK;
}

static enum status transport_row(struct bench_env *env, const struct check_order *order, struct comm *job,
                                 const char *way, struct check_report *report)
{
    struct tally tally = {0};
    char what[192];
    const char *name = comm_transport_name(job);
    text_print(what, sizeof what, "%s: every collective%s", way,
               comm_size(job) >= 4 && comm_size(job) % 2 == 0 ? ", job and groups" : "");
    if (!check_asked(order, what))
        return STATUS_OK;
    check_begins(report, "transport", what);
    if (strncmp(comm_transport(job), name, strlen(name)) != 0)
        tally_wrong(&tally, "%s says that '%.64s' carries data, which is not its name", name, comm_transport(job));
    TRY(tally_status(&tally, try_groups(job, order->seed, &tally)));
    return check_row_add(env, report, "transport", what, &tally, false);
}

static bool is_world(const struct bench_env *env, const struct transport *transport)
{
    return strcmp(comm_transport_name(env->world), transport->name) == 0;
}

/* Another way for the same ranks, when it exists and is not the job's own, `world`. */
static enum status other_row(struct bench_env *env, const struct check_order *order, const struct transport *transport,
                             const char *carrier, const char *world, struct check_report *report)
{
    struct comm *job = NULL;
    char what[192], why[256], way[WAY];
    text_print(what, sizeof what, "%s%s%s", transport->name, carrier != NULL ? " " : "",
               carrier != NULL ? carrier : "");
    enum status status = comm_open(comm_boot(env->world), env->dev, transport->name, carrier, &job);
    if (status == STATUS_ABSENT || status == STATUS_UNSUPPORTED) {
        text_print(why, sizeof why, "%s", status_last()->what);
        status_clear();
        return check_row_waive(order, report, "transport", what, RULE_ABSENT, why);
    }
    TRY(status);
    status = way_of(job, way);
    if (status == STATUS_OK && (!is_world(env, transport) || strcmp(way, world) != 0))
        status = transport_row(env, order, job, way, report);
    comm_close(job);
    return status;
}

static enum status transport_run(struct bench_env *env, const struct check_order *order, struct check_report *report)
{
    static const char *const whole[] = {NULL};
    char world[WAY];
    if (comm_size(env->world) == 1)
        return check_row_waive(order, report, "transport", "collectives", RULE_WORLD, "one rank moves nothing");
    TRY(way_of(env->world, world));
    TRY(transport_row(env, order, env->world, world, report));
    for (int i = 0; check_only(order) == NULL && transports[i] != NULL; i++) {
        const char *const *carrier = transports[i]->carriers != NULL ? transports[i]->carriers : whole;
        if (transports[i]->dev != dev_kind_of(env->dev) || (*carrier == NULL && is_world(env, transports[i])))
            continue;
        do
            TRY(other_row(env, order, transports[i], *carrier, world, report));
        while (*carrier != NULL && *++carrier != NULL);
    }
    return STATUS_OK;
}

const struct check check_transport = {.area = "transport", .run = transport_run};
