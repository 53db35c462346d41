/* base/dev_cuda.h -- what CUDA kernels and transports of CUDA memory need of a CUDA queue; nobody else includes it. */
#ifndef SPTUNE_BASE_DEV_CUDA_H
#define SPTUNE_BASE_DEV_CUDA_H

#include "base/dev.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaStream_t dev_cuda_stream(const struct dev_queue *queue);
/* cudaSuccess is STATUS_OK; out of memory STATUS_NOMEM; everything else STATUS_MACHINE naming `what`, the error, and the device. */
enum status dev_cuda_status(cudaError_t error, const char *what);
/* After every launch: a refused one, or the error of an earlier one that shows only now. */
enum status dev_cuda_launched(const char *kernel);
/* A word of host memory in which a kernel leaves the rank that it waited for in vain, before it gives up; -1 until then. From then on every
 * call on this GPU fails, and dev_cuda_status tells that. Watched and asked from one thread. */
struct dev_cuda_late {
    const volatile int32_t *rank;
    struct dev_cuda_late *next;
};
void dev_cuda_late_watch(struct dev_cuda_late *late);
void dev_cuda_late_forget(struct dev_cuda_late *late); /* also of one that is not watched */
/* STATUS_TIMEOUT naming the rank that a kernel waited for in vain; STATUS_OK: none. Asked first by who tells a failure of a library. */
enum status dev_cuda_late_status(void);
int dev_cuda_sms(const struct dev *dev);       /* multiprocessors */
size_t dev_cuda_l2_bytes(const struct dev *dev);
int dev_cuda_index(const struct dev *dev);
/* A wait for this process's GPU ended at its deadline, or with the job: what waits for it without one is not to be called any more. */
bool dev_cuda_stuck(void);
bool dev_cuda_opened(void); /* by this process, ever: else it may still fork, and is not to ask the driver anything */

#ifdef __cplusplus
}
#endif
#endif
