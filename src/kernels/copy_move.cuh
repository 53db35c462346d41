/* kernels/copy_move.cuh -- a block's share of a move, a warp's share of a list of them. ROWS independent loads per thread are in flight at a time. */
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

/* All chunks of `nmoves` moves (for 32 threads), start[m] being the first of move m and start[nmoves] their number, by tickets that the
 * warps of a launch draw from `next`, which is 0 at its begin. `rows` units per thread, at most ROWS, are in flight at a time, of whatever moves. The first
 * ticket of a warp is its own number; where that is all, nothing is drawn. False: nothing was, by any warp. */
template <typename unit, int ROWS>
__device__ __forceinline__ bool move_list(const struct move *moves, const uint32_t *start, int nmoves, uint32_t rows, uint32_t parts,
                                          uint32_t *next)
{
    const uint32_t total = start[nmoves], tickets = move_tickets(total, rows, parts);
    const uint32_t thread = threadIdx.x % 32, warps = blockDim.x / 32 * gridDim.x;
    int m = 0;
    for (uint32_t ticket = threadIdx.x / 32 * gridDim.x + blockIdx.x; ticket < tickets;) {
        uint32_t drawn = tickets; /* asked for now, needed after the copy */
        if (thread == 0 && tickets > warps)
            drawn = warps + atomicAdd(next, 1);
        const uint64_t first = move_ticket(tickets, rows, parts, ticket);
        unit value[ROWS];
        unit *dst[ROWS];
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            uint32_t row, u;
            dst[r] = NULL;
            if (r >= rows || first + r >= total)
                continue;
            const uint32_t chunk = (uint32_t)first + r;
            m = chunk < start[m] ? 0 : m;
            while (chunk >= start[m + 1])
                m++;
            if (!move_unit(&moves[m], 32, chunk - start[m], thread, &row, &u))
                continue;
            const struct move_place place = move_row(&moves[m], row);
            dst[r] = (unit *)(moves[m].dst + place.dst) + u;
            value[r] = ((const unit *)(moves[m].src + place.src))[u];
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (dst[r] != NULL)
                *dst[r] = value[r];
        ticket = __shfl_sync(~0u, drawn, 0);
    }
    return tickets > warps;
}

#endif
