/* train/test_one_fails.c -- one rank of a training run fails, in what the ranks with other sequences have no part in: the job ends with what
 * that rank says, long before a deadline. Operations of these runs have none that a test would live to see: on GPUs there is none.
 */
#include "train/one_fails_test.h"

#include "base/file.h"
#include "base/temp.h"

static int rank_main(const struct launch *launch, void *arg)
{
    struct side side;
    RANK_TRY(side_open(&side, launch, NULL));
    int failed = one_fails_run(launch, side.boot, side.comm, side.dev, *(const size_t *)arg);
    side_close(&side);
    return failed;
}

static void test_one_rank_fails(void **state)
{
    (void)state;
    one_fails_test(rank_main);
}

/* One host has a stale copy of the data, of fewer tokens. */
static int rank_with_its_data(const struct launch *launch, void *arg)
{
    static const char data[1 << 16] = "no token but 0 behind this";
    struct temp *temp = arg;
    struct run_options *options = malloc(sizeof *options);
    struct side side;
    RANK_CHECK(options != NULL);
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(one_fails_options(side.dev, false, options));
    text_print(options->trainer.data, sizeof options->trainer.data, "%s",
               temp_path(temp, launch->rank == FAILS ? "stale" : "data"));
    RANK_TRY(file_write(options->trainer.data, data, launch->rank == FAILS ? sizeof data / 2 : sizeof data));
    RANK_TRY(boot_barrier(side.boot, clock_deadline(BOOT_DEADLINE_US)));
    ranks_note(launch, one_fails_take_part(side.boot, side.comm, side.dev, options));
    free(options);
    side_close(&side);
    return 0;
}

static void test_data_differ(void **state)
{
    (void)state;
    struct temp temp;
    temp_open(&temp);
    ranks_pass(RANKS, rank_with_its_data, &temp);
    for (int r = 0; r < RANKS; r++)
        if ((enum status)board->code[r] != STATUS_USAGE ||
            strstr(board->what[r], "65536 tokens for one rank, 32768 for another") == NULL)
            fail_msg("rank %d ended with %s: %s", r, status_name((enum status)board->code[r]), board->what[r]);
    temp_close(&temp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_differ),
        cmocka_unit_test(test_one_rank_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
