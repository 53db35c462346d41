/* fuzz/fuzz_boot.c -- bootstrap messages: frames in pieces, hellos at the door, frames of a peer that lies.
 *
 * The first byte chooses. Sockets are real: what a parser does with a partial read is part of it.
 */
#include "fuzz/fuzz.h"

#include "base/clock.h"
#include "comm/boot_star.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 1 << 14 /* fits a socket's buffer */, SOON_US = 20 * 1000 * 1000 };

static const char token[33] = "0123456789abcdef0123456789abcdef";

/* ---- frames, cut anywhere ---- */

static void take_frames(struct wire *wire)
{
    for (struct wire_frame *frame; (frame = wire_pop(wire)) != NULL;) {
        FUZZ_MUST(frame->bytes == frame->head.bytes && frame->bytes <= WIRE_BYTES_MAX);
        FUZZ_MUST(frame->head.type >= WIRE_HELLO && frame->head.type < WIRE_TYPES);
        free(frame);
    }
}

/* The second byte is the size of a piece. */
static void read_pieces(const uint8_t *data, size_t size)
{
    int fds[2];
    struct wire wire;
    size_t piece = size > 0 ? (size_t)data[0] + 1 : 1;
    FUZZ_MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    wire_open(&wire, fds[0]);
    enum wire_end end = WIRE_OPEN;
    for (size_t at = 1; at < size && end == WIRE_OPEN; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        FUZZ_MUST(send(fds[1], data + at, n, 0) == (ssize_t)n);
        end = wire_read(&wire);
        take_frames(&wire);
    }
    close(fds[1]);
    if (end == WIRE_OPEN)
        end = wire_read(&wire);
    take_frames(&wire);
    FUZZ_MUST(end != WIRE_OPEN);
    wire_close(&wire);
}

/* ---- a peer whose connection is believed ---- */

/* As rank 0 (who = 0) or another rank sees it: an abort, a goodbye, or frames for a collective. */
static void pump(const uint8_t *data, size_t size, int who)
{
    int fds[2], late[2];
    struct star_peer peer = {.rank = 1 - who};
    struct pollfd polled[1];
    struct boot boot = {.rank = who, .size = 2, .peers = 1, .peer = &peer, .fds = polled, .late = late};
    FUZZ_MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    wire_open(&peer.wire, fds[0]);
    FUZZ_MUST(send(fds[1], data, size, MSG_NOSIGNAL) == (ssize_t)size);
    shutdown(fds[1], SHUT_WR);
    enum status status = STATUS_OK;
    for (int i = 0; i < 4 && status == STATUS_OK; i++) {
        status = star_pump(&boot, 0);
        if (wire_full(&peer.wire))
            take_frames(&peer.wire);
    }
    if (status != STATUS_OK) {
        FUZZ_MUST(boot.over && status_last()->code == status);
        FUZZ_MUST(memchr(status_last()->what, '\0', sizeof status_last()->what) != NULL);
        FUZZ_MUST(memchr(status_last()->hint, '\0', sizeof status_last()->hint) != NULL);
    }
    wire_close(&peer.wire);
    close(fds[1]);
}

/* ---- the door ---- */

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    FUZZ_MUST(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static void say_hello(int fd)
{
    unsigned char raw[WIRE_HEADER + 36];
    const struct wire_head head = {.type = WIRE_HELLO, .rank = 1, .bytes = 36};
    const uint32_t two = htonl(2);
    wire_pack(&head, raw);
    memcpy(raw + WIRE_HEADER, token, 32);
    memcpy(raw + WIRE_HEADER + 32, &two, sizeof two);
    FUZZ_MUST(send(fd, raw, sizeof raw, MSG_NOSIGNAL) == (ssize_t)sizeof raw);
}

/* A stranger says `data`, then rank 1 comes: it must be let in, whatever was said. A stranger that guesses the token is
 * none. */
static void knock(const uint8_t *data, size_t size)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof address;
    struct launch launch = {.rank = 0, .size = 2, .root = "127.0.0.1:1"};
    if (memmem(data, size, token, 32) != NULL)
        return;
    memcpy(launch.token, token, sizeof token);
    launch.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    FUZZ_MUST(launch.listen_fd >= 0 && bind(launch.listen_fd, (struct sockaddr *)&address, len) == 0);
    FUZZ_MUST(listen(launch.listen_fd, 8) == 0 &&
              getsockname(launch.listen_fd, (struct sockaddr *)&address, &len) == 0);
    int port = ntohs(address.sin_port), stranger = connect_to(port), rank = connect_to(port);
    send(stranger, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    say_hello(rank);
    struct boot *boot = NULL;
    FUZZ_MUST(boot_open(&launch, clock_deadline(SOON_US), &boot) == STATUS_OK);
    boot_close(boot);
    const struct linger reset = {.l_onoff = 1}; /* no port is kept waiting */
    setsockopt(stranger, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    setsockopt(rank, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(stranger);
    close(rank);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_quiet();
    if (size == 0 || size > MOST)
        return 0;
    switch (data[0]) {
    case 'h':
        knock(data + 1, size - 1);
        break;
    case '0':
        pump(data + 1, size - 1, 0);
        break;
    case '1':
        pump(data + 1, size - 1, 1);
        break;
    default:
        read_pieces(data + 1, size - 1);
        break;
    }
    return 0;
}
