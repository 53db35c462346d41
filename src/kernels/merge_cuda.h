/* kernels/merge_cuda.h -- the merges of merge.h on a CUDA GPU; arguments were checked by merge.c, and there is something to do. */
#ifndef SPTUNE_KERNELS_MERGE_CUDA_H
#define SPTUNE_KERNELS_MERGE_CUDA_H

#include "kernels/merge.h"

#ifdef __cplusplus
extern "C" {
#endif

enum status merge_cuda_out(const struct merge_part *part, struct dev_queue *queue);
enum status merge_cuda_add(enum dtype dtype, const void *part, float *sum, int64_t n, bool first, struct dev_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
