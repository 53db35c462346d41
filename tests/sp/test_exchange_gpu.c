/* tests/sp/test_exchange_gpu.c -- every exchange between GPUs gives the bits of exchange packed on the CPUs of the same ranks (layers.h).
 *
 * Needs two GPUs, uses up to eight; from four on also in groups of half the job.
 */
#include "sp/layers.h"
#include "sp/sp_test.h"

#include "comm/ranks.h"

#include <sys/wait.h>
#include <unistd.h>

enum { SKIP = 77 };

static int rank_main(const struct launch *launch, void *arg)
{
    struct side side;
    struct dev *gpu = NULL;
    struct dev_queue *queue = NULL;
    struct comm *gpus = NULL, *half = NULL, *half_gpus = NULL;
    int moved = 0;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(dev_open(DEV_CUDA, launch->local_rank, &gpu));
    RANK_TRY(dev_queue_create(gpu, &queue));
    RANK_TRY(comm_open(side.boot, gpu, "nccl", NULL, &gpus));
    int failed = layers_same_bits(exchanges, gpus, queue, side.comm, side.queue, &moved);
    if (!failed && launch->size >= 4) {
        RANK_TRY(comm_split(side.comm, launch->rank % 2, 0, &half));
        RANK_TRY(comm_split(gpus, launch->rank % 2, 0, &half_gpus));
        failed = layers_same_bits(exchanges, half_gpus, queue, half, side.queue, &moved);
        comm_close(half_gpus);
        comm_close(half);
    }
    board->flag[launch->rank] = moved;
    comm_close(gpus);
    dev_queue_destroy(queue);
    side_close(&side);
    dev_close(gpu);
    return failed;
}

/* This process must not ask: it could then give its ranks no GPU. */
static int count_gpus(void)
{
    int state = 0, n = 0;
    pid_t child = fork();
    if (child == 0) {
        if (dev_count(DEV_CUDA, &n) != STATUS_OK)
            printf("skipped: %s\n", status_last()->what);
        fflush(stdout);
        _exit(n < 8 ? n : 8);
    }
    return child > 0 && waitpid(child, &state, 0) == child && WIFEXITED(state) ? WEXITSTATUS(state) : 0;
}

static int gpus;

static void every_exchange_gives_the_bits_of_packed(void **state)
{
    (void)state;
    int ranks = gpus >= 8 ? 8 : gpus >= 4 ? 4 : 2;
    ranks_pass(ranks, rank_main, NULL);
    printf("%d layers of %d ranks were exchanged\n", board->flag[0], ranks);
    assert_true(board->flag[0] >= 2 * layers_cases()); /* nccl and nccl-separate need nothing but NCCL */
}

int main(void)
{
    gpus = count_gpus();
    if (gpus < 2) {
        printf("skipped: it takes two GPUs, here are %d\n", gpus);
        return SKIP;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_exchange_gives_the_bits_of_packed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
