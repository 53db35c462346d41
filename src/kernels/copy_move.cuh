/* kernels/copy_move.cuh -- a block's share of a move. ROWS independent loads per thread are in flight at a time. */
#ifndef SPTUNE_KERNELS_COPY_MOVE_CUH
#define SPTUNE_KERNELS_COPY_MOVE_CUH

#include "kernels/copy_move.h"

template <typename unit, int THREADS, int ROWS>
__device__ __forceinline__ void move_rows(const struct move &move, uint32_t block, uint32_t blocks)
{
    const uint32_t across = 1u << move.shift, side = THREADS >> move.shift, x = threadIdx.x & (across - 1), step = blocks * side;
    for (uint64_t first = block * side + (threadIdx.x >> move.shift); first < move.nrows; first += (uint64_t)step * ROWS) {
        const char *src[ROWS];
        char *dst[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint64_t row = first + (uint64_t)r * step;
            struct move_place place = move_row(&move, (uint32_t)(row < move.nrows ? row : first));
            src[r] = move.src + place.src;
            dst[r] = move.dst + place.dst;
        }
        for (uint32_t u = x; u < move.units; u += across) {
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

/* A block's share of all chunks of `nmoves` moves, start[m] being the first of move m and start[nmoves] their number. ROWS units per
 * thread are in flight at a time, of whatever moves. */
template <typename unit, int THREADS, int ROWS>
__device__ __forceinline__ void move_list(const struct move *moves, const uint32_t *start, int nmoves, uint32_t block, uint32_t blocks)
{
    const uint32_t total = start[nmoves], steps = (total + blocks - 1) / blocks;
    int m = 0;
    for (uint32_t step = 0; step < steps; step += ROWS) {
        unit value[ROWS];
        unit *dst[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const uint32_t chunk = move_turn(total, blocks, block, steps, step + r);
            uint32_t row, u;
            dst[r] = NULL;
            if (chunk >= total)
                continue;
            m = chunk < start[m] ? 0 : m;
            while (chunk >= start[m + 1])
                m++;
            if (!move_unit(&moves[m], THREADS, chunk - start[m], threadIdx.x, &row, &u))
                continue;
            const struct move_place place = move_row(&moves[m], row);
            dst[r] = (unit *)(moves[m].dst + place.dst) + u;
            value[r] = ((const unit *)(moves[m].src + place.src))[u];
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (dst[r] != NULL)
                *dst[r] = value[r];
    }
}

#endif
