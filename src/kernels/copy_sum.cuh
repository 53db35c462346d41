/* kernels/copy_sum.cuh -- rows summed over copies in fp32, in order, rounded once. */
#ifndef SPTUNE_KERNELS_COPY_SUM_CUH
#define SPTUNE_KERNELS_COPY_SUM_CUH

#include "kernels/copy_sum.h"
#include "kernels/dtype_cuda.cuh"

template <typename T, int WIDE> struct alignas(sizeof(T) * WIDE) sum_vector {
    T x[WIDE];
};

template <typename T, int WIDE> __device__ __forceinline__ void sum_rows_wide(const struct sum &sum, uint32_t block, uint32_t blocks)
{
    typedef struct sum_vector<T, WIDE> vector;
    const uint64_t n = sum_units(&sum);
    for (uint64_t at = (uint64_t)block * blockDim.x + threadIdx.x; at < n; at += (uint64_t)blocks * blockDim.x) {
        uint32_t unit;
        const struct move_place place = sum_place(&sum, at, &unit);
        float total[WIDE];
        for (int c = 0; c < sum.copies; c++) {
            const vector v = ((const vector *)(sum.srcs[c] + place.src))[unit];
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                total[i] = c == 0 ? dtype_up(v.x[i]) : total[i] + dtype_up(v.x[i]);
        }
        vector out;
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            dtype_down(total[i], &out.x[i]);
        ((vector *)(sum.dst + place.dst))[unit] = out;
    }
}

template <typename T> __device__ __forceinline__ void sum_rows_of(const struct sum &sum, uint32_t block, uint32_t blocks)
{
    if (sum.vectors)
        sum_rows_wide<T, SUM_VECTOR_BYTES / sizeof(T)>(sum, block, blocks);
    else
        sum_rows_wide<T, 1>(sum, block, blocks);
}

__device__ __forceinline__ void sum_rows(const struct sum &sum, uint32_t block, uint32_t blocks)
{
    if (sum.dtype == DTYPE_FP32)
        sum_rows_of<float>(sum, block, blocks);
    else if (sum.dtype == DTYPE_BF16)
        sum_rows_of<__nv_bfloat16>(sum, block, blocks);
    else
        sum_rows_of<__half>(sum, block, blocks);
}

#endif
