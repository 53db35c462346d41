/* tests/comm/test_beside.c -- UCX beside the transport of a job: the same ranks, every byte where it belongs, job and groups, in turn with
 * the job's own messages; and a UCX that cannot move a device's memory says so, to all ranks
 * of the group. A rank that fails parts alone. A death ends it, and leaves no process.
 */
#include "base/dev_ops.h"
#include "comm/comm_group.h"
#include "comm/transport_ucx.h"
#include "ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 300000 };

static unsigned char cell(int from, int to, size_t i)
{
    return (unsigned char)((size_t)from * 41 + (size_t)to * 13 + i * 7 + (i >> 9));
}

static int all_to_all(struct comm *comm, size_t bytes)
{
    int size = comm_size(comm), rank = comm_rank(comm);
    unsigned char *send = malloc((size_t)size * bytes), *recv = calloc((size_t)size, bytes);
    for (size_t i = 0; i < (size_t)size * bytes; i++)
        send[i] = cell(rank, (int)(i / bytes), i % bytes);
    RANK_TRY(comm_alltoall(comm, send, recv, bytes, NULL));
    for (size_t i = 0; i < (size_t)size * bytes; i++)
        RANK_CHECK(recv[i] == cell((int)(i / bytes), rank, i % bytes));
    free(send);
    free(recv);
    return 0;
}

static int in_group(struct comm *group)
{
    struct comm *beside = NULL, *again = NULL;
    RANK_TRY(comm_beside(group, &beside));
    RANK_CHECK(beside != group && comm_size(beside) == comm_size(group) && comm_rank(beside) == comm_rank(group));
    for (int r = 0; r < comm_size(group); r++)
        RANK_CHECK(comm_job_rank(beside, r) == comm_job_rank(group, r));
    RANK_CHECK(strncmp(comm_transport(beside), comm_size(group) > 1 ? "ucx " : "local", 4) == 0);
    int failed = 0;
    for (int turn = 0; turn < 3 && !failed; turn++) {
        failed = all_to_all(beside, turn == 1 ? 5 : BYTES);
        failed = failed ? failed : all_to_all(group, turn == 1 ? 5 : BYTES);
    }
    RANK_TRY(comm_beside(group, &again));
    RANK_CHECK(again == beside);
    return failed;
}

/* The job, its odd and even ranks beside it, and each rank alone. */
static int rank_main(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *half = NULL, *alone = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_split(side.comm, launch->rank % 2, -launch->rank, &half));
    RANK_TRY(comm_split(side.comm, launch->rank, 0, &alone));
    int failed = in_group(half);
    failed = failed ? failed : in_group(side.comm);
    failed = failed ? failed : in_group(alone);
    failed = failed ? failed : in_group(half);
    comm_close(alone);
    comm_close(half);
    side_close(&side);
    return failed;
}

static void ranks_exchange_beside(void **state)
{
    (void)state;
    ranks_pass(2, rank_main, NULL);
    ranks_pass(4, rank_main, NULL);
    ranks_pass(5, rank_main, NULL);
}

/* A device that says it is a GPU. */
static enum status gpu_open(struct dev_ops *ops, struct dev **out)
{
    TRY(dev_open(DEV_CPU, 0, out));
    *ops = *(*out)->ops;
    ops->kind = DEV_CUDA;
    (*out)->ops = ops;
    return STATUS_OK;
}

/* The job is one of CPUs; UCX beside it is asked for on a GPU. */
static int refused(const struct launch *launch, void *arg)
{
    struct side side;
    struct dev *gpu = NULL;
    struct dev_ops ops;
    struct comm *beside = NULL;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(gpu_open(&ops, &gpu));
    side.comm->job->dev = gpu;
    for (int call = 0; call < 2; call++) {
        enum status status = comm_beside(side.comm, &beside);
        RANK_CHECK(status == STATUS_UNSUPPORTED && beside == NULL && strstr(status_last()->what, arg) != NULL);
    }
    int failed = all_to_all(side.comm, BYTES); /* nothing of it is in the way */
    side.comm->job->dev = side.dev;
    dev_close(gpu);
    side_close(&side);
    return failed;
}

enum { HALF = 2 };

/* Two hosts, UCX moves memory of GPUs on the second: its ranks have it among themselves, before and after all were refused. */
static int refused_by_some(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *half = NULL, *again = NULL, *beside = NULL;
    struct dev *gpu = NULL;
    struct dev_ops ops;
    bool cannot = launch->rank < HALF;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_split(side.comm, cannot, 0, &half));
    RANK_TRY(comm_split(side.comm, cannot, 0, &again));
    RANK_TRY(gpu_open(&ops, &gpu));
    if (cannot)
        side.comm->job->dev = gpu;
    RANK_CHECK(comm_beside(half, &beside) == (cannot ? STATUS_UNSUPPORTED : STATUS_OK));
    RANK_CHECK(comm_beside(side.comm, &beside) == STATUS_UNSUPPORTED && strstr(status_last()->what, arg) != NULL);
    RANK_CHECK(comm_beside(again, &beside) == (cannot ? STATUS_UNSUPPORTED : STATUS_OK));
    int failed = all_to_all(cannot ? again : beside, BYTES);
    side.comm->job->dev = side.dev;
    comm_close(again);
    comm_close(half);
    dev_close(gpu);
    side_close(&side);
    return failed;
}

/* Left out by the user, so that it is the same where a GPU and a UCX with CUDA modules are. */
static void what_ucx_cannot_move_is_refused(void **state)
{
    (void)state;
    setenv("UCX_TLS", "^cuda", 1);
    ranks_pass(2, refused, "UCX_TLS=^cuda");
    ranks_pass(2 * HALF, refused_by_some, "UCX_TLS=^cuda");
    unsetenv("UCX_TLS");
}

/* Ranks on CPUs have memory to map too, over shared memory but not over tcp. */
static int reaching(const struct launch *launch, void *arg)
{
    struct side side;
    int members[RANKS_MAX];
    const char *prefer = arg;
    bool reaches = strcmp(prefer, "tcp") == 0;
    RANK_TRY(side_open(&side, launch, prefer));
    struct ucx ucx = {.group = side.comm, .members = members, .nmembers = launch->size, .place = launch->rank};
    for (int r = 0; r < launch->size; r++)
        members[r] = r;
    RANK_TRY(ucx_cuda_reaches(&ucx, &reaches));
    RANK_CHECK(reaches == (strcmp(prefer, "tcp") != 0));
    RANK_CHECK(status_last()->code == STATUS_OK);
    side_close(&side);
    return 0;
}

/* Rank 0 asks for more than any machine has; the others give back what they got. */
static int out_of_memory(const struct launch *launch, void *arg)
{
    struct side side;
    bool reaches;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    const struct ucx ucx = {.group = side.comm, .nmembers = launch->rank == 0 ? -1 : launch->size};
    RANK_CHECK(ucx_cuda_reaches(&ucx, &reaches) == STATUS_NOMEM);
    side_close(&side);
    return 0;
}

static void memory_is_mapped_to_know_that_it_can_be(void **state)
{
    char shm[] = "shm", tcp[] = "tcp";
    (void)state;
    ranks_pass(3, reaching, shm);
    ranks_pass(3, reaching, tcp);
    ranks_pass(3, out_of_memory, NULL);
}

enum { VICTIM = 1, DIE_US = 100 * 1000, SHORT_US = 500 * 1000 };

/* A rank gives up and cleans up while the others go on in the group: they miss it, and take nothing of its parting for theirs. */
static int left_behind(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *group = NULL, *beside = NULL;
    double value = 1;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_split(side.comm, 0, 0, &group));
    RANK_TRY(comm_beside(group, &beside));
    comm_set_deadline(group, SHORT_US);
    enum status status = launch->rank == VICTIM ? STATUS_OK : comm_max(group, &value, 1);
    int code = ranks_note(launch, status);
    comm_close(group);
    ranks_await_notes(launch);
    side_close(&side);
    return code;
}

static void nobody_meets_who_leaves_alone(void **state)
{
    (void)state;
    ranks_run(2, left_behind, NULL);
    assert_int_equal(board->code[1 - VICTIM], STATUS_TIMEOUT);
    assert_int_equal(board->rank[1 - VICTIM], VICTIM);
}

static int until_death(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *beside = NULL;
    static char send[3 * BYTES], recv[3 * BYTES];
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_beside(side.comm, &beside));
    if (launch->rank == VICTIM)
        ranks_die_after(DIE_US);
    enum status status = STATUS_OK;
    while (status == STATUS_OK)
        status = comm_alltoall(beside, send, recv, BYTES, NULL);
    int code = ranks_note(launch, status);
    side_close(&side);
    return code;
}

static void a_death_ends_it(void **state)
{
    (void)state;
    struct launch_report report = ranks_run(3, until_death, NULL);
    assert_int_equal(report.failed_rank, VICTIM);
    assert_int_equal(report.signal, SIGKILL);
    for (int r = 0; r < 3; r++)
        if (r != VICTIM && board->noted[r]) {
            assert_int_equal(board->code[r], STATUS_PEER);
            assert_int_equal(board->rank[r], VICTIM);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_exchange_beside),
        cmocka_unit_test(what_ucx_cannot_move_is_refused),
        cmocka_unit_test(memory_is_mapped_to_know_that_it_can_be),
        cmocka_unit_test(nobody_meets_who_leaves_alone),
        cmocka_unit_test(a_death_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
