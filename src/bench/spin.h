/* bench/spin.h -- a short loop of multiply-adds without memory: how fast this CPU computes right now.
 *
 * Virtual CPUs share a physical core at times, and then both halve. Every rank spins at once, so the figure is the rate of one rank
 * while all are busy; its best is the ceiling of attention and GEMM rows, its course the state that rows are measured in.
 */
#ifndef SPTUNE_BENCH_SPIN_H
#define SPTUNE_BENCH_SPIN_H

/* FLOP per microsecond (= MFLOP/s): the median of a few spins, about 0.3 ms in all. */
double spin_rate(void);
const char *spin_isa(void); /* "avx512": the widest this machine executes */

#endif
