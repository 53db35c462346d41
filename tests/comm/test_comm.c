/* tests/comm/test_comm.c -- collectives and groups: every byte carries where it comes from, and must arrive exactly
 * there. */
#include "base/rng.h"
#include "ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, GUARD_BYTE = 0xa5 };

static const size_t sizes[] = {0, 1, 7, 64, 1000, 8191, 8193, 100000, (1 << 20) + 3};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* ---- data that knows its origin ---- */

static unsigned char cell(int from, int to, size_t i, uint64_t salt)
{
    return (unsigned char)(rng_hash(salt * 1000003 + (uint64_t)from * 1009 + (uint64_t)to, i >> 3) >> (8 * (i & 7)));
}

static void fill(unsigned char *at, size_t n, int from, int to, uint64_t salt)
{
    for (size_t i = 0; i < n; i++)
        at[i] = cell(from, to, i, salt);
}

static bool is_filled(const unsigned char *at, size_t n, int from, int to, uint64_t salt)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != cell(from, to, i, salt))
            return false;
    return true;
}

/* Memory with a guard behind it. */
static unsigned char *make(size_t n)
{
    unsigned char *at = malloc(n + GUARD);
    if (!at)
        abort();
    memset(at, GUARD_BYTE, n + GUARD);
    return at;
}

static bool guarded(const unsigned char *at, size_t n)
{
    for (size_t i = n; i < n + GUARD; i++)
        if (at[i] != GUARD_BYTE)
            return false;
    return true;
}

/* ---- one of each ---- */

static int do_alltoall(struct comm *comm, struct dev_queue *queue, size_t bytes, uint64_t salt)
{
    int size = comm_size(comm), rank = comm_rank(comm);
    size_t total = bytes * (size_t)size;
    unsigned char *send = make(total), *recv = make(total);
    for (int r = 0; r < size; r++)
        fill(send + (size_t)r * bytes, bytes, rank, r, salt);
    RANK_TRY(comm_alltoall(comm, send, recv, bytes, queue));
    for (int r = 0; r < size; r++) {
        RANK_CHECK(is_filled(recv + (size_t)r * bytes, bytes, r, rank, salt));
        RANK_CHECK(is_filled(send + (size_t)r * bytes, bytes, rank, r, salt));
    }
    RANK_CHECK(guarded(send, total) && guarded(recv, total));
    free(send);
    free(recv);
    return 0;
}

/* A third of the messages is empty. */
static size_t uneven(int from, int to, size_t bytes, uint64_t salt)
{
    uint64_t h = rng_hash(salt, (uint64_t)(from * 64 + to));
    return h % 3 == 0 ? 0 : (size_t)(h >> 8) % (bytes + 1);
}

static int do_alltoallv(struct comm *comm, struct dev_queue *queue, size_t bytes, uint64_t salt)
{
    int size = comm_size(comm), rank = comm_rank(comm);
    const void *send[RANKS_MAX];
    void *recv[RANKS_MAX];
    size_t send_bytes[RANKS_MAX], recv_bytes[RANKS_MAX];
    for (int r = 0; r < size; r++) {
        send_bytes[r] = uneven(rank, r, bytes, salt);
        recv_bytes[r] = uneven(r, rank, bytes, salt);
        unsigned char *out = make(send_bytes[r]);
        fill(out, send_bytes[r], rank, r, salt);
        send[r] = out;
        recv[r] = make(recv_bytes[r]);
    }
    RANK_TRY(comm_alltoallv(comm, send, send_bytes, recv, recv_bytes, queue));
    for (int r = 0; r < size; r++) {
        RANK_CHECK(is_filled(recv[r], recv_bytes[r], r, rank, salt) && guarded(recv[r], recv_bytes[r]));
        free((void *)(uintptr_t)send[r]);
        free(recv[r]);
    }
    return 0;
}

static int do_allgather(struct comm *comm, struct dev_queue *queue, size_t bytes, uint64_t salt)
{
    int size = comm_size(comm), rank = comm_rank(comm);
    unsigned char *send = make(bytes), *recv = make(bytes * (size_t)size);
    fill(send, bytes, rank, 0, salt);
    RANK_TRY(comm_allgather(comm, send, recv, bytes, queue));
    for (int r = 0; r < size; r++)
        RANK_CHECK(is_filled(recv + (size_t)r * bytes, bytes, r, 0, salt));
    RANK_CHECK(guarded(recv, bytes * (size_t)size));
    free(send);
    free(recv);
    return 0;
}

static int do_bcast(struct comm *comm, struct dev_queue *queue, size_t bytes, uint64_t salt)
{
    int root = (int)(salt % (uint64_t)comm_size(comm));
    unsigned char *data = make(bytes);
    if (comm_rank(comm) == root)
        fill(data, bytes, root, 0, salt);
    RANK_TRY(comm_bcast(comm, root, data, bytes, queue));
    RANK_CHECK(is_filled(data, bytes, root, 0, salt) && guarded(data, bytes));
    free(data);
    return 0;
}

/* To the rank `shift` further on, from the one `shift` back; shift 0 is this rank itself. */
static int do_sendrecv(struct comm *comm, struct dev_queue *queue, size_t bytes, uint64_t salt)
{
    int size = comm_size(comm), rank = comm_rank(comm), shift = (int)(salt % (uint64_t)size);
    int to = (rank + shift) % size, from = (rank - shift + size) % size;
    unsigned char *send = make(bytes), *recv = make(bytes);
    fill(send, bytes, rank, to, salt);
    RANK_TRY(comm_sendrecv(comm, send, to, recv, from, bytes, queue));
    RANK_CHECK(is_filled(recv, bytes, from, rank, salt) && guarded(recv, bytes));
    free(send);
    free(recv);
    return 0;
}

/* ---- sums ---- */

static float term(int from, int to, size_t i, uint64_t salt)
{
    return (float)((double)(rng_hash(salt + (uint64_t)from * 977 + (uint64_t)to * 31, i) >> 40) / 65536.0 - 128.0);
}

/* What rank `to` must get at i: the stored values in rank order, in fp32, rounded once. */
static float reference(enum dtype dtype, int size, int to, size_t i, uint64_t salt)
{
    float total = 0, value;
    uint32_t stored;
    for (int r = 0; r < size; r++) {
        dtype_set(dtype, &stored, 0, term(r, to, i, salt));
        value = dtype_get(dtype, &stored, 0);
        total = r == 0 ? value : total + value;
    }
    dtype_set(dtype, &stored, 0, total);
    return dtype_get(dtype, &stored, 0);
}

static int do_reduce_scatter(struct comm *comm, struct dev_queue *queue, int64_t elems, enum dtype dtype, uint64_t salt)
{
    int size = comm_size(comm), rank = comm_rank(comm);
    size_t block = (size_t)elems * (size_t)dtype_bytes(dtype), room = comm_reduce_scatter_scratch(comm, elems, dtype);
    unsigned char *send = make(block * (size_t)size), *recv = make(block), *scratch = make(room);
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < elems; i++)
            dtype_set(dtype, send + (size_t)r * block, i, term(rank, r, (size_t)i, salt));
    RANK_TRY(comm_reduce_scatter(comm, send, recv, elems, dtype, scratch, queue));
    for (int64_t i = 0; i < elems; i++)
        RANK_CHECK(dtype_get(dtype, recv, i) == reference(dtype, size, rank, (size_t)i, salt));
    RANK_CHECK(guarded(recv, block) && guarded(scratch, room) && guarded(send, block * (size_t)size));
    free(send);
    free(recv);
    free(scratch);
    return 0;
}

static int do_allreduce(struct comm *comm, struct dev_queue *queue, int64_t elems, enum dtype dtype, uint64_t salt)
{
    int size = comm_size(comm), rank = comm_rank(comm);
    size_t bytes = (size_t)elems * (size_t)dtype_bytes(dtype), room = comm_allreduce_scratch(comm, elems, dtype);
    unsigned char *data = make(bytes), *scratch = make(room);
    for (int64_t i = 0; i < elems; i++)
        dtype_set(dtype, data, i, term(rank, 0, (size_t)i, salt));
    RANK_TRY(comm_allreduce(comm, data, elems, dtype, scratch, queue));
    for (int64_t i = 0; i < elems; i++)
        RANK_CHECK(dtype_get(dtype, data, i) == reference(dtype, size, 0, (size_t)i, salt));
    RANK_CHECK(guarded(data, bytes) && guarded(scratch, room));
    free(data);
    free(scratch);
    return 0;
}

static int do_max(struct comm *comm, int n, uint64_t salt)
{
    int size = comm_size(comm), rank = comm_rank(comm);
    double *values = calloc((size_t)n + 1, sizeof *values);
    for (int i = 0; i < n; i++)
        values[i] = term(rank, 0, (size_t)i, salt);
    values[n] = 12345;
    if (n > 2 && rank == size - 1)
        values[2] = NAN;
    RANK_TRY(comm_max(comm, values, n));
    for (int i = 0; i < n; i++) {
        double most = -1e9;
        for (int r = 0; r < size; r++)
            most = fmax(most, term(r, 0, (size_t)i, salt));
        RANK_CHECK(i == 2 && n > 2 ? isnan(values[i]) : values[i] == most);
    }
    RANK_CHECK(values[n] == 12345);
    free(values);
    return 0;
}

static int do_any(struct comm *comm, struct dev_queue *queue, uint64_t salt)
{
    size_t bytes = sizes[rng_hash(1, salt) % (SIZES - 1)];
    enum dtype dtype = (enum dtype)(salt % DTYPE_COUNT);
    switch (rng_hash(2, salt) % 8) {
    case 0:
        return do_alltoall(comm, queue, bytes, salt);
    case 1:
        return do_alltoallv(comm, queue, bytes, salt);
    case 2:
        return do_allgather(comm, queue, bytes, salt);
    case 3:
        return do_bcast(comm, queue, bytes, salt);
    case 4:
        return do_sendrecv(comm, queue, bytes, salt);
    case 5:
        return do_reduce_scatter(comm, queue, (int64_t)bytes / 16, dtype, salt);
    case 6:
        return do_allreduce(comm, queue, (int64_t)bytes / 16, dtype, salt);
    default:
        RANK_TRY(comm_barrier(comm, queue));
        return 0;
    }
}

/* ---- the job ---- */

struct way { /* for bytes to move */
    const struct transport *transport;
    const char *carrier;
};

static int every_collective(const struct launch *launch, void *arg)
{
    static const int64_t elems[] = {0, 1, 2, 5, 2048, 2049, 10001};
    const struct way *way = arg;
    struct side side;
    int code = 0;
    uint64_t salt = 1;
    enum status status = side_open_over(&side, launch, way->transport->name, way->carrier);
    if (status == STATUS_ABSENT && way->transport != transports[0]) { /* the first works everywhere */
        printf("skipped: %s: %s\n", way->transport->name, status_last()->what);
        side_close(&side);
        return 0;
    }
    RANK_TRY(status);
    RANK_CHECK(strcmp(comm_transport_name(side.comm), way->transport->name) == 0);
    RANK_CHECK(comm_rank(side.comm) == launch->rank && comm_size(side.comm) == launch->size);
    RANK_CHECK(comm_boot(side.comm) == side.boot && comm_dev(side.comm) == side.dev);
    for (size_t i = 0; i < SIZES && !code; i++, salt += 7) {
        code = do_alltoall(side.comm, side.queue, sizes[i], salt);
        code = code ? code : do_alltoallv(side.comm, NULL, sizes[i], salt + 1);
        code = code ? code : do_allgather(side.comm, side.queue, sizes[i], salt + 2);
        for (uint64_t r = 0; r < (uint64_t)launch->size && !code; r++)
            code = do_bcast(side.comm, side.queue, sizes[i], salt + r);
        for (uint64_t r = 0; r < (uint64_t)launch->size && !code; r++)
            code = do_sendrecv(side.comm, NULL, sizes[i], salt + r);
    }
    for (size_t i = 0; i < sizeof elems / sizeof elems[0] && !code; i++)
        for (int d = 0; d < DTYPE_COUNT && !code; d++, salt++) {
            code = do_reduce_scatter(side.comm, side.queue, elems[i], (enum dtype)d, salt);
            code = code ? code : do_allreduce(side.comm, side.queue, elems[i], (enum dtype)d, salt);
        }
    for (int n = 0; n <= 100 && !code; n += 25)
        code = do_max(side.comm, n, salt++);
    side_close(&side);
    return code;
}

/* Every transport of the table that carries ranks on CPUs, then what it may be narrowed to. */
static void test_collectives(void **state)
{
    (void)state;
    static const int ranks[] = {1, 2, 3, 5};
    for (int t = 0; transports[t] != NULL; t++) {
        struct way way = {.transport = transports[t]};
        if (transports[t]->dev != DEV_CPU)
            continue;
        for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++)
            ranks_pass(ranks[i], every_collective, &way);
        for (int c = 0; transports[t]->carriers != NULL && transports[t]->carriers[c] != NULL; c++) {
            way.carrier = transports[t]->carriers[c];
            ranks_pass(3, every_collective, &way);
        }
    }
}

/* ---- the job once more ---- */

/* Groups of both, in turns, with contexts and tags that are the same in both. */
static int two_jobs(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *beside = NULL, *reversed = NULL, *again = NULL;
    RANK_TRY(side_open(&side, launch, arg));
    RANK_TRY(comm_split(side.comm, 0, -launch->rank, &reversed));
    RANK_TRY(comm_open_beside(reversed, &beside)); /* of the job, not of the group */
    RANK_CHECK(comm_rank(beside) == launch->rank && comm_size(beside) == launch->size);
    RANK_CHECK(strcmp(comm_transport(beside), comm_transport(side.comm)) == 0);
    RANK_TRY(comm_split(beside, comm_job_rank(reversed, 0), comm_rank(reversed), &again));
    RANK_CHECK(comm_rank(again) == comm_rank(reversed));
    int code = 0;
    for (uint64_t i = 0; i < 20 && !code; i++) {
        code = do_allreduce(again, side.queue, 1001, DTYPE_FP32, i);
        code = code ? code : do_alltoall(reversed, side.queue, 3000, i + 1);
        code = code ? code : do_allgather(beside, side.queue, 100, i + 2);
    }
    comm_close(again);
    comm_close(beside);
    comm_close(reversed);
    side_close(&side);
    return code;
}

static void test_two_jobs(void **state)
{
    (void)state;
    static char tcp[] = "tcp";
    ranks_pass(3, two_jobs, NULL);
    ranks_pass(2, two_jobs, tcp);
}

/* ---- groups ---- */

static int members(const struct launch *launch, void *arg)
{
    (void)arg;
    struct side side;
    struct comm *pairs, *strided, *reversed, *alone;
    int rank = launch->rank, size = launch->size;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_split(side.comm, rank / 2, 0, &pairs));
    RANK_CHECK(comm_size(pairs) == (rank == 4 ? 1 : 2) && comm_rank(pairs) == rank % 2);
    RANK_CHECK(comm_job_rank(pairs, 0) == rank / 2 * 2);
    RANK_TRY(comm_split(side.comm, rank % 2 ? -7 : 2147483647, rank, &strided));
    RANK_CHECK(comm_size(strided) == (size + 1 - rank % 2) / 2 && comm_rank(strided) == rank / 2);
    RANK_TRY(comm_split(side.comm, 5, -rank, &reversed));
    RANK_CHECK(comm_size(reversed) == size && comm_rank(reversed) == size - 1 - rank);
    for (int r = 0; r < size; r++)
        RANK_CHECK(comm_job_rank(reversed, r) == size - 1 - r);
    RANK_TRY(comm_split(pairs, comm_rank(pairs), 0, &alone)); /* a group of a group */
    RANK_CHECK(comm_size(alone) == 1 && comm_job_rank(alone, 0) == rank);
    RANK_CHECK(comm_boot(alone) == side.boot && strcmp(comm_transport(alone), comm_transport(side.comm)) == 0);
    int code = do_alltoall(pairs, side.queue, 1000, 1);
    code = code ? code : do_alltoall(strided, side.queue, 100000, 2);
    code = code ? code : do_alltoall(reversed, side.queue, 10000, 3);
    code = code ? code : do_alltoall(alone, side.queue, 10000, 4);
    code = code ? code : do_allreduce(reversed, side.queue, 1001, DTYPE_BF16, 5);
    code = code ? code : do_max(strided, 3, 6);
    comm_close(alone);
    comm_close(pairs);
    comm_close(strided);
    comm_close(reversed);
    side_close(&side);
    return code;
}

static void test_members(void **state)
{
    (void)state;
    ranks_pass(5, members, NULL);
}

/* Ranks work through a random list of (partition, operation) without waiting for each other in between. */
static int wander(const struct launch *launch, void *arg)
{
    (void)arg;
    enum { PARTITIONS = 6 };
    struct side side;
    struct comm *group[PARTITIONS] = {NULL};
    int code = 0;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int p = 0; p < PARTITIONS; p++)
        RANK_TRY(comm_split(side.comm, (int)(rng_hash(11, (uint64_t)(p * 16 + launch->rank)) % 3),
                            (int)(rng_hash(12, (uint64_t)(p * 16 + launch->rank)) % 100), &group[p]));
    for (uint64_t step = 0; step < 250 && !code; step++) {
        int p = (int)(rng_hash(13, step) % (PARTITIONS + 1));
        code = do_any(p == PARTITIONS ? side.comm : group[p], side.queue, step);
    }
    for (int p = 0; p < PARTITIONS; p++)
        comm_close(group[p]);
    side_close(&side);
    return code;
}

static void test_random_groups(void **state)
{
    (void)state;
    ranks_pass(4, wander, NULL);
}

/* The same two ranks in two groups: messages that are under way at once do not mix. */
static int cross(const struct launch *launch, void *arg)
{
    (void)arg;
    struct side side;
    struct comm *a, *b;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_split(side.comm, 0, 0, &a));
    RANK_TRY(comm_split(side.comm, 0, -launch->rank, &b)); /* other order: rank 0 of the job is the last one */
    for (int i = 0; i < 20; i++) {
        int x = launch->rank == 0 ? 100 + i : 0, y = launch->rank == 0 ? 200 + i : 0, last = launch->size - 1;
        if (launch->rank != 1) {
            RANK_TRY(comm_bcast(a, 0, &x, sizeof x, side.queue));
            RANK_TRY(comm_bcast(b, last, &y, sizeof y, side.queue));
        } else {
            RANK_TRY(comm_bcast(b, last, &y, sizeof y, side.queue));
            RANK_TRY(comm_bcast(a, 0, &x, sizeof x, side.queue));
        }
        RANK_CHECK(x == 100 + i && y == 200 + i);
    }
    comm_close(a);
    comm_close(b);
    side_close(&side);
    return 0;
}

static void test_groups_do_not_mix(void **state)
{
    (void)state;
    ranks_pass(2, cross, NULL);
}

/* Numbers of closed groups come back; too many at a time is said, and does no harm. */
static int many(const struct launch *launch, void *arg)
{
    (void)arg;
    enum { OPEN = 1030 };
    struct side side;
    static struct comm *open[OPEN];
    int n = 0;
    enum status status = STATUS_OK;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int i = 0; i < 1100; i++) {
        struct comm *group;
        RANK_TRY(comm_split(side.comm, i % 2 ? launch->rank : 0, 0, &group));
        comm_close(group);
    }
    while (n < OPEN && status == STATUS_OK) {
        status = comm_split(side.comm, 0, 0, &open[n]);
        n += status == STATUS_OK;
    }
    RANK_CHECK(status == STATUS_UNSUPPORTED && n == 1023);
    int code = do_alltoall(open[n - 1], side.queue, 100, 1);
    while (n > 0)
        comm_close(open[--n]);
    code = code ? code : do_alltoall(side.comm, side.queue, 100, 1);
    side_close(&side);
    return code;
}

static void test_many_groups(void **state)
{
    (void)state;
    ranks_pass(2, many, NULL);
}

/* ---- what goes wrong ---- */

static int misuse(const struct launch *launch, void *arg)
{
    (void)arg;
    struct side side;
    struct comm *comm = NULL;
    char byte = 0;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_CHECK(comm_open(side.boot, side.dev, "carrier pigeon", NULL, &comm) == STATUS_ABSENT);
    RANK_CHECK(strstr(status_last()->what, "carrier pigeon") && strstr(status_last()->hint, "ucx"));
    RANK_CHECK(comm_open(side.boot, side.dev, "ucx", "pigeon", &comm) == STATUS_USAGE);
    RANK_CHECK(strstr(status_last()->hint, "tcp"));
    RANK_CHECK(comm == NULL);
    RANK_CHECK(comm_bcast(side.comm, launch->size, &byte, 1, NULL) == STATUS_USAGE);
    RANK_CHECK(comm_bcast(side.comm, -1, &byte, 1, NULL) == STATUS_USAGE);
    RANK_CHECK(comm_sendrecv(side.comm, &byte, 99, &byte, 0, 1, NULL) == STATUS_USAGE);
    RANK_CHECK(comm_sendrecv(side.comm, &byte, 0, &byte, -5, 1, NULL) == STATUS_USAGE);
    RANK_CHECK(comm_allreduce(side.comm, &byte, -1, DTYPE_FP32, &byte, NULL) == STATUS_USAGE);
    RANK_CHECK(comm_allreduce(side.comm, &byte, INT64_MAX, DTYPE_FP32, &byte, NULL) == STATUS_USAGE);
    RANK_CHECK(comm_reduce_scatter(side.comm, &byte, &byte, INT64_MAX / 4, DTYPE_BF16, &byte, NULL) == STATUS_USAGE);
    RANK_CHECK(comm_allreduce_scratch(side.comm, 0, DTYPE_FP32) == 0 &&
               comm_allreduce_scratch(side.comm, -3, DTYPE_FP32) == 0);
    int code = do_alltoall(side.comm, side.queue, 100, 1); /* none of that did any harm */
    comm_close(NULL);
    side_close(&side);
    return code;
}

static void test_misuse(void **state)
{
    (void)state;
    ranks_pass(3, misuse, NULL);
}

/* Rank 2 does not come. Everybody names it or a rank that waits for it, by its own deadline or by the word of the
 * first. */
static int be_late(const struct launch *launch, void *arg)
{
    bool barrier = *(const int *)arg;
    struct side side;
    char send[3 * 20000] = {0}, recv[3 * 20000];
    RANK_TRY(side_open(&side, launch, NULL));
    comm_set_deadline(side.comm, 300000);
    if (launch->rank == 2)
        ranks_await_notes(launch);
    enum status status = barrier ? comm_barrier(side.comm, NULL) : comm_alltoall(side.comm, send, recv, 20000, NULL);
    int code = ranks_note(launch, status);
    RANK_CHECK(launch->rank == 2 || comm_alltoall(side.comm, send, recv, 20000, NULL) == status);
    if (status != STATUS_OK)
        boot_abort(side.boot, status_last());
    side_close(&side);
    return code;
}

static void test_late(void **state)
{
    (void)state;
    for (int barrier = 0; barrier < 2; barrier++) {
        ranks_run(3, be_late, &barrier);
        for (int r = 0; r < 2; r++) {
            assert_true(board->code[r] == STATUS_TIMEOUT || board->code[r] == STATUS_PEER);
            assert_non_null(strstr(board->what[r], "in time (ucx "));
        }
        assert_true(board->code[0] == STATUS_TIMEOUT || board->code[1] == STATUS_TIMEOUT);
        assert_true(board->rank[0] == 2 || board->rank[1] == 2);
        assert_true(barrier || (board->rank[0] == 2 && board->rank[1] == 2));
        assert_int_not_equal(board->code[2], STATUS_OK);
    }
}

/* Rank 1 sends more, or less, than the others expect. */
static int differ(const struct launch *launch, void *arg)
{
    size_t bytes = launch->rank == 1 ? *(const size_t *)arg : 1000;
    struct side side;
    char send[2 * 20000] = {0}, recv[2 * 20000];
    memset(recv, GUARD_BYTE, sizeof recv);
    RANK_TRY(side_open(&side, launch, NULL));
    enum status status = comm_alltoall(side.comm, send, recv, bytes, NULL);
    RANK_CHECK(launch->rank == 1 || guarded((unsigned char *)recv, 2 * 1000));
    int code = ranks_note(launch, status);
    boot_agree(side.boot, status, clock_deadline(BOOT_DEADLINE_US));
    side_close(&side);
    return code;
}

static void test_sizes_differ(void **state)
{
    (void)state;
    static const size_t wrong[] = {999, 1001, 20000, 1};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        size_t bytes = wrong[i];
        ranks_run(2, differ, &bytes);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(board->code[r], STATUS_MACHINE);
            assert_int_equal(board->rank[r], 1 - r);
            char says[32];
            snprintf(says, sizeof says, "rank %d sent ", 1 - r);
            assert_non_null(strstr(board->what[r], says));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_two_jobs),
        cmocka_unit_test(test_members),
        cmocka_unit_test(test_random_groups),
        cmocka_unit_test(test_groups_do_not_mix),
        cmocka_unit_test(test_many_groups),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_sizes_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
