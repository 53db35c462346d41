/* tests/comm/test_sums.c -- sums that are the transport's own: for which groups it makes something, once, by whom; what sums go by; what is
 * said where it cannot. The transport's are made up (made_sums.h). NCCL's own are in test_nccl_sums.c, over GPUs in test_sums_gpu.c. */
#include "comm/made_sums.h"

#include "comm/comm_group.h"

#include <string.h>

/* Sums of both kinds, which need no room, give this number. */
static int sums_give(struct comm *comm, int number)
{
    float data[2] = {7, 7}, part[2] = {7, 7};
    RANK_CHECK(comm_sums_natively(comm));
    RANK_CHECK(comm_allreduce_scratch(comm, 3, DTYPE_FP32) == 0 &&
               comm_reduce_scatter_scratch(comm, 3, DTYPE_FP32) == 0);
    RANK_TRY(comm_allreduce(comm, data, 1, DTYPE_FP32, NULL, NULL));
    RANK_TRY(comm_reduce_scatter(comm, data, part, 1, DTYPE_FP32, NULL, NULL));
    RANK_CHECK((int)data[0] == number && (int)data[1] == 7 && (int)part[0] == number && (int)part[1] == 7);
    return 0;
}

/* Of groups that are the job or one rank nothing is made. */
static int none_is_made(struct side *side, const struct launch *launch)
{
    struct comm *same = NULL, *alone = NULL;
    float one = 5, copy = 0;
    RANK_TRY(comm_split(side->comm, 0, launch->rank, &same));
    RANK_TRY(comm_split(side->comm, launch->rank, 0, &alone));
    RANK_TRY(comm_sums_open(side->comm));
    RANK_TRY(comm_sums_open(same));
    RANK_TRY(comm_sums_open(alone));
    int failed = sums_give(side->comm, MADE_BY_JOB);
    failed = failed ? failed : sums_give(same, MADE_BY_JOB);
    RANK_CHECK(!comm_sums_natively(alone));
    RANK_TRY(comm_allreduce(alone, &one, 1, DTYPE_FP32, NULL, NULL));
    RANK_TRY(comm_reduce_scatter(alone, &one, &copy, 1, DTYPE_FP32, NULL, NULL));
    RANK_CHECK((int)one == 5 && (int)copy == 5);
    comm_close(alone);
    comm_close(same);
    RANK_CHECK(made_seen.ids == 0 && made_seen.made == 0 && made_seen.closed == 0);
    return failed;
}

/* One is made, of the id of the group's first rank; closed with the group. */
static int one_is_made(struct side *side, int color, int key, bool before)
{
    struct comm *group = NULL;
    const int ids = made_seen.ids, made = made_seen.made, closed = made_seen.closed;
    RANK_TRY(comm_split(side->comm, color, key, &group));
    for (int again = 0; again < 2 && before; again++)
        RANK_TRY(comm_sums_open(group));
    RANK_CHECK(made_seen.made == made + before);
    int failed = sums_give(group, MADE_BY_RANK + comm_job_rank(group, 0));
    RANK_CHECK(made_seen.made == made + 1 && made_seen.ids == ids + (comm_rank(group) == 0));
    const struct made *of = group->sums;
    RANK_CHECK(failed || (of->size == comm_size(group) && of->rank == comm_rank(group)));
    RANK_CHECK(made_seen.closed == closed);
    comm_close(group);
    RANK_CHECK(made_seen.closed == closed + 1);
    return failed;
}

static int rank_groups(const struct launch *launch, void *arg)
{
    struct side side;
    const int rank = launch->rank;
    (void)arg;
    RANK_TRY(made_sums_open(&side, launch, MADE_WELL));
    int failed = none_is_made(&side, launch);
    for (int before = 0; before < 2 && !failed; before++) {
        failed = one_is_made(&side, rank / 2, -rank, before);
        failed = failed ? failed : one_is_made(&side, rank % 2, rank, before);
        failed = failed ? failed : one_is_made(&side, 0, -rank, before); /* all, in another order */
    }
    side_close(&side);
    RANK_CHECK(made_seen.made == 6 && made_seen.closed == 6);
    return failed;
}

static void groups_have_their_own(void **state)
{
    (void)state;
    ranks_pass(4, rank_groups, NULL);
}

/* ---- what goes wrong ---- */

/* Of two groups at once that of the even ranks has no id. */
static int rank_without_id(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *group = NULL;
    float one = 1;
    const int odd = launch->rank % 2;
    (void)arg;
    RANK_TRY(made_sums_open(&side, launch, odd ? MADE_WELL : MADE_WITHOUT_ID));
    RANK_TRY(comm_split(side.comm, odd, launch->rank, &group));
    enum status status = comm_allreduce(group, &one, 1, DTYPE_FP32, NULL, NULL);
    RANK_CHECK((int)one == (odd ? MADE_BY_RANK + 1 : 1) && (group->sums != NULL) == odd);
    int code = ranks_note(launch, status);
    ranks_await_notes(launch); /* who ends with a failure ends the others */
    comm_close(group);
    RANK_CHECK(made_seen.closed == odd);
    side_close(&side);
    return code;
}

static int rank_not_made(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *reversed = NULL;
    (void)arg;
    RANK_TRY(made_sums_open(&side, launch, MADE_NOT));
    RANK_TRY(comm_split(side.comm, 0, -launch->rank, &reversed));
    int code = ranks_note(launch, comm_sums_open(reversed));
    comm_close(reversed);
    RANK_CHECK(made_seen.made == 0 && made_seen.closed == 0);
    side_close(&side);
    return code;
}

static void assert_said(int rank, enum status code, const char *what)
{
    assert_int_equal(board->code[rank], code);
    assert_string_equal(board->what[rank], what);
}

static void a_failing_id_is_told_to_the_group(void **state)
{
    (void)state;
    struct launch_report report = ranks_run(4, rank_without_id, NULL);
    assert_said(0, STATUS_NOMEM, "no memory for an id");
    assert_said(2, STATUS_NOMEM, "rank 0 could not make an id: no memory for an id");
    assert_said(1, STATUS_OK, "");
    assert_said(3, STATUS_OK, "");
    assert_int_equal(report.exit_code, status_exit_code(STATUS_NOMEM));
}

static void a_group_that_cannot_be_made_ends_the_job(void **state)
{
    (void)state;
    struct launch_report report = ranks_run(2, rank_not_made, NULL);
    assert_said(0, STATUS_MACHINE, "nothing for a group of 2"); /* the group's second */
    assert_int_equal(board->code[1], STATUS_PEER);
    assert_int_equal(board->rank[1], 0);
    assert_non_null(strstr(board->what[1], "nothing for a group of 2"));
    assert_int_equal(report.exit_code, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_have_their_own),
        cmocka_unit_test(a_failing_id_is_told_to_the_group),
        cmocka_unit_test(a_group_that_cannot_be_made_ends_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
