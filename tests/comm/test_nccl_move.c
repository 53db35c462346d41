/* tests/comm/test_nccl_move.c -- what NCCL has not been asked for before, it is asked for by a thread of its own, and a job that ends meanwhile
 * ends the wait. NCCL is made up here, and so is the GPU that its calls are for: neither is there.
 */
#include "comm/ranks.h"

#include "base/dev_cuda.h"
#include "base/dev_ops.h"
#include "comm/transport_nccl.h"

#include "base/thread.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

enum { MESSAGES = 8 };

static struct {
    pthread_t thread; /* that made the last call */
    int calls, given_up;
    bool stays, no_thread, captured,
        short_waits; /* calls do not end; no thread can be had; into a graph; deadlines are near */
    atomic_int destroyed; /* by a thread that may stay */
    int groups, nsent, ngot;
    struct transport_xfer sent[MESSAGES], got[MESSAGES];
} made;

static ncclResult_t fake_all(const void *send, void *recv, size_t elems, ncclDataType_t type, ncclRedOp_t op,
                             ncclComm_t comm, cudaStream_t stream)
{
    (void)send;
    (void)recv;
    (void)elems;
    (void)type;
    (void)op;
    (void)comm;
    (void)stream;
    made.thread = pthread_self();
    made.calls++;
    while (made.stays)
        ranks_sleep_ms(1000);
    return ncclSuccess;
}

int __real_thread_start(pthread_t *out, void *(*run)(void *arg), void *arg);
int __wrap_thread_start(pthread_t *out, void *(*run)(void *arg), void *arg);
int64_t __real_clock_deadline(int64_t us);
int64_t __wrap_clock_deadline(int64_t us);
cudaError_t __wrap_cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *out);

int __wrap_thread_start(pthread_t *out, void *(*run)(void *arg), void *arg)
{
    return made.no_thread ? EAGAIN : __real_thread_start(out, run, arg);
}

int64_t __wrap_clock_deadline(int64_t us)
{
    return __real_clock_deadline(made.short_waits && us > 100000 ? 100000 : us);
}

cudaError_t __wrap_cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *out)
{
    (void)stream;
    *out = made.captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

static ncclResult_t fake_init(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    (void)size;
    (void)id;
    (void)rank;
    (void)config;
    *comm = (ncclComm_t)(uintptr_t)2;
    return ncclSuccess;
}

static ncclResult_t fake_destroy(ncclComm_t comm)
{
    (void)comm;
    made.thread = pthread_self();
    made.destroyed++;
    while (made.stays)
        ranks_sleep_ms(1000);
    return ncclSuccess;
}

static ncclResult_t fake_group(void)
{
    made.groups++;
    return ncclSuccess;
}

/* Written down as it comes: what is told of, and by which thread. */
static ncclResult_t fake_send(const void *data, size_t bytes, ncclDataType_t type, int peer, ncclComm_t comm,
                              cudaStream_t stream)
{
    (void)type;
    (void)comm;
    (void)stream;
    made.thread = pthread_self();
    made.sent[made.nsent++ % MESSAGES] =
        (struct transport_xfer){.peer = peer, .data = (void *)(uintptr_t)data, .bytes = bytes};
    return ncclSuccess;
}

static ncclResult_t fake_recv(void *data, size_t bytes, ncclDataType_t type, int peer, ncclComm_t comm,
                              cudaStream_t stream)
{
    (void)type;
    (void)comm;
    (void)stream;
    made.got[made.ngot++ % MESSAGES] = (struct transport_xfer){.peer = peer, .data = data, .bytes = bytes};
    return ncclSuccess;
}

static const struct nccl_api api = {.ncclAllReduce = fake_all,
                                    .ncclCommInitRankConfig = fake_init,
                                    .ncclCommDestroy = fake_destroy,
                                    .ncclGroupStart = fake_group,
                                    .ncclGroupEnd = fake_group,
                                    .ncclSend = fake_send,
                                    .ncclRecv = fake_recv};

static void fake_give_up(struct dev *dev)
{
    (void)dev;
    made.given_up++;
}

static const struct dev_ops ops = {.kind = DEV_CUDA, .give_up = fake_give_up};

/* The handle of a GPU: number 0. */
static union {
    struct dev dev;
    char zero[256];
} gpu;

static struct nccl open_nccl(struct boot *boot, struct nccl_known *known)
{
    memset(&made, 0, sizeof made);
    gpu.dev.ops = &ops;
    return (struct nccl){.api = &api, .boot = boot, .dev = &gpu.dev, .size = 2, .known = known};
}

static bool own_thread(void)
{
    return pthread_equal(made.thread, pthread_self()) == 0;
}

static int rank_asks(const struct launch *launch, void *arg)
{
    static struct nccl_known known;
    struct side side;
    char a[8], b[8];
    struct nccl_move move = {.kind = NCCL_ALL, .send = a, .recv = a, .count = 5, .type = ncclFloat32, .told = true};
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    struct nccl nccl = open_nccl(side.boot, &known);
    for (int other = 0; other < 2; other++) {
        RANK_TRY(nccl_move(&nccl, &move, "a sum"));
        RANK_CHECK(own_thread());
        RANK_TRY(nccl_move(&nccl, &move, "a sum"));
        RANK_CHECK(!own_thread());
        move.recv = b;
    }
    nccl_forget(&nccl);
    RANK_TRY(nccl_move(&nccl, &move, "a sum"));
    RANK_CHECK(own_thread() && made.calls == 5 && made.given_up == 0);
    for (int time = 0; time < 2; time++)
        for (size_t i = 0; i < 500; i++) {
            move.count = 100 + i;
            RANK_TRY(nccl_move(&nccl, &move, "a sum"));
            RANK_CHECK(own_thread() == (time == 0));
        }
    made.captured = true;
    for (int time = 0; time < 2; time++) {
        RANK_TRY(nccl_move(&nccl, &move, "a sum"));
        RANK_CHECK(own_thread());
    }
    side_close(&side);
    return 0;
}

static void what_is_new_goes_by_a_thread(void **state)
{
    (void)state;
    ranks_pass(2, rank_asks, NULL);
}

static bool same_message(const struct transport_xfer *a, int peer, const void *data, size_t bytes)
{
    return a->peer == peer && a->data == data && a->bytes == bytes;
}

/* By a thread and not: to others in their order, what comes first; then those to oneself, but where they lie where they go. */
static int rank_sends(const struct launch *launch, void *arg)
{
    static struct nccl_known known;
    static char m[8];
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    struct nccl nccl = open_nccl(side.boot, &known);
    for (int time = 0; time < 2; time++) {
        const struct transport_xfer sends[] = {{.peer = 5, .data = &m[0], .bytes = 3},
                                               {.peer = 7, .data = &m[1], .bytes = 1},
                                               {.peer = 6, .data = &m[2], .bytes = 2},
                                               {.peer = 5, .data = &m[3]}},
                                    recvs[] = {{.peer = 7, .data = &m[4], .bytes = 1},
                                               {.peer = 6, .data = &m[5], .bytes = 4}};
        const struct nccl_move move = {
            .kind = NCCL_MESSAGES, .rank = 7, .sends = sends, .nsends = 4, .recvs = recvs, .nrecvs = 2};
        made.groups = made.nsent = made.ngot = 0;
        RANK_TRY(nccl_move(&nccl, &move, "messages"));
        RANK_CHECK(own_thread() == (time == 0) && made.groups == 2 && made.nsent == 3 && made.ngot == 2);
        RANK_CHECK(same_message(&made.sent[0], 5, &m[0], 3) && same_message(&made.sent[1], 6, &m[2], 2));
        RANK_CHECK(same_message(&made.sent[2], 7, &m[1], 1));
        RANK_CHECK(same_message(&made.got[0], 6, &m[5], 4) && same_message(&made.got[1], 7, &m[4], 1));
    }
    side_close(&side);
    return 0;
}

static void messages_are_those_of_the_caller(void **state)
{
    (void)state;
    ranks_pass(2, rank_sends, NULL);
}

/* It is asked by its caller, and is new still; a communicator is closed, but none is made. */
static int rank_without_threads(const struct launch *launch, void *arg)
{
    static struct nccl_known known;
    struct side side;
    char a[8], id[TRANSPORT_ID_BYTES] = {0};
    ncclComm_t comm = NULL;
    struct nccl_move move = {.kind = NCCL_ALL, .send = a, .recv = a, .count = 5, .type = ncclFloat32};
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    struct nccl nccl = open_nccl(side.boot, &known);
    RANK_TRY(nccl_comm_open(&nccl, 2, launch->rank, id, &comm));
    made.no_thread = true;
    RANK_TRY(nccl_move(&nccl, &move, "a sum"));
    RANK_CHECK(!own_thread() && made.calls == 1);
    made.no_thread = false;
    RANK_TRY(nccl_move(&nccl, &move, "a sum"));
    RANK_CHECK(own_thread() && made.calls == 2);
    made.no_thread = true;
    nccl_comm_close(&nccl, comm);
    RANK_CHECK(!own_thread() && made.destroyed == 1);
    board->flag[launch->rank] = 1;
    while (launch->rank == 0 && !board->flag[1])
        ranks_sleep_ms(1);
    if (launch->rank == 0) { /* which ends the job */
        RANK_CHECK(nccl_comm_open(&nccl, 2, 0, id, &comm) == STATUS_MACHINE);
        RANK_CHECK(strstr(status_last()->what, "no thread for making a communicator") != NULL && made.given_up == 0);
    }
    side_close(&side);
    return 0;
}

static void without_threads(void **state)
{
    (void)state;
    ranks_pass(2, rank_without_threads, NULL);
}

/* The other rank stands still. */
static int rank_in_vain(const struct launch *launch, void *arg)
{
    static struct nccl_known known;
    struct side side;
    char a[8];
    bool closing = *(const bool *)arg;
    struct nccl_move move = {.kind = NCCL_ALL, .send = a, .recv = a, .count = 5, .type = ncclFloat32};
    RANK_TRY(side_open(&side, launch, NULL));
    struct nccl nccl = open_nccl(side.boot, &known);
    if (launch->rank == 0) {
        made.stays = made.short_waits = true;
        if (closing) {
            enum status before = FAIL(STATUS_NOMEM, "what was said before");
            nccl_comm_close(&nccl, (ncclComm_t)(uintptr_t)2);
            RANK_CHECK(made.destroyed == 1 && status_last()->code == before);
        } else {
            RANK_CHECK(nccl_move(&nccl, &move, "a sum") == STATUS_TIMEOUT);
            RANK_CHECK(strstr(status_last()->what, "NCCL: a sum did not end in 0 s") != NULL);
        }
        RANK_CHECK(made.given_up == 1);
        made.short_waits = false;
    } else {
        while (boot_poll(side.boot) == STATUS_OK)
            ranks_sleep_ms(1);
        RANK_CHECK(status_last()->rank == 0);
    }
    side_close(&side);
    return 0;
}

static void a_deadline_ends_the_wait(void **state)
{
    (void)state;
    for (int closing = 0; closing < 2; closing++) {
        bool arg = closing != 0;
        ranks_pass(2, rank_in_vain, &arg);
    }
}

/* Rank 1 fails when rank 0 waits for it in NCCL, which has no end of its own. */
static int rank_waits(const struct launch *launch, void *arg)
{
    static struct nccl_known known;
    struct side side;
    char a[8];
    struct nccl_move move = {
        .kind = NCCL_ALL, .send = a, .recv = a, .count = 5, .type = ncclFloat32, .deadline_ns = INT64_MAX};
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    struct nccl nccl = open_nccl(side.boot, &known);
    enum status status;
    if (launch->rank == 0) {
        made.stays = true;
        status = nccl_move(&nccl, &move, "a sum");
        RANK_CHECK(made.given_up == 1);
    } else {
        ranks_sleep_ms(100);
        status = FAIL(STATUS_NOMEM, "no memory here");
        boot_abort(side.boot, status_last());
    }
    int code = ranks_note(launch, status);
    side_close(&side);
    return code;
}

static void the_end_of_a_job_ends_the_wait(void **state)
{
    (void)state;
    (void)ranks_run(2, rank_waits, NULL);
    assert_int_equal(board->code[1], STATUS_NOMEM);
    assert_int_equal(board->code[0], STATUS_PEER);
    assert_int_equal(board->rank[0], 1);
}

/* What may be new to NCCL makes another hash: memory and its size, where NCCL knows of it. */
static void hashes_differ(void **state)
{
    char a[8], b[8];
    const struct transport_xfer one[] = {{.peer = 1, .data = a, .bytes = 8}, {.peer = 2, .data = b, .bytes = 8}},
                                peer = {.peer = 3, .data = a, .bytes = 8}, data = {.peer = 1, .data = b, .bytes = 8},
                                bytes = {.peer = 1, .data = a, .bytes = 4}, none = {.peer = 1, .data = a};
    const struct nccl_move plain = {.kind = NCCL_MESSAGES, .sends = one, .nsends = 1};
    struct nccl_move moves[16], same;
    int n = 0;
    (void)state;
    for (int i = 0; i < 16; i++)
        moves[i] = plain;
    moves[++n].kind = NCCL_SCATTER;
    moves[++n].comm = (ncclComm_t)(uintptr_t)1;
    moves[++n].count = 1;
    moves[++n].type = ncclFloat32;
    moves[++n].nsends = 2;
    moves[++n].nsends = 0;
    moves[++n].sends = &peer;
    moves[++n].sends = &none;
    moves[++n].nsends = 0;
    moves[n].recvs = one;
    moves[n].nrecvs = 1;
    moves[++n].told = true;
    moves[++n].told = true;
    moves[n].sends = &data;
    moves[++n].told = true;
    moves[n].sends = &bytes;
    moves[++n].told = true;
    moves[n].send = a;
    moves[++n].told = true;
    moves[n].recv = a;
    for (int i = 0; i <= n; i++)
        for (int j = 0; j < i; j++)
            if (nccl_move_hash(&moves[i]) == nccl_move_hash(&moves[j]))
                fail_msg("moves %d and %d have one hash", j, i);
    same = plain;
    same.stream = (cudaStream_t)(uintptr_t)1;
    same.send = same.recv = a;
    same.sends = &data;
    assert_true(nccl_move_hash(&same) == nccl_move_hash(&plain));
    same.sends = &bytes;
    assert_true(nccl_move_hash(&same) == nccl_move_hash(&plain));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_differ),
        cmocka_unit_test(what_is_new_goes_by_a_thread),
        cmocka_unit_test(messages_are_those_of_the_caller),
        cmocka_unit_test(without_threads),
        cmocka_unit_test(a_deadline_ends_the_wait),
        cmocka_unit_test(the_end_of_a_job_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
