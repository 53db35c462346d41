/* bench/use.h -- what a rank does to its buffers between two exchanges of a layer: it reads what arrived, and writes what leaves next.
 *
 * Buffers `used` (struct bench_subject.use) have both done to them before every iteration, untimed, by the rank's own threads: the lines that
 * peers will store to are then in the receiver's caches, and those that leave are dirty in their owner's. Memory of the host alone, in
 * which nobody else stores meanwhile; its contents stay.
 */
#ifndef SPTUNE_BENCH_USE_H
#define SPTUNE_BENCH_USE_H

#include "base/dev.h"

void use_read(struct dev_queue *queue, const void *from, int64_t bytes); /* every line is loaded */
void use_write(struct dev_queue *queue, void *to, int64_t bytes);        /* every line is stored to, what it held */

#endif
