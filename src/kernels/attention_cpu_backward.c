/* kernels/attention_cpu_backward.c -- backward attention on one CPU thread; compiled once per instruction set.
 *
 * For each kv head, K and V of the segment are packed once; dK and dV are summed in fp32 over all its query heads and
 * rounded once. Per block of BLOCK_Q queries, for each block of keys that some query sees:
 *
 *   S = Q K^T, dP = dO V^T                   per panel of MICRO_ROWS queries, into two tiles [BLOCK_Q][BLOCK_K]
 *   P = 2^((S scale - LSE) log2 e)           0 outside each row's range of keys
 *   dS = P (dP - D) scale                    D = sum of dO O, once per row
 *   dQ += dS K                               per panel of queries
 *   dV += P^T dO, dK += dS^T Q               per panel of MICRO_ROWS keys; the tile is read by columns
 *
 * Five products, 10 * head_dim FLOP per pair. Tiles take 2 * 36 KiB, one block of packed K, V, K again, dK, dV 480 KiB
 * at head_dim 128: L2 on machines with 512 KiB or more, else 2.5 KiB per key from L3 for 61 kFLOP, 4 GB/s at 100
 * GFLOP/s. The order of every sum is fixed: heads, blocks of queries, blocks of keys ascending. With dkv_accumulate the
 * sums start from what dk and dv hold, so a group of heads split over several calls in order gives the bits of one
 * call.
 */
#include "kernels/attention_cpu_block.h"

struct backward {
    const struct attention_shape *shape;
    const struct attention_args *args;
    struct attention_segment segment;
    struct scale scale;
    int64_t dim_padded, dim_v_padded;
    float *k_cols, *v_cols, *k_lanes; /* the segment's, of one kv head */
    float *dk, *dv;                   /* [seq_k rounded up][dim_padded], [..][dim_v_padded] */
    float *q_rows, *do_rows;          /* A operands of S and dP */
    float *q_lanes, *do_lanes;        /* B operands of dK and dV */
    float *dq;                        /* [BLOCK_Q][dim_padded] */
    float *p, *ds;                    /* [BLOCK_Q][BLOCK_K] */
    float lse[BLOCK_Q], d[BLOCK_Q];
};

static size_t backward_lay(struct backward *backward, const struct attention_shape *shape, char *base)
{
    struct carver carver = {base, 0};
    int64_t seq_k = attention_longest_keys(shape);
    int64_t dim = shape->head_dim, dim_v = shape->head_dim_v;
    backward->dim_padded = round_up(dim, MICRO_COLS);
    backward->dim_v_padded = round_up(dim_v, MICRO_COLS);
    backward->k_cols = carve(&carver, round_up(seq_k, MICRO_COLS) * dim);
    backward->v_cols = carve(&carver, round_up(seq_k, MICRO_COLS) * dim_v);
    backward->k_lanes = carve(&carver, round_up(seq_k, BLOCK_K) * backward->dim_padded);
    backward->dk = carve(&carver, round_up(seq_k, TILE_STEP) * backward->dim_padded);
    backward->dv = carve(&carver, round_up(seq_k, TILE_STEP) * backward->dim_v_padded);
    backward->q_rows = carve(&carver, BLOCK_Q * dim);
    backward->do_rows = carve(&carver, BLOCK_Q * dim_v);
    backward->q_lanes = carve(&carver, BLOCK_Q * backward->dim_padded);
    backward->do_lanes = carve(&carver, BLOCK_Q * backward->dim_v_padded);
    backward->dq = carve(&carver, BLOCK_Q * backward->dim_padded);
    backward->p = carve(&carver, (int64_t)BLOCK_Q * BLOCK_K);
    backward->ds = carve(&carver, (int64_t)BLOCK_Q * BLOCK_K);
    return carver.used;
}

size_t ATTENTION_CPU_NAMED(backward_bytes)(const struct attention_shape *shape)
{
    struct backward backward;
    return backward_lay(&backward, shape, NULL) + 64;
}

/* D of each row: rows of dO times rows of O. */
static void row_products(const struct rows *d_o, const struct rows *o, int64_t from, int64_t count, float *d)
{
    float a[ATTENTION_CPU_DIM_MAX + PAD_MAX] = {0}, b[ATTENTION_CPU_DIM_MAX + PAD_MAX] = {0};
    for (int64_t i = 0; i < count; i++) {
        simd sum = simd_set(0.0f);
        rows_load(d_o, from + i, a);
        rows_load(o, from + i, b);
        for (int t = 0; t < o->dim; t += SIMD_FLOATS)
            sum += simd_load(a + t) * simd_load(b + t);
        d[i] = simd_sum_lanes(sum);
    }
}

/* One row of S and dP becomes P and dS, in place; 0 outside `seen`, which lies within [0, n). */
static void gradient_row(const struct backward *backward, int64_t row, float *p, float *ds, int64_t n,
                         struct attention_range seen)
{
    float lse = backward->lse[row], d = backward->d[row], scale = backward->shape->scale;
    if (lse == -INFINITY)
        seen.end = seen.first;
    lse = lse > FLT_MAX ? FLT_MAX : lse; /* beyond fp32: no inf - inf */
    int64_t first = round_down(seen.first, SIMD_FLOATS),
            end = seen.first < seen.end ? round_up(seen.end, SIMD_FLOATS) : first;
    for (int64_t j = first; j < end; j += SIMD_FLOATS) {
        simd x = (lse - simd_load(p + j) * backward->scale.magnitude) * (float)M_LOG2E;
        simd value = simd_exp2_minus(x);
        simd_store(p + j, value);
        simd_store(ds + j, value * (simd_load(ds + j) - d) * scale);
    }
    memset(p, 0, (size_t)seen.first * sizeof *p);
    memset(ds, 0, (size_t)seen.first * sizeof *ds);
    memset(p + seen.end, 0, (size_t)(n - seen.end) * sizeof *p);
    memset(ds + seen.end, 0, (size_t)(n - seen.end) * sizeof *ds);
}

/* P, dS and dQ of one panel of queries against the tile columns [tile.first, tile.end) of the block of keys. */
static void backward_panel(struct backward *backward, const struct block_keys *keys, int64_t panel, int64_t block,
                           struct attention_range tile)
{
    const struct attention_shape *shape = backward->shape;
    struct attention_range range = range_in_block(keys->panel[panel], block, MICRO_COLS);
    int64_t row = panel * MICRO_ROWS, n = range.end - range.first;
    float *p = backward->p + row * BLOCK_K, *ds = backward->ds + row * BLOCK_K;
    for (int64_t j = range.first; j < range.end; j += MICRO_COLS) {
        micro_tile(MICRO_SET, shape->head_dim, backward->q_rows + row * shape->head_dim, 1, MICRO_ROWS,
                   backward->k_cols + (block + j) * shape->head_dim, p + j, BLOCK_K, NULL);
        micro_tile(MICRO_SET, shape->head_dim_v, backward->do_rows + row * shape->head_dim_v, 1, MICRO_ROWS,
                   backward->v_cols + (block + j) * shape->head_dim_v, ds + j, BLOCK_K, NULL);
    }
    for (int64_t r = 0; r < MICRO_ROWS; r++) {
        struct attention_range seen = keys->row[row + r];
        seen.first = attention_clamp(seen.first - block, tile.first, tile.end) - tile.first;
        seen.end = attention_clamp(seen.end - block, tile.first, tile.end) - tile.first;
        gradient_row(backward, row + r, p + r * BLOCK_K + tile.first, ds + r * BLOCK_K + tile.first,
                     tile.end - tile.first, seen);
    }
    const float *k = backward->k_lanes + block * backward->dim_padded + range.first * MICRO_COLS;
    for (int64_t t = 0; n > 0 && t < backward->dim_padded; t += MICRO_COLS)
        micro_tile(MICRO_ADD, n, ds + range.first, BLOCK_K, 1, k + t * BLOCK_K,
                   backward->dq + row * backward->dim_padded + t, backward->dim_padded, NULL);
}

/* dK and dV of the tile's keys, summed over `count` queries. */
static void backward_keys(struct backward *backward, int64_t count, int64_t block, struct attention_range tile)
{
    int64_t dim = backward->dim_padded, dim_v = backward->dim_v_padded;
    for (int64_t j = tile.first; j < tile.end; j += MICRO_ROWS) {
        for (int64_t t = 0; t < dim_v; t += MICRO_COLS)
            micro_tile(MICRO_ADD, count, backward->p + j, 1, BLOCK_K, backward->do_lanes + t * BLOCK_Q,
                       backward->dv + (block + j) * dim_v + t, dim_v, NULL);
        for (int64_t t = 0; t < dim; t += MICRO_COLS)
            micro_tile(MICRO_ADD, count, backward->ds + j, 1, BLOCK_K, backward->q_lanes + t * BLOCK_Q,
                       backward->dk + (block + j) * dim + t, dim, NULL);
    }
}

static void backward_block(struct backward *backward, int head, int64_t from)
{
    const struct attention_shape *shape = backward->shape;
    const struct attention_args *args = backward->args;
    const struct attention_segment *segment = &backward->segment;
    int64_t count = least(segment->seq_q - from, BLOCK_Q), token = attention_q_token(shape, segment, from);
    struct rows q = {shape->dtype, args->q, token * shape->q_stride + (int64_t)head * shape->head_dim, shape->q_stride,
                     shape->head_dim};
    struct rows o = {shape->dtype, args->o, token * shape->o_stride + (int64_t)head * shape->head_dim_v,
                     shape->o_stride, shape->head_dim_v};
    struct rows d_o = {o.dtype, args->d_o, o.first, o.stride, o.dim};
    struct block_keys keys;
    block_keys_get(shape, segment, from, count, &keys);
    pack_rows(&q, 0, count, backward->scale.sign, backward->q_rows);
    pack_rows(&d_o, 0, count, 1.0f, backward->do_rows);
    pack_lanes(&q, 0, count, BLOCK_Q, backward->q_lanes);
    pack_lanes(&d_o, 0, count, BLOCK_Q, backward->do_lanes);
    row_products(&d_o, &o, 0, count, backward->d);
    memcpy(backward->lse, args->lse + attention_lse_index(shape, segment, head, from), (size_t)count * sizeof(float));
    memset(backward->dq, 0, (size_t)(BLOCK_Q * backward->dim_padded) * sizeof(float));
    for (int64_t block = round_down(keys.all.first, BLOCK_K); block < keys.all.end; block += BLOCK_K) {
        struct attention_range tile = range_in_block(keys.all, block, TILE_STEP);
        for (int64_t panel = 0; panel * MICRO_ROWS < count; panel++)
            backward_panel(backward, &keys, panel, block, tile);
        backward_keys(backward, count, block, tile);
    }
    for (int64_t i = 0; i < count; i++)
        dtype_store(shape->dtype, backward->dq + i * backward->dim_padded,
                    (char *)args->dq + (q.first + i * q.stride) * dtype_bytes(shape->dtype), shape->head_dim);
}

/* The fp32 sums of one kv head: from zero or from `tensor`, and back. */
static void sums_begin(const struct rows *tensor, bool accumulate, int64_t count, int64_t padded, float *sums)
{
    memset(sums, 0, (size_t)(round_up(count, TILE_STEP) * padded) * sizeof(float));
    for (int64_t j = 0; accumulate && j < count; j++)
        rows_load(tensor, j, sums + j * padded);
}

static void sums_end(const struct rows *tensor, void *base, int64_t count, int64_t padded, const float *sums)
{
    for (int64_t j = 0; j < count; j++)
        dtype_store(tensor->dtype, sums + j * padded,
                    (char *)base + (tensor->first + j * tensor->stride) * dtype_bytes(tensor->dtype), tensor->dim);
}

static void backward_kv_head(struct backward *backward, int kv)
{
    const struct attention_shape *shape = backward->shape;
    const struct attention_args *args = backward->args;
    const struct attention_segment *segment = &backward->segment;
    struct attention_range heads = attention_heads_of(shape, kv);
    enum dtype out = args->dkv_fp32 ? DTYPE_FP32 : shape->dtype;
    int64_t k_token = attention_k_token(shape, segment, 0), count = segment->seq_k;
    struct rows k = {shape->dtype, args->k, k_token * shape->k_stride + (int64_t)kv * shape->head_dim, shape->k_stride,
                     shape->head_dim};
    struct rows v = {shape->dtype, args->v, k_token * shape->v_stride + (int64_t)kv * shape->head_dim_v,
                     shape->v_stride, shape->head_dim_v};
    struct rows dk = {out, args->dk, k.first, k.stride, k.dim}, dv = {out, args->dv, v.first, v.stride, v.dim};
    sums_begin(&dk, args->dkv_accumulate, count, backward->dim_padded, backward->dk);
    sums_begin(&dv, args->dkv_accumulate, count, backward->dim_v_padded, backward->dv);
    if (heads.first < heads.end && segment->seq_q > 0 && !segment->hidden) {
        pack_cols(&k, count, backward->k_cols);
        pack_cols(&v, count, backward->v_cols);
        pack_lane_blocks(&k, count, backward->k_lanes);
    }
    for (int64_t head = heads.first; head < heads.end; head++)
        for (int64_t from = 0; from < segment->seq_q; from += BLOCK_Q)
            backward_block(backward, (int)head, from);
    sums_end(&dk, args->dk, count, backward->dim_padded, backward->dk);
    sums_end(&dv, args->dv, count, backward->dim_v_padded, backward->dv);
}

void ATTENTION_CPU_NAMED(backward)(const struct attention_shape *shape, const struct attention_args *args)
{
    struct backward backward = {.shape = shape, .args = args, .scale = scale_split(shape->scale)};
    backward_lay(&backward, shape, align_line(args->workspace));
    for (int64_t i = 0; i < attention_segment_count(shape); i++) {
        backward.segment = attention_segment_get(shape, i);
        for (int kv = 0; kv < shape->kv_heads; kv++)
            backward_kv_head(&backward, kv);
    }
}
