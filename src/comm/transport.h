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
#include "base/status.h"
#include "comm/boot.h"

#include <stddef.h>
#include <stdint.h>

struct transport_xfer {
    int peer;        /* rank in the job; may be this rank (a local copy) */
    uint32_t tag;    /* group and operation, below 2^24; both sides agree */
    void *data;      /* sends only read it */
    size_t bytes;    /* 0 is allowed and moves nothing */
};

struct transport {
    const char *name; /* "ucx" */
    /* Collective over the bootstrap. `prefer` narrows the transports of the library ("shm", "tcp"; UCX also "posix", "sysv",
     * "cma"), NULL lets it choose. */
    enum status (*open)(struct boot *boot, struct dev *dev, const char *prefer, void **state);
    void (*close)(void *state); /* collective in the good case, safe alone after a failure; accepts NULL */
    /* What really carries data, for the row: "ucx posix shm", "ucx tcp". Borrowed. */
    const char *(*in_use)(void *state);
    const char *(*version)(void);
    /* Post all, progress until all are done; ordered after earlier work of `queue`. STATUS_TIMEOUT names the late rank. */
    enum status (*batch)(void *state, const struct transport_xfer *sends, int nsends, const struct transport_xfer *recvs,
                         int nrecvs, struct dev_queue *queue, int64_t deadline_ns);
};

extern const struct transport *const transports[]; /* NULL-terminated */
const struct transport *transport_find(const char *name);

#endif
