/* bench/ceiling.h -- what a row could reach at most, measured here: bytes by plain copies, FLOPs by multiply-adds in registers. */
#ifndef SPTUNE_BENCH_CEILING_H
#define SPTUNE_BENCH_CEILING_H

#include "bench/bench.h"

/* Collective: the rate at which each rank copies `bytes` while all of them do, in the same cache state. Measured once per size. */
enum status ceiling_copy(struct bench_env *env, int64_t bytes, enum bench_buffers buffers, double *out_GBps);
/* The best rate of bench/spin.h so far. */
double ceiling_tflops(const struct bench_env *env);

#endif
