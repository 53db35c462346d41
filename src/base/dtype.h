/* base/dtype.h -- storage types and their conversions. Accumulation is always fp32 or wider. */
#ifndef SPTUNE_BASE_DTYPE_H
#define SPTUNE_BASE_DTYPE_H

#include "base/status.h"

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dtype { DTYPE_FP32, DTYPE_BF16, DTYPE_FP16, DTYPE_COUNT };

const char *dtype_name(enum dtype dtype); /* "bf16" */
enum status dtype_parse(const char *text, const char *option, enum dtype *out);

static inline int dtype_bytes(enum dtype dtype)
{
    return dtype == DTYPE_FP32 ? 4 : 2;
}

static inline float dtype_from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t dtype_to_bf16(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    if ((wide & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((wide >> 16) | 0x40u);
    return (uint16_t)((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
}

float dtype_from_fp16(uint16_t bits);
uint16_t dtype_to_fp16(float value);

/* n elements of `dtype` at src to fp32, and back with one rounding. */
void dtype_load(enum dtype dtype, const void *src, float *dst, int64_t n);
void dtype_store(enum dtype dtype, const float *src, void *dst, int64_t n);
float dtype_get(enum dtype dtype, const void *base, int64_t index);
void dtype_set(enum dtype dtype, void *base, int64_t index, float value);

#ifdef __cplusplus
}
#endif
#endif
