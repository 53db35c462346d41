/* kernels/attention_cpu_forward.c -- forward attention on CPU threads; compiled once per instruction set.
 *
 * For each kv head, K and V of the segment are packed once and serve all its query heads. Then threads share the blocks
 * of BLOCK_Q queries, each with its own scratch (84 KiB of Q, O and P at head_dim 128):
 *
 *   for each block of keys that some query sees            causal, window and documents skip the others
 *     for each panel of MICRO_COLS keys, for each panel of MICRO_ROWS queries that sees it
 *       S = Q K^T
 *     for each row
 *       hide keys outside its range; new row maximum; P = 2^((S - max) scale log2 e); row sum
 *     for each panel of MICRO_COLS lanes of V, for each panel of MICRO_ROWS queries
 *       O = alpha O + P V  alpha = 2^((old max - new max) scale log2 e), applied as O is loaded
 *   O / sum, LSE
 *
 * A panel of K or V (8 and 12 KiB with AVX2) is read once per block of queries, from L2 or L3 by the length of the sequence, and then from L1; the other way round, each panel
 * of queries would read all of K and V from L2, 64 bytes per 12 FMAs, which a core of Zen 3 does not sustain beside them.
 *
 * Cost at head_dim 128: 512 FLOP per pair in the micro-kernel (16 cycles of AVX2), softmax about 18 instructions per 8
 * pairs. Row sums stay vectors until the block is done, and the alphas of a panel are computed as one.
 */
#include "kernels/attention_cpu_wave.h"

enum {
    PAIR = 2 * SIMD_FLOATS, /* two vectors at a time hide the latency of max and add */
    PANELS_Q = BLOCK_Q / MICRO_ROWS,
    MICRO_PADDED = (MICRO_ROWS + SIMD_FLOATS - 1) / SIMD_FLOATS * SIMD_FLOATS, /* in whole vectors */
};

struct forward {
    const struct attention_shape *shape;
    const struct attention_args *args;
    struct scale scale;
    int64_t dim_v_padded, thread_floats;
    float *k_cols, *v_lanes; /* of the wave's items */
    float *threads;          /* [threads][thread_floats]: struct block */
    struct wave wave;
};

/* One block of queries, and what a thread needs for it. */
struct block {
    const struct forward *forward;
    const struct wave_item *item;
    const float *k_cols, *v_lanes; /* the item's */
    float *q_rows;                 /* [BLOCK_Q / MICRO_ROWS] panels */
    float *o;                      /* [BLOCK_Q][dim_v_padded] */
    float *p;                      /* [BLOCK_Q][BLOCK_K] */
    float max[BLOCK_Q + MICRO_PADDED], sum[BLOCK_Q][SIMD_FLOATS];
};

static size_t block_lay(const struct forward *forward, float *base, struct block *block)
{
    const struct attention_shape *shape = forward->shape;
    struct carver carver = {(char *)base, 0};
    block->q_rows = carve(&carver, (int64_t)BLOCK_Q * shape->head_dim);
    block->o = carve(&carver, BLOCK_Q * forward->dim_v_padded);
    block->p = carve(&carver, (int64_t)BLOCK_Q * BLOCK_K);
    return carver.used;
}

static int64_t query_blocks(const struct attention_segment *segment)
{
    return (segment->seq_q + BLOCK_Q - 1) / BLOCK_Q;
}

/* Everything but the wave, which takes a while to fill and is not needed to count bytes. Returns rows of keys. */
static int64_t forward_lay(struct forward *forward, const struct attention_shape *shape, int threads, char *base,
                           size_t *used)
{
    struct carver carver = {base, 0};
    struct block block;
    int64_t longest = (attention_longest_queries(shape) + BLOCK_Q - 1) / BLOCK_Q;
    int64_t rows = wave_rows(shape, wave_slots(shape, threads, longest * least(shape->group, shape->heads)), BLOCK_K);
    forward->shape = shape;
    forward->dim_v_padded = round_up(shape->head_dim_v, MICRO_COLS);
    forward->k_cols = carve(&carver, rows * shape->head_dim);
    forward->v_lanes = carve(&carver, rows * forward->dim_v_padded);
    forward->thread_floats = (int64_t)(block_lay(forward, NULL, &block) / sizeof(float));
    forward->threads = carve(&carver, threads * forward->thread_floats);
    *used = carver.used;
    return rows;
}

size_t ATTENTION_CPU_NAMED(forward_bytes)(const struct attention_shape *shape, int threads)
{
    struct forward forward;
    size_t used = 0;
    forward_lay(&forward, shape, threads, NULL, &used);
    return used + 64;
}

/* Keys [first, first + n) of the block are computed for a row, n a multiple of MICRO_COLS; it sees some of them. */
struct part {
    int64_t n;
    struct attention_range seen; /* relative to first */
};

/* Hides what a row does not see, and returns the largest of the rest and of `max`, within fp32: no inf - inf later, and a NaN shows in P. */
static float row_max(float *s, struct part part, float max)
{
    simd high[2] = {simd_set(max), simd_set(max)};
    for (int64_t j = 0; j < part.seen.first; j++)
        s[j] = -INFINITY;
    for (int64_t j = part.seen.end; j < part.n; j++)
        s[j] = -INFINITY;
    for (int64_t j = 0; j < part.n; j += PAIR) {
        high[0] = simd_max(high[0], simd_load(s + j));
        high[1] = simd_max(high[1], simd_load(s + j + SIMD_FLOATS));
    }
    float top = simd_max_lanes(simd_max(high[0], high[1]));
    return top > FLT_MAX ? FLT_MAX : top > -FLT_MAX ? top : -FLT_MAX;
}

/* S becomes P, in place; `sum`, SIMD_FLOATS partial sums of the row, times alpha, plus those of P. */
static void row_exp(float *s, int64_t n, float log2, float max, float alpha, float *sum)
{
    simd total[2] = {alpha * simd_load(sum), simd_set(0.0f)};
    for (int64_t j = 0; j < n; j += PAIR)
        for (int64_t h = 0; h < 2; h++) {
            float *at = s + j + h * SIMD_FLOATS;
            simd p = simd_exp2_minus((max - simd_load(at)) * log2);
            simd_store(at, p);
            total[h] += p;
        }
    simd_store(sum, total[0] + total[1]);
}

/* The softmax of one panel of rows, in place: P, and each row's factor alpha for what it had before. */
static void softmax_panel(struct block *block, int64_t row, float *s, const struct part *parts, float *alpha)
{
    float log2 = block->forward->scale.log2, top[MICRO_PADDED];
    memcpy(top, block->max + row, sizeof top);
    for (int64_t r = 0; r < MICRO_ROWS; r++)
        if (parts[r].seen.first < parts[r].seen.end)
            top[r] = row_max(s + r * BLOCK_K, parts[r], top[r]);
    for (int64_t r = 0; r < MICRO_PADDED;
         r += SIMD_FLOATS) /* -inf - -inf of a row that has seen nothing yet is a NaN that nobody reads */
        simd_store(alpha + r, simd_exp2_minus((simd_load(top + r) - simd_load(block->max + row + r)) * log2));
    for (int64_t r = 0; r < MICRO_ROWS; r++)
        if (parts[r].seen.first < parts[r].seen.end) {
            row_exp(s + r * BLOCK_K, parts[r].n, log2, top[r], alpha[r], block->sum[row + r]);
            block->max[row + r] = top[r];
        } else {
            memset(s + r * BLOCK_K, 0, (size_t)parts[r].n * sizeof *s);
            alpha[r] = 1.0f;
        }
}

/* The queries of a block against the keys of the block at `from_key`. A panel of K, then of V, serves all panels of queries from L1. */
static void forward_block(struct block *block, const struct block_keys *keys, int64_t panels, int64_t from_key)
{
    const struct forward *forward = block->forward;
    const struct attention_shape *shape = forward->shape;
    struct attention_range range[PANELS_Q], all = {0, 0};
    float alpha[BLOCK_Q + MICRO_PADDED];
    for (int64_t panel = 0; panel < panels; panel++) {
        range[panel] = range_in_block(keys->panel[panel], from_key, BLOCK_K, MICRO_COLS);
        all = range_join(all, range[panel]);
    }
    for (int64_t j = all.first; j < all.end; j += MICRO_COLS)
        for (int64_t panel = 0; panel < panels; panel++)
            if (j >= range[panel].first && j < range[panel].end)
                micro_tile(MICRO_SET, shape->head_dim, block->q_rows + panel * MICRO_ROWS * shape->head_dim, 1,
                           MICRO_ROWS, block->k_cols + (from_key + j) * shape->head_dim,
                           block->p + panel * MICRO_ROWS * BLOCK_K + j, BLOCK_K, NULL);
    for (int64_t panel = 0; panel < panels; panel++) {
        int64_t row = panel * MICRO_ROWS, from = from_key + range[panel].first,
                n = range[panel].end - range[panel].first;
        struct part parts[MICRO_ROWS];
        for (int64_t r = 0; r < MICRO_ROWS; r++)
            parts[r] = (struct part){n,
                                     {attention_clamp(keys->row[row + r].first - from, 0, n),
                                      attention_clamp(keys->row[row + r].end - from, 0, n)}};
        softmax_panel(block, row, block->p + row * BLOCK_K + range[panel].first, parts, alpha + row);
    }
    const float *v = block->v_lanes + from_key * forward->dim_v_padded;
    for (int64_t t = 0; t < forward->dim_v_padded; t += MICRO_COLS)
        for (int64_t panel = 0; panel < panels; panel++) {
            struct attention_range within = range[panel];
            int64_t row = panel * MICRO_ROWS;
            if (within.first < within.end)
                micro_tile(MICRO_SCALE_ADD, within.end - within.first, block->p + row * BLOCK_K + within.first, BLOCK_K,
                           1, v + t * BLOCK_K + within.first * MICRO_COLS, block->o + row * forward->dim_v_padded + t,
                           forward->dim_v_padded, alpha + row);
        }
}

static void block_store(struct block *block, int head, int64_t from, int64_t count)
{
    const struct forward *forward = block->forward;
    const struct attention_shape *shape = forward->shape;
    int64_t token = attention_q_token(shape, &block->item->segment, from);
    float *lse = forward->args->lse + attention_lse_index(shape, &block->item->segment, head, from);
    char *out = (char *)forward->args->o +
                (token * shape->o_stride + (int64_t)head * shape->head_dim_v) * dtype_bytes(shape->dtype);
    for (int64_t i = 0; i < count; i++, out += shape->o_stride * dtype_bytes(shape->dtype)) {
        float *o = block->o + i * forward->dim_v_padded, sum = simd_sum_lanes(simd_load(block->sum[i]));
        lse[i] =
            sum == 0 ? -INFINITY : (float)((double)block->max[i] * (double)forward->scale.magnitude + log((double)sum));
        for (int64_t t = 0; t < forward->dim_v_padded; t += SIMD_FLOATS)
            simd_store(o + t, sum == 0 ? simd_set(0.0f) : simd_load(o + t) / sum);
        dtype_store(shape->dtype, o, out, shape->head_dim_v);
    }
}

static void block_run(struct block *block, int head, int64_t from)
{
    const struct attention_shape *shape = block->forward->shape;
    const struct attention_segment *segment = &block->item->segment;
    int64_t count = least(segment->seq_q - from, BLOCK_Q), token = attention_q_token(shape, segment, from);
    struct rows q = {shape->dtype, block->forward->args->q, token * shape->q_stride + (int64_t)head * shape->head_dim,
                     shape->q_stride, shape->head_dim};
    struct block_keys keys;
    block_keys_get(shape, segment, from, count, &keys);
    pack_rows(&q, 0, count, block->forward->scale.sign, block->q_rows);
    memset(block->o, 0, (size_t)(BLOCK_Q * block->forward->dim_v_padded) * sizeof(float));
    memset(block->sum, 0, sizeof block->sum);
    for (int i = 0; i < BLOCK_Q + MICRO_PADDED; i++)
        block->max[i] = -INFINITY;
    for (int64_t key = round_down(keys.all.first, BLOCK_K); key < keys.all.end; key += BLOCK_K)
        forward_block(block, &keys, (count + MICRO_ROWS - 1) / MICRO_ROWS, key);
    block_store(block, head, from, count);
}

enum { PACK, COMPUTE }; /* kinds of tasks */

/* BLOCK_K keys of one item. */
static void pack_task(void *arg, int64_t task, int thread)
{
    struct forward *forward = arg;
    const struct wave_item *item = wave_find(&forward->wave, PACK, &task);
    int64_t from = task * BLOCK_K, count = least(item->segment.seq_k - from, BLOCK_K);
    struct rows k = item_k(forward->shape, forward->args, item), v = item_v(forward->shape, forward->args, item);
    (void)thread;
    pack_cols(&k, from, count, forward->k_cols + (item->row + from) * forward->shape->head_dim);
    pack_lanes(&v, from, count, BLOCK_K, forward->v_lanes + (item->row + from) * forward->dim_v_padded);
}

/* One block of queries of one head. The last ones, which see the most keys under a causal mask, come first, and those of the heads that
 * share keys follow each other. */
static void compute_task(void *arg, int64_t task, int thread)
{
    const struct forward *forward = arg;
    struct block block = {.forward = forward, .item = wave_find(&forward->wave, COMPUTE, &task)};
    const struct wave_item *item = block.item;
    int64_t heads = item->heads.end - item->heads.first;
    block_lay(forward, forward->threads + thread * forward->thread_floats, &block);
    block.k_cols = forward->k_cols + item->row * forward->shape->head_dim;
    block.v_lanes = forward->v_lanes + item->row * forward->dim_v_padded;
    block_run(&block, (int)(item->heads.first + task % heads),
              (query_blocks(&item->segment) - 1 - task / heads) * BLOCK_Q);
}

void ATTENTION_CPU_NAMED(forward)(const struct attention_shape *shape, const struct attention_args *args,
                                  struct dev_queue *queue)
{
    struct forward forward = {.args = args, .scale = scale_split(shape->scale)};
    size_t used = 0;
    int64_t rows = forward_lay(&forward, shape, dev_queue_threads(queue), align_line(args->workspace), &used);
    forward.wave = wave_begin(shape, rows, BLOCK_K, WAVE_ITEMS);
    while (wave_next(&forward.wave)) {
        int64_t packs = 0, blocks = 0;
        for (int i = 0; i < forward.wave.n; i++) {
            struct wave_item *item = &forward.wave.item[i];
            item->first[PACK] = packs;
            item->first[COMPUTE] = blocks;
            if (item_has_work(item) && !item->segment.hidden)
                packs += (item->segment.seq_k + BLOCK_K - 1) / BLOCK_K;
            if (item_has_work(item))
                blocks += (item->heads.end - item->heads.first) * query_blocks(&item->segment);
        }
        dev_parallel(queue, packs, pack_task, &forward);
        dev_parallel(queue, blocks, compute_task, &forward);
    }
}
