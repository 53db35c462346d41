/* kernels/nn_simd.h -- rows of any length in vectors of simd.h: the last vector is filled up. Vectors are loaded before anything is stored
 * at their place, so a result may lie where an input does.
 */
#ifndef SPTUNE_KERNELS_NN_SIMD_H
#define SPTUNE_KERNELS_NN_SIMD_H

#include "kernels/simd.h"

/* The first `left` floats at p, or as many as a vector has; `fill` behind them. */
SIMD_INLINE simd nn_take_or(const float *p, int64_t left, float fill)
{
    if (left >= SIMD_FLOATS)
        return simd_load(p);
    float lanes[SIMD_FLOATS];
    simd_store(lanes, simd_set(fill));
    memcpy(lanes, p, (size_t)left * sizeof *p);
    return simd_load(lanes);
}

SIMD_INLINE simd nn_take(const float *p, int64_t left)
{
    return nn_take_or(p, left, 0.0f);
}

SIMD_INLINE void nn_give(float *p, int64_t left, simd value)
{
    if (left >= SIMD_FLOATS) {
        simd_store(p, value);
        return;
    }
    float lanes[SIMD_FLOATS];
    simd_store(lanes, value);
    memcpy(p, lanes, (size_t)left * sizeof *p);
}

/* i in steps of a vector, `left` elements from there on. */
#define NN_EACH(i, left, n) for (int64_t i = 0, left = (n); left > 0; i += SIMD_FLOATS, left -= SIMD_FLOATS)

/* exp(-x) for x >= 0; relative error 1e-7 * (1 + x). */
SIMD_INLINE simd nn_exp_minus(simd x)
{
    return simd_exp2_minus(x * 0x1.715476p+0f);
}

/* 1 / (1 + exp(-x)), by exp of what is not positive: nothing overflows. */
SIMD_INLINE simd nn_sigmoid(simd x)
{
    const uint32_t sign = 0x80000000u;
    simd e = nn_exp_minus((simd)((simd_bits)x & ~sign));
    simd_bits negative = (simd_bits)(x < 0.0f);
    simd top = (simd)((negative & (simd_bits)e) | (~negative & (simd_bits)simd_set(1.0f)));
    return top / (1.0f + e);
}

#endif
