/* tests/comm/test_death.c -- a rank is killed at a random moment: everybody else ends by itself, naming it; nothing
 * stays.
 *
 * SPTUNE_SOAK=n makes n times as many runs.
 */
#include "base/rng.h"
#include "ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, BYTES = 40000, BIG = 600000 };

struct death {
    int victim;
    int64_t after_us;
    bool while_opening; /* else after everybody has opened */
    const char *prefer;
};

static enum status exchange(struct side *side, char *send, char *recv, uint64_t step)
{
    switch (step % 5) {
    case 0:
        return comm_alltoall(side->comm, send, recv, BYTES, side->queue);
    case 1:
        return comm_barrier(side->comm, side->queue);
    case 2:
        return boot_barrier(side->boot, clock_deadline(BOOT_DEADLINE_US));
    case 3:
        return comm_alltoall(side->comm, send, recv, BIG, side->queue);
    default:
        return boot_poll(side->boot);
    }
}

static int work_until_the_end(const struct launch *launch, void *arg)
{
    const struct death *death = arg;
    struct side side;
    char *send = calloc(RANKS, BIG), *recv = calloc(RANKS, BIG);
    if (death->while_opening && launch->rank == death->victim)
        ranks_die_after(death->after_us);
    enum status status = side_open(&side, launch, death->prefer);
    board->flag[launch->rank] = 1; /* stages, for the message of a failing test */
    if (!death->while_opening && launch->rank == death->victim)
        ranks_die_after(death->after_us);
    for (uint64_t step = 0; status == STATUS_OK; step++)
        status = exchange(&side, send, recv, step);
    board->flag[launch->rank] = 2;
    int code = ranks_note(launch, status);
    side_close(&side);
    board->flag[launch->rank] = 3;
    free(send);
    free(recv);
    return code;
}

static void die(const struct death *death)
{
    struct launch_report report = ranks_run(RANKS, work_until_the_end, (void *)(uintptr_t)death);
    assert_int_equal(report.failed_rank, death->victim);
    assert_int_equal(report.signal, SIGKILL);
    assert_int_equal(report.exit_code, 4);
    assert_int_equal(report.root_spoke, death->victim != 0);
    for (int r = 0; r < RANKS; r++) {
        if (r == death->victim)
            continue;
        if (board->code[r] != STATUS_PEER || board->rank[r] != death->victim)
            fail_msg("rank %d, stage %d; victim %d after %d us (%s): status %d, rank %d, '%s'", r, board->flag[r],
                     death->victim, (int)death->after_us, death->prefer ? death->prefer : "shm", board->code[r],
                     board->rank[r], board->what[r]);
        assert_int_equal(board->flag[r], 3);
    }
}

static void die_often(const char *prefer, int runs, uint64_t seed)
{
    const char *soak = getenv("SPTUNE_SOAK");
    struct rng rng;
    rng_seed(&rng, seed, 0);
    for (int i = 0; i < runs * (soak ? atoi(soak) : 1); i++)
        die(&(struct death){.victim = i % RANKS, .after_us = rng_below(&rng, 25000), .prefer = prefer});
}

static void test_death_over_shm(void **state)
{
    (void)state;
    die_often(NULL, 12, 1);
}

static void test_death_over_sysv(void **state)
{
    (void)state;
    die_often("sysv", 4, 2);
}

static void test_death_over_tcp(void **state)
{
    (void)state;
    die_often("tcp", 8, 3);
}

/* Before everybody has joined nobody may know of the victim: the supervisor's grace period bounds that. */
static void test_death_while_opening(void **state)
{
    (void)state;
    const char *soak = getenv("SPTUNE_SOAK");
    struct rng rng;
    rng_seed(&rng, 4, 0);
    for (int i = 0; i < 6 * (soak ? atoi(soak) : 1); i++) {
        struct death death = {
            .victim = (i + 1) % RANKS, .after_us = 3000 + rng_below(&rng, 12000), .while_opening = true};
        struct launch_report report = ranks_run(RANKS, work_until_the_end, &death);
        assert_int_equal(report.failed_rank, death.victim);
        assert_int_equal(report.signal, SIGKILL);
        assert_int_equal(report.exit_code, 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_death_over_shm),
        cmocka_unit_test(test_death_over_sysv),
        cmocka_unit_test(test_death_over_tcp),
        cmocka_unit_test(test_death_while_opening),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
