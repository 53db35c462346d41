/* tests/train/test_groups_gpu.c -- training steps between GPUs whose groups all have communicators of their own: those of a world that is the
 * job's ranks in another order, so that two GPUs suffice, and from four on those of half the job. Loss and gradients are those of one GPU.
 *
 * Needs two GPUs, uses four where there are as many.
 */
#include "train/groups_test.h"

#include "comm/ranks.h"

enum { SKIP = 77 };

static const struct way ways[] = {
    {2, 1, 1, 1, 0, false}, {2, 1, 1, 1, 1, false}, {2, 1, 1, 1, 2, false}, {2, 1, 1, 1, 3, false},
    {2, 1, 1, 1, 0, true},  {2, 1, 1, 1, 3, true},  {1, 1, 1, 2, 0, false}, {1, 1, 1, 2, 3, false},
    {1, 1, 2, 1, 1, false}, {1, 2, 1, 1, 3, false}, {2, 1, 2, 1, 0, false}, {2, 1, 2, 1, 3, false},
    {2, 2, 1, 1, 0, true},  {2, 2, 1, 1, 3, true},  {2, 1, 2, 1, 3, true},  {2, 1, 1, 2, 0, false},
    {2, 1, 1, 2, 3, false}, {1, 1, 2, 2, 2, false}, {1, 1, 2, 2, 1, false}, {1, 2, 2, 1, 2, false},
    {1, 1, 1, 4, 0, false}, {1, 1, 1, 4, 3, false},
};

static int verify(struct comm *world, struct dev *gpu, const struct way *way)
{
    struct trainer *trainer = NULL;
    struct trainer_verdict verdict;
    struct trainer_options o = groups_options(way, "gpu_reference", "nccl");
    RANK_TRY(trainer_create(&o, world, gpu, &trainer));
    RANK_TRY(trainer_verify(trainer, &verdict));
    bool good = verdict.loss > 1 && verdict.loss_error < 1e-6 && verdict.worst <= verdict.allowed &&
                verdict.norm_error < 1e-6 && verdict.tensors > 10;
    char plan[PLAN_TEXT];
    if (!good)
        fprintf(stderr, "%s: loss %g of %g, gradient of %s off by %g of %g\n", plan_text(&o.plan, plan), verdict.loss,
                verdict.whole_loss, trainer_tensor_name(trainer, verdict.worst_tensor), verdict.worst, verdict.allowed);
    trainer_destroy(trainer);
    RANK_CHECK(good);
    return 0;
}

/* Worlds smaller than the job run side by side. */
static int rank_main(const struct launch *launch, void *arg)
{
    struct side side;
    struct dev *gpu = NULL;
    struct comm *job = NULL;
    int failed = 0;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(ranks_open_gpu(launch, &gpu));
    RANK_TRY(comm_open(side.boot, gpu, "nccl", NULL, &job));
    for (int w = 0; w < CHECK_COUNT(ways) && !failed; w++) {
        const int ranks = ways[w].sp * ways[w].shard * ways[w].replicate * ways[w].tp;
        struct comm *world = NULL;
        if (ranks > launch->size)
            continue;
        RANK_TRY(comm_split(job, launch->rank / ranks, -launch->rank, &world));
        failed = verify(world, gpu, &ways[w]);
        comm_close(world);
    }
    comm_close(job);
    side_close(&side);
    dev_close(gpu);
    return failed;
}

static int gpus;

static void groups_of_any_ranks_train(void **state)
{
    (void)state;
    ranks_pass(gpus >= 4 ? 4 : 2, rank_main, NULL);
}

int main(void)
{
    gpus = ranks_gpus(4);
    if (gpus < 2) {
        printf("skipped: it takes two GPUs, here are %d\n", gpus);
        return SKIP;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(groups_of_any_ranks_train)};
    return cmocka_run_group_tests(tests, text_make, text_remove);
}
