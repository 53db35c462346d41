/* kernels/dtype_cuda.cuh -- storage types on the GPU: 16 bytes at a time to and from fp32. */
#ifndef SPTUNE_KERNELS_DTYPE_CUDA_CUH
#define SPTUNE_KERNELS_DTYPE_CUDA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float dtype_up(float x) { return x; }
__device__ __forceinline__ float dtype_up(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float dtype_up(__half x) { return __half2float(x); }
__device__ __forceinline__ void dtype_down(float x, float *to) { *to = x; }
__device__ __forceinline__ void dtype_down(float x, __nv_bfloat16 *to) { *to = __float2bfloat16_rn(x); }
__device__ __forceinline__ void dtype_down(float x, __half *to) { *to = __float2half_rn(x); }

#endif
