/* tests/train/test_one_fails_gpu.c -- as test_one_fails.c, between GPUs: what waits there for collectives has no deadline at all.
 *
 * Needs four GPUs, or one that four ranks share (SPTUNE_TEST_RANKS_PER_GPU).
 */
#include "train/one_fails_test.h"

enum { SKIP = 77 };

static int rank_main(const struct launch *launch, void *arg)
{
    struct side side;
    struct dev *gpu = NULL;
    struct comm *job = NULL;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(ranks_open_gpu(launch, &gpu));
    ranks_watch(gpu, side.boot);
    RANK_TRY(comm_open(side.boot, gpu, "nccl", NULL, &job));
    int failed = one_fails_run(launch, side.boot, job, gpu, *(const size_t *)arg);
    comm_close(job);
    side_close(&side);
    dev_close(gpu);
    return failed;
}

static void test_one_rank_fails(void **state)
{
    (void)state;
    one_fails_test(rank_main);
}

int main(void)
{
    int gpus = ranks_gpus(RANKS);
    if (gpus < RANKS) {
        printf("skipped: it takes four GPUs, here are %d\n", gpus);
        return SKIP;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_rank_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
