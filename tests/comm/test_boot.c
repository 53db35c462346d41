/* tests/comm/test_boot.c -- the bootstrap between forked ranks: what it carries, and how it ends. */
#include "ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t soon(void)
{
    return clock_deadline(BOOT_DEADLINE_US);
}

/* ---- what it carries ---- */

static unsigned char byte_of(int rank, size_t i, unsigned salt)
{
    return (unsigned char)((size_t)rank * 37 + i * 11 + (i >> 8) * 3 + salt);
}

static void fill(unsigned char *at, size_t n, int rank, unsigned salt)
{
    for (size_t i = 0; i < n; i++)
        at[i] = byte_of(rank, i, salt);
}

static bool is_filled(const void *data, size_t n, int rank, unsigned salt)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < n; i++)
        if (at[i] != byte_of(rank, i, salt))
            return false;
    return true;
}

static int gather_all(struct boot *boot, size_t bytes, unsigned salt)
{
    size_t size = (size_t)boot_size(boot);
    unsigned char *mine = malloc(bytes + 1), *all = malloc(size * bytes + 1);
    fill(mine, bytes, boot_rank(boot), salt);
    RANK_TRY(boot_allgather(boot, mine, bytes, all, soon()));
    for (size_t r = 0; r < size; r++)
        RANK_CHECK(is_filled(all + r * bytes, bytes, (int)r, salt));
    free(mine);
    free(all);
    return 0;
}

/* Rank r gives r * step bytes. */
static int gather_uneven(struct boot *boot, size_t step, unsigned salt)
{
    int size = boot_size(boot), rank = boot_rank(boot);
    size_t bytes = (size_t)rank * step, sizes[RANKS_MAX];
    unsigned char *mine = malloc(bytes + 1);
    char *all = NULL, *at;
    fill(mine, bytes, rank, salt);
    RANK_TRY(boot_allgatherv(boot, mine, bytes, &all, sizes, soon()));
    at = all;
    for (int r = 0; r < size; r++) {
        RANK_CHECK(sizes[r] == (size_t)r * step);
        RANK_CHECK(is_filled(at, sizes[r], r, salt));
        at += sizes[r];
    }
    free(mine);
    free(all);
    return 0;
}

static int broadcast(struct boot *boot, int root, size_t n, unsigned salt)
{
    unsigned char *mine = NULL;
    void *data = NULL;
    size_t bytes = 0;
    if (boot_rank(boot) == root) {
        data = mine = malloc(n + 1);
        bytes = n;
        fill(mine, n, root, salt);
    }
    RANK_TRY(boot_bcast(boot, root, &data, &bytes, soon()));
    RANK_CHECK(bytes == n && is_filled(data, n, root, salt));
    RANK_CHECK(boot_rank(boot) != root || data == mine);
    free(data);
    return 0;
}

static int carry(const struct launch *launch, void *arg)
{
    (void)arg;
    static const size_t sizes[] = {0, 1, 8, 1000, 70000, 1 << 20};
    struct boot *boot;
    int code = 0;
    RANK_TRY(boot_open(launch, soon(), &boot));
    RANK_CHECK(boot_rank(boot) == launch->rank && boot_size(boot) == launch->size);
    for (unsigned i = 0; i < 36 && !code; i++) { /* the same order everywhere */
        size_t n = sizes[i % 6];
        switch (i * 7 % 4) {
        case 0:
            code = gather_all(boot, n, i);
            break;
        case 1:
            code = gather_uneven(boot, n / 4, i);
            break;
        case 2:
            code = broadcast(boot, (int)i % launch->size, n, i);
            break;
        default:
            RANK_TRY(boot_barrier(boot, soon()));
        }
    }
    boot_close(boot);
    return code;
}

static void test_carry(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n += 2)
        ranks_pass(n, carry, NULL);
    ranks_pass(2, carry, NULL);
}

/* Nobody passes a barrier before the last one reaches it. */
static int hold(const struct launch *launch, void *arg)
{
    (void)arg;
    struct boot *boot;
    RANK_TRY(boot_open(launch, soon(), &boot));
    for (int late = 0; late < launch->size; late++) {
        if (launch->rank == late)
            ranks_sleep_ms(20);
        board->flag[launch->rank] = late + 1;
        RANK_TRY(boot_barrier(boot, soon()));
        for (int r = 0; r < launch->size; r++)
            RANK_CHECK(board->flag[r] >= late + 1);
        RANK_TRY(boot_barrier(boot, soon()));
    }
    boot_close(boot);
    return 0;
}

static void test_barrier_holds(void **state)
{
    (void)state;
    ranks_pass(3, hold, NULL);
}

/* The root of broadcasts runs far ahead of ranks that are slow to take them. */
static int run_ahead(const struct launch *launch, void *arg)
{
    (void)arg;
    struct boot *boot;
    RANK_TRY(boot_open(launch, soon(), &boot));
    for (uint32_t i = 0; i < 600; i++) {
        uint32_t mine = i;
        void *data = launch->rank == 0 ? &mine : NULL;
        size_t bytes = sizeof mine;
        if (launch->rank == 1 && i % 100 == 0) {
            ranks_sleep_ms(5);
            RANK_TRY(boot_poll(boot)); /* reads what has come meanwhile */
        }
        RANK_TRY(boot_bcast(boot, 0, &data, &bytes, soon()));
        RANK_CHECK(bytes == sizeof mine && *(uint32_t *)data == i);
        if (launch->rank != 0)
            free(data);
    }
    boot_close(boot);
    return 0;
}

static void test_run_ahead(void **state)
{
    (void)state;
    ranks_pass(3, run_ahead, NULL);
}

/* ---- agreement ---- */

static int agree(const struct launch *launch, void *arg)
{
    (void)arg;
    struct boot *boot;
    RANK_TRY(boot_open(launch, soon(), &boot));
    RANK_CHECK(boot_agree(boot, STATUS_OK, soon()) == STATUS_OK);

    /* The worst wins, with its rank's words. */
    enum status mine = STATUS_OK;
    if (launch->rank == 1)
        mine = FAIL(STATUS_USAGE, "one");
    if (launch->rank == 2)
        mine = HINT(WHERE(FAIL(STATUS_NOMEM, "two has no %d GiB", 7), "there"), "buy more");
    RANK_CHECK(boot_agree(boot, mine, soon()) == STATUS_NOMEM);
    RANK_CHECK(strcmp(status_last()->what, "two has no 7 GiB") == 0);
    RANK_CHECK(strcmp(status_last()->where, "there") == 0 && strcmp(status_last()->hint, "buy more") == 0);
    RANK_CHECK(status_last()->rank == 2 && status_last()->code == STATUS_NOMEM);

    /* Among equals the lowest rank. */
    mine = launch->rank == 0 ? STATUS_OK : FAIL(STATUS_CHECK, "rank %d differs", launch->rank);
    RANK_CHECK(boot_agree(boot, mine, soon()) == STATUS_CHECK);
    RANK_CHECK(strcmp(status_last()->what, "rank 1 differs") == 0 && status_last()->rank == 1);

    /* What all found alike is nobody's; a rank that names another keeps that. */
    RANK_CHECK(boot_agree(boot, FAIL(STATUS_USAGE, "all"), soon()) == STATUS_USAGE);
    RANK_CHECK(status_last()->rank == -1);
    mine = launch->rank == 0 ? status_rank(FAIL(STATUS_TIMEOUT, "late"), 2) : STATUS_OK;
    RANK_CHECK(boot_agree(boot, mine, soon()) == STATUS_TIMEOUT && status_last()->rank == 2);

    /* A status without words of its own does not borrow old ones. */
    FAIL(STATUS_IO, "something old");
    RANK_CHECK(boot_agree(boot, launch->rank == 1 ? STATUS_CHECK : STATUS_OK, soon()) == STATUS_CHECK);
    RANK_CHECK(strcmp(status_last()->what, status_text(STATUS_CHECK)) == 0);

    /* The job goes on. */
    RANK_TRY(boot_barrier(boot, soon()));
    boot_close(boot);
    return 0;
}

static void test_agree(void **state)
{
    (void)state;
    ranks_pass(3, agree, NULL);
}

/* ---- ends ---- */

struct ending {
    int victim;
    int how;  /* 0: SIGKILL, 1: exit without a word, 2: abort, 3: a clean close */
    int wait; /* 0: barrier, 1: polling, 2: broadcast from the victim */
};

static int end_victim(struct boot *boot, const struct ending *ending)
{
    for (int r = 0; r < boot_size(boot); r++) /* not before the others wait, or are about to */
        while (r != ending->victim && !board->flag[r])
            ranks_sleep_ms(1);
    ranks_sleep_ms(5);
    if (ending->how == 0)
        raise(SIGKILL);
    if (ending->how == 1)
        _exit(0);
    if (ending->how == 2) {
        FAIL(STATUS_NOMEM, "no memory for the tensor");
        boot_abort(boot, status_last());
        RANK_CHECK(boot_barrier(boot, soon()) == STATUS_NOMEM);
    }
    boot_close(boot);
    return 4;
}

static int meet_end(const struct launch *launch, void *arg)
{
    const struct ending *ending = arg;
    struct boot *boot;
    RANK_TRY(boot_open(launch, soon(), &boot));
    RANK_TRY(boot_barrier(boot, soon()));
    if (launch->rank == ending->victim)
        return end_victim(boot, ending);
    board->flag[launch->rank] = 1;
    enum status status = STATUS_OK;
    void *data = NULL;
    size_t bytes = 0;
    if (ending->wait == 0)
        status = boot_barrier(boot, soon());
    else if (ending->wait == 2)
        status = boot_bcast(boot, ending->victim, &data, &bytes, soon());
    while (status == STATUS_OK)
        status = boot_poll(boot);
    struct status_message first = *status_last();
    /* Over is over, with the same words. */
    RANK_CHECK(boot_barrier(boot, soon()) == status && boot_poll(boot) == status);
    RANK_CHECK(strcmp(status_last()->what, first.what) == 0 && status_last()->rank == first.rank);
    boot_close(boot);
    return ranks_note(launch, status);
}

static void check_ending(const struct ending *ending, const char *says)
{
    struct launch_report report = ranks_run(4, meet_end, (void *)(uintptr_t)ending);
    for (int r = 0; r < 4; r++) {
        if (r == ending->victim)
            continue;
        assert_int_equal(board->code[r], STATUS_PEER); /* nobody waited for the supervisor */
        assert_int_equal(board->rank[r], ending->victim);
        if (!strstr(board->what[r], says))
            fail_msg("rank %d heard '%s', not '%s'", r, board->what[r], says);
    }
    assert_int_equal(report.exit_code, 4);
    if (ending->how == 0)
        assert_int_equal(report.failed_rank, ending->victim);
}

static void test_death(void **state)
{
    (void)state;
    for (int victim = 0; victim < 4; victim += 2)
        for (int how = 0; how < 2; how++)
            for (int wait = 0; wait < 3; wait++) {
                char says[32];
                snprintf(says, sizeof says, "rank %d ended", victim);
                check_ending(&(struct ending){victim, how, wait}, says);
            }
}

static void test_abort(void **state)
{
    (void)state;
    for (int victim = 0; victim < 4; victim++) {
        char says[64];
        snprintf(says, sizeof says, "rank %d gave up: no memory for the tensor", victim);
        check_ending(&(struct ending){victim, 2, victim % 2}, says);
    }
}

static void test_clean_close(void **state)
{
    (void)state;
    check_ending(&(struct ending){1, 3, 0}, "rank 1 left before a barrier");
    check_ending(&(struct ending){0, 3, 0}, "rank 0 left before a barrier");
    check_ending(&(struct ending){2, 3, 2}, "rank 2 left before a broadcast");
}

/* A rank that closed is missed by nobody until somebody needs it. */
static int not_missed(const struct launch *launch, void *arg)
{
    (void)arg;
    struct boot *boot;
    RANK_TRY(boot_open(launch, soon(), &boot));
    RANK_TRY(boot_barrier(boot, soon()));
    if (launch->rank == 1) {
        boot_close(boot);
        return 0;
    }
    for (int i = 0; i < 40; i++) {
        RANK_TRY(boot_poll(boot));
        ranks_sleep_ms(1);
    }
    boot_close(boot);
    return 0;
}

static void test_close_is_no_death(void **state)
{
    (void)state;
    ranks_pass(3, not_missed, NULL);
}

/* The last answer and the goodbye arrive together, and the answer still counts. */
static int last_answer(const struct launch *launch, void *arg)
{
    (void)arg;
    struct boot *boot;
    RANK_TRY(boot_open(launch, soon(), &boot));
    for (int i = 0; i < 3; i++)
        RANK_TRY(boot_barrier(boot, soon()));
    if (launch->rank == launch->size - 1) {
        void *data = "x";
        size_t bytes = 1;
        RANK_TRY(boot_bcast(boot, launch->rank, &data, &bytes, soon()));
    } else {
        ranks_sleep_ms(10);
        void *data = NULL;
        size_t bytes = 0;
        RANK_TRY(boot_bcast(boot, launch->size - 1, &data, &bytes, soon()));
        RANK_CHECK(bytes == 1);
        free(data);
    }
    boot_close(boot);
    return 0;
}

static void test_last_answer(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        ranks_pass(3, last_answer, NULL);
}

/* ---- deadlines ---- */

static int be_late(const struct launch *launch, void *arg)
{
    int late = *(const int *)arg;
    struct boot *boot;
    RANK_TRY(boot_open(launch, soon(), &boot));
    RANK_TRY(boot_barrier(boot, soon()));
    if (launch->rank == late)
        ranks_await_notes(launch);
    enum status status = boot_barrier(boot, clock_deadline(300000));
    int code = ranks_note(launch, status);
    boot_close(boot);
    return code;
}

static void test_late(void **state)
{
    (void)state;
    for (int late = 0; late < 3; late += 2) {
        ranks_run(3, be_late, &late);
        for (int r = 0; r < 3; r++) {
            if (r == late)
                continue;
            assert_int_equal(board->rank[r], late);
            char says[32];
            snprintf(says, sizeof says, "rank %d did not reach a barrier", late);
            assert_non_null(strstr(board->what[r], says));
        }
        assert_int_equal(board->code[late == 0 ? 1 : 0], STATUS_TIMEOUT);
        assert_int_not_equal(board->code[late], STATUS_OK); /* it hears so too */
    }
}

/* ---- our own mistakes ---- */

static int disagree(const struct launch *launch, void *arg)
{
    int kind = *(const int *)arg;
    struct boot *boot;
    char all[64] = {0};
    void *data = all;
    size_t bytes = 4;
    enum status status = boot_open(launch, soon(), &boot);
    if (status != STATUS_OK) /* the end can come with the welcome */
        return ranks_note(launch, status);
    if (kind == 0)
        status = launch->rank == 1 ? boot_barrier(boot, soon()) : boot_allgather(boot, "abcd", 4, all, soon());
    else if (kind == 1)
        status = boot_allgather(boot, "abcdefgh", launch->rank == 1 ? 8 : 4, all, soon());
    else
        status = boot_bcast(boot, -1, &data, &bytes, soon());
    boot_close(boot);
    return ranks_note(launch, status);
}

static void test_mismatch(void **state)
{
    (void)state;
    static const char *const says[] = {"rank 1 is in a barrier", "rank 1 gave 8 bytes", "broadcast from rank -1"};
    for (int kind = 0; kind < 3; kind++) {
        ranks_run(3, disagree, &kind);
        assert_non_null(strstr(board->what[0], says[kind]));
        for (int r = 0; r < 3; r++)
            assert_int_not_equal(board->code[r], STATUS_OK);
    }
}

/* ---- idle work ---- */

static void count_calls(void *arg)
{
    ++*(atomic_int *)arg;
}

static int idle_work(const struct launch *launch, void *arg)
{
    (void)arg;
    struct boot *boot;
    atomic_int own[BOOT_IDLE_MAX + 1] = {0}, *calls = launch->rank == 0 ? board->flag : own;
    RANK_TRY(boot_open(launch, soon(), &boot));
    for (int i = 0; i < BOOT_IDLE_MAX; i++)
        RANK_TRY(boot_idle_add(boot, count_calls, &calls[i]));
    RANK_CHECK(boot_idle_add(boot, count_calls, &calls[BOOT_IDLE_MAX]) == STATUS_UNSUPPORTED);
    boot_idle_remove(boot, &calls[3]);
    boot_idle_remove(boot, &calls[3]);
    while (launch->rank == 1 && board->flag[BOOT_IDLE_MAX - 1] < 5) /* rank 0 waits here meanwhile */
        ranks_sleep_ms(1);
    RANK_TRY(boot_barrier(boot, soon()));
    for (int i = 0; i < BOOT_IDLE_MAX && launch->rank == 0; i++)
        RANK_CHECK(i == 3 ? calls[i] == 0 : calls[i] >= 4);
    boot_close(boot);
    return 0;
}

static void test_idle(void **state)
{
    (void)state;
    ranks_pass(2, idle_work, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_carry),       cmocka_unit_test(test_barrier_holds),
        cmocka_unit_test(test_run_ahead),   cmocka_unit_test(test_agree),
        cmocka_unit_test(test_death),       cmocka_unit_test(test_abort),
        cmocka_unit_test(test_clean_close), cmocka_unit_test(test_close_is_no_death),
        cmocka_unit_test(test_last_answer), cmocka_unit_test(test_late),
        cmocka_unit_test(test_mismatch),    cmocka_unit_test(test_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
