/* kernels/copy_move.cuh -- a block's share of a move. ROWS independent loads per thread are in flight at a time. */
#ifndef SPTUNE_KERNELS_COPY_MOVE_CUH
#define SPTUNE_KERNELS_COPY_MOVE_CUH

#include "kernels/copy_move.h"

template <typename unit, int THREADS, int ROWS>
__device__ __forceinline__ void move_rows(const struct move &move, uint32_t block, uint32_t blocks)
{
    const uint32_t side = THREADS / move.across, x = threadIdx.x % move.across, step = blocks * side;
    for (uint64_t first = block * side + threadIdx.x / move.across; first < move.nrows; first += (uint64_t)step * ROWS) {
        const char *src[ROWS];
        char *dst[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint64_t row = first + (uint64_t)r * step;
            struct move_place place = move_row(&move, (uint32_t)(row < move.nrows ? row : first));
            src[r] = move.src + place.src;
            dst[r] = move.dst + place.dst;
        }
        for (uint32_t u = x; u < move.units; u += move.across) {
            unit value[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                value[r] = ((const unit *)src[r])[u];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (first + (uint64_t)r * step < move.nrows)
                    ((unit *)dst[r])[u] = value[r];
        }
    }
}

#endif
