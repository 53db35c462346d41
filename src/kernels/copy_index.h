/* kernels/copy_index.h -- index arithmetic of the layout-changing copy, shared by the GPU kernels and by the tests on the CPU.
 *
 * A job's rows are counted 0 .. n[0]*n[1]*n[2]-1, the last dimension fastest. A row is copied in units of 16, 8, 4, 2 or 1 bytes:
 * the largest that divides its length, both sides' strides and both addresses.
 */
#ifndef SPTUNE_KERNELS_COPY_INDEX_H
#define SPTUNE_KERNELS_COPY_INDEX_H

#include <stdint.h>

#if defined(__CUDACC__)
#define COPY_BOTH static __host__ __device__ __forceinline__
#else
#define COPY_BOTH static inline
#endif

struct copy_rows {
    uint32_t n1, n2;        /* n[0] is what is left */
    int64_t src_stride[3], dst_stride[3]; /* bytes */
};

struct copy_place {
    int64_t src, dst; /* bytes from the bases */
};

COPY_BOTH struct copy_place copy_row_place(const struct copy_rows *rows, uint32_t row)
{
    uint32_t ij = row / rows->n2, l = row - ij * rows->n2;
    uint32_t i = ij / rows->n1, j = ij - i * rows->n1;
    struct copy_place place;
    place.src = (int64_t)i * rows->src_stride[0] + (int64_t)j * rows->src_stride[1] + (int64_t)l * rows->src_stride[2];
    place.dst = (int64_t)i * rows->dst_stride[0] + (int64_t)j * rows->dst_stride[1] + (int64_t)l * rows->dst_stride[2];
    return place;
}

/* The largest power of two up to 16 that divides every number or-ed into `all_ored`. */
COPY_BOTH uint32_t copy_unit(uint64_t all_ored)
{
    uint64_t low = (all_ored | 16u) & (0 - (all_ored | 16u));
    return (uint32_t)(low < 16 ? low : 16);
}

/* Threads across a row and rows side by side in a block of `threads` (a power of two): as wide as the row has units. */
COPY_BOTH uint32_t copy_across(uint64_t units, uint32_t threads)
{
    uint32_t across = 1;
    while (across < threads && across < units)
        across *= 2;
    return across;
}

#endif
