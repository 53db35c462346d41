/* kernels/merge_cuda.cu -- merging parts of an attention on a CUDA GPU.
 *
 * A warp per row (token, head): it reads the row of the part once and the row of the sum once, and writes that back: for 32 heads of 128
 * in bf16 40 KiB a token, 4.2 TB/s of an H200 merge 100,000 tokens in a millisecond. The statistics of a row are 16 bytes.
 */
#include "kernels/merge_cuda.h"
#include "kernels/nn_cuda.cuh"

enum { WARP = 32, WARPS = NN_THREADS / WARP, WIDE = 4 };

/* sum = keep * sum + weight * part, the unit-th N elements. Of the first part the sum is not read. */
template <typename T, int N>
__device__ __forceinline__ void lane_merge(const T *part, float *sum, int64_t unit, float weight, float keep,
                                           bool first)
{
    float next[N], total[N];
    nn_load<T, N>(part, unit, next);
    if (!first)
        nn_load<float, N>(sum, unit, total);
#pragma unroll
    for (int i = 0; i < N; i++)
        next[i] = first ? next[i] : keep * total[i] + weight * next[i];
    nn_store<float, N>(sum, unit, next);
}

template <typename T, int N> __global__ void __launch_bounds__(NN_THREADS) out_kernel(const struct merge_part part)
{
    const int64_t rows = part.tokens * part.heads, warps = (int64_t)gridDim.x * WARPS;
    const int lane = (int)(threadIdx.x % WARP);
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; row < rows; row += warps) {
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
        for (int64_t unit = lane, units = part.dim / N; unit < units; unit += WARP)
            lane_merge<T, N>((const T *)part.o, part.o_sum, row * units + unit, weight, keep, part.first);
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(NN_THREADS) add_kernel(const T *part, float *sum, int64_t units, bool first)
{
    for (int64_t unit = (int64_t)blockIdx.x * NN_THREADS + threadIdx.x; unit < units;
         unit += (int64_t)gridDim.x * NN_THREADS)
        lane_merge<T, N>(part, sum, unit, 1, 1, first);
}

/* call(a zero of the storage type, elements at a time): four where both sides lie on multiples of four of theirs. */
template <typename CALL>
static void by_width(enum dtype dtype, const void *part, const float *sum, int64_t n, CALL call)
{
    const bool fours = n % WIDE == 0 && nn_aligned(part, (size_t)(WIDE * dtype_bytes(dtype))) && nn_aligned(sum, 16);
    nn_by_dtype(dtype, [&](auto zero) {
        if (fours)
            call(zero, std::integral_constant<int, WIDE>{});
        else
            call(zero, std::integral_constant<int, 1>{});
    });
}

enum status merge_cuda_out(const struct merge_part *part, struct dev_queue *queue)
{
    const unsigned blocks = nn_grid(queue, part->tokens * part->heads, WARPS);
    by_width(part->dtype, part->o, part->o_sum, part->dim, [&](auto zero, auto width) {
        out_kernel<decltype(zero), decltype(width)::value><<<blocks, NN_THREADS, 0, dev_cuda_stream(queue)>>>(*part);
    });
    return dev_cuda_launched("a merge of attention outputs");
}

enum status merge_cuda_add(enum dtype dtype, const void *part, float *sum, int64_t n, bool first,
                           struct dev_queue *queue)
{
    by_width(dtype, part, sum, n, [&](auto zero, auto width) {
        typedef decltype(zero) T;
        constexpr int wide = decltype(width)::value;
        add_kernel<T, wide><<<nn_grid(queue, n / wide, NN_THREADS), NN_THREADS, 0, dev_cuda_stream(queue)>>>(
            (const T *)part, sum, n / wide, first);
    });
    return dev_cuda_launched("a sum of gradients");
}
