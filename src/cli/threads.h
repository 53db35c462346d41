/* cli/threads.h -- how many CPU threads each rank's kernels get. */
#ifndef SPTUNE_CLI_THREADS_H
#define SPTUNE_CLI_THREADS_H

#include "cli/ranks.h"

/* Collective over the ranks, once their devices are open. wanted > 0: as many, which are at most the CPUs that the rank is bound to
 * (else STATUS_USAGE). 0: the rank's share of the CPUs: one shared by n ranks of this machine counts 1/n, and a quota is shared by
 * all of them; at least 1. */
enum status threads_share(struct ranks *ranks, int64_t wanted);

/* The pure part. masks: one row of `bytes` per rank, bit i = CPU i; here[rank]: runs on the machine of rank `mine`. quota < 0: none. */
int threads_of(const unsigned char *masks, const unsigned char *here, int n, int bytes, int mine, double quota);

#endif
