/* bench/spin.h -- a short loop of multiply-adds without memory: how fast these CPUs compute right now.
 *
 * Virtual CPUs share a physical core at times, and then both halve. Every rank spins at once, on all its threads, so the figure is the
 * rate of one rank while all are busy; its best is the ceiling of attention and GEMM rows, its course the state that rows are measured in.
 */
#ifndef SPTUNE_BENCH_SPIN_H
#define SPTUNE_BENCH_SPIN_H

#include "comm/comm.h"

/* FLOP per microsecond (= MFLOP/s): the median of a few spins, about 0.3 ms in all. */
double spin_rate(void);
/* The same by all threads of the queue at once: the sum of their rates. */
double spin_rate_all(struct dev_queue *queue);
/* What one rank could do at most while all ranks do it, in FLOP per second: the best of a few times; of GPUs it is not known here, 0.
 * Collective. */
enum status spin_rate_ranks(struct comm *world, struct dev *dev, double *out);
const char *spin_isa(void); /* "avx512": the widest this machine executes */

#endif
