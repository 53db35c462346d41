/* kernels/nn_cuda_norm.cu -- RMS norm on a GPU: a block per row; forward reads a row twice, the second time from the cache.
 *
 * Backward: a block walks a part of the rows and keeps the sum of its rows for each column of dweight, in shared memory where a row fits
 * there, else in the scratch; each thread has columns of its own. Parts are as many for any GPU, and added in order.
 */
#include "kernels/nn_cuda.cuh"

template <typename T, int WIDE>
__global__ void __launch_bounds__(NN_THREADS)
    norm_forward_kernel(int64_t rows, int64_t dim, const T *x, const T *weight, float eps, T *y, float *rstd)
{
    const int64_t units = dim / WIDE;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t at = row * units;
        float v[WIDE], w[WIDE], sum = 0;
        for (int64_t u = threadIdx.x; u < units; u += NN_THREADS) {
            nn_load<T, WIDE>(x, at + u, v);
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                sum += v[i] * v[i];
        }
        const float r = 1.0f / sqrtf(nn_block_sum(sum) / (float)dim + eps);
        for (int64_t u = threadIdx.x; u < units; u += NN_THREADS) {
            nn_load<T, WIDE>(x, at + u, v);
            nn_load<T, WIDE>(weight, u, w);
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                v[i] = v[i] * r * w[i];
            nn_store<T, WIDE>(y, at + u, v);
        }
        if (threadIdx.x == 0)
            rstd[row] = r;
    }
}

enum status nn_cuda_norm_forward(int64_t rows, int64_t dim, enum dtype dtype, const void *x, const void *weight,
                                 float eps, void *y, float *rstd, struct dev_queue *queue)
{
    bool wide = dim * dtype_bytes(dtype) % 16 == 0 && nn_aligned(x, 16) && nn_aligned(weight, 16) && nn_aligned(y, 16);
    nn_by_width(dtype, wide, [&](auto zero, auto width) {
        typedef decltype(zero) T;
        norm_forward_kernel<T, decltype(width)::value>
            <<<nn_grid(queue, rows, 1), NN_THREADS, 0, dev_cuda_stream(queue)>>>(rows, dim, (const T *)x,
                                                                                 (const T *)weight, eps, (T *)y, rstd);
    });
    return dev_cuda_launched("a norm");
}

template <typename T> struct norm_back {
    int64_t rows, dim;
    const T *x, *weight, *dy;
    const float *rstd;
    T *dx;
    float *parts; /* [blocks][dim] */
    bool add, shared;
};

template <typename T, int WIDE>
__global__ void __launch_bounds__(NN_THREADS) norm_backward_kernel(const __grid_constant__ norm_back<T> g)
{
    extern __shared__ float shared_sums[];
    float *part = g.parts + (int64_t)blockIdx.x * g.dim, *sums = g.shared ? shared_sums : part;
    const int64_t units = g.dim / WIDE, first = (int64_t)blockIdx.x * g.rows / gridDim.x,
                  end = ((int64_t)blockIdx.x + 1) * g.rows / gridDim.x;
    for (int64_t u = threadIdx.x; u < units; u += NN_THREADS)
        for (int i = 0; i < WIDE; i++)
            sums[u * WIDE + i] = 0;
    for (int64_t row = first; row < end; row++) {
        const int64_t at = row * units;
        float x[WIDE], w[WIDE], d[WIDE], was[WIDE], sum = 0;
        for (int64_t u = threadIdx.x; u < units; u += NN_THREADS) {
            nn_load<T, WIDE>(g.x, at + u, x);
            nn_load<T, WIDE>(g.weight, u, w);
            nn_load<T, WIDE>(g.dy, at + u, d);
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                sum += x[i] * (w[i] * d[i]);
        }
        const float r = g.rstd[row], back = r * r * r * (nn_block_sum(sum) / (float)g.dim);
        for (int64_t u = threadIdx.x; u < units; u += NN_THREADS) {
            nn_load<T, WIDE>(g.x, at + u, x);
            nn_load<T, WIDE>(g.weight, u, w);
            nn_load<T, WIDE>(g.dy, at + u, d);
            if (g.add)
                nn_load<T, WIDE>(g.dx, at + u, was);
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                const float scaled = d[i] * r, value = scaled * w[i] - x[i] * back;
                sums[u * WIDE + i] += x[i] * scaled;
                d[i] = g.add ? was[i] + value : value;
            }
            nn_store<T, WIDE>(g.dx, at + u, d);
        }
    }
    for (int64_t u = threadIdx.x; g.shared && u < units; u += NN_THREADS)
        for (int i = 0; i < WIDE; i++)
            part[u * WIDE + i] = sums[u * WIDE + i];
}

enum status nn_cuda_norm_backward(int64_t rows, int64_t dim, enum dtype dtype, const void *x, const void *weight,
                                  const float *rstd, const void *dy, bool add, void *dx, float *dweight, void *scratch,
                                  struct dev_queue *queue)
{
    const size_t most_shared = 48 << 10, bytes = (size_t)dim * sizeof(float);
    const int64_t parts = nn_norm_parts(DEV_CUDA, rows);
    bool shared = bytes + 1024 <= most_shared; /* beside the sums of a block */
    bool wide = dim * dtype_bytes(dtype) % 16 == 0 && nn_aligned(x, 16) && nn_aligned(weight, 16) &&
                nn_aligned(dy, 16) && nn_aligned(dx, 16);
    cudaStream_t stream = dev_cuda_stream(queue);
    nn_by_width(dtype, wide, [&](auto zero, auto width) {
        typedef decltype(zero) T;
        norm_back<T> g = {rows, dim,   (const T *)x, (const T *)weight, (const T *)dy, rstd, (T *)dx, (float *)scratch,
                          add,  shared};
        norm_backward_kernel<T, decltype(width)::value><<<(unsigned)parts, NN_THREADS, shared ? bytes : 0, stream>>>(g);
    });
    TRY(dev_cuda_launched("a norm's backward"));
    nn_column_sums<8>(parts, dim, (const float *)scratch, dweight, queue);
    return dev_cuda_launched("a norm's backward");
}
