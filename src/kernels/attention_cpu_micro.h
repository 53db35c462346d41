/* kernels/attention_cpu_micro.h -- the micro-kernel of the CPU attention: a MICRO_ROWS x MICRO_COLS tile of C from
 * packed panels.
 *
 *            B panel [k][MICRO_COLS]      A is read one number at a time, broadcast, in one of two forms:
 *                 t -> b0 b1 ...            by columns: a[t * step + r], a panel [k][MICRO_ROWS]
 *                                                       or the transpose of a tile
 *   A   r  a(r,t)    += a(r,t) * b          by rows:    a[r * step + t], a row-major tile
 *
 * Each step t is MICRO_ROWS * MICRO_VECTORS FMAs for MICRO_ROWS broadcasts and MICRO_VECTORS loads: AVX2 with 6 x 16
 * needs 12 accumulators + 2 of B + 1 broadcast of 16 registers and issues 12 FMAs for 8 loads, so two FMA units, two
 * load ports and a latency of 4 (8 FMAs in flight) are all satisfied. AVX-512 and NEON have 32 registers: 12 x 32 and
 * 6 x 16 use 24 accumulators. C is read and written once per call: 24 accesses per 12 * k FMAs, 4 % at k = 48.
 */
#ifndef SPTUNE_KERNELS_ATTENTION_CPU_MICRO_H
#define SPTUNE_KERNELS_ATTENTION_CPU_MICRO_H

#include "kernels/simd.h"

enum {
#if defined(__AVX512F__)
    MICRO_ROWS = 12,
    MICRO_VECTORS = 2,
#elif defined(__ARM_NEON)
    MICRO_ROWS = 6,
    MICRO_VECTORS = 4,
#else
    MICRO_ROWS = 6,
    MICRO_VECTORS = 2,
#endif
    MICRO_COLS = MICRO_VECTORS * SIMD_FLOATS,
};

enum micro_mode { MICRO_SET, MICRO_ADD, MICRO_SCALE_ADD }; /* C = AB; C += AB; C = diag(alpha) C + AB */

/* Inlined with constant row_step or k_step and constant mode, so that each use below is one straight loop. */
SIMD_INLINE void micro_tile(enum micro_mode mode, int64_t k, const float *a, int64_t row_step, int64_t k_step,
                            const float *b, float *c, int64_t c_step, const float *alpha)
{
    simd sum[MICRO_ROWS][MICRO_VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < MICRO_ROWS; r++)
#pragma GCC unroll 4
        for (int64_t v = 0; v < MICRO_VECTORS; v++)
            sum[r][v] = simd_set(0.0f);
    for (int64_t t = 0; t < k; t++, a += k_step, b += MICRO_COLS) {
        simd col[MICRO_VECTORS];
#pragma GCC unroll 4
        for (int64_t v = 0; v < MICRO_VECTORS; v++)
            col[v] = simd_load(b + v * SIMD_FLOATS);
#pragma GCC unroll 12
        for (int r = 0; r < MICRO_ROWS; r++) {
            simd row = simd_set(a[r * row_step]);
#pragma GCC unroll 4
            for (int64_t v = 0; v < MICRO_VECTORS; v++)
                sum[r][v] += row * col[v];
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < MICRO_ROWS; r++, c += c_step)
#pragma GCC unroll 4
        for (int64_t v = 0; v < MICRO_VECTORS; v++) {
            simd out = sum[r][v];
            if (mode == MICRO_ADD)
                out += simd_load(c + v * SIMD_FLOATS);
            if (mode == MICRO_SCALE_ADD)
                out += alpha[r] * simd_load(c + v * SIMD_FLOATS);
            simd_store(c + v * SIMD_FLOATS, out);
        }
}

#endif
