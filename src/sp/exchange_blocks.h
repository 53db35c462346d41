/* sp/exchange_blocks.h -- how many blocks a launch between GPUs takes: block b of every rank meets block b of the others (kernels/copy_peers.h),
 * so the number is agreed on. */
#ifndef SPTUNE_SP_EXCHANGE_BLOCKS_H
#define SPTUNE_SP_EXCHANGE_BLOCKS_H

#include "comm/comm.h"

/* Exactly so many, by SPTUNE_EXCHANGE_BLOCKS; else by size, but at most so many. 0: no such wish. */
struct exchange_blocks {
    int exactly, most;
};

/* multiprocessors: of this rank's GPU. most: as copy_peers_blocks. Collective over the group, the same on all of its ranks: GPUs of different size
 * take no more blocks than the smallest has multiprocessors; STATUS_USAGE where the variable says different things. */
enum status exchange_blocks_agree(struct comm *group, int multiprocessors, int most, struct exchange_blocks *out);

#endif
