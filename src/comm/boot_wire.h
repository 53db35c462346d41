/* comm/boot_wire.h -- frames between ranks, and one nonblocking connection that carries them.
 *
 * A frame is a header of WIRE_HEADER bytes in network order, then its payload:
 *
 *     0  magic "SPTB"     4  version  5  type  6  op (u16)     8  sequence number (u32)
 *     12 rank (u32)       16 payload bytes (u64)
 *
 * The sizes are checked before anything is allocated. Frames wait in a queue until the bootstrap takes them; beyond
 * WIRE_QUEUE of them the rest stays in the socket.
 */
#ifndef SPTUNE_COMM_BOOT_WIRE_H
#define SPTUNE_COMM_BOOT_WIRE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WIRE_HEADER = 24, WIRE_VERSION = 1, WIRE_QUEUE = 64 };
#define WIRE_BYTES_MAX ((size_t)256 << 20)

enum wire_type {
    WIRE_HELLO = 1, /* a rank to rank 0: token, size; `rank` is the sender */
    WIRE_WELCOME,   /* rank 0: everybody has joined */
    WIRE_REFUSE,    /* rank 0: op is a wire_refusal */
    WIRE_GIVE,      /* a rank's part of a collective */
    WIRE_TAKE,      /* rank 0's answer */
    WIRE_ABORT,     /* the job is over; `rank` gave up or died, the payload is the message */
    WIRE_BYE,       /* a clean end follows */
    WIRE_TYPES
};

enum wire_refusal { WIRE_BAD_TOKEN = 1, WIRE_BAD_VERSION, WIRE_BAD_SIZE, WIRE_BAD_RANK };

struct wire_head {
    int version, type, op;
    uint32_t seq, rank;
    uint64_t bytes;
};
void wire_pack(const struct wire_head *head, unsigned char raw[WIRE_HEADER]);
/* False when the magic is not ours. */
bool wire_unpack(const unsigned char raw[WIRE_HEADER], struct wire_head *head);

struct wire_frame {
    struct wire_frame *next;
    struct wire_head head;
    size_t bytes;
    char data[];
};

struct wire {
    int fd;                         /* -1: none, or closed */
    unsigned char raw[WIRE_HEADER]; /* the header being read */
    size_t got;
    struct wire_frame *filling; /* its payload being read */
    size_t filled;
    struct wire_frame *head, *tail;
    int queued;
    char *out; /* bytes not yet accepted by the socket: out[sent..len) */
    size_t len, sent, cap;
};

void wire_open(struct wire *wire, int fd); /* takes fd over, makes it nonblocking */
void wire_hang_up(struct wire *wire);      /* close the socket, keep the frames that arrived */
void wire_close(struct wire *wire);
bool wire_full(const struct wire *wire);
static inline bool wire_unsent(const struct wire *wire)
{
    return wire->sent < wire->len;
}

enum wire_end { WIRE_OPEN, WIRE_ENDED, WIRE_GARBLED, WIRE_NOMEM };
/* Read and write what is possible now. */
enum wire_end wire_read(struct wire *wire);
enum wire_end wire_write(struct wire *wire);
/* Put a frame behind what is unsent, and try to write. Two parts, so that callers need not join them. */
enum status wire_send(struct wire *wire, const struct wire_head *head, const void *first, size_t first_bytes,
                      const void *second, size_t second_bytes);
struct wire_frame *wire_pop(struct wire *wire); /* NULL when none waits; free() releases */
/* Take the first waiting frame of a type out of the queue. */
struct wire_frame *wire_find(struct wire *wire, enum wire_type type);

#endif
