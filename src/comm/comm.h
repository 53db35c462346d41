/* comm/comm.h -- ranks that exchange data: the job, and groups of it.
 *
 * A comm is a group of ranks over one transport; comm_open gives the whole job, comm_split consecutive or strided groups of it.
 * Handles are owned; groups are closed before the job. Collectives run on `queue`, return when done on the CPU, have a deadline
 * and end with STATUS_PEER when a rank dies. Counts are bytes or elements as named. In place only where said.
 */
#ifndef SPTUNE_COMM_COMM_H
#define SPTUNE_COMM_COMM_H

#include "base/dev.h"
#include "base/dtype.h"
#include "base/status.h"
#include "comm/boot.h"
#include "comm/transport.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm;

/* transport: a name from transports[], NULL: the first there for this device; prefer: see transport.h. Collective. */
enum status comm_open(struct boot *boot, struct dev *dev, const char *transport, const char *prefer, struct comm **out);
/* Collective over `parent`: ranks with one color form a group, ordered by key, then by parent rank. */
enum status comm_split(struct comm *parent, int color, int key, struct comm **out);
/* The job of which `comm` is a group once more, over a connection of its own: collectives of its groups on one queue may then run beside
 * those of `comm`'s on another, which groups of one job may not. Collective over the job; closed as it, before it. */
enum status comm_open_beside(const struct comm *comm, struct comm **out);
void comm_close(struct comm *comm);
/* The same ranks by messages of UCX, whatever carries the job's data: for who asks for them by name. Opened at the first call, kept and
 * closed by the group. Collective over it. STATUS_UNSUPPORTED with the reason where UCX is not here or cannot move memory of this device,
 * on all ranks of the group; another group may have it. */
enum status comm_beside(struct comm *group, struct comm **out);

int comm_rank(const struct comm *comm);
int comm_size(const struct comm *comm);
int comm_job_rank(const struct comm *comm, int rank); /* rank in the job of a group's rank */
struct boot *comm_boot(const struct comm *comm);
struct dev *comm_dev(const struct comm *comm);
const char *comm_transport_name(const struct comm *comm); /* in transports[]: "ucx" */
const char *comm_transport(const struct comm *comm); /* what really carries data: "ucx posix shm" */

/* Of an operation, from the call; of messages by UCX from when the queue has done what was put there before. Default 30 s. */
void comm_set_deadline(struct comm *comm, int64_t after_us);
int64_t comm_deadline_us(const struct comm *comm); /* what it is */

/* send and recv: size * bytes each, block r to and from rank r, own block copied. */
enum status comm_alltoall(struct comm *comm, const void *send, void *recv, size_t bytes, struct dev_queue *queue);
/* Per-peer pointers and sizes; own entry copied. */
enum status comm_alltoallv(struct comm *comm, const void *const *send, const size_t *send_bytes, void *const *recv,
                           const size_t *recv_bytes, struct dev_queue *queue);
/* How comm_reduce_scatter and comm_allreduce sum. False: in fp32 in rank order, rounded once; they wait for the queue, but in a group of one,
 * where a sum is a copy. True (NCCL): by the transport, in its own order with partial sums rounded to dtype, enqueued as any collective. */
bool comm_sums_natively(const struct comm *comm);
/* What the transport needs for them, if anything: memory of the device, and a wait for the other ranks. The first sum makes it, so that one
 * must not be captured in a graph; who wants it made before calls this. Collective over the group, which keeps and closes it; fails on all
 * of its ranks. */
enum status comm_sums_open(struct comm *comm);
/* recv: size * bytes in rank order. */
enum status comm_allgather(struct comm *comm, const void *send, void *recv, size_t bytes, struct dev_queue *queue);
/* send: size * elems; recv: elems. scratch: comm_reduce_scatter_scratch bytes, none where the transport sums. */
size_t comm_reduce_scatter_scratch(const struct comm *comm, int64_t elems, enum dtype dtype);
enum status comm_reduce_scatter(struct comm *comm, const void *send, void *recv, int64_t elems, enum dtype dtype,
                                void *scratch, struct dev_queue *queue);
/* In place; elems need not divide by size. scratch: comm_allreduce_scratch bytes, none where the transport sums. */
size_t comm_allreduce_scratch(const struct comm *comm, int64_t elems, enum dtype dtype);
enum status comm_allreduce(struct comm *comm, void *data, int64_t elems, enum dtype dtype, void *scratch,
                           struct dev_queue *queue);
enum status comm_sendrecv(struct comm *comm, const void *send, int to, void *recv, int from, size_t bytes,
                          struct dev_queue *queue);
enum status comm_bcast(struct comm *comm, int root, void *data, size_t bytes, struct dev_queue *queue);
/* Dissemination barrier over the transport: aligns ranks within about a message latency before a timed operation. */
enum status comm_barrier(struct comm *comm, struct dev_queue *queue);
/* Ranks of the group decide together: all go on, or none does; so do those of a job by boot_agree. A rank that failed keeps its own status and
 * message; the others get the worst status of any, with "rank R could not DOING: " and its words. Nobody waits for a rank that has given up. */
enum status comm_agree(struct comm *comm, enum status mine, const char *doing);
/* Not collective. Returns `mine`. A failure that not all ranks of the job have agreed on, by comm_agree of all of them, ends the job: the waits of
 * the others, on GPUs without end, end with its words and code. To be called before what this rank has is given back. */
enum status comm_give_up(struct comm *comm, enum status mine);
/* mem_alloc on every rank of the group, or on none; otherwise as comm_agree. */
enum status comm_alloc(struct comm *comm, size_t bytes, const char *what, const char *doing, void **out);
/* max over ranks of n doubles, in place, on every rank: times of timed operations. */
enum status comm_max(struct comm *comm, double *values, int n);

#endif
