/* kernels/simd.h -- one float vector of the widest kind this file is compiled for, and 2^x on it.
 *
 * GCC and Clang vector types carry the arithmetic, so the same source gives AVX-512, AVX2, SSE2 and NEON code; only max
 * and the square root have no operator. Files that include this are compiled once per instruction set (CMakeLists.txt) and chosen at run
 * time (attention_cpu.c).
 */
#ifndef SPTUNE_KERNELS_SIMD_H
#define SPTUNE_KERNELS_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define SIMD_FLOATS 16
#elif defined(__AVX2__)
#define SIMD_FLOATS 8
#else
#define SIMD_FLOATS 4
#endif

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define SIMD_INLINE static inline __attribute__((always_inline))

typedef float simd __attribute__((vector_size(SIMD_FLOATS * 4)));
typedef uint32_t simd_bits __attribute__((vector_size(SIMD_FLOATS * 4)));
typedef float simd_unaligned __attribute__((vector_size(SIMD_FLOATS * 4), aligned(4), may_alias));

SIMD_INLINE simd simd_load(const float *p)
{
    return *(const simd_unaligned *)p;
}

SIMD_INLINE void simd_store(float *p, simd value)
{
    *(simd_unaligned *)p = value;
}

SIMD_INLINE simd simd_set(float value)
{
    return value - (simd){0}; /* exact for every value, so it compiles to a broadcast */
}

/* A NaN in b comes through: on x86 the second operand wins, NEON returns NaN for either. */
SIMD_INLINE simd simd_max(simd a, simd b)
{
#if defined(__AVX512F__)
    return (simd)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (simd)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (simd)_mm_max_ps((__m128)a, (__m128)b);
#elif defined(__ARM_NEON)
    return (simd)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
    simd_bits a_greater = (simd_bits)(a > b);
    return (simd)((a_greater & (simd_bits)a) | (~a_greater & (simd_bits)b));
#endif
}

#if defined(__SSE2__)
SIMD_INLINE float simd_max_lanes4(__m128 value)
{
    value = _mm_max_ps(value, _mm_movehl_ps(value, value));
    return _mm_cvtss_f32(_mm_max_ss(value, _mm_shuffle_ps(value, value, 1)));
}
#endif

SIMD_INLINE float simd_max_lanes(simd value)
{
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)value);
#elif defined(__AVX2__)
    return simd_max_lanes4(_mm_max_ps(_mm256_castps256_ps128((__m256)value), _mm256_extractf128_ps((__m256)value, 1)));
#elif defined(__SSE2__)
    return simd_max_lanes4((__m128)value);
#elif defined(__ARM_NEON)
    return vmaxvq_f32((float32x4_t)value);
#else
    float max = value[0];
    for (int i = 1; i < SIMD_FLOATS; i++)
        max = value[i] > max ? value[i] : max;
    return max;
#endif
}

SIMD_INLINE simd simd_sqrt(simd value)
{
#if defined(__AVX512F__)
    return (simd)_mm512_sqrt_ps((__m512)value);
#elif defined(__AVX2__)
    return (simd)_mm256_sqrt_ps((__m256)value);
#elif defined(__SSE2__)
    return (simd)_mm_sqrt_ps((__m128)value);
#else
    for (int i = 0; i < SIMD_FLOATS; i++)
        value[i] = sqrtf(value[i]);
    return value;
#endif
}

SIMD_INLINE float simd_sum_lanes(simd value)
{
    float lanes[SIMD_FLOATS];
    memcpy(lanes, &value, sizeof lanes);
    for (int n = SIMD_FLOATS / 2; n > 0; n /= 2) /* pairwise, the same order everywhere */
        for (int i = 0; i < n; i++)
            lanes[i] += lanes[i + n];
    return lanes[0];
}

/* 2^-x for x >= 0, relative error 1e-7; below 0 it is 2^0, beyond 125 it is 0, NaN stays NaN.
 *
 * -x = n + f, n whole, f in [-1/2, 1/2]: subtracting from 1.5 * 2^23 rounds to whole and leaves n in the low bits, from
 * where it is added to the exponent. 2^f is the minimax polynomial of degree 6 (relative error 1.9e-9 before rounding;
 * 2^0 is exactly 1). */
SIMD_INLINE simd simd_exp2_minus(simd x)
{
    const float whole = 0x1.8p23f;
    x = simd_max(simd_set(0.0f), x);
    simd shifted = whole - x;
    simd f = (whole - shifted) - x;
    simd p = simd_set(0x1.41d334p-13f);
    p = p * f + 0x1.5f456ap-10f;
    p = p * f + 0x1.3b2dbcp-7f;
    p = p * f + 0x1.c6aed4p-5f;
    p = p * f + 0x1.ebfbdap-3f;
    p = p * f + 0x1.62e430p-1f;
    p = p * f + 1.0f;
    simd_bits power = (simd_bits)p + ((simd_bits)shifted << 23);
    return (simd)(power & ~(simd_bits)(x > 125.0f));
}

#endif
