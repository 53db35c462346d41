/* tests/comm/test_strangers.c -- connections that are not ranks neither block, nor break, nor slow down a job.
 *
 * The last rank plays the crowd before it joins. SPTUNE_SOAK=n makes n rounds of a larger crowd.
 */
#include "comm/boot_wire.h"
#include "ranks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum manner { SILENT, GARBAGE, HALF_A_HELLO, WRONG_TOKEN, HUGE_HELLO, RESET, CLOSED, WRONG_TYPE, SLOW, MANNERS };
enum { SLOW_BYTES = 40 /* of a hello of 60, one at a time */ };

struct crowd {
    int strangers;
    enum manner only; /* MANNERS: all of them in turn */
    int files;        /* RLIMIT_NOFILE of rank 0, 0: as it is */
};

static int connect_root(const struct launch *launch)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    address.sin_port = htons((uint16_t)atoi(strrchr(launch->root, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        connect(fd, (struct sockaddr *)&address, sizeof address);
    return fd;
}

static size_t make_hello(const struct launch *launch, unsigned char *raw, enum manner manner)
{
    struct wire_head head = {.type = WIRE_HELLO, .rank = 1, .bytes = 36};
    if (manner == HUGE_HELLO)
        head.bytes = UINT64_MAX;
    if (manner == WRONG_TYPE)
        head.type = WIRE_ABORT;
    wire_pack(&head, raw);
    memset(raw + WIRE_HEADER, 0, 36);
    if (manner == WRONG_TYPE)
        memcpy(raw + WIRE_HEADER, launch->token, 32); /* even with the token */
    return WIRE_HEADER + 36;
}

/* One stranger says what its manner is. Returns false when it has gone again. */
static bool behave(const struct launch *launch, int fd, enum manner manner)
{
    unsigned char raw[128];
    const struct linger reset = {.l_onoff = 1};
    size_t n = make_hello(launch, raw, manner);
    switch (manner) {
    case GARBAGE:
        n = sizeof raw;
        memset(raw, 'x', n);
        break;
    case HALF_A_HELLO:
        n = WIRE_HEADER + 5;
        break;
    case SILENT:
    case SLOW:
        return true;
    case RESET:
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
        return false;
    case CLOSED:
        close(fd);
        return false;
    default:
        break;
    }
    send(fd, raw, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    return true;
}

static enum manner manner_of(const struct crowd *crowd, int i)
{
    return crowd->only != MANNERS ? crowd->only : (enum manner)(i % MANNERS);
}

/* A byte of a hello from each slow one, again and again; all of them are still at it when the last rank comes. */
static void drip(const struct launch *launch, const struct crowd *crowd, const int *fds)
{
    unsigned char raw[128];
    make_hello(launch, raw, SLOW);
    for (int byte = 0; byte < SLOW_BYTES; byte++) {
        for (int i = 0; i < crowd->strangers; i++)
            if (fds[i] >= 0 && manner_of(crowd, i) == SLOW)
                send(fds[i], raw + byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        ranks_sleep_ms(1);
    }
}

static void be_a_crowd(const struct launch *launch, const struct crowd *crowd, int *fds)
{
    for (int i = 0; i < crowd->strangers; i++) {
        fds[i] = connect_root(launch);
        if (fds[i] < 0)
            continue;
        if (i % 50 == 49)
            ranks_sleep_ms(1); /* some get through, some meet a full queue */
        if (!behave(launch, fds[i], manner_of(crowd, i)))
            fds[i] = -1;
    }
    drip(launch, crowd, fds);
}

static void limit_files(int files)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = files ? (rlim_t)files : limit.rlim_max < 8192 ? limit.rlim_max : 8192;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static int work(struct boot *boot, const struct launch *launch, bool crowd)
{
    for (int i = 0; i < 100; i++) {
        int all[RANKS_MAX];
        RANK_TRY(boot_allgather(boot, &i, sizeof i, all, clock_deadline(BOOT_DEADLINE_US)));
        for (int r = 0; r < launch->size; r++)
            RANK_CHECK(all[r] == i);
        if (crowd) { /* the door is shut now */
            struct sockaddr_in none;
            socklen_t len = sizeof none;
            int fd = connect_root(launch);
            RANK_CHECK(fd >= 0 && getpeername(fd, (struct sockaddr *)&none, &len) != 0);
            close(fd);
        }
    }
    return 0;
}

static int be_visited(const struct launch *launch, void *arg)
{
    const struct crowd *crowd = arg;
    bool is_crowd = launch->rank == launch->size - 1;
    int *fds = calloc((size_t)crowd->strangers, sizeof *fds), code;
    struct boot *boot;
    if (launch->rank == 0 && crowd->files)
        limit_files(crowd->files);
    if (is_crowd) {
        limit_files(0);
        be_a_crowd(launch, crowd, fds);
    } else if (launch->rank == 1) {
        ranks_sleep_ms(5); /* comes in the middle of it */
    }
    RANK_TRY(boot_open(launch, clock_deadline(BOOT_DEADLINE_US), &boot));
    code = work(boot, launch, is_crowd);
    boot_close(boot);
    for (int i = 0; is_crowd && i < crowd->strangers; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(fds);
    return code;
}

static int soak(void)
{
    const char *text = getenv("SPTUNE_SOAK");
    return text ? atoi(text) : 0;
}

static void test_crowd(void **state)
{
    (void)state;
    struct crowd crowd = {.strangers = soak() ? 2000 : 200, .only = MANNERS};
    for (int i = 0; i < (soak() ? soak() : 1); i++)
        ranks_pass(4, be_visited, &crowd);
}

/* Rank 0 has fewer descriptors than there are strangers. */
static void test_crowd_and_few_files(void **state)
{
    (void)state;
    struct crowd crowd = {.strangers = soak() ? 2000 : 200, .only = MANNERS, .files = 40};
    for (int i = 0; i < (soak() ? soak() : 1); i++)
        ranks_pass(4, be_visited, &crowd);
}

/* More strangers than are kept: the oldest make room. */
static void test_large_crowd(void **state)
{
    (void)state;
    struct crowd crowd = {.strangers = 1000, .only = MANNERS};
    ranks_pass(3, be_visited, &crowd);
}

/* A thousand of one kind, so that none is saved by the others: they send garbage, connect and say nothing, or say a
 * hello byte by byte. */
static void test_thousand_of_a_kind(void **state)
{
    (void)state;
    static const enum manner kinds[] = {GARBAGE, SILENT, SLOW};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct crowd crowd = {.strangers = 1000, .only = kinds[i]};
        ranks_pass(3, be_visited, &crowd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_crowd_and_few_files),
        cmocka_unit_test(test_large_crowd),
        cmocka_unit_test(test_thousand_of_a_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
