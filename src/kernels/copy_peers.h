/* kernels/copy_peers.h -- copies into, and sums from, the memory of other GPUs: one launch on every rank, between two barriers.
 *
 * Every rank of a group launches the same thing with its own jobs. Block b of all ranks meets before it touches a peer's memory (what
 * it overwrites has been read, what it reads is complete) and after (what it stored is there when the peers' launches end). The
 * barrier is a word per block and rank in memory that all ranks map, read with acquire, and set with release where something was stored
 * before; its count lives on the
 * device, so a launch can be captured in a graph and replayed. A rank that does not come within the limit ends the kernel, and
 * with it this process's use of the GPU: whatever fails there from then on names that rank of the group.
 *
 *     flags: copy_peers_flag_bytes(size) of memory that peers reach, zeroed, on every rank
 *     TRY(copy_peers_open(dev, rank, size, all_flags, limit_us, &peers));
 *     TRY(copy_peers_run(peers, jobs, njobs, sums, nsums, 0, queue));
 *     copy_peers_close(peers);
 */
#ifndef SPTUNE_KERNELS_COPY_PEERS_H
#define SPTUNE_KERNELS_COPY_PEERS_H

#include "kernels/copy.h"

#ifdef __cplusplus
extern "C" {
#endif

struct copy_peers;

enum { COPY_PEERS_RANKS = 32, COPY_PEERS_BLOCKS = 528 };

size_t copy_peers_flag_bytes(int size);
/* flags[r]: where rank r's flags are mapped here; copied. size at most COPY_PEERS_RANKS. */
enum status copy_peers_open(struct dev *dev, int rank, int size, void *const *flags, int64_t limit_us, struct copy_peers **out);
void copy_peers_close(struct copy_peers *peers); /* accepts NULL; after the queue was synchronised */
/* Destinations of jobs and sources of sums may be peers' memory. blocks: the same on every rank, 0 chooses by size, at most
 * COPY_PEERS_BLOCKS; all of them run at once. The list is worked on at as many places at once as there are ranks: jobs of one
 * peer belong together, with as many bytes as those of another. */
enum status copy_peers_run(struct copy_peers *peers, const struct copy_job *jobs, int njobs, const struct copy_sum *sums, int nsums,
                           int blocks, struct dev_queue *queue);
/* How many blocks a launch that chooses by size takes from now on: `exactly` so many, or `most` of them, for kernels that run beside it to
 * have the rest of the GPU; 0: no such wish. The same on every rank. STATUS_USAGE beyond COPY_PEERS_BLOCKS. */
enum status copy_peers_blocks(struct copy_peers *peers, int exactly, int most);
int copy_peers_multiprocessors(const struct copy_peers *peers); /* of this rank's GPU: what a launch chooses by beside the size */
/* A meeting alone: what follows on the queue begins on all ranks at once, but for the time that a store takes across a link. */
enum status copy_peers_meet(struct copy_peers *peers, struct dev_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
