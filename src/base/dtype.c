/* base/dtype.c -- names of types and conversions that are not inline. */
#include "base/dtype.h"
#include "base/text.h"

static const char *const names[DTYPE_COUNT] = {"fp32", "bf16", "fp16"};

const char *dtype_name(enum dtype dtype)
{
    return (unsigned)dtype < DTYPE_COUNT ? names[dtype] : "unknown";
}

enum status dtype_parse(const char *text, const char *option, enum dtype *out)
{
    /* The names that PyTorch and HuggingFace configurations use mean the same. */
    static const char *const aliases[][2] = {{"float32", "fp32"}, {"bfloat16", "bf16"}, {"float16", "fp16"}};
    if (!text)
        text = "";
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (strcmp(text, aliases[i][0]) == 0)
            text = aliases[i][1];
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (enum dtype)i;
            return STATUS_OK;
        }
    }
    return HINT(WHERE(FAIL(STATUS_USAGE, "'%.40s' is not a data type", text), "%s", option), "use fp32, bf16 or fp16");
}

float dtype_from_fp16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1fu, fraction = bits & 0x3ffu;
    uint32_t wide;
    float value;
    if (exponent == 0) { /* zero and subnormals: fraction * 2^-24, exact in fp32 */
        value = (float)fraction * 0x1p-24f;
        memcpy(&wide, &value, sizeof wide);
        wide |= sign;
    } else {
        uint32_t wide_exponent = exponent == 0x1f ? 0xffu : exponent + 112;
        wide = sign | wide_exponent << 23 | fraction << 13;
    }
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Round to nearest even; NaN stays NaN, beyond 65504 (rounded) is infinity. */
uint16_t dtype_to_fp16(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    uint32_t sign = wide >> 16 & 0x8000u, magnitude = wide & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520, the first value that rounds to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14 the step is 2^-24: let the FPU round at that step */
        float absolute;
        memcpy(&absolute, &magnitude, sizeof absolute);
        float shifted = absolute + 0.5f; /* 0.5 has an ulp of 2^-24 */
        uint32_t rounded;
        memcpy(&rounded, &shifted, sizeof rounded);
        return (uint16_t)(sign | (rounded - 0x3f000000u));
    }
    uint32_t rounded = magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | rounded >> 13);
}

void dtype_load(enum dtype dtype, const void *src, float *dst, int64_t n)
{
    const uint16_t *narrow = src;
    if (n <= 0)
        return;
    if (dtype == DTYPE_FP32)
        memmove(dst, src, (size_t)n * sizeof *dst);
    else if (dtype == DTYPE_BF16)
        for (int64_t i = 0; i < n; i++)
            dst[i] = dtype_from_bf16(narrow[i]);
    else
        for (int64_t i = 0; i < n; i++)
            dst[i] = dtype_from_fp16(narrow[i]);
}

void dtype_store(enum dtype dtype, const float *src, void *dst, int64_t n)
{
    uint16_t *narrow = dst;
    if (n <= 0)
        return;
    if (dtype == DTYPE_FP32)
        memmove(dst, src, (size_t)n * sizeof *src);
    else if (dtype == DTYPE_BF16)
        for (int64_t i = 0; i < n; i++)
            narrow[i] = dtype_to_bf16(src[i]);
    else
        for (int64_t i = 0; i < n; i++)
            narrow[i] = dtype_to_fp16(src[i]);
}

float dtype_get(enum dtype dtype, const void *base, int64_t index)
{
    float value;
    dtype_load(dtype, (const char *)base + index * dtype_bytes(dtype), &value, 1);
    return value;
}

void dtype_set(enum dtype dtype, void *base, int64_t index, float value)
{
    dtype_store(dtype, &value, (char *)base + index * dtype_bytes(dtype), 1);
}
