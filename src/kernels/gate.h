/* kernels/gate.h -- a gate on a queue: what is put behind it waits until the host opens it, so that all of it can be there first and
 * no launch is part of what is timed.
 *
 * Bounded: a gate that nobody opens opens itself (gate_missed says so). Behind a gate that is shut nothing may be put that waits for
 * the device: no allocation, no copy of memory that is not pinned, no first launch of a kernel.
 *
 *     TRY(gate_shut(gate, 200000, queue));
 *     ...put work on queue...
 *     gate_open(gate);
 */
#ifndef SPTUNE_KERNELS_GATE_H
#define SPTUNE_KERNELS_GATE_H

#include "base/dev.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gate;

enum status gate_create(struct gate **out); /* for the current CUDA device */
void gate_destroy(struct gate *gate);       /* accepts NULL; after the queue was synchronised */
enum status gate_shut(struct gate *gate, int64_t limit_us, struct dev_queue *queue); /* one at a time */
void gate_open(struct gate *gate);
bool gate_missed(const struct gate *gate); /* after the queue was synchronised: did the last one open by itself? */

#ifdef __cplusplus
}
#endif
#endif
