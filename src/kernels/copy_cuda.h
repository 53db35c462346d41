/* kernels/copy_cuda.h -- the copies of copy.h on a CUDA GPU; arguments were checked and jobs merged by copy.c. */
#ifndef SPTUNE_KERNELS_COPY_CUDA_H
#define SPTUNE_KERNELS_COPY_CUDA_H

#include "kernels/copy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Jobs of one call run at once: they touch different destinations. */
enum status copy_cuda_run(const struct copy_job *jobs, int njobs, struct dev_queue *queue);
enum status copy_cuda_sum(const struct copy_sum *job, struct dev_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
