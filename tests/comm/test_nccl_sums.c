/* tests/comm/test_nccl_sums.c -- what of NCCL is called for a group's sums: a communicator of its own, of the right size and rank; sums by it, or
 * by the job's; destroyed while the job lives, else aborted; and what a group says whose windows are none. NCCL is made up here, and so is the GPU
 * that its calls are for: neither is there. */
#include "comm/ranks.h"

#include "base/dev_cuda.h"
#include "base/dev_ops.h"
#include "comm/transport_nccl.h"

#include <stdlib.h>
#include <string.h>

enum { JOBS = 1, OWN = 2 }; /* communicators */

static ncclComm_t comm_of(int number)
{
    return (ncclComm_t)(uintptr_t)number;
}

static struct { /* last calls, in this rank */
    int size, rank, scattered, summed, destroyed, aborted;
    char id;
    ncclDataType_t type;
    ncclResult_t code;
} called;

static ncclResult_t fake_id(ncclUniqueId *id)
{
    memset(id, 'i', sizeof *id);
    return called.code;
}

static ncclResult_t fake_init(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    (void)config;
    called.size = size;
    called.rank = rank;
    called.id = id.internal[sizeof id.internal - 1];
    *comm = comm_of(OWN);
    return called.code;
}

static ncclResult_t fake_destroy(ncclComm_t comm)
{
    called.destroyed = (int)(uintptr_t)comm;
    return ncclSuccess;
}

static ncclResult_t fake_abort(ncclComm_t comm)
{
    called.aborted = (int)(uintptr_t)comm;
    return ncclSuccess;
}

static const char *fake_error(ncclResult_t code)
{
    (void)code;
    return "an error";
}

static const char *fake_last(ncclComm_t comm)
{
    return comm == comm_of(OWN) ? "of its own" : "";
}

static ncclResult_t fake_all(const void *send, void *recv, size_t elems, ncclDataType_t type, ncclRedOp_t op,
                             ncclComm_t comm, cudaStream_t stream)
{
    called.summed = send == recv && elems == 5 && op == ncclSum && stream == NULL ? (int)(uintptr_t)comm : 0;
    called.type = type;
    return called.code;
}

static ncclResult_t fake_scatter(const void *send, void *recv, size_t elems, ncclDataType_t type, ncclRedOp_t op,
                                 ncclComm_t comm, cudaStream_t stream)
{
    called.scattered = send != recv && elems == 5 && op == ncclSum && stream == NULL ? (int)(uintptr_t)comm : 0;
    called.type = type;
    return called.code;
}

static const struct nccl_api api = {.ncclGetUniqueId = fake_id,
                                    .ncclCommInitRankConfig = fake_init,
                                    .ncclCommDestroy = fake_destroy,
                                    .ncclCommAbort = fake_abort,
                                    .ncclGetErrorString = fake_error,
                                    .ncclGetLastError = fake_last,
                                    .ncclAllReduce = fake_all,
                                    .ncclReduceScatter = fake_scatter};

/* Zeroed handles of a GPU: number 0, and the default stream. */
static union {
    struct dev dev;
    struct dev_queue queue;
    char zero[256];
} gpu, stream;

static struct nccl open_nccl(struct boot *boot)
{
    memset(&called, 0, sizeof called);
    return (struct nccl){.api = &api,
                         .boot = boot,
                         .dev = &gpu.dev,
                         .rank = boot_rank(boot),
                         .size = boot_size(boot),
                         .comm = comm_of(JOBS)};
}

static int rank_sums(const struct launch *launch, void *arg)
{
    static const struct {
        enum dtype dtype;
        ncclDataType_t type;
    } types[] = {{DTYPE_FP32, ncclFloat32}, {DTYPE_BF16, ncclBfloat16}, {DTYPE_FP16, ncclFloat16}};
    const struct transport_sums *sums = transport_nccl.sums;
    struct side side;
    char id[TRANSPORT_ID_BYTES] = {0}, a = 0, b = 0;
    void *own = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    struct nccl nccl = open_nccl(side.boot);
    RANK_TRY(sums->id(&nccl, id));
    RANK_TRY(sums->open(&nccl, 7, 3, id, &own)); /* of 7 ranks the 3rd, whatever the job's are */
    RANK_CHECK(own == (void *)comm_of(OWN) && called.size == 7 && called.rank == 3 && called.id == 'i');
    for (int t = 0; t < 3; t++)
        for (int job = 0; job < 2; job++) {
            RANK_TRY(sums->all(&nccl, job ? NULL : own, &a, 5, types[t].dtype, &stream.queue));
            RANK_CHECK(called.summed == (job ? JOBS : OWN) && called.type == types[t].type);
            RANK_TRY(sums->scatter(&nccl, job ? NULL : own, &a, &b, 5, types[t].dtype, &stream.queue));
            RANK_CHECK(called.scattered == (job ? JOBS : OWN) && called.type == types[t].type);
        }
    called.code = ncclSystemError;
    RANK_CHECK(sums->all(&nccl, own, &a, 5, DTYPE_FP32, &stream.queue) == STATUS_MACHINE);
    RANK_CHECK(strcmp(status_last()->what, "NCCL: an all-reduce: an error: of its own") == 0);
    volatile int32_t two = 2;
    struct dev_cuda_late late = {.rank = &two};
    dev_cuda_late_watch(&late); /* a kernel gave up: NCCL's failure comes of that */
    RANK_CHECK(sums->all(&nccl, own, &a, 5, DTYPE_FP32, &stream.queue) == STATUS_TIMEOUT);
    RANK_CHECK(strstr(status_last()->what, "rank 2 of the group") != NULL);
    dev_cuda_late_forget(&late);
    sums->close(&nccl, own);
    RANK_CHECK(called.destroyed == OWN && called.aborted == 0);
    sums->close(&nccl, NULL);
    side_close(&side);
    return 0;
}

static void groups_sum_by_their_communicator(void **state)
{
    (void)state;
    ranks_pass(2, rank_sums, NULL);
}

/* The first rank alone cannot make it, when the other has. */
static int rank_refused(const struct launch *launch, void *arg)
{
    const struct transport_sums *sums = transport_nccl.sums;
    struct side side;
    char id[TRANSPORT_ID_BYTES] = {0};
    void *own = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    struct nccl nccl = open_nccl(side.boot);
    called.code = launch->rank == 0 ? ncclSystemError : ncclSuccess;
    while (launch->rank == 0 && !board->flag[1])
        ranks_sleep_ms(1);
    enum status status = sums->open(&nccl, 2, launch->rank, id, &own);
    board->flag[launch->rank] = 1;
    RANK_CHECK((status == STATUS_OK) == (launch->rank == 1));
    RANK_CHECK((own == NULL) == (launch->rank == 0) && called.aborted == (launch->rank == 0 ? OWN : 0));
    while (status == STATUS_OK) /* it hears of that */
        status = boot_poll(side.boot);
    int code = ranks_note(launch, status);
    sums->close(&nccl, own);
    RANK_CHECK(called.aborted == OWN && called.destroyed == 0);
    side_close(&side);
    return code;
}

static void what_cannot_be_made_ends_the_job(void **state)
{
    (void)state;
    struct launch_report report = ranks_run(2, rank_refused, NULL);
    assert_int_equal(report.exit_code, 4);
    assert_int_equal(board->code[0], STATUS_MACHINE);
    assert_string_equal(board->what[0], "NCCL: making a communicator: an error: of its own");
    assert_int_equal(board->code[1], STATUS_PEER);
    assert_int_equal(board->rank[1], 0);
}

#if NCCL_VERSION_CODE >= 22800
static ncclResult_t fake_alloc(void **memory, size_t bytes)
{
    *memory = calloc(1, bytes);
    return *memory != NULL ? ncclSuccess : ncclSystemError;
}

static ncclResult_t fake_free(void *memory)
{
    free(memory);
    return ncclSuccess;
}

/* Success, and no window. */
static ncclResult_t fake_window(ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window, int flags)
{
    (void)comm;
    (void)memory;
    (void)bytes;
    (void)window;
    (void)flags;
    return ncclSuccess;
}

/* A group that has no windows leaves the job's verdict alone: ranks that are not in it do not know. */
static int rank_without_windows(const struct launch *launch, void *arg)
{
    const struct transport_routes *routes = transport_nccl.routes;
    static const int ranks[] = {0, 1};
    struct side side;
    char id[TRANSPORT_ID_BYTES] = {0};
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    struct nccl nccl = open_nccl(side.boot);
    struct nccl_api with_windows = api;
    with_windows.version = NCCL_VERSION_CODE;
    with_windows.ncclMemAlloc = fake_alloc;
    with_windows.ncclMemFree = fake_free;
    with_windows.ncclCommWindowRegister = fake_window;
    nccl.api = &with_windows;
    for (enum transport_route kind = TRANSPORT_WINDOW; kind < TRANSPORT_ROUTES; kind++) {
        void *route = NULL;
        RANK_CHECK(routes->open(&nccl, kind, ranks, 2, launch->rank, id, &route) == STATUS_UNSUPPORTED &&
                   route == NULL);
        RANK_CHECK(strstr(status_last()->what, "has no symmetric windows between these GPUs") != NULL);
        RANK_CHECK(routes->verdict(&nccl, TRANSPORT_WINDOW).rule == RULE_OK);
        RANK_CHECK(routes->verdict(&nccl, TRANSPORT_ENGINE).rule == RULE_OK);
    }
    side_close(&side);
    return 0;
}

static void a_group_without_windows_is_no_job_without(void **state)
{
    (void)state;
    ranks_pass(2, rank_without_windows, NULL);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_sum_by_their_communicator),
        cmocka_unit_test(what_cannot_be_made_ends_the_job),
#if NCCL_VERSION_CODE >= 22800
        cmocka_unit_test(a_group_without_windows_is_no_job_without),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
