/* tests/comm/test_nccl_move.c -- what NCCL has not been asked for before, it is asked for by a thread of its own, and a job that ends meanwhile
 * ends the wait. NCCL is made up here, and so is the GPU that its calls are for: neither is there.
 */
#include "comm/ranks.h"

#include "base/dev_cuda.h"
#include "base/dev_ops.h"
#include "comm/transport_nccl.h"

#include <pthread.h>
#include <string.h>

static struct {
    pthread_t thread; /* that made the last call */
    int calls, given_up;
    bool stays; /* calls do not end */
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

static const struct nccl_api api = {.ncclAllReduce = fake_all};

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
    struct nccl_move move = {.kind = NCCL_ALL, .send = a, .recv = a, .count = 5, .type = ncclFloat32};
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
    side_close(&side);
    return 0;
}

static void what_is_new_goes_by_a_thread(void **state)
{
    (void)state;
    ranks_pass(2, rank_asks, NULL);
}

/* Rank 1 fails when rank 0 waits for it in NCCL, which has no end of its own. */
static int rank_waits(const struct launch *launch, void *arg)
{
    static struct nccl_known known;
    struct side side;
    char a[8];
    struct nccl_move move = {.kind = NCCL_ALL, .send = a, .recv = a, .count = 5, .type = ncclFloat32};
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

/* Each member that NCCL is told makes another hash. */
static void hashes_differ(void **state)
{
    char a[8], b[8];
    const struct transport_xfer one[] = {{.peer = 1, .data = a, .bytes = 8}, {.peer = 2, .data = b, .bytes = 8}},
                                peer = {.peer = 3, .data = a, .bytes = 8}, data = {.peer = 1, .data = b, .bytes = 8},
                                bytes = {.peer = 1, .data = a, .bytes = 4};
    const struct nccl_move plain = {.kind = NCCL_MESSAGES, .sends = one, .nsends = 1};
    struct nccl_move moves[16];
    int n = 0;
    (void)state;
    for (int i = 0; i < 16; i++)
        moves[i] = plain;
    moves[++n].kind = NCCL_SCATTER;
    moves[++n].comm = (ncclComm_t)(uintptr_t)1;
    moves[++n].stream = (cudaStream_t)(uintptr_t)1;
    moves[++n].send = a;
    moves[++n].recv = a;
    moves[++n].count = 1;
    moves[++n].type = ncclFloat32;
    moves[++n].nsends = 2;
    moves[++n].nsends = 0;
    moves[++n].sends = &peer;
    moves[++n].sends = &data;
    moves[++n].sends = &bytes;
    moves[++n].nsends = 0;
    moves[n].recvs = one;
    moves[n].nrecvs = 1;
    for (int i = 0; i <= n; i++) {
        assert_true(nccl_move_hash(&moves[i], false) == nccl_move_hash(&moves[i], false));
        assert_true(nccl_move_hash(&moves[i], false) != nccl_move_hash(&moves[i], true));
        for (int j = 0; j < i; j++)
            if (nccl_move_hash(&moves[i], false) == nccl_move_hash(&moves[j], false))
                fail_msg("moves %d and %d have one hash", j, i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_differ),
        cmocka_unit_test(what_is_new_goes_by_a_thread),
        cmocka_unit_test(the_end_of_a_job_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
