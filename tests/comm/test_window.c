/* tests/comm/test_window.c -- windows: every byte that a peer stored is there after its signal, in both directions;
 * where there can be none all ranks hear the same reason; a late or dead peer ends a wait and is named.
 */
#include "base/mem.h"
#include "comm/comm_group.h"
#include "comm/window.h"
#include "ranks.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

enum { WORDS = 5000, ROUNDS = 40, READY = 0, DONE = 1, CANNOT = 1 };

static uint64_t word(int from, int to, int round, int i)
{
    return (uint64_t)from * 1000003 + (uint64_t)to * 10007 + (uint64_t)round * 101 + (uint64_t)i;
}

/* Each rank owns a row per peer. Every round all rows are written by their peers, then compared by their owner; a row
 * is written again only after its owner said so. */
static int push(struct comm *group, struct window *window)
{
    int rank = comm_rank(group), size = comm_size(group);
    for (int round = 1; round <= ROUNDS; round++) {
        uint64_t epoch = (uint64_t)round;
        for (int p = 0; p < size; p++)
            window_signal(window, p, READY, epoch);
        for (int step = 0; step < size; step++) {
            int p = (rank + step) % size;
            RANK_TRY(window_wait(window, READY, p, epoch));
            uint64_t *row = (uint64_t *)window_peer(window, p) + (size_t)rank * WORDS;
            for (int i = 0; i < WORDS; i++)
                row[i] = word(rank, p, round, i);
            window_signal(window, p, DONE, epoch);
        }
        for (int p = 0; p < size; p++) {
            RANK_TRY(window_wait(window, DONE, p, epoch));
            const uint64_t *row = (const uint64_t *)window_local(window) + (size_t)p * WORDS;
            for (int i = 0; i < WORDS; i++)
                RANK_CHECK(row[i] == word(p, rank, round, i));
        }
    }
    return 0;
}

/* Peers are read, too, and a window starts with zeros. */
static int pull(struct comm *group, struct window *window)
{
    int rank = comm_rank(group), size = comm_size(group);
    uint64_t *own = window_local(window);
    for (size_t i = 0; i < window_bytes(window) / sizeof *own; i++)
        RANK_CHECK(own[i] == 0);
    RANK_CHECK((uintptr_t)own % MEM_ALIGN == 0);
    RANK_CHECK(window_peer(window, rank) == window_local(window));
    own[rank] = word(rank, 0, 0, 7);
    for (int p = 0; p < size; p++)
        window_signal(window, p, WINDOW_SLOTS - 1, 3);
    for (int p = 0; p < size; p++) {
        RANK_TRY(window_wait(window, WINDOW_SLOTS - 1, p, 2)); /* a later epoch is also good */
        RANK_CHECK(((const uint64_t *)window_peer(window, p))[p] == word(p, 0, 0, 7));
    }
    RANK_TRY(comm_barrier(group, NULL)); /* nobody writes rows before all have read */
    return 0;
}

static int use(struct comm *group)
{
    struct window *window = NULL, *empty = NULL;
    struct verdict verdict = window_verdict(group);
    RANK_CHECK(verdict_ok(&verdict));
    RANK_TRY(window_create(group, (size_t)comm_size(group) * WORDS * sizeof(uint64_t), "rows", &window));
    RANK_TRY(window_create(group, 0, "flags alone", &empty));
    int failed = pull(group, window);
    failed = failed ? failed : push(group, window);
    window_destroy(empty);
    window_destroy(window);
    window_destroy(NULL);
    return failed;
}

static int rank_use(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *group = NULL;
    RANK_TRY(side_open(&side, launch, arg));
    int failed = use(side.comm);
    if (!failed && launch->size > 1) { /* groups of another order than the job's, the last one alone */
        RANK_TRY(comm_split(side.comm, launch->rank == launch->size - 1, -launch->rank, &group));
        failed = use(group);
        comm_close(group);
    }
    side_close(&side);
    return failed;
}

static void every_pair_both_ways(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 5; ranks += ranks == 1 ? 1 : 3)
        ranks_pass(ranks, rank_use, NULL);
    static char sysv[] = "sysv";
    ranks_pass(3, rank_use, sysv);
}

/* Many more ranks than CPUs: waits must give the CPU to those they wait for. */
static void more_ranks_than_cpus(void **state)
{
    (void)state;
    ranks_pass(12, rank_use, NULL);
}

/* ---- where there can be none ---- */

static int rank_tcp(const struct launch *launch, void *arg)
{
    struct side side;
    struct window *window = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, "tcp"));
    struct verdict verdict = window_verdict(side.comm);
    RANK_CHECK(verdict.rule == RULE_EXCHANGE_CANNOT && strstr(verdict.why, "tcp") != NULL);
    RANK_CHECK(window_create(side.comm, 100, "nothing", &window) == STATUS_UNSUPPORTED && window == NULL);
    RANK_CHECK(strcmp(status_last()->what, verdict.why) == 0);
    RANK_TRY(comm_barrier(side.comm, side.queue)); /* the group is as good as before */
    side_close(&side);
    return 0;
}

static void tcp_has_none(void **state)
{
    (void)state;
    ranks_pass(3, rank_tcp, NULL);
}

static int refuse(struct comm *comm, size_t bytes, const char *why)
{
    struct window *window = NULL;
    RANK_CHECK(window_create(comm, bytes, "too much", &window) == STATUS_UNSUPPORTED && window == NULL);
    if (strstr(status_last()->what, why) == NULL)
        fprintf(stderr, "said: %s\n", status_last()->what);
    RANK_CHECK(strstr(status_last()->what, why) != NULL);
    return 0;
}

static int rank_absurd(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    int failed = refuse(side.comm, SIZE_MAX / 2, "no machine has");
    failed = failed ? failed : refuse(side.comm, (size_t)1 << 50, "shared memory together");
    /* One rank asks for more than there is: the others hear it. */
    struct window *window = NULL;
    bool odd = launch->rank == 1;
    RANK_CHECK(window_create(side.comm, odd ? (size_t)1 << 50 : 64, "odd", &window) == STATUS_UNSUPPORTED);
    RANK_CHECK(status_last()->rank == 1 && strstr(status_last()->what, "(rank 1)") != NULL);
    failed = failed ? failed : use(side.comm);
    side_close(&side);
    return failed;
}

static void what_does_not_fit_is_refused_by_all(void **state)
{
    (void)state;
    ranks_pass(3, rank_absurd, NULL);
}

/* A /dev/shm of 48 MiB, which is enough for UCX: 2 x 40 MiB is not there, 2 x 8 MiB is. */
static int rank_small_shm(const struct launch *launch, void *arg)
{
    struct side side;
    struct window *window = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, "posix"));
    int failed = refuse(side.comm, 40 << 20, "KiB of /dev/shm together");
    RANK_TRY(window_create(side.comm, 4 << 20, "what fits", &window));
    window_destroy(window);
    side_close(&side);
    return failed;
}

static int in_small_shm(const struct launch *launch, void *arg)
{
    (void)launch;
    (void)arg;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=48m") != 0) {
        board->flag[0] = CANNOT;
        return 0;
    }
    struct launch_report report;
    if (launch_fork(2, NULL, rank_small_shm, NULL, &report) != STATUS_OK)
        return RANK_FAILED;
    return report.failed_rank < 0 ? 0 : RANK_FAILED;
}

static void a_small_dev_shm_is_said(void **state)
{
    (void)state;
    ranks_pass(1, in_small_shm, NULL);
    if (board->flag[0] == CANNOT) {
        print_message("no mount namespace of its own here: %s\n", strerror(errno));
        skip();
    }
}

static enum status no_memory(void *state, size_t bytes, const char *what, void **memory, void **local,
                             struct transport_key *key)
{
    (void)state;
    (void)memory;
    (void)local;
    (void)key;
    return FAIL(STATUS_NOMEM, "no GPU memory for %s (%zu bytes, GPU 1)", what, bytes);
}

/* A device that is full now may have room later: no reason to give up such memory. */
static int rank_full(const struct launch *launch, void *arg)
{
    struct side side;
    struct window *window = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    const struct transport *roomy = side.comm->job->transport;
    struct transport full = *roomy;
    full.memory_create = no_memory;
    if (launch->rank == 1)
        side.comm->job->transport = &full;
    RANK_CHECK(window_create(side.comm, 5000, "q by heads", &window) == STATUS_NOMEM && window == NULL);
    RANK_CHECK(status_last()->rank == 1 && strstr(status_last()->what, "q by heads (") != NULL);
    side.comm->job->transport = roomy;
    int failed = use(side.comm);
    side_close(&side);
    return failed;
}

static void no_memory_left_is_told_as_such(void **state)
{
    (void)state;
    ranks_pass(3, rank_full, NULL);
}

/* ---- waits that end ---- */

static int rank_late(const struct launch *launch, void *arg)
{
    struct side side;
    struct window *window = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(window_create(side.comm, 0, "flags", &window));
    if (launch->rank == 0) {
        comm_set_deadline(side.comm, 100 * 1000);
        RANK_CHECK(window_wait(window, READY, 2, 1) == STATUS_TIMEOUT);
        RANK_CHECK(status_last()->rank == 2 && strstr(status_last()->what, "rank 2") != NULL);
    }
    RANK_TRY(boot_barrier(side.boot, clock_deadline(BOOT_DEADLINE_US)));
    window_destroy(window);
    side_close(&side);
    return 0;
}

static void a_late_rank_is_named(void **state)
{
    (void)state;
    ranks_pass(3, rank_late, NULL);
}

enum { VICTIM = 1 };

static int rank_widow(const struct launch *launch, void *arg)
{
    struct side side;
    struct window *window = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(window_create(side.comm, 1 << 20, "data", &window));
    RANK_TRY(comm_barrier(side.comm, side.queue));
    if (launch->rank == VICTIM)
        ranks_die_after(20000);
    enum status status = STATUS_OK;
    for (uint64_t epoch = 1; status == STATUS_OK; epoch++) { /* everybody waits for everybody, all the time */
        for (int p = 0; p < launch->size; p++) {
            memset((char *)window_peer(window, p) + launch->rank * 1000, (int)epoch, 1000);
            window_signal(window, p, READY, epoch);
        }
        for (int p = 0; p < launch->size && status == STATUS_OK; p++)
            status = window_wait(window, READY, p, epoch);
    }
    int code = ranks_note(launch, status);
    window_destroy(window);
    side_close(&side);
    return code;
}

static void a_death_ends_the_waits_of_all(void **state)
{
    (void)state;
    struct launch_report report = ranks_run(4, rank_widow, NULL);
    assert_int_equal(report.failed_rank, VICTIM);
    assert_int_equal(report.signal, SIGKILL);
    assert_int_equal(report.exit_code, 4);
    for (int r = 0; r < 4; r++) {
        if (r == VICTIM)
            continue;
        assert_int_equal(board->code[r], STATUS_PEER);
        assert_int_equal(board->rank[r], VICTIM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_both_ways),
        cmocka_unit_test(more_ranks_than_cpus),
        cmocka_unit_test(tcp_has_none),
        cmocka_unit_test(what_does_not_fit_is_refused_by_all),
        cmocka_unit_test(a_small_dev_shm_is_said),
        cmocka_unit_test(no_memory_left_is_told_as_such),
        cmocka_unit_test(a_late_rank_is_named),
        cmocka_unit_test(a_death_ends_the_waits_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
