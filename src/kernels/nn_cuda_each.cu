/* kernels/nn_cuda_each.cu -- element by element on a GPU: swiglu, sums of tensors, conversions; bias; rotary positions. Nothing here
 * computes longer than it moves bytes.
 */
#include "kernels/nn_cuda.cuh"

/* ---- INS tensors in, OUTS out, all of one type ---- */

__device__ __forceinline__ float sigmoid(float x)
{
    const float e = expf(-fabsf(x)); /* of what is not positive: nothing overflows */
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

struct swiglu {
    enum { INS = 2, OUTS = 1 };
    static __device__ __forceinline__ void one(const float in[INS], float out[OUTS])
    {
        out[0] = in[0] * sigmoid(in[0]) * in[1];
    }
};

/* gate, up, d_out to d_gate, d_up; with s = sigmoid(g): d silu(g) / dg = s + g s (1 - s). */
struct swiglu_back {
    enum { INS = 3, OUTS = 2 };
    static __device__ __forceinline__ void one(const float in[INS], float out[OUTS])
    {
        const float g = in[0], s = sigmoid(g);
        out[0] = in[2] * in[1] * (s + g * s * (1.0f - s));
        out[1] = in[2] * (g * s);
    }
};

struct adding {
    enum { INS = 2, OUTS = 1 };
    static __device__ __forceinline__ void one(const float in[INS], float out[OUTS])
    {
        out[0] = in[0] + in[1];
    }
};

struct sides {
    const void *in[3];
    void *out[2];
};

template <typename OP, typename T, int WIDE> __device__ __forceinline__ void each_unit(const sides &sides, int64_t unit)
{
    float in[OP::INS][WIDE], out[OP::OUTS][WIDE];
#pragma unroll
    for (int s = 0; s < OP::INS; s++)
        nn_load<T, WIDE>((const T *)sides.in[s], unit, in[s]);
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        float from[OP::INS], to[OP::OUTS];
#pragma unroll
        for (int s = 0; s < OP::INS; s++)
            from[s] = in[s][i];
        OP::one(from, to);
#pragma unroll
        for (int s = 0; s < OP::OUTS; s++)
            out[s][i] = to[s];
    }
#pragma unroll
    for (int s = 0; s < OP::OUTS; s++)
        nn_store<T, WIDE>((T *)sides.out[s], unit, out[s]);
}

/* Whole vectors, and what is left of n one by one. */
template <typename OP, typename T, int WIDE>
__global__ void __launch_bounds__(NN_THREADS) each_kernel(int64_t n, const __grid_constant__ sides sides)
{
    const int64_t at = (int64_t)blockIdx.x * NN_THREADS + threadIdx.x;
    for (int64_t unit = at; unit < n / WIDE; unit += (int64_t)gridDim.x * NN_THREADS)
        each_unit<OP, T, WIDE>(sides, unit);
    if (at < n % WIDE)
        each_unit<OP, T, 1>(sides, n / WIDE * WIDE + at);
}

template <typename OP>
static enum status each_run(int64_t n, enum dtype dtype, const sides &sides, struct dev_queue *queue)
{
    bool wide = true;
    for (int s = 0; s < OP::INS; s++)
        wide = wide && nn_aligned(sides.in[s], 16);
    for (int s = 0; s < OP::OUTS; s++)
        wide = wide && nn_aligned(sides.out[s], 16);
    nn_by_width(dtype, wide, [&](auto zero, auto width) {
        typedef decltype(zero) T;
        constexpr int WIDE = decltype(width)::value;
        each_kernel<OP, T, WIDE>
            <<<nn_grid(queue, n / WIDE, NN_THREADS), NN_THREADS, 0, dev_cuda_stream(queue)>>>(n, sides);
    });
    return dev_cuda_launched("an operation by elements");
}

enum status nn_cuda_swiglu_forward(int64_t n, enum dtype dtype, const void *gate, const void *up, void *out,
                                   struct dev_queue *queue)
{
    return each_run<swiglu>(n, dtype, sides{{gate, up}, {out}}, queue);
}

enum status nn_cuda_swiglu_backward(int64_t n, enum dtype dtype, const void *gate, const void *up, const void *d_out,
                                    void *d_gate, void *d_up, struct dev_queue *queue)
{
    return each_run<swiglu_back>(n, dtype, sides{{gate, up, d_out}, {d_gate, d_up}}, queue);
}

enum status nn_cuda_add(int64_t n, enum dtype dtype, void *x, const void *y, struct dev_queue *queue)
{
    return each_run<adding>(n, dtype, sides{{x, y}, {x}}, queue);
}

/* ---- conversions ---- */

template <typename FROM, typename TO, int WIDE>
__global__ void __launch_bounds__(NN_THREADS) convert_kernel(int64_t n, const FROM *src, TO *dst)
{
    const int64_t at = (int64_t)blockIdx.x * NN_THREADS + threadIdx.x;
    float v[WIDE];
    for (int64_t unit = at; unit < n / WIDE; unit += (int64_t)gridDim.x * NN_THREADS) {
        nn_load<FROM, WIDE>(src, unit, v);
        nn_store<TO, WIDE>(dst, unit, v);
    }
    if (at < n % WIDE)
        dtype_down(dtype_up(src[n / WIDE * WIDE + at]), &dst[n / WIDE * WIDE + at]);
}

enum status nn_cuda_convert(int64_t n, enum dtype from, const void *src, enum dtype to, void *dst,
                            struct dev_queue *queue)
{
    enum { WIDE = 4 };
    bool wide = nn_aligned(src, WIDE * (size_t)dtype_bytes(from)) && nn_aligned(dst, WIDE * (size_t)dtype_bytes(to));
    unsigned grid = nn_grid(queue, wide ? n / WIDE : n, NN_THREADS);
    cudaStream_t stream = dev_cuda_stream(queue);
    if (from == to)
        return dev_copy(queue, dst, src, (size_t)n * (size_t)dtype_bytes(to));
    nn_by_dtype(from, [&](auto a) {
        nn_by_dtype(to, [&](auto b) {
            typedef decltype(a) A;
            typedef decltype(b) B;
            if (wide)
                convert_kernel<A, B, WIDE><<<grid, NN_THREADS, 0, stream>>>(n, (const A *)src, (B *)dst);
            else
                convert_kernel<A, B, 1><<<grid, NN_THREADS, 0, stream>>>(n, (const A *)src, (B *)dst);
        });
    });
    return dev_cuda_launched("a conversion");
}

/* ---- bias ---- */

template <typename T>
__global__ void __launch_bounds__(NN_THREADS) bias_kernel(int64_t rows, int64_t n, T *y, const T *bias)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
        for (int64_t i = threadIdx.x; i < n; i += NN_THREADS)
            dtype_down(dtype_up(y[row * n + i]) + dtype_up(bias[i]), &y[row * n + i]);
}

enum status nn_cuda_bias(int64_t rows, int64_t n, enum dtype dtype, void *y, const void *bias, struct dev_queue *queue)
{
    nn_by_dtype(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        bias_kernel<T>
            <<<nn_grid(queue, rows, 1), NN_THREADS, 0, dev_cuda_stream(queue)>>>(rows, n, (T *)y, (const T *)bias);
    });
    return dev_cuda_launched("a bias");
}

enum status nn_cuda_bias_backward(int64_t rows, int64_t n, enum dtype dtype, const void *dy, float *dbias,
                                  struct dev_queue *queue)
{
    nn_by_dtype(dtype, [&](auto zero) { nn_column_sums<32>(rows, n, (const decltype(zero) *)dy, dbias, queue); });
    return dev_cuda_launched("a bias's backward");
}

/* ---- rotary positions ---- */

enum { ROPE_HEADS = 8 }; /* of a thread: it takes sine and cosine once for them */

template <typename T> struct turning {
    int64_t rows;
    int heads, half;
    T *x;
    const int32_t *positions;
    const float *inv_freq;
    bool inverse;
};

template <typename T> __global__ void __launch_bounds__(NN_THREADS) rope_kernel(const __grid_constant__ turning<T> r)
{
    const int first = (int)blockIdx.y * ROPE_HEADS, end = min(first + ROPE_HEADS, r.heads);
    for (int64_t at = (int64_t)blockIdx.x * NN_THREADS + threadIdx.x; at < r.rows * r.half;
         at += (int64_t)gridDim.x * NN_THREADS) {
        const int64_t row = at / r.half, i = at - row * r.half;
        float sine, cosine;
        sincosf((float)r.positions[row] * r.inv_freq[i], &sine, &cosine);
        sine = r.inverse ? -sine : sine;
        for (int head = first; head < end; head++) {
            T *low = r.x + (row * r.heads + head) * 2 * r.half + i, *high = low + r.half;
            const float a = dtype_up(*low), b = dtype_up(*high);
            dtype_down(a * cosine - b * sine, low);
            dtype_down(b * cosine + a * sine, high);
        }
    }
}

enum status nn_cuda_rope(int64_t rows, int heads, int dim, enum dtype dtype, void *x, const int32_t *positions,
                         const float *inv_freq, bool inverse, struct dev_queue *queue)
{
    dim3 grid(nn_grid(queue, rows * (dim / 2), NN_THREADS), (unsigned)((heads + ROPE_HEADS - 1) / ROPE_HEADS));
    if (grid.y > 65535)
        return FAIL(STATUS_UNSUPPORTED, "rope: %d heads on a GPU", heads);
    nn_by_dtype(dtype, [&](auto zero) {
        typedef decltype(zero) T;
        turning<T> r = {rows, heads, dim / 2, (T *)x, positions, inv_freq, inverse};
        rope_kernel<T><<<grid, NN_THREADS, 0, dev_cuda_stream(queue)>>>(r);
    });
    return dev_cuda_launched("rotary positions");
}
