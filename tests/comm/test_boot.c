/* tests/comm/test_boot.c -- the bootstrap between forked ranks: what it carries, and how it ends. */
#include "comm/boot_wire.h"
#include "ranks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
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
    ranks_sleep_ms(10);
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
        ranks_sleep_ms(late == 0 ? 1500 : 300);
    enum status status = boot_barrier(boot, clock_deadline(50000));
    boot_close(boot);
    return ranks_note(launch, status);
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

static int stay_away(const struct launch *launch, void *arg)
{
    (void)arg;
    if (launch->rank == 1 || launch->rank == 3) {
        ranks_sleep_ms(400);
        return 4;
    }
    struct boot *boot;
    return ranks_note(launch, boot_open(launch, clock_deadline(200000), &boot));
}

static void test_absent(void **state)
{
    (void)state;
    ranks_run(4, stay_away, NULL);
    for (int r = 0; r < 4; r += 2) {
        assert_int_equal(board->code[r], STATUS_TIMEOUT);
        assert_string_equal(board->what[r], "ranks 1, 3 did not join in time");
        assert_int_equal(board->rank[r], 1);
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

/* ---- who may join ---- */

static int knock_wrongly(const struct launch *launch, void *arg)
{
    int kind = *(const int *)arg;
    struct launch mine = *launch;
    struct boot *boot;
    if (launch->rank == 1 && kind == 0)
        memset(mine.token, 'f', 32);
    if (launch->rank == 1 && kind == 1)
        mine.size = 4;
    if (launch->rank == 1 && kind == 2)
        mine.rank = 2; /* whoever comes second is refused */
    return ranks_note(launch, boot_open(&mine, clock_deadline(300000), &boot));
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const says[] = {"the token is another job's", "another size", "no free place for a rank 2"};
    for (int kind = 0; kind < 3; kind++) {
        ranks_run(3, knock_wrongly, &kind);
        int refused = strstr(board->what[1], says[kind]) ? 1 : 2;
        assert_non_null(strstr(board->what[refused], says[kind]));
        assert_true(refused == 1 || kind == 2);
        assert_int_equal(board->code[refused], STATUS_USAGE);
        assert_int_equal(board->code[0], STATUS_TIMEOUT); /* and names who is missing */
        assert_int_equal(board->rank[0], 1);
    }
}

static int connect_raw(const struct launch *launch)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    address.sin_port = htons((uint16_t)atoi(strrchr(launch->root, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* A hello as rank 1 says it; size and token as given. */
static size_t hello(const struct launch *launch, unsigned char *raw, int version)
{
    const struct wire_head head = {.type = WIRE_HELLO, .rank = 1, .bytes = 36};
    uint32_t size = htonl((uint32_t)launch->size);
    wire_pack(&head, raw);
    raw[4] = (unsigned char)version;
    memcpy(raw + WIRE_HEADER, launch->token, 32);
    memcpy(raw + WIRE_HEADER + 32, &size, 4);
    return WIRE_HEADER + 36;
}

/* A rank that was let in and then talks nonsense ends the job, in good order. */
static int talk_nonsense(const struct launch *launch, void *arg)
{
    const char *nonsense = arg;
    if (launch->rank == 1) {
        unsigned char raw[128];
        int fd = connect_raw(launch);
        size_t n = hello(launch, raw, WIRE_VERSION);
        RANK_CHECK(fd >= 0 && write(fd, raw, n) == (ssize_t)n);
        RANK_CHECK(read(fd, raw, WIRE_HEADER) == WIRE_HEADER && raw[5] == WIRE_WELCOME);
        RANK_CHECK(write(fd, nonsense, 64) == 64);
        while (read(fd, raw, sizeof raw) > 0)
            continue;
        close(fd);
        return 4;
    }
    struct boot *boot = NULL;
    enum status status = boot_open(launch, soon(), &boot);
    if (status == STATUS_OK) /* the end can come with the welcome */
        status = boot_barrier(boot, soon());
    boot_close(boot);
    return ranks_note(launch, status);
}

static void test_nonsense(void **state)
{
    (void)state;
    char huge[64] = "SPTB\1\4\0\1";
    memset(huge + 8, 0xff, 56); /* a payload of 2^64 - 1 bytes */
    char text[64] = "GET / HTTP/1.1";
    char *const nonsense[] = {huge, text};
    for (size_t i = 0; i < 2; i++) {
        ranks_run(3, talk_nonsense, nonsense[i]);
        for (int r = 0; r < 3; r += 2) {
            assert_int_equal(board->code[r], STATUS_PEER);
            assert_int_equal(board->rank[r], 1);
            assert_non_null(strstr(board->what[r], "rank 1 sent something that is not a message"));
        }
    }
}

static int other_version(const struct launch *launch, void *arg)
{
    (void)arg;
    if (launch->rank == 1) {
        unsigned char raw[128];
        int fd = connect_raw(launch);
        size_t n = hello(launch, raw, WIRE_VERSION + 1);
        RANK_CHECK(fd >= 0 && write(fd, raw, n) == (ssize_t)n);
        RANK_CHECK(read(fd, raw, WIRE_HEADER) == WIRE_HEADER);
        RANK_CHECK(raw[5] == WIRE_REFUSE && raw[7] == WIRE_BAD_VERSION);
        RANK_CHECK(read(fd, raw, 1) == 0);
        close(fd);
    }
    struct boot *boot;
    RANK_TRY(boot_open(launch, soon(), &boot)); /* the place is still free */
    boot_close(boot);
    return 0;
}

static void test_version(void **state)
{
    (void)state;
    ranks_pass(2, other_version, NULL);
}

/* ---- without a supervisor: host and port from the environment ---- */

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&address, len) != 0 || getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        return -1;
    close(fd);
    return ntohs(address.sin_port);
}

/* Rank 0 comes last. */
static int join_by_address(int rank, const char *root)
{
    struct launch launch = {.rank = rank, .size = 3, .listen_fd = -1, .token = "0123456789abcdef0123456789abcdef"};
    struct boot *boot;
    int sum = 0, all[3];
    snprintf(launch.root, sizeof launch.root, "%s", root);
    if (rank == 0)
        ranks_sleep_ms(150);
    RANK_TRY(boot_open(&launch, soon(), &boot));
    RANK_TRY(boot_allgather(boot, &rank, sizeof rank, all, soon()));
    for (int r = 0; r < 3; r++)
        sum += all[r];
    RANK_CHECK(sum == 3);
    boot_close(boot);
    return 0;
}

static int nothing(const struct launch *launch, void *arg)
{
    (void)launch;
    (void)arg;
    return 0;
}

static void test_by_address(void **state)
{
    (void)state;
    ranks_pass(1, nothing, NULL); /* a fresh board */
    static const char *const forms[] = {"127.0.0.1:%d", "localhost:%d"};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        char root[64];
        snprintf(root, sizeof root, forms[i], free_port());
        pid_t pids[3];
        fflush(NULL);
        for (int r = 0; r < 3; r++) {
            pids[r] = fork();
            if (pids[r] == 0)
                exit(join_by_address(r, root));
        }
        for (int r = 0; r < 3; r++) {
            int code = -1;
            assert_int_equal(waitpid(pids[r], &code, 0), pids[r]);
            assert_int_equal(code, 0);
        }
        assert_false(board->failed);
    }
}

static void test_bad_address(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      ":",
                                      ":1",
                                      "a:",
                                      "localhost",
                                      "localhost:x",
                                      "localhost:99999999",
                                      "localhost:0",
                                      "localhost:-1",
                                      "localhost: 1",
                                      "[::1",
                                      "[]:1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (int rank = 0; rank < 2; rank++) {
            struct launch launch = {.rank = rank, .size = 2, .listen_fd = -1};
            struct boot *boot = NULL;
            snprintf(launch.root, sizeof launch.root, "%s", bad[i]);
            enum status status = boot_open(&launch, clock_deadline(100000), &boot);
            assert_int_equal(status, STATUS_USAGE);
            assert_true(status_last()->what[0] && status_last()->hint[0]);
        }
    struct launch launch = {.rank = 1, .size = 2, .listen_fd = -1};
    struct boot *boot = NULL;
    snprintf(launch.root, sizeof launch.root, "127.0.0.1:%d", free_port());
    assert_int_equal(boot_open(&launch, clock_deadline(150000), &boot), STATUS_TIMEOUT);
    assert_int_equal(status_last()->rank, 0);
    launch.rank = 2;
    assert_int_equal(boot_open(&launch, clock_deadline(150000), &boot), STATUS_USAGE);
    boot_close(NULL);
}

/* ---- idle work ---- */

static void count_calls(void *arg)
{
    ++*(int *)arg;
}

static int idle_work(const struct launch *launch, void *arg)
{
    (void)arg;
    struct boot *boot;
    int calls[BOOT_IDLE_MAX + 1] = {0};
    RANK_TRY(boot_open(launch, soon(), &boot));
    for (int i = 0; i < BOOT_IDLE_MAX; i++)
        RANK_TRY(boot_idle_add(boot, count_calls, &calls[i]));
    RANK_CHECK(boot_idle_add(boot, count_calls, &calls[BOOT_IDLE_MAX]) == STATUS_UNSUPPORTED);
    boot_idle_remove(boot, &calls[3]);
    boot_idle_remove(boot, &calls[3]);
    if (launch->rank == 1)
        ranks_sleep_ms(60);
    RANK_TRY(boot_barrier(boot, soon()));
    for (int i = 0; i < BOOT_IDLE_MAX && launch->rank == 0; i++)
        RANK_CHECK(i == 3 ? calls[i] == 0 : calls[i] >= 2);
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
        cmocka_unit_test(test_absent),      cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_version),     cmocka_unit_test(test_by_address),
        cmocka_unit_test(test_bad_address), cmocka_unit_test(test_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
