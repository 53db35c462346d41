/* comm/comm_group.h -- inside comm: a group of ranks, and one batch of messages in it. Not for other rooms. */
#ifndef SPTUNE_COMM_COMM_GROUP_H
#define SPTUNE_COMM_COMM_GROUP_H

#include "comm/comm.h"

#include <stdbool.h>

enum {
    GROUP_CONTEXTS = 1024, /* groups that one rank can be in at a time */
    GROUP_SLOT_BYTES = 256 /* what each rank can contribute to group_share */
};

/* What messages of different kinds carry in the low eight bits of their tag; the group's context stands above. */
enum group_op {
    GROUP_SHARE,
    GROUP_BARRIER,
    GROUP_ALLTOALL,
    GROUP_ALLGATHER,
    GROUP_REDUCE,
    GROUP_SENDRECV,
    GROUP_BCAST
};

struct comm_job { /* shared by all groups of a job */
    struct boot *boot;
    struct dev *dev;
    const struct transport *transport;
    char prefer[16]; /* as comm_open was given it; "": NULL */
    void *state;
    int groups;
    unsigned char used[GROUP_CONTEXTS / 8]; /* contexts of the groups that this rank is in */
};

struct comm {
    struct comm_job *job;
    int rank, size;
    int *ranks; /* job rank of each of the group's */
    int context;
    int64_t after_us;        /* comm_set_deadline */
    struct dev_queue *queue; /* for operations without the caller's */
    char *slots;             /* device memory, size + 1 slots of GROUP_SLOT_BYTES: all ranks', then this one's */
    char *shared;            /* the same in host memory */
    struct transport_xfer *sends, *recvs; /* room for one of each per rank */
    const void **sources;                 /* room for one per rank */
    void *route[TRANSPORT_ROUTES];        /* the transport's, NULL until route_open */
    struct verdict route_no[TRANSPORT_ROUTES]; /* what route_open was told between these ranks; RULE_OK: nothing */
    void *sums;                           /* the transport's, NULL until comm_sums_open, and of the whole job */
    struct comm *beside;                  /* NULL until comm_beside */
};

static inline struct transport_xfer group_xfer(const struct comm *comm, enum group_op op, int rank, const void *data,
                                               size_t bytes)
{
    /* Sends only read what they point to; one struct serves both directions. */
    union {
        const void *in;
        void *out;
    } both = {.in = data};
    return (struct transport_xfer){.peer = comm->ranks[rank],
                                   .tag = (uint32_t)comm->context << 8 | (uint32_t)op,
                                   .data = both.out,
                                   .bytes = bytes};
}

/* A failure that all ranks of the group have: where that is the whole job, nobody has to be told. */
static inline enum status group_known(const struct comm *comm, enum status status)
{
    return comm->size == boot_size(comm->job->boot) ? status_agreed(status) : status;
}

/* The first nsends of comm->sends and nrecvs of comm->recvs. */
enum status group_batch(struct comm *comm, int nsends, int nrecvs, struct dev_queue *queue);
/* Host memory: every rank's `bytes` (at most GROUP_SLOT_BYTES) in rank order. */
enum status group_share(struct comm *comm, const void *mine, size_t bytes, void *all);
/* The id that the first rank has made, on all of them; mine: how that went. */
enum status group_id(struct comm *comm, enum status mine, char id[TRANSPORT_ID_BYTES]);

#endif
