/* comm/reduce.h -- the sum of blocks, in fp32 and in order, rounded once. */
#ifndef SPTUNE_COMM_REDUCE_H
#define SPTUNE_COMM_REDUCE_H

#include "base/dev.h"
#include "base/dtype.h"

/* out[i] = sources[0][i] + sources[1][i] + ...; out may be one of the sources. Memory of dev; finished on return. */
enum status reduce_sum(struct dev *dev, struct dev_queue *queue, enum dtype dtype, const void *const *sources, int n,
                       void *out, int64_t elems);

#endif
