/* kernels/attention_cudnn_pack.cu -- indices of documents, statistics turned over, gradients widened.
 *
 * Statistics are heads * tokens fp32 read and written once: 32 heads x 128k tokens is 33 MB, 8 us at 4 TB/s beside an attention of
 * milliseconds. 32 x 32 tiles through shared memory keep both sides in whole lines. Widening reads 2 and writes 4 bytes an element.
 */
#include "kernels/attention_cudnn_pack.h"

#include "base/dev_cuda.h"
#include "kernels/dtype_cuda.cuh"

enum { THREADS = 256, TILE = 32, PER_LAUNCH = 200 };

/* ---- documents ---- */

struct documents {
    int64_t q[PER_LAUNCH + 1], k[PER_LAUNCH + 1];
    int64_t first; /* place of document 0 */
    int32_t n;
    bool last;     /* fill the places behind */
};

__global__ void __launch_bounds__(THREADS)
    index_kernel(const __grid_constant__ struct documents documents, const __grid_constant__ struct cudnn_index index)
{
    const int64_t end = documents.last ? index.places : documents.first + documents.n - 1;
    for (int64_t place = documents.first + threadIdx.x; place <= end; place += THREADS) {
        const int64_t i = place - documents.first < documents.n ? place - documents.first : documents.n;
        const bool real = i < documents.n;
        const int64_t q = documents.q[i], k = documents.k[i];
        if (place < index.places) {
            index.len_q[place] = real ? (int32_t)(documents.q[i + 1] - q) : 0;
            index.len_k[place] = real ? (int32_t)(documents.k[i + 1] - k) : 0;
        }
        index.at_q[place] = q * index.q;
        index.at_k[place] = k * index.k;
        index.at_v[place] = k * index.v;
        index.at_o[place] = q * index.o;
        index.at_stats[place] = q * index.stats;
    }
}

enum status cudnn_pack_index(const struct cudnn_index *index, const int64_t *q, const int64_t *k, int64_t n,
                             struct dev_queue *queue)
{
    int64_t first = 0;
    do {
        struct documents documents = {};
        documents.first = first;
        documents.n = (int32_t)(n - first < (int64_t)PER_LAUNCH ? n - first : (int64_t)PER_LAUNCH);
        documents.last = first + documents.n == n;
        for (int32_t i = 0; i <= documents.n; i++) {
            documents.q[i] = q[first + i];
            documents.k[i] = k[first + i];
        }
        index_kernel<<<1, THREADS, 0, dev_cuda_stream(queue)>>>(documents, *index);
        TRY(dev_cuda_launched("the index of documents"));
        first += documents.n;
    } while (first < n);
    return STATUS_OK;
}

/* ---- statistics ---- */

__global__ void __launch_bounds__(THREADS) lse_kernel(const float *stats, float *lse, int heads, int64_t tokens, int64_t first, int64_t end)
{
    __shared__ float tile[TILE][TILE + 1];
    const int x = threadIdx.x % TILE, y0 = threadIdx.x / TILE;
    const int64_t token0 = (int64_t)blockIdx.x * TILE;
    const int head0 = blockIdx.y * TILE;
    for (int y = y0; y < TILE; y += THREADS / TILE) {
        const int64_t token = token0 + y;
        if (head0 + x < heads && token < tokens)
            tile[y][x] = token >= first && token < end ? stats[token * heads + head0 + x] : -INFINITY;
    }
    __syncthreads();
    for (int y = y0; y < TILE; y += THREADS / TILE)
        if (head0 + y < heads && token0 + x < tokens)
            lse[(int64_t)(head0 + y) * tokens + token0 + x] = tile[x][y];
}

__global__ void __launch_bounds__(THREADS) stats_kernel(const float *lse, float *stats, int heads, int64_t tokens, int64_t first, int64_t end)
{
    __shared__ float tile[TILE][TILE + 1];
    const int x = threadIdx.x % TILE, y0 = threadIdx.x / TILE;
    const int64_t token0 = (int64_t)blockIdx.x * TILE;
    const int head0 = blockIdx.y * TILE;
    for (int y = y0; y < TILE; y += THREADS / TILE)
        if (head0 + y < heads && token0 + x < tokens)
            tile[x][y] = lse[(int64_t)(head0 + y) * tokens + token0 + x];
    __syncthreads();
    for (int y = y0; y < TILE; y += THREADS / TILE) {
        const int64_t token = token0 + y;
        if (head0 + x < heads && token >= first && token < end)
            stats[token * heads + head0 + x] = tile[y][x];
    }
}

static dim3 tiles(int heads, int64_t tokens)
{
    return dim3((unsigned)((tokens + TILE - 1) / TILE), (unsigned)((heads + TILE - 1) / TILE));
}

enum status cudnn_pack_lse(const float *stats, float *lse, int heads, int64_t tokens, int64_t first, int64_t end,
                           struct dev_queue *queue)
{
    lse_kernel<<<tiles(heads, tokens), THREADS, 0, dev_cuda_stream(queue)>>>(stats, lse, heads, tokens, first, end);
    return dev_cuda_launched("statistics of documents");
}

enum status cudnn_pack_stats(const float *lse, float *stats, int heads, int64_t tokens, int64_t first, int64_t end,
                             struct dev_queue *queue)
{
    stats_kernel<<<tiles(heads, tokens), THREADS, 0, dev_cuda_stream(queue)>>>(lse, stats, heads, tokens, first, end);
    return dev_cuda_launched("statistics of documents");
}

/* ---- gradients ---- */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    widen_kernel(const T *src, float *dst, int64_t rows, int64_t width, int64_t stride, bool add)
{
    const int64_t n = rows * width;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < n; at += (int64_t)gridDim.x * THREADS) {
        const int64_t row = at / width, place = row * stride + (at - row * width);
        const float value = dtype_up(src[place]);
        dst[place] = add ? dst[place] + value : value;
    }
}

enum status cudnn_pack_widen(enum dtype dtype, const void *src, float *dst, int64_t rows, int64_t width, int64_t stride, bool add,
                             struct dev_queue *queue)
{
    const int64_t blocks = (rows * width + THREADS - 1) / THREADS, most = (int64_t)dev_cuda_sms(dev_queue_dev(queue)) * 16;
    const unsigned grid = (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
    cudaStream_t stream = dev_cuda_stream(queue);
    if (dtype == DTYPE_BF16)
        widen_kernel<<<grid, THREADS, 0, stream>>>((const __nv_bfloat16 *)src, dst, rows, width, stride, add);
    else
        widen_kernel<<<grid, THREADS, 0, stream>>>((const __half *)src, dst, rows, width, stride, add);
    return dev_cuda_launched("widening of gradients");
}
