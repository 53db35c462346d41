/* kernels/nn_cuda_adamw.cu -- the optimizer's step, and sums, on a GPU. A step moves 28 to 30 bytes per weight. */
#include "kernels/nn_cuda.cuh"

template <typename T>
__global__ void __launch_bounds__(NN_THREADS) adamw_kernel(int64_t n, const __grid_constant__ nn_adamw_step s,
                                                           float *master, float *m, float *v, const float *grad, T *weight)
{
    for (int64_t i = (int64_t)blockIdx.x * NN_THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * NN_THREADS) {
        const float g = grad[i] * s.grad_scale;
        const float mi = m[i] * s.beta1 + g * s.one_minus_beta1, vi = v[i] * s.beta2 + g * g * s.one_minus_beta2;
        const float w = master[i] * s.keep - mi * s.size / (sqrtf(vi) * s.inv_root_bias + s.eps);
        m[i] = mi;
        v[i] = vi;
        master[i] = w;
        if (weight != NULL)
            dtype_down(w, &weight[i]);
    }
}

enum status nn_cuda_adamw(int64_t n, const struct nn_adamw_step *step, enum dtype dtype, float *master, float *m,
                          float *v, const float *grad, void *weight, struct dev_queue *queue)
{
    nn_by_dtype(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        T *to = weight == (void *)master ? NULL : (T *)weight;
        adamw_kernel<T><<<nn_grid(queue, n, NN_THREADS), NN_THREADS, 0, dev_cuda_stream(queue)>>>(n, *step, master, m, v,
                                                                                               grad, to);
    });
    return dev_cuda_launched("an optimizer step");
}

/* ---- sums ---- */

__global__ void __launch_bounds__(NN_THREADS) sum_kernel(int64_t n, const float *x, bool squares, double *parts)
{
    const int64_t first = (int64_t)blockIdx.x * NN_SUM_PART, end = min(first + NN_SUM_PART, n);
    double sum = 0;
#pragma unroll 4
    for (int64_t i = first + threadIdx.x; i < end; i += NN_THREADS)
        sum += squares ? (double)x[i] * (double)x[i] : (double)x[i];
    sum = nn_block_sum(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(NN_THREADS) sum_parts_kernel(int64_t parts, const double *from, double *out)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < parts; i += NN_THREADS)
        sum += from[i];
    sum = nn_block_sum(sum);
    if (threadIdx.x == 0)
        *out = sum;
}

enum status nn_cuda_sum(int64_t n, const float *x, bool squares, double *out, void *scratch, struct dev_queue *queue)
{
    int64_t parts = (n + NN_SUM_PART - 1) / NN_SUM_PART;
    cudaStream_t stream = dev_cuda_stream(queue);
    if (parts > 0) {
        sum_kernel<<<(unsigned)parts, NN_THREADS, 0, stream>>>(n, x, squares, (double *)scratch);
        TRY(dev_cuda_launched("a sum"));
    }
    sum_parts_kernel<<<1, NN_THREADS, 0, stream>>>(parts, (const double *)scratch, out);
    return dev_cuda_launched("a sum");
}
