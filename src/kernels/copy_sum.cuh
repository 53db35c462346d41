/* kernels/copy_sum.cuh -- rows summed over copies in fp32, in order, rounded once. */
#ifndef SPTUNE_KERNELS_COPY_SUM_CUH
#define SPTUNE_KERNELS_COPY_SUM_CUH

#include "kernels/copy_move.h"
#include "kernels/dtype_cuda.cuh"

enum { SUM_COPIES = 64 };

struct sum {
    const char *srcs[SUM_COPIES];
    char *dst;
    struct move rows; /* strides and counts; units: vectors of a row */
    int copies, dtype;
    bool vectors;     /* of 16 bytes; else single elements */
};

template <typename T, int WIDE> struct alignas(sizeof(T) * WIDE) sum_vector {
    T x[WIDE];
};

template <typename T, int WIDE> __device__ __forceinline__ void sum_rows_wide(const struct sum &sum, uint32_t block, uint32_t blocks)
{
    typedef struct sum_vector<T, WIDE> vector;
    const uint64_t n = (uint64_t)sum.rows.nrows * sum.rows.units;
    for (uint64_t at = (uint64_t)block * blockDim.x + threadIdx.x; at < n; at += (uint64_t)blocks * blockDim.x) {
        const uint32_t row = (uint32_t)(at / sum.rows.units), unit = (uint32_t)(at - (uint64_t)row * sum.rows.units);
        const struct move_place place = move_row(&sum.rows, row);
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
        sum_rows_wide<T, 16 / sizeof(T)>(sum, block, blocks);
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

static inline enum status sum_fill(const struct copy_sum *job, struct sum *out)
{
    int64_t rows = job->n[0] * job->n[1] * job->n[2], wide = 16 / dtype_bytes(job->dtype);
    uint64_t all = (uint64_t)(uintptr_t)job->dst;
    if (job->copies > SUM_COPIES || rows > INT32_MAX || job->elems > INT32_MAX)
        return FAIL(STATUS_UNSUPPORTED, "a sum of %d copies of %lld rows", job->copies, (long long)rows);
    for (int c = 0; c < job->copies; c++) {
        out->srcs[c] = (const char *)job->srcs[c];
        all |= (uint64_t)(uintptr_t)job->srcs[c];
    }
    out->dst = (char *)job->dst;
    out->copies = job->copies;
    out->dtype = (int)job->dtype;
    out->rows.n1 = (uint32_t)job->n[1];
    out->rows.n2 = (uint32_t)job->n[2];
    out->rows.nrows = (uint32_t)rows;
    for (int d = 0; d < 3; d++) {
        out->rows.src_stride[d] = job->src_stride[d];
        out->rows.dst_stride[d] = job->dst_stride[d];
        if (job->n[d] > 1)
            all |= (uint64_t)job->src_stride[d] | (uint64_t)job->dst_stride[d];
    }
    out->vectors = all % 16 == 0 && job->elems % wide == 0;
    out->rows.units = (uint32_t)(out->vectors ? job->elems / wide : job->elems);
    return STATUS_OK;
}

#endif
