/* tests/comm/test_agree.c -- ranks of a group that agree on a failure: whose words each of them has. */
#include "ranks.h"

#include <string.h>

/* Ranks 1 and 2 fail, 2 worse: all hear of it in its words, but who failed keeps its own. */
static int agree(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_agree(side.comm, STATUS_OK, "begin"));
    enum status mine = launch->rank == 1   ? FAIL(STATUS_USAGE, "too small")
                       : launch->rank == 2 ? HINT(WHERE(FAIL(STATUS_IO, "\xc3\xa9"
                                                                        "cole is full"),
                                                        "/disk"),
                                                  "another")
                                           : STATUS_OK;
    enum status status = comm_agree(side.comm, mine, "write it");
    const struct status_message *m = status_last();
    if (launch->rank != 1) {
        RANK_CHECK(strcmp(m->where, "/disk") == 0 && strcmp(m->hint, "another") == 0);
    }
    ranks_note(launch, status);
    side_close(&side);
    return 0;
}

static void test_agree(void **state)
{
    (void)state;
    ranks_run(4, agree, NULL);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(board->code[r], r == 1 ? STATUS_USAGE : STATUS_IO);
        assert_string_equal(board->what[r], r == 1   ? "too small"
                                            : r == 2 ? "\xc3\xa9"
                                                       "cole is full"
                                                     : "rank 2 could not write it: \xc3\xa9"
                                                       "cole is full");
        assert_int_equal(board->rank[r], r == 1 || r == 2 ? -1 : 2);
    }
}

/* ---- barrier ---- */

static int hold(const struct launch *launch, void *arg)
{
    (void)arg;
    struct side side;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int late = 0; late < launch->size; late++) {
        if (launch->rank == late)
            ranks_sleep_ms(10);
        board->flag[launch->rank] = late + 1;
        RANK_TRY(comm_barrier(side.comm, side.queue));
        for (int r = 0; r < launch->size; r++)
            RANK_CHECK(board->flag[r] >= late + 1);
        RANK_TRY(comm_barrier(side.comm, NULL));
    }
    side_close(&side);
    return 0;
}

static void test_barrier_holds(void **state)
{
    (void)state;
    for (int n = 2; n <= 5; n += 3)
        ranks_pass(n, hold, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barrier_holds),
        cmocka_unit_test(test_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
