/* tests/comm/test_nccl_move_gpu.c -- a rank fails before it has met the other, which waits in NCCL to be connected with it: by messages, by a sum of
 * the job, by a sum of a group. The job's end ends that wait, and the process.
 *
 * Needs two GPUs, or one that two ranks share (SPTUNE_TEST_RANKS_PER_GPU).
 */
#include "comm/ranks.h"

#include "base/clock.h"

#include <string.h>

enum { SKIP = 77, ELEMS = 1 << 16, FAILS_MS = 500, SOON_US = 20 * 1000 * 1000 };
enum way { MESSAGES, SUM, SUM_OF_GROUP };

static enum status meet(struct comm *comm, struct dev *gpu, struct dev_queue *queue, enum way way)
{
    const size_t bytes = ELEMS * sizeof(float);
    void *from = NULL, *to = NULL;
    TRY(dev_alloc(gpu, 2 * bytes, "what is sent", &from));
    TRY(dev_alloc(gpu, 2 * bytes, "what comes", &to));
    if (way == MESSAGES)
        TRY(comm_alltoall(comm, from, to, bytes, queue));
    else
        TRY(comm_reduce_scatter(comm, from, to, ELEMS, DTYPE_FP32, NULL, queue));
    return dev_sync(queue, INT64_MAX);
}

static int rank_main(const struct launch *launch, void *arg)
{
    const enum way way = *(const enum way *)arg;
    struct side side;
    struct dev *gpu = NULL;
    struct dev_queue *queue = NULL;
    struct comm *job = NULL, *comm = NULL;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(ranks_open_gpu(launch, &gpu));
    ranks_watch(gpu, side.boot);
    RANK_TRY(dev_queue_create(gpu, &queue));
    RANK_TRY(comm_open(side.boot, gpu, "nccl", NULL, &job));
    RANK_TRY(comm_split(job, 0, way == SUM_OF_GROUP ? -launch->rank : launch->rank, &comm));
    RANK_TRY(comm_sums_open(comm));
    enum status status;
    if (launch->rank == 0) {
        int64_t begin_ns = clock_ns();
        status = comm_give_up(job, meet(comm, gpu, queue, way));
        RANK_CHECK(clock_ns() - begin_ns < INT64_C(1000) * SOON_US);
    } else {
        ranks_sleep_ms(FAILS_MS);
        status = comm_give_up(job, FAIL(STATUS_NOMEM, "no memory here"));
    }
    ranks_note(launch, status);
    ranks_await_notes(launch); /* rank 0 ends by itself, not with its peer's process */
    comm_close(comm);
    comm_close(job);
    dev_queue_destroy(queue);
    side_close(&side);
    dev_close(gpu);
    return 0;
}

static void the_end_of_a_job_ends_the_wait(void **state)
{
    (void)state;
    for (enum way way = MESSAGES; way <= SUM_OF_GROUP; way++) {
        ranks_pass(2, rank_main, &way);
        for (int r = 0; r < 2; r++)
            if (board->code[r] != STATUS_NOMEM || strstr(board->what[r], "no memory here") == NULL)
                fail_msg("way %d: rank %d ended with %s: %s", way, r, status_name((enum status)board->code[r]),
                         board->what[r]);
    }
}

int main(void)
{
    int gpus = ranks_gpus(2);
    if (gpus < 2) {
        printf("skipped: it takes two GPUs, here are %d\n", gpus);
        return SKIP;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_end_of_a_job_ends_the_wait)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
