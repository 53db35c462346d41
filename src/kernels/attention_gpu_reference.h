/* kernels/attention_gpu_reference.h -- launchers of the plain GPU attention; for attention_gpu_reference.c alone. */
#ifndef SPTUNE_KERNELS_ATTENTION_GPU_REFERENCE_H
#define SPTUNE_KERNELS_ATTENTION_GPU_REFERENCE_H

#include "kernels/attention_flash2.h"

#ifdef __cplusplus
extern "C" {
#endif

/* call as for flash2 with tiles of one row, lse2 and delta for its own use; dim, dim_v: any. */
enum status gpu_reference_launch_forward(int dim, int dim_v, enum dtype dtype, const struct flash2_call *call,
                                         struct dev_queue *queue);
enum status gpu_reference_launch_backward(int dim, int dim_v, enum dtype dtype, const struct flash2_call *call,
                                          struct dev_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
