/* tests/sp/test_exchange_gpu.c -- every exchange between GPUs gives the bits of exchange packed on the CPUs of the same ranks (layers.h).
 * A rank that dies within one ends the job in bounded time, and leaves no process.
 *
 * Needs two GPUs, uses up to eight; from four on also in groups of half the job.
 */
#include "sp/layers.h"
#include "sp/sp_test.h"

#include "comm/ranks.h"

#include <signal.h>

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
    RANK_TRY(ranks_open_gpu(launch, &gpu));
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

/* ---- death ---- */

enum { VICTIM = 1, HEADS = 8, DIM = 128, TOKENS = 4096, DIE_US = 300 * 1000, DEAD_US = 30 * 1000 * 1000 };

struct endless {
    const struct exchange *exchange;
    struct exchange_tensor q;
    void *state;
};

static enum status endless_open(struct endless *endless, struct comm *comm)
{
    int size = comm_size(comm);
    const struct exchange_shape shape = {
        .batch = 1, .seq_local = TOKENS, .dtype = DTYPE_BF16, .row_elems_max = HEADS * DIM};
    const size_t bytes = (size_t)TOKENS * HEADS * DIM * 2 * (size_t)size;
    endless->q =
        (struct exchange_tensor){.heads = HEADS * size, .count = HEADS, .dim = DIM, .head_stride = HEADS * DIM};
    TRY(endless->exchange->create(&shape, comm, &endless->state));
    TRY(endless->exchange->alloc(endless->state, bytes, "a test", &endless->q.seq));
    return endless->exchange->alloc(endless->state, bytes, "a test", &endless->q.head);
}

static enum status endless_run(struct endless *endless, struct boot *boot, struct dev_queue *queue)
{
    enum status status = STATUS_OK;
    for (int run = 0; status == STATUS_OK; run++) {
        status = endless->exchange->run(endless->state, run % 2 ? EXCHANGE_TO_SEQ : EXCHANGE_TO_HEADS, &endless->q, 1,
                                        queue);
        if (status == STATUS_OK)
            status = dev_sync(queue, clock_deadline(DEAD_US));
        if (status == STATUS_OK)
            status = boot_poll(boot);
    }
    return status;
}

/* One that is refused here ends alike: its ranks wait for the death. */
static int rank_until_death(const struct launch *launch, void *arg)
{
    struct side side;
    struct dev *gpu = NULL;
    struct dev_queue *queue = NULL;
    struct comm *gpus = NULL;
    struct endless endless = {.exchange = exchange_find(arg)};
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(ranks_open_gpu(launch, &gpu));
    RANK_TRY(dev_queue_create(gpu, &queue));
    RANK_TRY(comm_open(side.boot, gpu, "nccl", NULL, &gpus));
    enum status status = endless_open(&endless, gpus);
    RANK_CHECK(status == STATUS_OK || status == STATUS_UNSUPPORTED);
    RANK_TRY(comm_barrier(side.comm, side.queue));
    if (launch->rank == VICTIM)
        ranks_die_after(DIE_US);
    if (status == STATUS_OK)
        status = endless_run(&endless, side.boot, queue);
    while (status == STATUS_UNSUPPORTED && boot_poll(side.boot) == STATUS_OK)
        ranks_sleep_ms(1);
    int code = ranks_note(launch, status);
    if (endless.state != NULL) {
        endless.exchange->free(endless.state, endless.q.head);
        endless.exchange->free(endless.state, endless.q.seq);
        endless.exchange->destroy(endless.state);
    }
    comm_close(gpus);
    dev_queue_destroy(queue);
    side_close(&side);
    dev_close(gpu);
    return code;
}

static void a_death_ends_every_exchange(void **state)
{
    (void)state;
    for (int e = 0; exchanges[e] != NULL; e++) {
        char name[PLAN_NAME];
        if (exchanges[e]->dev != DEV_CUDA)
            continue;
        strcpy(name, exchanges[e]->name);
        struct launch_report report = ranks_run(2, rank_until_death, name); /* sees that no process is left */
        assert_int_equal(report.failed_rank, VICTIM);
        assert_int_equal(report.signal, SIGKILL);
        assert_int_equal(report.exit_code, 4);
    }
}

static int gpus;

static void every_exchange_gives_the_bits_of_packed(void **state)
{
    (void)state;
    int ranks = gpus >= 8 ? 8 : gpus >= 4 ? 4 : 2;
    ranks_pass(ranks, rank_main, NULL);
    printf("%d layers of %d ranks were exchanged\n", board->flag[0], ranks);
    assert_true(board->flag[0] >= 2 * layers_cases(DEV_CUDA)); /* nccl and nccl-separate need nothing but NCCL */
}

int main(void)
{
    gpus = ranks_gpus(8);
    if (gpus < 2) {
        printf("skipped: it takes two GPUs, here are %d\n", gpus);
        return SKIP;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_exchange_gives_the_bits_of_packed),
                                       cmocka_unit_test(a_death_ends_every_exchange)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
