/* kernels/nn_cuda_loss.cu -- both ends of a decoder on a GPU: embedding and cross-entropy.
 *
 * A block has a row of logits: it reads them once for the greatest and the sum of exponentials together (a thread corrects its sum when
 * it meets a greater one), and once more for the gradient; 128 k of them are 512 KiB, more than stays in the first-level cache.
 */
#include "kernels/nn_cuda.cuh"

/* ---- embedding ---- */

template <typename UNIT>
__global__ void __launch_bounds__(NN_THREADS) embed_kernel(int64_t rows, int64_t units, const int32_t *ids,
                                                           const UNIT *table, UNIT *out)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
        for (int64_t u = threadIdx.x; u < units; u += NN_THREADS)
            out[row * units + u] = table[ids[row] * units + u];
}

enum status nn_cuda_embed_forward(int64_t rows, int64_t dim, enum dtype dtype, const int32_t *ids, const void *table,
                                  void *out, struct dev_queue *queue)
{
    int64_t bytes = dim * dtype_bytes(dtype);
    unsigned grid = nn_grid(queue, rows, 1);
    cudaStream_t stream = dev_cuda_stream(queue);
    if (bytes % 16 == 0 && nn_aligned(table, 16) && nn_aligned(out, 16))
        embed_kernel<uint4><<<grid, NN_THREADS, 0, stream>>>(rows, bytes / 16, ids, (const uint4 *)table, (uint4 *)out);
    else
        embed_kernel<uint16_t>
            <<<grid, NN_THREADS, 0, stream>>>(rows, bytes / 2, ids, (const uint16_t *)table, (uint16_t *)out);
    return dev_cuda_launched("an embedding");
}

enum { COLUMNS = 128, CLASSES = 64 };

/* A block owns COLUMNS columns of the ids that leave its class as remainder: it looks through all ids and adds those rows, in order. A
 * thread keeps its element while the id stays the same. */
template <typename T>
__global__ void __launch_bounds__(COLUMNS) embed_backward_kernel(int64_t rows, int64_t dim, const int32_t *ids,
                                                                 const T *d_out, float *dtable)
{
    __shared__ int32_t seen[COLUMNS];
    __shared__ unsigned mine[COLUMNS / 32];
    const int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    int64_t held = -1;
    float sum = 0;
    for (int64_t first = 0; first < rows; first += COLUMNS) {
        const int64_t row = first + threadIdx.x;
        const int32_t id = row < rows ? ids[row] : -1;
        const unsigned votes = __ballot_sync(0xffffffffu, id >= 0 && id % CLASSES == (int)blockIdx.y);
        seen[threadIdx.x] = id;
        if (threadIdx.x % 32 == 0)
            mine[threadIdx.x / 32] = votes;
        __syncthreads();
        for (int warp = 0; warp < COLUMNS / 32 && column < dim; warp++)
            for (unsigned left = mine[warp]; left != 0; left &= left - 1) {
                const int at = warp * 32 + __ffs((int)left) - 1;
                if (seen[at] != held) {
                    if (held >= 0)
                        dtable[held * dim + column] = sum;
                    held = seen[at];
                    sum = dtable[held * dim + column];
                }
                sum += dtype_up(d_out[(first + at) * dim + column]);
            }
        __syncthreads();
    }
    if (held >= 0)
        dtable[held * dim + column] = sum;
}

enum status nn_cuda_embed_backward(int64_t rows, int64_t dim, enum dtype dtype, const int32_t *ids, const void *d_out,
                                   float *dtable, struct dev_queue *queue)
{
    dim3 grid((unsigned)((dim + COLUMNS - 1) / COLUMNS), CLASSES);
    nn_by_dtype(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        embed_backward_kernel<T>
            <<<grid, COLUMNS, 0, dev_cuda_stream(queue)>>>(rows, dim, ids, (const T *)d_out, dtable);
    });
    return dev_cuda_launched("an embedding's backward");
}

/* ---- loss ---- */

enum { LOSS_THREADS = 512 };

struct losses {
    int64_t rows, vocab, stride;
    float *logits;
    const int32_t *labels;
    float scale, *loss;
    bool gradient;
};

__device__ __forceinline__ void row_zero(float *x, int64_t from, int64_t stride)
{
    for (int64_t i = from + threadIdx.x; i < stride; i += LOSS_THREADS)
        x[i] = 0;
}

/* One more logit: sum is of exp(x - most). Excluded columns (-infinity) add nothing; a NaN stays. */
__device__ __forceinline__ void take(float x, float *most, float *sum)
{
    if (x > *most) {
        *sum = *sum * expf(*most - x) + 1.0f;
        *most = x;
    } else if (x != -INFINITY) {
        *sum += expf(x - *most);
    }
}

template <int WIDE> __global__ void __launch_bounds__(LOSS_THREADS) loss_kernel(const __grid_constant__ losses g)
{
    const int64_t units = (g.vocab + WIDE - 1) / WIDE;
    for (int64_t row = blockIdx.x; row < g.rows; row += gridDim.x) {
        float *x = g.logits + row * g.stride, v[WIDE], most = -INFINITY, sum = 0;
        const int32_t label = g.labels[row];
        if (label == NN_IGNORE) {
            if (threadIdx.x == 0)
                g.loss[row] = 0;
            if (g.gradient)
                row_zero(x, 0, g.stride);
            continue;
        }
        const float of_label = x[label];
        for (int64_t u = threadIdx.x; u < units; u += LOSS_THREADS) {
            nn_load<float, WIDE>(x, u, v);
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                if (u * WIDE + i < g.vocab)
                    take(v[i], &most, &sum);
        }
        const float all_most = nn_block_max(most); /* all have read the label's logit when this is known */
        const double all_sum = nn_block_sum(sum == 0 ? 0.0 : (double)sum * exp((double)most - (double)all_most));
        if (threadIdx.x == 0)
            g.loss[row] = (float)(log(all_sum) + ((double)all_most - (double)of_label));
        if (!g.gradient)
            continue;
        const float factor = (float)((double)g.scale / all_sum);
        for (int64_t u = threadIdx.x; u < units; u += LOSS_THREADS) {
            nn_load<float, WIDE>(x, u, v);
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                const int64_t column = u * WIDE + i;
                v[i] = column < g.vocab ? expf(v[i] - all_most) * factor - (column == label ? g.scale : 0.0f) : 0.0f;
            }
            nn_store<float, WIDE>(x, u, v);
        }
        row_zero(x, units * WIDE, g.stride);
    }
}

enum status nn_cuda_loss(int64_t rows, int64_t vocab, int64_t stride, float *logits, const int32_t *labels, float scale,
                         bool gradient, float *loss, struct dev_queue *queue)
{
    losses g = {rows, vocab, stride, logits, labels, scale, loss, gradient};
    if (stride % 4 == 0 && nn_aligned(logits, 16))
        loss_kernel<4><<<nn_grid(queue, rows, 1), LOSS_THREADS, 0, dev_cuda_stream(queue)>>>(g);
    else
        loss_kernel<1><<<nn_grid(queue, rows, 1), LOSS_THREADS, 0, dev_cuda_stream(queue)>>>(g);
    return dev_cuda_launched("a loss");
}
