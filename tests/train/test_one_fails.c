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

/* One host has a stale copy of the data, of fewer tokens, or of others near its end. */
static const struct stale {
    size_t bytes;
    char last;
    const char *said;
} stale[] = {{1 << 15, 0, "65536 tokens for one rank, 32768 for another"},
             {1 << 16, 1, "other bytes for one rank than for another"}};
struct with_data {
    struct temp *temp;
    const struct stale *stale;
};

static int rank_with_its_data(const struct launch *launch, void *arg)
{
    static char data[1 << 16] = "no token but 0 behind this";
    const struct with_data *with = arg;
    const bool is_stale = launch->rank == FAILS;
    struct run_options *options = malloc(sizeof *options);
    struct side side;
    RANK_CHECK(options != NULL);
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(one_fails_options(side.dev, false, options));
    text_print(options->trainer.data, sizeof options->trainer.data, "%s",
               temp_path(with->temp, is_stale ? "stale" : "data"));
    data[sizeof data - 1] = is_stale ? with->stale->last : 0;
    RANK_TRY(file_write(options->trainer.data, data, is_stale ? with->stale->bytes : sizeof data));
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
    for (size_t i = 0; i < sizeof stale / sizeof stale[0]; i++) {
        struct with_data with = {&temp, &stale[i]};
        ranks_pass(RANKS, rank_with_its_data, &with);
        for (int r = 0; r < RANKS; r++)
            if ((enum status)board->code[r] != STATUS_USAGE || strstr(board->what[r], stale[i].said) == NULL)
                fail_msg("rank %d ended with %s: %s", r, status_name((enum status)board->code[r]), board->what[r]);
    }
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
