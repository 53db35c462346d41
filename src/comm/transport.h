/* comm/transport.h -- how bytes move between ranks: one file each, one const struct, one row in transports[].
 *
 * The one operation every transport has is the batch: sends and receives posted together and completed together (UCX tagged
 * messages; NCCL group start and end). Collectives in comm.h are built on it; a transport may offer native ones.
 * Memory is that of `dev`. Messages of one pair with one tag arrive in order. A rank helps others along while it is in a batch
 * or waits in the bootstrap, not while it computes: small messages that sockets could not take at once leave with its next call.
 */
#ifndef SPTUNE_COMM_TRANSPORT_H
#define SPTUNE_COMM_TRANSPORT_H

#include "base/dev.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/verdict.h"
#include "comm/boot.h"

#include <stddef.h>
#include <stdint.h>

struct transport_xfer {
    int peer;        /* rank in the job; may be this rank (a local copy) */
    uint32_t tag;    /* group and operation, below 2^24; both sides agree */
    void *data;      /* sends only read it */
    size_t bytes;    /* 0 is allowed and moves nothing */
};

/* What another rank needs to map memory of this one; plain bytes, so that messages can carry it. */
enum { TRANSPORT_KEY_BYTES = 120 };
struct transport_key {
    uint64_t address; /* in its owner's process */
    uint64_t length;  /* bytes of memory */
    uint32_t bytes;   /* of data */
    char data[TRANSPORT_KEY_BYTES];
};

/* Memory that the library is told of before it moves it, and the all-to-all over such memory: a route of one group of ranks. */
enum transport_route {
    TRANSPORT_REGISTERED, /* the library may copy from memory to memory, without buffers of its own */
    TRANSPORT_WINDOW,     /* known to all ranks of the group, which map it */
    TRANSPORT_ENGINE,     /* that, and moved by copy engines alone */
    TRANSPORT_ROUTES
};
enum { TRANSPORT_ID_BYTES = 128 };

/* The library's own sums over a group of ranks, in its order, partial sums rounded. */
struct transport_sums {
    /* On one rank of the group, for open on all of them. */
    enum status (*id)(void *state, char id[TRANSPORT_ID_BYTES]);
    /* Collective over the group: `size` ranks of the job, this one is the rank-th of them. Who fails has told the job. */
    enum status (*open)(void *state, int size, int rank, const char id[TRANSPORT_ID_BYTES], void **sums);
    void (*close)(void *state, void *sums); /* accepts NULL; collective in the good case, safe alone after a failure */
    /* sums: of the group, NULL: of the whole job in its order, which needs no opening. Only enqueued. recv: elems; send: that of every
     * rank. data: in place. */
    enum status (*scatter)(void *state, void *sums, const void *send, void *recv, int64_t elems, enum dtype dtype,
                           struct dev_queue *queue);
    enum status (*all)(void *state, void *sums, void *data, int64_t elems, enum dtype dtype, struct dev_queue *queue);
};

struct transport_routes {
    /* Can ranks of a group have one? The same answer on all ranks of the job; where it is no, nothing below is called. */
    struct verdict (*verdict)(void *state, enum transport_route kind);
    /* On one rank of the group, for open on all of them. */
    enum status (*id)(void *state, enum transport_route kind, char id[TRANSPORT_ID_BYTES]);
    /* Collective over the group: `size` ranks of the job, this one is the rank-th of them. STATUS_UNSUPPORTED: not between these after all;
     * the verdict stays as it is, other ranks of the job do not know. */
    enum status (*open)(void *state, enum transport_route kind, const int *ranks, int size, int rank,
                        const char id[TRANSPORT_ID_BYTES], void **route);
    void (*close)(void *route); /* accepts NULL; collective in the good case, safe alone after a failure */
    enum status (*alloc)(void *route, size_t bytes, const char *what, void **memory); /* this rank's; zeroed */
    enum status (*tell)(void *route, void *memory); /* collective, on memory of the same size everywhere */
    void (*free)(void *route, void *memory);        /* accepts NULL, and memory that was not told of */
    /* Blocks of `bytes` in such memory, one from and one for each rank. TRANSPORT_ENGINE moves the own one too, and wants blocks that
     * follow each other; the others leave it alone. Only enqueued. */
    enum status (*alltoall)(void *route, const void *const *send, void *const *recv, size_t bytes, struct dev_queue *queue);
};

struct comm; /* comm/comm.h */
struct transport {
    const char *name;  /* "ucx" */
    enum dev_kind dev; /* of the ranks whose job it carries */
    /* NULL-terminated: what --transport may narrow it to, and check runs one by one; NULL: nothing. */
    const char *const *carriers;
    /* Collective over the bootstrap. `prefer` narrows the transports of the library ("shm", "tcp"; UCX also "posix", "sysv",
     * "cma"), NULL lets it choose. STATUS_ABSENT and STATUS_UNSUPPORTED: not between these ranks, and why. */
    enum status (*open)(struct boot *boot, struct dev *dev, const char *prefer, void **state);
    /* May be NULL. The same for a group of a job whose data another transport carries: collective over the group, as is close. Peers are
     * ranks of the job there too. */
    enum status (*open_group)(struct comm *group, void **state);
    void (*close)(void *state); /* collective in the good case, safe alone after a failure; accepts NULL */
    /* What really carries data, for the row, `name` first: "ucx posix shm", "ucx tcp"; of one rank as it likes. Borrowed. */
    const char *(*in_use)(void *state);
    const char *(*version)(void); /* of the library: "ucx 1.13.1" */
    /* Post all, progress until all are done; ordered after earlier work of `queue`, which does not count to the deadline of one that
     * waits (NCCL only enqueues). STATUS_TIMEOUT names the late rank. */
    enum status (*batch)(void *state, const struct transport_xfer *sends, int nsends, const struct transport_xfer *recvs,
                         int nrecvs, struct dev_queue *queue, int64_t deadline_ns);
    /* Help others along without waiting: what batch does while it waits. */
    void (*progress)(void *state);

    /* Memory that other ranks load and store directly; all five NULL where a transport has none. None is collective:
     * comm/window.h puts them together. STATUS_UNSUPPORTED: this memory, or this peer, cannot be had that way. */
    /* May it work for `bytes` on each of `ranks` ranks? With bytes 0 every rank gets the same answer. */
    struct verdict (*memory_verdict)(void *state, size_t bytes, int ranks);
    enum status (*memory_create)(void *state, size_t bytes, const char *what, void **memory, void **local,
                                 struct transport_key *key); /* zeroed, MEM_ALIGN aligned */
    void (*memory_destroy)(void *state, void *memory);       /* accepts NULL; peers that have it mapped keep it */
    enum status (*memory_map)(void *state, int peer, const struct transport_key *key, void **mapping, void **address);
    void (*memory_unmap)(void *state, void *mapping); /* accepts NULL */

    const struct transport_sums *sums;     /* NULL where there are none */
    const struct transport_routes *routes; /* NULL where there are none */
};

extern const struct transport *const transports[]; /* NULL-terminated */
const struct transport *transport_find(const char *name);
/* The first for ranks there; NULL where this build has none. */
const struct transport *transport_usual(enum dev_kind dev);

#endif
