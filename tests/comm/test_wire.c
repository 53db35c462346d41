/* tests/comm/test_wire.c -- framing: whole, in pieces, in one go, garbled, too large. */
#include "comm/boot_wire.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

struct pair {
    struct wire wire; /* the side under test */
    int fd;           /* the other end, raw */
};

static int open_pair(void **state)
{
    struct pair *pair = calloc(1, sizeof *pair);
    int fds[2];
    if (!pair || socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        return -1;
    wire_open(&pair->wire, fds[0]);
    pair->fd = fds[1];
    fcntl(pair->fd, F_SETFL, O_NONBLOCK);
    *state = pair;
    return 0;
}

static int close_pair(void **state)
{
    struct pair *pair = *state;
    wire_close(&pair->wire);
    if (pair->fd >= 0)
        close(pair->fd);
    free(pair);
    return 0;
}

static size_t pack(unsigned char *raw, int type, uint32_t seq, const char *payload)
{
    size_t bytes = strlen(payload);
    const struct wire_head head = {.type = type, .op = 513, .seq = seq, .rank = 70000, .bytes = bytes};
    wire_pack(&head, raw);
    memcpy(raw + WIRE_HEADER, payload, bytes);
    return WIRE_HEADER + bytes;
}

static void write_raw(struct pair *pair, const void *bytes, size_t n)
{
    assert_int_equal(write(pair->fd, bytes, n), n);
}

static void expect_frame(struct pair *pair, int type, uint32_t seq, const char *payload)
{
    struct wire_frame *frame = wire_pop(&pair->wire);
    assert_non_null(frame);
    assert_int_equal(frame->head.type, type);
    assert_int_equal(frame->head.op, 513);
    assert_int_equal(frame->head.seq, seq);
    assert_int_equal(frame->head.rank, 70000);
    assert_int_equal(frame->bytes, strlen(payload));
    assert_memory_equal(frame->data, payload, frame->bytes);
    free(frame);
}

/* Every way to cut two frames in two. */
static void test_pieces(void **state)
{
    struct pair *pair = *state;
    unsigned char raw[128];
    size_t n = pack(raw, WIRE_GIVE, 7, "payload");
    n += pack(raw + n, WIRE_TAKE, 0xfedcba98u, "");
    for (size_t cut = 0; cut <= n; cut++) {
        write_raw(pair, raw, cut);
        assert_int_equal(wire_read(&pair->wire), WIRE_OPEN);
        write_raw(pair, raw + cut, n - cut);
        assert_int_equal(wire_read(&pair->wire), WIRE_OPEN);
        expect_frame(pair, WIRE_GIVE, 7, "payload");
        expect_frame(pair, WIRE_TAKE, 0xfedcba98u, "");
        assert_null(wire_pop(&pair->wire));
    }
}

static void test_end(void **state)
{
    struct pair *pair = *state;
    unsigned char raw[128];
    write_raw(pair, raw, pack(raw, WIRE_BYE, 1, "x"));
    close(pair->fd);
    pair->fd = -1;
    assert_int_equal(wire_read(&pair->wire), WIRE_ENDED);
    wire_hang_up(&pair->wire);
    expect_frame(pair, WIRE_BYE, 1, "x"); /* what came before the end stays */
}

static void test_garbled(void **state)
{
    struct pair *pair = *state;
    static const struct {
        size_t at;
        unsigned char byte;
    } bad[] = {{0, 'G'}, {3, 0},    {4, WIRE_VERSION + 1}, {5, 0}, {5, WIRE_TYPES}, {5, 255}, {16, 0x80},
               {19, 1},  {20, 0x7f}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        unsigned char raw[128];
        size_t n = pack(raw, WIRE_GIVE, 0, "");
        raw[bad[i].at] = bad[i].byte;
        write_raw(pair, raw, n);
        assert_int_equal(wire_read(&pair->wire), WIRE_GARBLED);
        assert_null(wire_pop(&pair->wire));
        pair->wire.got = 0;
    }
}

/* More than the socket takes: sent in parts, in order, nothing lost. */
static void test_backlog(void **state)
{
    struct pair *pair = *state;
    enum { BYTES = 3 << 20 };
    char *big = malloc(BYTES), *seen = malloc(BYTES + 3 * WIRE_HEADER + 8);
    assert_true(big && seen);
    for (size_t i = 0; i < BYTES; i++)
        big[i] = (char)(i * 31 >> 3);
    const struct wire_head head = {.type = WIRE_TAKE, .seq = 1};
    assert_int_equal(wire_send(&pair->wire, &head, "ab", 2, NULL, 0), STATUS_OK);
    assert_int_equal(wire_send(&pair->wire, &head, big, BYTES / 2, big + BYTES / 2, BYTES - BYTES / 2), STATUS_OK);
    assert_true(wire_unsent(&pair->wire));
    assert_int_equal(wire_send(&pair->wire, &head, NULL, 0, "c", 1), STATUS_OK);
    size_t total = BYTES + 3 * WIRE_HEADER + 3, got = 0;
    while (got < total) {
        ssize_t n = read(pair->fd, seen + got, total - got);
        if (n > 0)
            got += (size_t)n;
        assert_int_equal(wire_write(&pair->wire), WIRE_OPEN);
    }
    assert_false(wire_unsent(&pair->wire));
    assert_memory_equal(seen + WIRE_HEADER, "ab", 2);
    assert_memory_equal(seen + 2 * WIRE_HEADER + 2, big, BYTES);
    assert_int_equal(seen[total - 1], 'c');
    free(big);
    free(seen);
}

static void test_limits(void **state)
{
    struct pair *pair = *state;
    const struct wire_head head = {.type = WIRE_GIVE};
    char byte = 0;
    assert_int_equal(wire_send(&pair->wire, &head, &byte, WIRE_BYTES_MAX + 1, NULL, 0), STATUS_UNSUPPORTED);
    assert_int_equal(wire_send(&pair->wire, &head, &byte, WIRE_BYTES_MAX, &byte, 1), STATUS_UNSUPPORTED);
    assert_int_equal(wire_send(&pair->wire, &head, &byte, SIZE_MAX, &byte, SIZE_MAX), STATUS_UNSUPPORTED);
    assert_false(wire_unsent(&pair->wire));
}

/* A full queue leaves the rest in the socket until frames are taken. */
static void test_queue(void **state)
{
    struct pair *pair = *state;
    unsigned char raw[128];
    for (uint32_t i = 0; i < WIRE_QUEUE + 5; i++)
        write_raw(pair, raw, pack(raw, i % 10 == 3 ? WIRE_ABORT : WIRE_GIVE, i, "q"));
    assert_int_equal(wire_read(&pair->wire), WIRE_OPEN);
    assert_int_equal(pair->wire.queued, WIRE_QUEUE);
    assert_true(wire_full(&pair->wire));
    /* Aborts overtake; everything else keeps its order. */
    uint32_t aborts[] = {3, 13, 23};
    for (size_t i = 0; i < 3; i++) {
        struct wire_frame *frame = wire_find(&pair->wire, WIRE_ABORT);
        assert_non_null(frame);
        assert_int_equal(frame->head.seq, aborts[i]);
        free(frame);
    }
    assert_int_equal(wire_read(&pair->wire), WIRE_OPEN);
    assert_true(wire_full(&pair->wire));
    for (uint32_t i = 0; i < WIRE_QUEUE + 5; i++) {
        if (i == 3 || i == 13 || i == 23)
            continue;
        assert_int_equal(wire_read(&pair->wire), WIRE_OPEN);
        expect_frame(pair, i % 10 == 3 ? WIRE_ABORT : WIRE_GIVE, i, "q");
    }
    assert_null(wire_pop(&pair->wire));
    assert_null(wire_find(&pair->wire, WIRE_ABORT));
    assert_int_equal(pair->wire.queued, 0);
}

/* Taking out the last one of the queue keeps its tail right. */
static void test_find_last(void **state)
{
    struct pair *pair = *state;
    unsigned char raw[128];
    write_raw(pair, raw, pack(raw, WIRE_GIVE, 1, "a"));
    write_raw(pair, raw, pack(raw, WIRE_BYE, 2, "b"));
    assert_int_equal(wire_read(&pair->wire), WIRE_OPEN);
    free(wire_find(&pair->wire, WIRE_BYE));
    write_raw(pair, raw, pack(raw, WIRE_GIVE, 3, "c"));
    assert_int_equal(wire_read(&pair->wire), WIRE_OPEN);
    expect_frame(pair, WIRE_GIVE, 1, "a");
    expect_frame(pair, WIRE_GIVE, 3, "c");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_pieces, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_end, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_garbled, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_backlog, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_limits, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_queue, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_find_last, open_pair, close_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
