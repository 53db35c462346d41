/* bench/timing.h -- the time that work on a queue takes, from when all ranks are ready for it.
 *
 *   CPU           barrier; host clock; work; host clock
 *   GPU, stream   [gate][all ranks meet][event] work [event], the gate opened when all of it is enqueued: no launch is in the number
 *   GPU, loop     idle and aligned; host clock; work, launches included, until the queue is empty; host clock
 *
 * Ranks meet on the GPU through each other's memory (kernels/copy_peers.h), within about a microsecond; where they cannot reach it,
 * through the transport's barrier. Work between begin and end does not wait for the queue on a GPU (kernels/gate.h).
 *
 *     TRY(timing_begin(timing, TIMING_GATED, queue));
 *     ...put work on queue...
 *     TRY(timing_end(timing, &us));
 */
#ifndef SPTUNE_BENCH_TIMING_H
#define SPTUNE_BENCH_TIMING_H

#include "bench/bench.h"

struct timing;

enum timing_how {
    TIMING_OPEN,  /* events, no gate: first launches, which may wait for the device, and work that its host drives */
    TIMING_GATED, /* events behind a gate */
    TIMING_HOST   /* the host's clock */
};

enum status timing_open(struct bench_env *env, struct timing **out); /* collective */
void timing_close(struct timing *timing);                            /* accepts NULL */
/* Collective. On the CPU `how` makes no difference. */
enum status timing_begin(struct timing *timing, enum timing_how how, struct dev_queue *queue);
/* Always after begin, also when the work failed, unless the job is over (group_is_over). *out_us: of this rank. */
enum status timing_end(struct timing *timing, double *out_us);
void timing_leave(struct timing *timing); /* instead, when the job is over: waits for nothing */
int timing_ungated(
    const struct timing *timing); /* samples so far whose gate opened by itself: launches are in their time */

#endif
