/* kernels/merge_cuda.cu -- merging parts of an attention on a CUDA GPU.
 *
 * A warp per row (token, head): it reads the row of the part once and the row of the sum once, and writes that back: for 32 heads of 128
 * in bf16 40 KiB a token, 4.2 TB/s of an H200 merge 100,000 tokens in a millisecond. The statistics of a row are 16 bytes.
 */
#include "base/dev_cuda.h"
#include "kernels/dtype_cuda.cuh"
#include "kernels/merge_cuda.h"

enum { THREADS = 256, WARP = 32, BLOCKS_PER_SM = 16 };

template <typename T, int WIDE> struct alignas(sizeof(T) * WIDE) merge_vector {
    T x[WIDE];
};

/* sum = keep * sum + weight * part; WIDE elements of a row for one lane. Without `keep` the sum is not read. */
template <typename T, int WIDE>
__device__ __forceinline__ void lane_merge(const T *part, float *sum, float weight, float keep, bool first)
{
    const merge_vector<T, WIDE> next = *(const merge_vector<T, WIDE> *)part;
    merge_vector<float, WIDE> total;
    if (!first)
        total = *(const merge_vector<float, WIDE> *)sum;
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        total.x[i] = first ? dtype_up(next.x[i]) : keep * total.x[i] + weight * dtype_up(next.x[i]);
    *(merge_vector<float, WIDE> *)sum = total;
}

template <typename T, int WIDE> __global__ void __launch_bounds__(THREADS) out_kernel(const struct merge_part part)
{
    const int64_t rows = part.tokens * part.heads, warps = (int64_t)gridDim.x * (THREADS / WARP);
    const int lane = (int)(threadIdx.x % WARP);
    for (int64_t row = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP; row < rows; row += warps) {
        const int64_t token = row / part.heads, head = row - token * part.heads;
        float *lse_sum = part.lse_sum + head * part.lse_stride + token;
        const float b = part.lse[head * part.tokens + token], a = part.first ? b : *lse_sum;
        const float most = a > b ? a : b; /* as merge.c has it */
        float weight = 1, keep = 0, lse = b;
        if (!part.first) {
            if (a == -INFINITY && b == -INFINITY)
                continue; /* the same in all lanes */
            keep = expf(a - most);
            weight = expf(b - most);
            const float total = keep + weight;
            lse = most + logf(total);
            keep /= total;
            weight /= total;
        }
        __syncwarp(); /* all have read the statistic */
        if (lane == 0)
            *lse_sum = lse;
        for (int i = lane * WIDE; i < part.dim; i += WARP * WIDE)
            lane_merge<T, WIDE>((const T *)part.o + row * part.dim + i, part.o_sum + row * part.dim + i, weight, keep,
                                part.first);
    }
}

template <typename T, int WIDE>
__global__ void __launch_bounds__(THREADS) add_kernel(const T *part, float *sum, int64_t n, bool first)
{
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDE; i < n; i += (int64_t)gridDim.x * THREADS * WIDE)
        lane_merge<T, WIDE>(part + i, sum + i, 1, 1, first);
}

static unsigned blocks_for(int64_t n, int64_t each, struct dev_queue *queue)
{
    const int64_t blocks = (n + each - 1) / each, most = (int64_t)dev_cuda_sms(dev_queue_dev(queue)) * BLOCKS_PER_SM;
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/* Both lie on multiples of four of their elements. */
static bool fours(const void *part, const float *sum, int64_t n, enum dtype dtype)
{
    return n % 4 == 0 && (uintptr_t)part % (size_t)(4 * dtype_bytes(dtype)) == 0 && (uintptr_t)sum % 16 == 0;
}

template <typename T> static enum status out_launch(const struct merge_part *part, struct dev_queue *queue)
{
    const unsigned blocks = blocks_for(part->tokens * part->heads, THREADS / WARP, queue);
    cudaStream_t stream = dev_cuda_stream(queue);
    if (fours(part->o, part->o_sum, part->dim, part->dtype))
        out_kernel<T, 4><<<blocks, THREADS, 0, stream>>>(*part);
    else
        out_kernel<T, 1><<<blocks, THREADS, 0, stream>>>(*part);
    return dev_cuda_launched("a merge of attention outputs");
}

template <typename T>
static enum status add_launch(enum dtype dtype, const void *part, float *sum, int64_t n, bool first, struct dev_queue *queue)
{
    cudaStream_t stream = dev_cuda_stream(queue);
    if (fours(part, sum, n, dtype))
        add_kernel<T, 4><<<blocks_for(n, THREADS * 4, queue), THREADS, 0, stream>>>((const T *)part, sum, n, first);
    else
        add_kernel<T, 1><<<blocks_for(n, THREADS, queue), THREADS, 0, stream>>>((const T *)part, sum, n, first);
    return dev_cuda_launched("a sum of gradients");
}

enum status merge_cuda_out(const struct merge_part *part, struct dev_queue *queue)
{
    if (part->dtype == DTYPE_FP32)
        return out_launch<float>(part, queue);
    return part->dtype == DTYPE_BF16 ? out_launch<__nv_bfloat16>(part, queue) : out_launch<__half>(part, queue);
}

enum status merge_cuda_add(enum dtype dtype, const void *part, float *sum, int64_t n, bool first, struct dev_queue *queue)
{
    if (dtype == DTYPE_FP32)
        return add_launch<float>(dtype, part, sum, n, first, queue);
    return dtype == DTYPE_BF16 ? add_launch<__nv_bfloat16>(dtype, part, sum, n, first, queue)
                               : add_launch<__half>(dtype, part, sum, n, first, queue);
}
