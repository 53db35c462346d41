/* tests/comm/test_join.c -- who may join a job, who is missed, where rank 0 is found. */
#include "comm/boot_wire.h"
#include "ranks.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int64_t soon(void)
{
    return clock_deadline(BOOT_DEADLINE_US);
}

static int stay_away(const struct launch *launch, void *arg)
{
    (void)arg;
    if (launch->rank == 1 || launch->rank == 3) {
        while (!board->noted[0] || !board->noted[2])
            ranks_sleep_ms(1);
        return 4;
    }
    struct boot *boot;
    return ranks_note(launch, boot_open(launch, clock_deadline(400000), &boot));
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
    return ranks_note(launch, boot_open(&mine, clock_deadline(500000), &boot));
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

static void test_by_address(void **state)
{
    (void)state;
    ranks_fresh_board();
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absent),  cmocka_unit_test(test_refused),    cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_version), cmocka_unit_test(test_by_address), cmocka_unit_test(test_bad_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
