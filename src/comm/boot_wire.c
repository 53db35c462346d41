/* comm/boot_wire.c -- partial reads and writes, framing, limits. */
#include "comm/boot_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAGIC = 0x53505442 }; /* "SPTB" */

static void put(unsigned char *raw, uint64_t value, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, value >>= 8)
        raw[i] = (unsigned char)value;
}

static uint64_t get(const unsigned char *raw, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | raw[i];
    return value;
}

void wire_pack(const struct wire_head *head, unsigned char raw[WIRE_HEADER])
{
    put(raw, MAGIC, 4);
    put(raw + 4, WIRE_VERSION, 1);
    put(raw + 5, (uint64_t)head->type, 1);
    put(raw + 6, (uint64_t)head->op, 2);
    put(raw + 8, head->seq, 4);
    put(raw + 12, head->rank, 4);
    put(raw + 16, head->bytes, 8);
}

bool wire_unpack(const unsigned char raw[WIRE_HEADER], struct wire_head *head)
{
    *head = (struct wire_head){
        .version = raw[4],
        .type = raw[5],
        .op = (int)get(raw + 6, 2),
        .seq = (uint32_t)get(raw + 8, 4),
        .rank = (uint32_t)get(raw + 12, 4),
        .bytes = get(raw + 16, 8),
    };
    return get(raw, 4) == MAGIC;
}

/* A host that vanishes without a word (power, cable) is noticed after 10 + 3 * 5 s. */
static void tune_socket(int fd)
{
    const int on = 1, idle_s = 10, interval_s = 5, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void wire_open(struct wire *wire, int fd)
{
    *wire = (struct wire){.fd = fd};
    if (fd >= 0)
        tune_socket(fd);
}

void wire_hang_up(struct wire *wire)
{
    if (wire->fd >= 0)
        close(wire->fd);
    wire->fd = -1;
    wire->sent = wire->len = 0;
}

void wire_close(struct wire *wire)
{
    wire_hang_up(wire);
    for (struct wire_frame *frame = wire->head, *next; frame; frame = next) {
        next = frame->next;
        free(frame);
    }
    free(wire->filling);
    free(wire->out);
    *wire = (struct wire){.fd = -1};
}

bool wire_full(const struct wire *wire)
{
    return wire->queued >= WIRE_QUEUE;
}

/* A read or write that would block is not an end. */
static enum wire_end end_of(ssize_t n)
{
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)))
        return WIRE_OPEN;
    return WIRE_ENDED;
}

static void push(struct wire *wire)
{
    struct wire_frame *frame = wire->filling;
    *(wire->tail ? &wire->tail->next : &wire->head) = frame;
    wire->tail = frame;
    wire->queued++;
    wire->filling = NULL;
    wire->got = wire->filled = 0;
}

static enum wire_end begin(struct wire *wire)
{
    struct wire_head head;
    if (!wire_unpack(wire->raw, &head) || head.version != WIRE_VERSION || head.type < WIRE_HELLO ||
        head.type >= WIRE_TYPES || head.bytes > WIRE_BYTES_MAX)
        return WIRE_GARBLED;
    wire->filling = malloc(sizeof *wire->filling + head.bytes);
    if (!wire->filling)
        return WIRE_NOMEM;
    *wire->filling = (struct wire_frame){.head = head, .bytes = (size_t)head.bytes};
    return WIRE_OPEN;
}

/* One recv towards the frame in progress; *more says whether another one makes sense. */
static enum wire_end read_some(struct wire *wire, bool *more)
{
    bool header = !wire->filling;
    size_t want = header ? WIRE_HEADER - wire->got : wire->filling->bytes - wire->filled;
    if (want > 0) {
        void *to = header ? (void *)(wire->raw + wire->got) : (void *)(wire->filling->data + wire->filled);
        ssize_t n = recv(wire->fd, to, want, MSG_DONTWAIT);
        *more = n > 0;
        if (n <= 0)
            return end_of(n);
        *(header ? &wire->got : &wire->filled) += (size_t)n;
    }
    if (header && wire->got == WIRE_HEADER) {
        enum wire_end end = begin(wire);
        if (end != WIRE_OPEN)
            return end;
    }
    if (wire->filling && wire->filled == wire->filling->bytes)
        push(wire);
    return WIRE_OPEN;
}

enum wire_end wire_read(struct wire *wire)
{
    enum wire_end end = WIRE_OPEN;
    for (bool more = true; more && end == WIRE_OPEN && !wire_full(wire);)
        end = read_some(wire, &more);
    return end;
}

enum wire_end wire_write(struct wire *wire)
{
    while (wire_unsent(wire)) {
        ssize_t n = send(wire->fd, wire->out + wire->sent, wire->len - wire->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n <= 0)
            return end_of(n);
        wire->sent += (size_t)n;
    }
    wire->sent = wire->len = 0;
    return WIRE_OPEN;
}

static enum status reserve(struct wire *wire, size_t more)
{
    if (wire->sent > 0) {
        memmove(wire->out, wire->out + wire->sent, wire->len - wire->sent);
        wire->len -= wire->sent;
        wire->sent = 0;
    }
    if (wire->cap - wire->len >= more)
        return STATUS_OK;
    char *grown = realloc(wire->out, wire->len + more);
    if (!grown)
        return FAIL(STATUS_NOMEM, "out of memory for a message of %zu bytes", more);
    wire->out = grown;
    wire->cap = wire->len + more;
    return STATUS_OK;
}

static void append(struct wire *wire, const void *bytes, size_t n)
{
    if (n > 0)
        memcpy(wire->out + wire->len, bytes, n);
    wire->len += n;
}

enum status wire_send(struct wire *wire, const struct wire_head *head, const void *first, size_t first_bytes,
                      const void *second, size_t second_bytes)
{
    struct wire_head full = *head;
    if (first_bytes > WIRE_BYTES_MAX || second_bytes > WIRE_BYTES_MAX - first_bytes)
        return FAIL(STATUS_UNSUPPORTED, "a bootstrap message of more than %zu bytes", WIRE_BYTES_MAX);
    full.bytes = first_bytes + second_bytes;
    unsigned char raw[WIRE_HEADER];
    wire_pack(&full, raw);
    TRY(reserve(wire, WIRE_HEADER + first_bytes + second_bytes));
    append(wire, raw, WIRE_HEADER);
    append(wire, first, first_bytes);
    append(wire, second, second_bytes);
    wire_write(wire); /* an end is seen, and judged, by the next read */
    return STATUS_OK;
}

struct wire_frame *wire_pop(struct wire *wire)
{
    struct wire_frame *frame = wire->head;
    if (!frame)
        return NULL;
    wire->head = frame->next;
    if (!wire->head)
        wire->tail = NULL;
    wire->queued--;
    frame->next = NULL;
    return frame;
}

struct wire_frame *wire_find(struct wire *wire, enum wire_type type)
{
    for (struct wire_frame *before = NULL, *frame = wire->head; frame; before = frame, frame = frame->next) {
        if (frame->head.type != (int)type)
            continue;
        *(before ? &before->next : &wire->head) = frame->next;
        if (wire->tail == frame)
            wire->tail = before;
        wire->queued--;
        frame->next = NULL;
        return frame;
    }
    return NULL;
}
