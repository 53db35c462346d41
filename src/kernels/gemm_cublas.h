/* kernels/gemm_cublas.h -- products on CUDA GPUs through cuBLASLt, loaded at run time. For kernels/gemm.c. */
#ifndef SPTUNE_KERNELS_GEMM_CUBLAS_H
#define SPTUNE_KERNELS_GEMM_CUBLAS_H

#include "kernels/gemm.h"

enum { GEMM_CUBLAS_WORKSPACE = 32 << 20 }; /* what PyTorch gives it on Hopper */

/* As gemm_run with sizes of at least 1; the workspace is GEMM_CUBLAS_WORKSPACE bytes. */
enum status gemm_cublas_run(const struct gemm_shape *shape, const void *a, const void *b, void *c, void *workspace,
                            struct dev_queue *queue);
/* STATUS_ABSENT when the library cannot be loaded, saying so. */
enum status gemm_cublas_load(void);
const char *gemm_cublas_name(void); /* "cublaslt 13.0.2", "" when it cannot be loaded */

#endif
