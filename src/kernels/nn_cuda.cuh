/* kernels/nn_cuda.cuh -- what nn's CUDA files share: storage types by template, vectors of up to 16 bytes, sums of a block in fixed order.
 */
#ifndef SPTUNE_KERNELS_NN_CUDA_CUH
#define SPTUNE_KERNELS_NN_CUDA_CUH

#include "base/dev_cuda.h"
#include "kernels/dtype_cuda.cuh"
#include "kernels/nn_cuda.h"

#include <type_traits>

enum { NN_THREADS = 256, NN_BLOCKS_PER_SM = 16 };

template <typename T, int WIDE> struct alignas(sizeof(T) * WIDE) nn_vector {
    T x[WIDE];
};

template <typename T, int WIDE> __device__ __forceinline__ void nn_load(const T *base, int64_t unit, float out[WIDE])
{
    const nn_vector<T, WIDE> v = ((const nn_vector<T, WIDE> *)base)[unit];
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        out[i] = dtype_up(v.x[i]);
}

template <typename T, int WIDE> __device__ __forceinline__ void nn_store(T *base, int64_t unit, const float value[WIDE])
{
    nn_vector<T, WIDE> v;
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        dtype_down(value[i], &v.x[i]);
    ((nn_vector<T, WIDE> *)base)[unit] = v;
}

/* The sum of all threads' values, the same in each: lanes by halves, warps in order. Threads are a multiple of 32. */
template <typename F> __device__ __forceinline__ F nn_block_sum(F value)
{
    __shared__ F warps[32];
    const int thread = (int)(threadIdx.y * blockDim.x + threadIdx.x), n = (int)(blockDim.x * blockDim.y) / 32;
    for (int step = 16; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    __syncthreads(); /* the sum before has been read */
    if (thread % 32 == 0)
        warps[thread / 32] = value;
    __syncthreads();
    F total = warps[0];
    for (int i = 1; i < n; i++)
        total += warps[i];
    return total;
}

__device__ __forceinline__ float nn_block_max(float value)
{
    __shared__ float warps[32];
    const int n = (int)blockDim.x / 32;
    for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = value;
    __syncthreads();
    float most = warps[0];
    for (int i = 1; i < n; i++)
        most = fmaxf(most, warps[i]);
    return most;
}

/* call(a zero of the storage type) */
template <typename CALL> static inline void nn_by_dtype(enum dtype dtype, CALL call)
{
    if (dtype == DTYPE_FP32)
        call(0.0f);
    else if (dtype == DTYPE_BF16)
        call(__nv_bfloat16{});
    else
        call(__half{});
}

/* call(a zero of the storage type, its elements in 16 bytes or 1) */
template <typename CALL> static inline void nn_by_width(enum dtype dtype, bool wide, CALL call)
{
    nn_by_dtype(dtype, [&](auto zero) {
        if (wide)
            call(zero, std::integral_constant<int, 16 / (int)sizeof zero>{});
        else
            call(zero, std::integral_constant<int, 1>{});
    });
}

static inline bool nn_aligned(const void *p, size_t bytes)
{
    return (uintptr_t)p % bytes == 0;
}

/* Blocks for n units of work, at most what fills the device several times over: kernels step by their grid. */
static inline unsigned nn_grid(const struct dev_queue *queue, int64_t units, int per_block)
{
    int64_t blocks = (units + per_block - 1) / per_block;
    int64_t most = (int64_t)dev_cuda_sms(dev_queue_dev(queue)) * NN_BLOCKS_PER_SM;
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/* out[column] += the sum over rows of x [rows][n]. A block has a warp's width of columns; each of its warps adds every GROUPS-th row, and
 * then the warps' sums are added in order. */
template <typename T, int GROUPS>
__global__ void __launch_bounds__(32 * GROUPS) nn_column_sums_kernel(int64_t rows, int64_t n, const T *x, float *out)
{
    __shared__ float sums[GROUPS][32];
    const int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
#pragma unroll 4
    for (int64_t row = threadIdx.y; column < n && row < rows; row += GROUPS)
        sum += dtype_up(x[row * n + column]);
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= n)
        return;
    for (int group = 1; group < GROUPS; group++)
        sum += sums[group][threadIdx.x];
    out[column] += sum;
}

template <int GROUPS, typename T>
static inline void nn_column_sums(int64_t rows, int64_t n, const T *x, float *out, struct dev_queue *queue)
{
    nn_column_sums_kernel<T, GROUPS>
        <<<(unsigned)((n + 31) / 32), dim3(32, GROUPS), 0, dev_cuda_stream(queue)>>>(rows, n, x, out);
}

#endif
