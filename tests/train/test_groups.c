/* tests/train/test_groups.c -- of groups over which steps sum, each that is neither the job nor one rank has something made for it by the
 * transport before the first step, no other has, and no step makes more. The transport's sums are made up (comm/made_sums.h), so that no
 * number of these runs means anything. With GPUs they are NCCL's: test_groups_gpu.c. */
#include "train/groups_test.h"

#include "comm/made_sums.h"

enum { RANKS = 4 };

static const struct {
    struct way way;
    int made; /* for a rank */
} cases[] = {
    {{2, 1, 2, 1, 0, false}, 0}, /* the job sums */
    {{2, 1, 2, 1, 1, false}, 2}, /* shard, replicate */
    {{2, 1, 2, 1, 3, false}, 2}, /* the same */
    {{2, 2, 1, 1, 3, false}, 0}, /* the job shares */
    {{1, 1, 4, 1, 2, false}, 0}, /* the job has copies */
    {{2, 2, 1, 1, 0, true}, 2},  /* cut, layers */
    {{2, 2, 1, 1, 3, true}, 2},  /* the same */
    {{2, 1, 2, 1, 0, true}, 2},  /* cut, replicate */
    {{2, 1, 2, 1, 2, true}, 3},  /* cut, replicate, shard */
    {{2, 1, 1, 2, 1, false}, 2}, /* cut, layers */
    {{1, 1, 2, 2, 3, false}, 3}, /* cut, replicate, shard */
    {{1, 1, 1, 4, 0, false}, 1}, /* who has the same kv heads */
    {{1, 1, 1, 4, 3, false}, 1}, /* the same */
};

static int rank_main(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    RANK_TRY(made_sums_open(&side, launch, MADE_WELL));
    for (int c = 0; c < CHECK_COUNT(cases); c++) {
        struct trainer *trainer = NULL;
        struct trainer_report report;
        struct trainer_options o = groups_options(&cases[c].way, "cpu", "packed");
        char plan[PLAN_TEXT];
        made_seen.made = made_seen.closed = 0;
        RANK_TRY(trainer_create(&o, side.comm, side.dev, &trainer));
        if (made_seen.made != cases[c].made)
            fprintf(stderr, "%s: %d made\n", plan_text(&o.plan, plan), made_seen.made);
        RANK_CHECK(made_seen.made == cases[c].made);
        for (int64_t step = 0; step < 2; step++)
            RANK_TRY(trainer_step(trainer, step, &report));
        trainer_destroy(trainer);
        RANK_CHECK(made_seen.made == cases[c].made && made_seen.closed == made_seen.made);
    }
    side_close(&side);
    return 0;
}

static void what_sums_is_made_before_the_first_step(void **state)
{
    (void)state;
    ranks_pass(RANKS, rank_main, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_sums_is_made_before_the_first_step)};
    return cmocka_run_group_tests(tests, text_make, text_remove);
}
