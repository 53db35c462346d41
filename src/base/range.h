/* base/range.h -- named ranges around the phases of a run, for profilers that listen to NVTX (Nsight Systems, or any library named
 * by NVTX_INJECTION64_PATH). Every range is in the domain "sptune"; ranges of a thread nest.
 *
 *     TRY(RANGE("pack", pack(call)));                   // one phase; balanced also when it fails
 *     TRY(RANGE_AT("exchange in", c, step_in(...)));    // with a number: the chunk
 *
 * Names are string literals: they are told apart, and registered with the profiler once, by address.
 *
 *   warm-up, timed sample, verify, check                          bench: what is measured, and what is checked
 *   exchange in, exchange out                                     a layer, by chunk; on a thread of their own when they overlap
 *   pack, transfer, unpack                                        an exchange; `direct` has the transfer alone
 *   attention forward, attention backward, gemm                   kernels; by chunk in a layer
 *   all-to-all, all-gather, reduce-scatter, all-reduce, send-recv, broadcast, barrier      collectives
 *   block attention, block mlp                                    a transformer block, forward and backward
 *   layer forward, layer backward                                 training, by layer: what a block does is in it
 *   gather weights, reduce gradients                              training, by unit of parameters
 *   head, sum gradients, optimizer, spread weights                training, once in a step
 *
 * Cost without a profiler: a load and a branch that is not taken, 0.5 ns for a push and its pop together (EPYC, gcc -O2, mean of
 * 10^8 in a loop less the empty loop; tests/base/test_range.c prints it when SPTUNE_RANGE_COST is set). A profiler's own cost is its.
 * Built without NVTX headers: nothing at all.
 */
#ifndef SPTUNE_BASE_RANGE_H
#define SPTUNE_BASE_RANGE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RANGE(name, expr)           (range_push(name), range_end(expr))
#define RANGE_AT(name, index, expr) (range_push_at(name, index), range_end(expr))

enum { RANGE_NO_INDEX = -1 };

#ifndef SPTUNE_NO_NVTX
extern bool range_off; /* a first range found no profiler; read and written atomically */
void range_push_attached(const char *name, int64_t index);
void range_pop_attached(void);

static inline bool range_is_off(void)
{
    return __atomic_load_n(&range_off, __ATOMIC_RELAXED);
}
#else
static inline bool range_is_off(void)
{
    return true;
}
static inline void range_push_attached(const char *name, int64_t index)
{
    (void)name;
    (void)index;
}
static inline void range_pop_attached(void)
{
}
#endif

/* index: a number from 0 on that the profiler shows beside the name, RANGE_NO_INDEX for none. */
static inline void range_push_at(const char *name, int64_t index)
{
    if (!range_is_off())
        range_push_attached(name, index);
}

static inline void range_push(const char *name)
{
    range_push_at(name, RANGE_NO_INDEX);
}

static inline void range_pop(void)
{
    if (!range_is_off())
        range_pop_attached();
}

static inline enum status range_end(enum status status)
{
    range_pop();
    return status;
}

#ifdef __cplusplus
}
#endif
#endif
