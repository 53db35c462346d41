/* kernels/attention_gpu_reference.cu -- attention in plain fp32 on the GPU: one block per row, no tiles, no tensor cores.
 *
 * Threads share out keys for the scores and columns for the sums; every sum has one order, so the bits are always the same.
 * The backward pass makes its own LSE and mean of dP per row and reads neither o nor lse. Some 100 GFLOP/s: for checks.
 */
#include "base/dev_cuda.h"
#include "kernels/attention_flash2_tile.cuh"
#include "kernels/attention_gpu_reference.h"
#include "kernels/dtype_cuda.cuh"

namespace {

constexpr int THREADS = 128;

struct dims {
    int qk, v;
};

/* What one (row, head) needs; pointers at the segment's first row. */
template <typename T> struct view {
    struct flash2_segment segment;
    const T *q, *k, *v, *d_o;
    int64_t o, dq, dk, dv; /* first elements */
    int64_t row;           /* in [batch * heads][seq_q] */
};

template <typename T>
__device__ view<T> view_make(const struct flash2_call &call, struct dims dims, const struct flash2_segment &segment, int head)
{
    view<T> at;
    int kv = (call.group_first + head) / call.group;
    int64_t q_token = segment.batch * call.seq_q + segment.q_token, k_token = segment.batch * call.seq_k + segment.k_token;
    at.segment = segment;
    at.dq = q_token * call.q_stride + (int64_t)head * dims.qk;
    at.dk = k_token * call.k_stride + (int64_t)kv * dims.qk;
    at.dv = k_token * call.v_stride + (int64_t)kv * dims.v;
    at.o = q_token * call.o_stride + (int64_t)head * dims.v;
    at.q = (const T *)call.q + at.dq;
    at.k = (const T *)call.k + at.dk;
    at.v = (const T *)call.v + at.dv;
    at.d_o = (const T *)call.d_o + at.o;
    at.row = (segment.batch * call.heads + head) * call.seq_q + segment.q_token;
    return at;
}

template <typename T> __device__ float dot(const float *a, const T *b, int n)
{
    float sum = 0;
    for (int t = 0; t < n; t++)
        sum += a[t] * dtype_up(b[t]);
    return sum;
}

template <typename T> __device__ void row_get(const T *from, float *to, int n)
{
    for (int t = (int)threadIdx.x; t < n; t += THREADS)
        to[t] = dtype_up(from[t]);
}

/* The same value in every thread. `box` holds THREADS floats. */
__device__ float all_max(float x, float *box)
{
    __syncthreads();
    box[threadIdx.x] = x;
    __syncthreads();
    float out = box[0];
    for (int t = 1; t < THREADS; t++)
        out = fmaxf(out, box[t]);
    return out;
}

__device__ float all_sum(float x, float *box)
{
    __syncthreads();
    box[threadIdx.x] = x;
    __syncthreads();
    float out = 0;
    for (int t = 0; t < THREADS; t++)
        out += box[t];
    return out;
}

/* to[t] += sum over the n weights of weight * row t; rows `stride` apart. */
template <typename T>
__device__ void weigh(float *to, int dim, const float *weight, const T *rows, int64_t stride, int n)
{
    for (int t = (int)threadIdx.x; t < dim; t += THREADS)
        for (int j = 0; j < n; j++)
            if (weight[j] != 0) /* not even 0 * V: it may hold anything there */
                to[t] += weight[j] * dtype_up(rows[j * stride + t]);
}

/* One query row: O and LSE, or dQ and the row's LSE and mean of dP. */
template <typename T, bool gradient>
__global__ void __launch_bounds__(THREADS) row_kernel(const __grid_constant__ struct flash2_call call, struct dims dims)
{
    extern __shared__ float memory[];
    float *q = memory, *d_o = q + dims.qk, *out = d_o + dims.v, *weight = out + max(dims.qk, dims.v), *box = weight + THREADS;
    int64_t unit = blockIdx.x / call.q_tiles;
    int head = (int)(unit % call.heads);
    view<T> at =
        view_make<T>(call, dims, segment_find(call, unit / call.heads, blockIdx.x % call.q_tiles, true), head);
    const struct flash2_mask &mask = at.segment.mask;
    int i = at.segment.tile, dim_out = gradient ? dims.qk : dims.v;
    row_get(at.q + i * call.q_stride, q, dims.qk);
    if (gradient)
        row_get(at.d_o + i * call.o_stride, d_o, dims.v);
    for (int t = (int)threadIdx.x; t < dim_out; t += THREADS)
        out[t] = 0;
    __syncthreads();
    float top = -INFINITY, sum = 0, mean = 0;
    for (int j = (int)threadIdx.x; j < mask.seq_k; j += THREADS)
        if (flash2_sees(&mask, i, j))
            top = fmaxf(top, call.scale * dot(q, at.k + j * call.k_stride, dims.qk));
    top = all_max(top, box);
    for (int j = (int)threadIdx.x; j < mask.seq_k; j += THREADS)
        if (flash2_sees(&mask, i, j)) {
            float p = expf(call.scale * dot(q, at.k + j * call.k_stride, dims.qk) - top);
            sum += p;
            if (gradient)
                mean += p * dot(d_o, at.v + j * call.v_stride, dims.v);
        }
    sum = all_sum(sum, box);
    float inverse = sum == 0 ? 0.0f : 1 / sum;
    mean = all_sum(mean, box) * inverse;
    for (int first = 0; first < mask.seq_k; first += THREADS) {
        int j = first + (int)threadIdx.x;
        float x = 0;
        if (j < mask.seq_k && flash2_sees(&mask, i, j)) {
            x = expf(call.scale * dot(q, at.k + j * call.k_stride, dims.qk) - top) * inverse;
            if (gradient)
                x *= call.scale * (dot(d_o, at.v + j * call.v_stride, dims.v) - mean);
        }
        __syncthreads();
        weight[threadIdx.x] = x;
        __syncthreads();
        int n = min(THREADS, mask.seq_k - first);
        if (gradient)
            weigh(out, dims.qk, weight, at.k + first * call.k_stride, call.k_stride, n);
        else
            weigh(out, dims.v, weight, at.v + first * call.v_stride, call.v_stride, n);
    }
    __syncthreads();
    T *to = gradient ? (T *)call.dq + at.dq + i * call.q_stride : (T *)call.o + at.o + i * call.o_stride;
    for (int t = (int)threadIdx.x; t < dim_out; t += THREADS)
        dtype_down(out[t], to + t);
    if (threadIdx.x == 0) {
        float lse = sum == 0 ? -INFINITY : top + logf(sum);
        (gradient ? call.lse2 : call.lse)[at.row + i] = lse;
        if (gradient)
            call.delta[at.row + i] = mean;
    }
}

/* One key row: dK and dV over all query heads of its group. */
template <typename T, typename to>
__global__ void __launch_bounds__(THREADS) key_kernel(const __grid_constant__ struct flash2_call call, struct dims dims)
{
    extern __shared__ float memory[];
    float *k = memory, *v = k + dims.qk, *dk = v + dims.v, *dv = dk + dims.qk, *p = dv + dims.v, *ds = p + THREADS;
    int64_t unit = blockIdx.x / call.order.tiles;
    int kv = (int)(unit % call.kv_heads);
    struct flash2_segment segment = segment_find(call, unit / call.kv_heads, blockIdx.x % call.order.tiles, false);
    const struct flash2_mask &mask = segment.mask;
    int j = segment.tile, first_head = max(0, kv * call.group - call.group_first);
    int end_head = min(call.heads, kv * call.group - call.group_first + call.group);
    int64_t k_token = segment.batch * call.seq_k + segment.k_token + j;
    int64_t k_at = k_token * call.k_stride + (int64_t)kv * dims.qk, v_at = k_token * call.v_stride + (int64_t)kv * dims.v;
    row_get((const T *)call.k + k_at, k, dims.qk);
    row_get((const T *)call.v + v_at, v, dims.v);
    for (int t = (int)threadIdx.x; t < dims.qk + dims.v; t += THREADS)
        dk[t] = 0; /* and dv, which follows */
    for (int head = first_head; head < end_head; head++) {
        view<T> at = view_make<T>(call, dims, segment, head);
        for (int first = 0; first < mask.seq_q; first += THREADS) {
            int i = first + (int)threadIdx.x;
            float weight = 0, slope = 0;
            __syncthreads();
            if (i < mask.seq_q && flash2_sees(&mask, i, j)) {
                weight = expf(call.scale * dot(k, at.q + i * call.q_stride, dims.qk) - call.lse2[at.row + i]);
                slope = weight * call.scale * (dot(v, at.d_o + i * call.o_stride, dims.v) - call.delta[at.row + i]);
            }
            p[threadIdx.x] = weight;
            ds[threadIdx.x] = slope;
            __syncthreads();
            int n = min(THREADS, mask.seq_q - first);
            weigh(dv, dims.v, p, at.d_o + first * call.o_stride, call.o_stride, n);
            weigh(dk, dims.qk, ds, at.q + first * call.q_stride, call.q_stride, n);
        }
    }
    __syncthreads();
    for (int t = (int)threadIdx.x; t < dims.qk; t += THREADS)
        dtype_down(dk[t] + (call.dkv_accumulate ? dtype_up(((to *)call.dk)[k_at + t]) : 0.0f), (to *)call.dk + k_at + t);
    for (int t = (int)threadIdx.x; t < dims.v; t += THREADS)
        dtype_down(dv[t] + (call.dkv_accumulate ? dtype_up(((to *)call.dv)[v_at + t]) : 0.0f), (to *)call.dv + v_at + t);
}

template <typename T>
enum status forward_launch(struct dims dims, const struct flash2_call *call, struct dev_queue *queue)
{
    int bytes = (2 * (dims.qk + dims.v) + 2 * THREADS) * (int)sizeof(float);
    int64_t rows = (int64_t)call->batch * call->heads * call->q_tiles;
    if (rows > 0)
        row_kernel<T, false><<<(unsigned)rows, THREADS, bytes, dev_cuda_stream(queue)>>>(*call, dims);
    return dev_cuda_launched("the plain GPU attention");
}

template <typename T>
enum status backward_launch(struct dims dims, const struct flash2_call *call, struct dev_queue *queue)
{
    int bytes = (2 * (dims.qk + dims.v) + 2 * THREADS) * (int)sizeof(float);
    int64_t rows = (int64_t)call->batch * call->heads * call->q_tiles;
    int64_t keys = (int64_t)call->batch * call->kv_heads * call->order.tiles;
    cudaStream_t stream = dev_cuda_stream(queue);
    if (rows > 0)
        row_kernel<T, true><<<(unsigned)rows, THREADS, bytes, stream>>>(*call, dims);
    TRY(dev_cuda_launched("the plain GPU attention, dQ"));
    if (keys > 0 && call->dkv_fp32)
        key_kernel<T, float><<<(unsigned)keys, THREADS, bytes, stream>>>(*call, dims);
    else if (keys > 0)
        key_kernel<T, T><<<(unsigned)keys, THREADS, bytes, stream>>>(*call, dims);
    return dev_cuda_launched("the plain GPU attention, dK and dV");
}

} // namespace

enum status gpu_reference_launch_forward(int dim, int dim_v, enum dtype dtype, const struct flash2_call *call,
                                         struct dev_queue *queue)
{
    struct dims dims = {dim, dim_v};
    return dtype == DTYPE_FP32   ? forward_launch<float>(dims, call, queue)
           : dtype == DTYPE_BF16 ? forward_launch<__nv_bfloat16>(dims, call, queue)
                                 : forward_launch<__half>(dims, call, queue);
}

enum status gpu_reference_launch_backward(int dim, int dim_v, enum dtype dtype, const struct flash2_call *call,
                                          struct dev_queue *queue)
{
    struct dims dims = {dim, dim_v};
    return dtype == DTYPE_FP32   ? backward_launch<float>(dims, call, queue)
           : dtype == DTYPE_BF16 ? backward_launch<__nv_bfloat16>(dims, call, queue)
                                 : backward_launch<__half>(dims, call, queue);
}
