/* kernels/attention_cpu_forward.c -- forward attention on one CPU thread; compiled once per instruction set.
 *
 * For each kv head, K and V of the segment are packed once and serve all its query heads. Then per block of BLOCK_Q
 * queries:
 *
 *   for each block of keys that some query sees            causal, window and documents skip the others
 *     for each panel of MICRO_ROWS queries
 *       S = Q K^T          MICRO_ROWS x up to BLOCK_K, in L1 (4.5 KiB)
 *       hide keys outside each row's range; new row maximum; P = 2^((S - max) scale log2 e); row sum
 *       O = alpha O + P V  alpha = 2^((old max - new max) scale log2 e), applied as O is loaded
 *   O / sum, LSE
 *
 * Cost at head_dim 128: 512 FLOP per pair in the micro-kernel (16 cycles of AVX2), softmax about 18 instructions per 8
 * pairs.
 */
#include "kernels/attention_cpu_block.h"

enum { PAIR = 2 * SIMD_FLOATS }; /* two vectors at a time hide the latency of max and add */

struct forward {
    const struct attention_shape *shape;
    const struct attention_args *args;
    struct attention_segment segment;
    struct scale scale;
    int64_t dim_v_padded;
    float *k_cols, *v_lanes; /* the segment's, of one kv head */
    float *q_rows;           /* [BLOCK_Q / MICRO_ROWS] panels */
    float *o;                /* [BLOCK_Q][dim_v_padded] */
    float *p;                /* [MICRO_ROWS][BLOCK_K] */
    float max[BLOCK_Q], sum[BLOCK_Q];
};

static size_t forward_lay(struct forward *forward, const struct attention_shape *shape, char *base)
{
    struct carver carver = {base, 0};
    int64_t seq_k = attention_longest_keys(shape);
    forward->dim_v_padded = round_up(shape->head_dim_v, MICRO_COLS);
    forward->k_cols = carve(&carver, round_up(seq_k, MICRO_COLS) * shape->head_dim);
    forward->v_lanes = carve(&carver, round_up(seq_k, BLOCK_K) * forward->dim_v_padded);
    forward->q_rows = carve(&carver, (int64_t)BLOCK_Q * shape->head_dim);
    forward->o = carve(&carver, BLOCK_Q * forward->dim_v_padded);
    forward->p = carve(&carver, (int64_t)MICRO_ROWS * BLOCK_K);
    return carver.used;
}

size_t ATTENTION_CPU_NAMED(forward_bytes)(const struct attention_shape *shape)
{
    struct forward forward;
    return forward_lay(&forward, shape, NULL) + 64;
}

/* One row of S becomes P, in place. `seen` lies within [0, n), n a multiple of MICRO_COLS. Returns alpha. */
static float softmax_row(float *s, int64_t n, struct attention_range seen, float log2, float *max, float *sum)
{
    if (seen.first >= seen.end) {
        memset(s, 0, (size_t)n * sizeof *s);
        return 1.0f;
    }
    for (int64_t j = 0; j < seen.first; j++)
        s[j] = -INFINITY;
    for (int64_t j = seen.end; j < n; j++)
        s[j] = -INFINITY;
    simd high[2] = {simd_set(*max), simd_set(*max)}, total[2] = {simd_set(0.0f), simd_set(0.0f)};
    for (int64_t j = 0; j < n; j += PAIR) {
        high[0] = simd_max(high[0], simd_load(s + j));
        high[1] = simd_max(high[1], simd_load(s + j + SIMD_FLOATS));
    }
    float top = simd_max_lanes(simd_max(high[0], high[1]));
    top = top > FLT_MAX    ? FLT_MAX
          : top > -FLT_MAX ? top
                           : -FLT_MAX; /* q . k beyond fp32: no inf - inf; a NaN shows in P */
    float alpha = exp2f((*max - top) * log2);
    for (int64_t j = 0; j < n; j += PAIR)
        for (int64_t h = 0; h < 2; h++) {
            float *at = s + j + h * SIMD_FLOATS;
            simd p = simd_exp2_minus((top - simd_load(at)) * log2);
            simd_store(at, p);
            total[h] += p;
        }
    *max = top;
    *sum = *sum * alpha + simd_sum_lanes(total[0] + total[1]);
    return alpha;
}

/* One panel of queries against the keys of the block at `block` that the panel sees. */
static void forward_panel(struct forward *forward, const struct block_keys *keys, int64_t panel, int64_t block)
{
    const struct attention_shape *shape = forward->shape;
    struct attention_range range = range_in_block(keys->panel[panel], block, MICRO_COLS);
    int64_t row = panel * MICRO_ROWS, n = range.end - range.first, from = block + range.first;
    float alpha[MICRO_ROWS];
    if (n == 0)
        return;
    for (int64_t j = 0; j < n; j += MICRO_COLS)
        micro_tile(MICRO_SET, shape->head_dim, forward->q_rows + row * shape->head_dim, 1, MICRO_ROWS,
                   forward->k_cols + (from + j) * shape->head_dim, forward->p + j, BLOCK_K, NULL);
    for (int64_t r = 0; r < MICRO_ROWS; r++) {
        struct attention_range seen = keys->row[row + r];
        seen.first = attention_clamp(seen.first - from, 0, n);
        seen.end = attention_clamp(seen.end - from, 0, n);
        alpha[r] = softmax_row(forward->p + r * BLOCK_K, n, seen, forward->scale.log2, &forward->max[row + r],
                               &forward->sum[row + r]);
    }
    const float *v = forward->v_lanes + block * forward->dim_v_padded + range.first * MICRO_COLS;
    for (int64_t t = 0; t < forward->dim_v_padded; t += MICRO_COLS)
        micro_tile(MICRO_SCALE_ADD, n, forward->p, BLOCK_K, 1, v + t * BLOCK_K,
                   forward->o + row * forward->dim_v_padded + t, forward->dim_v_padded, alpha);
}

static void forward_store(const struct forward *forward, int head, int64_t from, int64_t count)
{
    const struct attention_shape *shape = forward->shape;
    int64_t token = attention_q_token(shape, &forward->segment, from);
    float *lse = forward->args->lse + attention_lse_index(shape, &forward->segment, head, from);
    char *out = (char *)forward->args->o +
                (token * shape->o_stride + (int64_t)head * shape->head_dim_v) * dtype_bytes(shape->dtype);
    for (int64_t i = 0; i < count; i++, out += shape->o_stride * dtype_bytes(shape->dtype)) {
        float *o = forward->o + i * forward->dim_v_padded, sum = forward->sum[i];
        lse[i] = sum == 0 ? -INFINITY
                          : (float)((double)forward->max[i] * (double)forward->scale.magnitude + log((double)sum));
        for (int64_t t = 0; t < forward->dim_v_padded; t += SIMD_FLOATS)
            simd_store(o + t, sum == 0 ? simd_set(0.0f) : simd_load(o + t) / sum);
        dtype_store(shape->dtype, o, out, shape->head_dim_v);
    }
}

static void forward_block(struct forward *forward, const struct rows *q, int head, int64_t from)
{
    struct block_keys keys;
    int64_t count = least(forward->segment.seq_q - from, BLOCK_Q);
    block_keys_get(forward->shape, &forward->segment, from, count, &keys);
    pack_rows(q, from, count, forward->scale.sign, forward->q_rows);
    memset(forward->o, 0, (size_t)(BLOCK_Q * forward->dim_v_padded) * sizeof(float));
    for (int i = 0; i < BLOCK_Q; i++) {
        forward->max[i] = -INFINITY;
        forward->sum[i] = 0;
    }
    for (int64_t block = round_down(keys.all.first, BLOCK_K); block < keys.all.end; block += BLOCK_K)
        for (int64_t panel = 0; panel * MICRO_ROWS < count; panel++)
            forward_panel(forward, &keys, panel, block);
    forward_store(forward, head, from, count);
}

static void forward_kv_head(struct forward *forward, int kv)
{
    const struct attention_shape *shape = forward->shape;
    const struct attention_args *args = forward->args;
    const struct attention_segment *segment = &forward->segment;
    struct attention_range heads = attention_heads_of(shape, kv);
    int64_t q_token = attention_q_token(shape, segment, 0), k_token = attention_k_token(shape, segment, 0);
    struct rows k = {shape->dtype, args->k, k_token * shape->k_stride + (int64_t)kv * shape->head_dim, shape->k_stride,
                     shape->head_dim};
    struct rows v = {shape->dtype, args->v, k_token * shape->v_stride + (int64_t)kv * shape->head_dim_v,
                     shape->v_stride, shape->head_dim_v};
    if (heads.first >= heads.end || segment->seq_q == 0)
        return;
    if (!segment->hidden) {
        pack_cols(&k, segment->seq_k, forward->k_cols);
        pack_lane_blocks(&v, segment->seq_k, forward->v_lanes);
    }
    for (int64_t head = heads.first; head < heads.end; head++) {
        struct rows q = {shape->dtype, args->q, q_token * shape->q_stride + head * shape->head_dim, shape->q_stride,
                         shape->head_dim};
        for (int64_t from = 0; from < segment->seq_q; from += BLOCK_Q)
            forward_block(forward, &q, (int)head, from);
    }
}

void ATTENTION_CPU_NAMED(forward)(const struct attention_shape *shape, const struct attention_args *args)
{
    struct forward forward = {.shape = shape, .args = args, .scale = scale_split(shape->scale)};
    forward_lay(&forward, shape, align_line(args->workspace));
    for (int64_t i = 0; i < attention_segment_count(shape); i++) {
        forward.segment = attention_segment_get(shape, i);
        for (int kv = 0; kv < shape->kv_heads; kv++)
            forward_kv_head(&forward, kv);
    }
}
