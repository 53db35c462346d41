/* kernels/attention_cpu_block.h -- block sizes of the CPU attention, and packing of operands into the micro-kernel's
 * panels.
 *
 * A block is BLOCK_Q queries against BLOCK_K keys. A panel of packed K or V is read once per block of queries and serves
 * them all from L1; the 192 keys of a block are 192 KiB at head_dim 128. Each K or V byte from L2, L3 or memory serves 48
 * queries: 1 KiB of K and V for 48 * 512 = 24.6 kFLOP, 4 GB/s at 100 GFLOP/s. Packing touches each K
 * and V element once per kv head.
 *
 * Panels, all fp32; missing rows and lanes are 0:
 *
 *   cols   [row / width][t][row % width]          rows lie across: K and V as B operands (width MICRO_COLS),
 *                                                 Q and dO as A operands (width MICRO_ROWS)
 *   lanes  [t / MICRO_COLS][row][t % MICRO_COLS]  lanes lie across: V, K, dO and Q as B operands of sums over tokens
 */
#ifndef SPTUNE_KERNELS_ATTENTION_CPU_BLOCK_H
#define SPTUNE_KERNELS_ATTENTION_CPU_BLOCK_H

#include "kernels/attention_cpu.h"
#include "kernels/attention_cpu_micro.h"
#include "kernels/attention_mask.h"

#include <float.h>
#include <math.h>

enum {
    BLOCK_Q = 48,
    BLOCK_K = 192,
    TILE_STEP = 3 * MICRO_COLS, /* whole panels both as rows and as columns */
    PAD_MAX = 32,               /* widest panel */
    BLOCK_ROWS_MAX = 96,        /* queries of a block at most */
};

_Static_assert((int)BLOCK_Q <= (int)BLOCK_ROWS_MAX && BLOCK_ROWS_MAX % MICRO_ROWS == 0, "block_keys holds a block");
_Static_assert(BLOCK_Q % MICRO_ROWS == 0, "a block of queries is whole row panels");
_Static_assert(TILE_STEP % MICRO_ROWS == 0 && BLOCK_K % TILE_STEP == 0, "a block of keys is whole panels either way");
_Static_assert((int)MICRO_COLS <= (int)PAD_MAX && (int)MICRO_ROWS <= (int)PAD_MAX, "pads hold a panel");

/* This file is compiled under several names: attention_cpu_forward_avx2 and so on. */
#define ATTENTION_CPU_NAMED_(noun, isa) ATTENTION_CPU_JOIN(noun, isa)
#define ATTENTION_CPU_NAMED(noun)       ATTENTION_CPU_NAMED_(noun, SIMD_ISA)

SIMD_INLINE int64_t round_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

SIMD_INLINE int64_t round_down(int64_t n, int64_t step)
{
    return n / step * step;
}

SIMD_INLINE int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

SIMD_INLINE int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Rows of one head inside a tensor: row i starts at element first + i * stride. */
struct rows {
    enum dtype dtype;
    const void *base;
    int64_t first, stride;
    int dim;
};

SIMD_INLINE void rows_load(const struct rows *rows, int64_t i, float *out)
{
    const char *at = (const char *)rows->base + (rows->first + i * rows->stride) * dtype_bytes(rows->dtype);
    dtype_load(rows->dtype, at, out, rows->dim);
}

/* `count` rows from `from` on as one panel of `width` >= count rows, times factor. */
SIMD_INLINE void pack_panel_cols(const struct rows *rows, int64_t from, int64_t count, float factor, int width,
                                 float *out)
{
    float wide[PAD_MAX][ATTENTION_CPU_DIM_MAX];
    for (int64_t i = 0; i < count; i++)
        rows_load(rows, from + i, wide[i]);
    for (int64_t i = count; i < width; i++)
        memset(wide[i], 0, (size_t)rows->dim * sizeof(float));
    for (int t = 0; t < rows->dim; t++)
        for (int i = 0; i < width; i++)
            out[t * width + i] = wide[i][t] * factor;
}

/* B operand: panels of MICRO_COLS rows, (count rounded up) * dim floats. */
static inline void pack_cols(const struct rows *rows, int64_t from, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i += MICRO_COLS)
        pack_panel_cols(rows, from + i, least(count - i, MICRO_COLS), 1.0f, MICRO_COLS, out + i * rows->dim);
}

/* A operand: panels of MICRO_ROWS rows. */
static inline void pack_rows(const struct rows *rows, int64_t from, int64_t count, float factor, float *out)
{
    for (int64_t i = 0; i < count; i += MICRO_ROWS)
        pack_panel_cols(rows, from + i, least(count - i, MICRO_ROWS), factor, MICRO_ROWS, out + i * rows->dim);
}

/* B operand across lanes: each panel has room for `height` rows; rows from count up to a multiple of MICRO_COLS are 0.
 */
static inline void pack_lanes(const struct rows *rows, int64_t from, int64_t count, int64_t height, float *out)
{
    float wide[ATTENTION_CPU_DIM_MAX + PAD_MAX] = {0};
    int64_t padded = least(round_up(count, MICRO_COLS), height);
    for (int64_t i = 0; i < padded; i++) {
        if (i < count)
            rows_load(rows, from + i, wide);
        else
            memset(wide, 0, sizeof wide);
        for (int t = 0; t < rows->dim; t += MICRO_COLS)
            memcpy(out + t * height + i * MICRO_COLS, wide + t, MICRO_COLS * sizeof(float));
    }
}

/* The scale enters in two parts: its sign (or 0) is multiplied into Q, which is exact, its magnitude into the exponent.
 * So the softmax below can rely on a positive factor, and the largest S is the largest score. */
struct scale {
    float sign, magnitude, log2; /* log2: magnitude * log2 e, the factor of exponents */
};

SIMD_INLINE struct scale scale_split(float scale)
{
    float sign = scale < 0 ? -1.0f : scale > 0 ? 1.0f : 0.0f;
    float magnitude = scale == 0 ? 1.0f : fabsf(scale);
    return (struct scale){sign, magnitude, fminf(magnitude * (float)M_LOG2E, FLT_MAX)};
}

/* The keys seen by each query of a block, and by any of a panel. Rows of a panel beyond the block's queries see none. */
struct block_keys {
    struct attention_range row[BLOCK_ROWS_MAX];
    struct attention_range panel[BLOCK_ROWS_MAX / MICRO_ROWS];
    struct attention_range all;
};

SIMD_INLINE struct attention_range range_join(struct attention_range a, struct attention_range b)
{
    if (a.first >= a.end)
        return b;
    if (b.first < b.end)
        a = (struct attention_range){least(a.first, b.first), most(a.end, b.end)};
    return a;
}

/* Up to the end of the last panel that holds any of `count` queries. */
static inline void block_keys_get(const struct attention_shape *shape, const struct attention_segment *segment,
                                  int64_t from, int64_t count, struct block_keys *out)
{
    const struct attention_range none = {0, 0};
    out->all = none;
    for (int64_t i = 0; i < round_up(count, MICRO_ROWS); i++) {
        struct attention_range *panel = &out->panel[i / MICRO_ROWS];
        out->row[i] = i < count ? attention_keys(shape, segment, from + i) : none;
        *panel = i % MICRO_ROWS == 0 ? out->row[i] : range_join(*panel, out->row[i]);
        out->all = range_join(out->all, out->row[i]);
    }
}

/* Part of `range` inside the `width` keys that start at `block`, relative to it, widened to whole steps. */
SIMD_INLINE struct attention_range range_in_block(struct attention_range range, int64_t block, int64_t width,
                                                  int64_t step)
{
    int64_t first = most(range.first, block), end = least(range.end, block + width);
    if (first >= end)
        return (struct attention_range){0, 0};
    return (struct attention_range){round_down(first - block, step), round_up(end - block, step)};
}

/* Workspace is carved in whole cache lines. */
struct carver {
    char *base; /* NULL: only count */
    size_t used;
};

static inline float *carve(struct carver *carver, int64_t floats)
{
    char *at = carver->base == NULL ? NULL : carver->base + carver->used;
    carver->used += (size_t)round_up(floats * (int64_t)sizeof(float), 64);
    return (float *)(void *)at;
}

SIMD_INLINE char *align_line(void *p)
{
    return (char *)p + (64 - ((uintptr_t)p & 63)) % 64;
}

#endif
