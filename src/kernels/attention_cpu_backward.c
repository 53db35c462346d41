/* kernels/attention_cpu_backward.c -- backward attention on CPU threads; compiled once per instruction set.
 *
 * For each kv head, K and V of the segment are packed once; dK and dV are summed in fp32 over all its query heads and
 * rounded once. A stripe of STRIPE keys meets one block of STRIPE queries (of one head) after the other:
 *
 *   S = Q K^T, dP = dO V^T                   into two tiles [STRIPE][STRIPE]
 *   P = 2^((S scale - LSE) log2 e)           0 outside each row's range of keys
 *   dS = P (dP - D) scale                    D = sum of dO O, once per row
 *   dQ += dS K
 *   dV += P^T dO, dK += dS^T Q               the tile is read by columns
 *
 * In each product a panel of the B operand is read from L2 once and serves all panels of the other from L1, as in forward.
 *
 * Five products, 10 * head_dim FLOP per pair. A stripe is a task, and stripes follow each other through the same blocks of
 * queries, each at least one block behind the one before it:
 *
 *              blocks of queries, last first ->
 *   stripe 0   = = = = = = = = .            what a stripe adds to dQ comes after what the stripes before it added, and its
 *   stripe 1   = = = = = .                  own dK and dV grow block by block: every sum has one order, whatever the number
 *   stripe 2   = = = .                      of threads, without a second copy of dQ and without computing S and dP twice
 *                                           (7 products instead of 5)
 *
 * What that costs: dQ is read and written once per stripe, 2 * 4 * head_dim bytes per query for 10 * head_dim * STRIPE
 * FLOP, 0.8 GB/s at 100 GFLOP/s; a private dQ per thread would take seq * head_dim floats each and be summed in an order
 * that depends on their number. Queries and dO are packed once per head, for CHUNK_BLOCKS blocks at a time, so their
 * workspace is bounded; a block brings 2.5 KiB per query at head_dim 128 from L3 for 123 kFLOP, 2 GB/s. A stripe's K, V,
 * K again, dK and dV take 240 KiB and stay in L2.
 *
 * With dkv_accumulate the sums start from what dk and dv hold, so a group of heads split over several calls in order gives
 * the bits of one call.
 */
#include "kernels/attention_cpu_wave.h"

#include "base/thread.h"

#include <sched.h>
#include <stdatomic.h>

enum {
    STRIPE = 96,       /* keys of a task, queries of a step: 11.8 MFLOP at head_dim 128, some 100 us */
    CHUNK_BLOCKS = 96, /* blocks of queries packed at a time, over all items of a wave */
    WAIT_SPINS = 4000, /* some 50 us; then the CPU is offered to whoever has the stripe before */
};

_Static_assert(STRIPE % TILE_STEP == 0 && STRIPE % MICRO_ROWS == 0, "a stripe is whole panels either way");
_Static_assert((int)STRIPE <= (int)BLOCK_ROWS_MAX, "block_keys holds a block of queries");

struct backward {
    const struct attention_shape *shape;
    const struct attention_args *args;
    struct scale scale;
    int64_t dim_padded, dim_v_padded, tile_floats;
    float *k_cols, *v_cols, *k_lanes; /* of the wave's items */
    float *dk, *dv;                   /* [rows][dim_padded], [rows][dim_v_padded] */
    _Atomic int64_t *passed;          /* [stripe]: blocks of this chunk that the stripe is through with */
    /* [slot], a block of queries each */
    float *q_rows, *do_rows;   /* A operands of S and dP */
    float *q_lanes, *do_lanes; /* B operands of dK and dV */
    float *dq;                 /* [STRIPE][dim_padded] */
    float *lse, *d;            /* [STRIPE] */
    float *tiles;              /* [thread]: P and dS, [STRIPE][STRIPE] each */
    int64_t slots, per_item;   /* slots in all; what each item of the wave gets */
    int64_t chunk;             /* which part of each item's blocks is in the slots */
    struct wave wave;
};

static int64_t blocks_of(int64_t n)
{
    return (n + STRIPE - 1) / STRIPE;
}

/* Rows of keys to make room for. */
static int64_t backward_lay(struct backward *backward, const struct attention_shape *shape, int threads, char *base,
                            size_t *used)
{
    struct carver carver = {base, 0};
    int64_t stripes = blocks_of(attention_longest_keys(shape));
    int64_t items = wave_slots(shape, threads, stripes), rows = wave_rows(shape, items, STRIPE);
    int64_t dim = shape->head_dim, dim_v = shape->head_dim_v, heads = least(shape->group, shape->heads);
    backward->shape = shape;
    backward->dim_padded = round_up(dim, MICRO_COLS);
    backward->dim_v_padded = round_up(dim_v, MICRO_COLS);
    backward->tile_floats = 2 * STRIPE * STRIPE;
    backward->slots = least(most(blocks_of(attention_longest_queries(shape)) * heads, 1) * items, CHUNK_BLOCKS);
    backward->k_cols = carve(&carver, rows * dim);
    backward->v_cols = carve(&carver, rows * dim_v);
    backward->k_lanes = carve(&carver, rows * backward->dim_padded);
    backward->dk = carve(&carver, rows * backward->dim_padded);
    backward->dv = carve(&carver, rows * backward->dim_v_padded);
    backward->passed =
        (_Atomic int64_t *)(void *)carve(&carver, rows / STRIPE * (int64_t)(sizeof(int64_t) / sizeof(float)));
    backward->q_rows = carve(&carver, backward->slots * STRIPE * dim);
    backward->do_rows = carve(&carver, backward->slots * STRIPE * dim_v);
    backward->q_lanes = carve(&carver, backward->slots * STRIPE * backward->dim_padded);
    backward->do_lanes = carve(&carver, backward->slots * STRIPE * backward->dim_v_padded);
    backward->dq = carve(&carver, backward->slots * STRIPE * backward->dim_padded);
    backward->lse = carve(&carver, backward->slots * STRIPE);
    backward->d = carve(&carver, backward->slots * STRIPE);
    backward->tiles = carve(&carver, threads * backward->tile_floats);
    *used = carver.used;
    return rows;
}

size_t ATTENTION_CPU_NAMED(backward_bytes)(const struct attention_shape *shape, int threads)
{
    struct backward backward;
    size_t used = 0;
    backward_lay(&backward, shape, threads, NULL, &used);
    return used + 64;
}

/* ---- which block of queries: an item's are counted head by head, in each head the last first ---- */

static int64_t item_blocks(const struct wave_item *item)
{
    return item_has_work(item) ? (item->heads.end - item->heads.first) * blocks_of(item->segment.seq_q) : 0;
}

/* Blocks of this chunk. */
static int64_t chunk_blocks(const struct backward *backward, const struct wave_item *item)
{
    return attention_clamp(item_blocks(item) - backward->chunk * backward->per_item, 0, backward->per_item);
}

struct block {
    int head;
    int64_t from, count; /* queries of the segment */
    int64_t slot;
};

static struct block block_get(const struct backward *backward, const struct wave_item *item, int64_t n)
{
    int64_t in_head = blocks_of(item->segment.seq_q), all = backward->chunk * backward->per_item + n;
    struct block block = {.head = (int)(item->heads.first + all / in_head),
                          .from = (in_head - 1 - all % in_head) * STRIPE,
                          .slot = (item - backward->wave.item) * backward->per_item + n};
    block.count = least(item->segment.seq_q - block.from, STRIPE);
    return block;
}

static struct rows block_q(const struct backward *backward, const struct wave_item *item, const struct block *block)
{
    const struct attention_shape *shape = backward->shape;
    int64_t token = attention_q_token(shape, &item->segment, block->from);
    return (struct rows){shape->dtype, backward->args->q,
                         token * shape->q_stride + (int64_t)block->head * shape->head_dim, shape->q_stride,
                         shape->head_dim};
}

static struct rows block_o(const struct backward *backward, const struct wave_item *item, const struct block *block)
{
    const struct attention_shape *shape = backward->shape;
    int64_t token = attention_q_token(shape, &item->segment, block->from);
    return (struct rows){shape->dtype, backward->args->o,
                         token * shape->o_stride + (int64_t)block->head * shape->head_dim_v, shape->o_stride,
                         shape->head_dim_v};
}

/* ---- packing ---- */

enum { KEYS, QUERIES }; /* kinds of tasks: STRIPE keys of an item; a block of its queries */

/* The fp32 sums of `count` keys: from zero or from `tensor`. */
static void sums_begin(const struct rows *tensor, bool accumulate, int64_t from, int64_t count, int64_t padded,
                       float *sums)
{
    memset(sums, 0, (size_t)(STRIPE * padded) * sizeof(float));
    for (int64_t j = 0; accumulate && j < count; j++)
        rows_load(tensor, from + j, sums + j * padded);
}

static void sums_end(const struct rows *tensor, void *base, int64_t from, int64_t count, int64_t padded,
                     const float *sums)
{
    for (int64_t j = 0; j < count; j++)
        dtype_store(tensor->dtype, sums + j * padded,
                    (char *)base + (tensor->first + (from + j) * tensor->stride) * dtype_bytes(tensor->dtype),
                    tensor->dim);
}

/* dK and dV of an item as rows of their tensors. */
static void item_gradients(const struct backward *backward, const struct wave_item *item, struct rows *dk,
                           struct rows *dv)
{
    *dk = item_k(backward->shape, backward->args, item);
    *dv = item_v(backward->shape, backward->args, item);
    dk->base = backward->args->dk;
    dv->base = backward->args->dv;
    dk->dtype = dv->dtype = backward->args->dkv_fp32 ? DTYPE_FP32 : backward->shape->dtype;
}

static void keys_begin_task(void *arg, int64_t task, int thread)
{
    const struct backward *backward = arg;
    const struct wave_item *item = wave_find(&backward->wave, KEYS, &task);
    bool accumulate = backward->args->dkv_accumulate;
    int64_t from = task * STRIPE, count = least(item->segment.seq_k - from, STRIPE), row = item->row + from;
    struct rows k = item_k(backward->shape, backward->args, item), v = item_v(backward->shape, backward->args, item),
                dk, dv;
    (void)thread;
    item_gradients(backward, item, &dk, &dv);
    sums_begin(&dk, accumulate, from, count, backward->dim_padded, backward->dk + row * backward->dim_padded);
    sums_begin(&dv, accumulate, from, count, backward->dim_v_padded, backward->dv + row * backward->dim_v_padded);
    if (!item_has_work(item) || item->segment.hidden)
        return;
    pack_cols(&k, from, count, backward->k_cols + row * k.dim);
    pack_cols(&v, from, count, backward->v_cols + row * v.dim);
    pack_lanes(&k, from, count, STRIPE, backward->k_lanes + row * backward->dim_padded);
}

static void keys_end_task(void *arg, int64_t task, int thread)
{
    const struct backward *backward = arg;
    const struct wave_item *item = wave_find(&backward->wave, KEYS, &task);
    int64_t from = task * STRIPE, count = least(item->segment.seq_k - from, STRIPE), row = item->row + from;
    struct rows dk, dv;
    (void)thread;
    item_gradients(backward, item, &dk, &dv);
    sums_end(&dk, backward->args->dk, from, count, backward->dim_padded, backward->dk + row * backward->dim_padded);
    sums_end(&dv, backward->args->dv, from, count, backward->dim_v_padded, backward->dv + row * backward->dim_v_padded);
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

static void queries_begin_task(void *arg, int64_t task, int thread)
{
    const struct backward *backward = arg;
    const struct attention_shape *shape = backward->shape;
    const struct wave_item *item = wave_find(&backward->wave, QUERIES, &task);
    struct block block = block_get(backward, item, task);
    struct rows q = block_q(backward, item, &block), o = block_o(backward, item, &block), d_o = o;
    int64_t at = block.slot * STRIPE;
    (void)thread;
    d_o.base = backward->args->d_o;
    pack_rows(&q, 0, block.count, backward->scale.sign, backward->q_rows + at * q.dim);
    pack_rows(&d_o, 0, block.count, 1.0f, backward->do_rows + at * o.dim);
    pack_lanes(&q, 0, block.count, STRIPE, backward->q_lanes + at * backward->dim_padded);
    pack_lanes(&d_o, 0, block.count, STRIPE, backward->do_lanes + at * backward->dim_v_padded);
    row_products(&d_o, &o, 0, block.count, backward->d + at);
    memcpy(backward->lse + at, backward->args->lse + attention_lse_index(shape, &item->segment, block.head, block.from),
           (size_t)block.count * sizeof(float));
    memset(backward->dq + at * backward->dim_padded, 0, (size_t)(STRIPE * backward->dim_padded) * sizeof(float));
}

static void queries_end_task(void *arg, int64_t task, int thread)
{
    const struct backward *backward = arg;
    const struct wave_item *item = wave_find(&backward->wave, QUERIES, &task);
    struct block block = block_get(backward, item, task);
    struct rows dq = block_q(backward, item, &block);
    (void)thread;
    sums_end(&dq, backward->args->dq, 0, block.count, backward->dim_padded,
             backward->dq + block.slot * STRIPE * backward->dim_padded);
}

/* ---- one stripe of keys against one block of queries ---- */

struct tile {
    const struct backward *backward;
    struct block_keys keys;
    int64_t slot, key, row;       /* of the block; the stripe's first key, in the segment and in the packed buffers */
    struct attention_range range; /* keys of the stripe that some query sees, in whole TILE_STEPs */
    float *p, *ds;
};

/* One row of S and dP becomes P and dS, in place; 0 outside `seen`, which lies within [0, n). */
static void gradient_row(const struct backward *backward, float lse, float d, float *p, float *ds, int64_t n,
                         struct attention_range seen)
{
    float scale = backward->shape->scale;
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

/* S and dP of the tile. A panel of K, then of V, serves all panels of queries from L1. */
static void tile_products(const struct tile *tile, int64_t panels, const struct attention_range *range)
{
    const struct backward *backward = tile->backward;
    int64_t dim = backward->shape->head_dim, dim_v = backward->shape->head_dim_v, at = tile->slot * STRIPE;
    for (int64_t j = tile->range.first; j < tile->range.end; j += MICRO_COLS) {
        const float *k = backward->k_cols + (tile->row + j) * dim, *v = backward->v_cols + (tile->row + j) * dim_v;
        for (int64_t panel = 0, row = 0; panel < panels; panel++, row += MICRO_ROWS)
            if (j >= range[panel].first && j < range[panel].end)
                micro_tile(MICRO_SET, dim, backward->q_rows + (at + row) * dim, 1, MICRO_ROWS, k,
                           tile->p + row * STRIPE + j, STRIPE, NULL);
        for (int64_t panel = 0, row = 0; panel < panels; panel++, row += MICRO_ROWS)
            if (j >= range[panel].first && j < range[panel].end)
                micro_tile(MICRO_SET, dim_v, backward->do_rows + (at + row) * dim_v, 1, MICRO_ROWS, v,
                           tile->ds + row * STRIPE + j, STRIPE, NULL);
    }
}

/* P and dS of the tile. */
static void tile_gradients(const struct tile *tile, int64_t rows)
{
    const struct backward *backward = tile->backward;
    int64_t at = tile->slot * STRIPE, first = tile->range.first, end = tile->range.end;
    for (int64_t r = 0; r < rows; r++) {
        struct attention_range seen = tile->keys.row[r];
        seen.first = attention_clamp(seen.first - tile->key, first, end) - first;
        seen.end = attention_clamp(seen.end - tile->key, first, end) - first;
        gradient_row(backward, backward->lse[at + r], backward->d[at + r], tile->p + r * STRIPE + first,
                     tile->ds + r * STRIPE + first, end - first, seen);
    }
}

/* dQ of the tile's queries, summed over its keys. */
static void tile_queries(const struct tile *tile, int64_t panels, const struct attention_range *range)
{
    const struct backward *backward = tile->backward;
    int64_t padded = backward->dim_padded, at = tile->slot * STRIPE;
    for (int64_t t = 0; t < padded; t += MICRO_COLS)
        for (int64_t panel = 0, row = 0; panel < panels; panel++, row += MICRO_ROWS)
            if (range[panel].first < range[panel].end)
                micro_tile(MICRO_ADD, range[panel].end - range[panel].first,
                           tile->ds + row * STRIPE + range[panel].first, STRIPE, 1,
                           backward->k_lanes + tile->row * padded + t * STRIPE + range[panel].first * MICRO_COLS,
                           backward->dq + (at + row) * padded + t, padded, NULL);
}

/* dK and dV of the tile's keys, summed over `count` queries. */
static void tile_keys(const struct tile *tile, int64_t count)
{
    const struct backward *backward = tile->backward;
    int64_t dim = backward->dim_padded, dim_v = backward->dim_v_padded, at = tile->slot * STRIPE;
    for (int64_t t = 0; t < dim_v; t += MICRO_COLS)
        for (int64_t j = tile->range.first; j < tile->range.end; j += MICRO_ROWS)
            micro_tile(MICRO_ADD, count, tile->p + j, 1, STRIPE, backward->do_lanes + at * dim_v + t * STRIPE,
                       backward->dv + (tile->row + j) * dim_v + t, dim_v, NULL);
    for (int64_t t = 0; t < dim; t += MICRO_COLS)
        for (int64_t j = tile->range.first; j < tile->range.end; j += MICRO_ROWS)
            micro_tile(MICRO_ADD, count, tile->ds + j, 1, STRIPE, backward->q_lanes + at * dim + t * STRIPE,
                       backward->dk + (tile->row + j) * dim + t, dim, NULL);
}

static void tile_run(struct tile *tile, const struct wave_item *item, const struct block *block)
{
    block_keys_get(tile->backward->shape, &item->segment, block->from, block->count, &tile->keys);
    tile->slot = block->slot;
    tile->range = range_in_block(tile->keys.all, tile->key, STRIPE, TILE_STEP);
    if (tile->range.first == tile->range.end)
        return;
    struct attention_range range[STRIPE / MICRO_ROWS];
    int64_t panels = (block->count + MICRO_ROWS - 1) / MICRO_ROWS;
    for (int64_t panel = 0; panel < panels; panel++)
        range[panel] = range_in_block(tile->keys.panel[panel], tile->key, STRIPE, MICRO_COLS);
    tile_products(tile, panels, range);
    tile_gradients(tile, panels * MICRO_ROWS);
    tile_queries(tile, panels, range);
    tile_keys(tile, block->count);
}

/* ---- a stripe ---- */

/* Until the stripe before is through with n blocks. It is on another thread, for tasks start in order. */
static void wait_passed(const _Atomic int64_t *passed, int64_t n)
{
    for (int64_t spins = 0; atomic_load_explicit(passed, memory_order_acquire) < n; spins++)
        if (spins >= WAIT_SPINS)
            sched_yield();
        else
            thread_pause();
}

/* May a query of the block see a key of the stripe? What a query sees moves with it, so the first and the last query bound what those
 * between them see, and the stripes that a block meets follow each other without a gap: it is enough to wait for the one before. */
static bool block_meets(const struct backward *backward, const struct wave_item *item, const struct block *block,
                        int64_t key)
{
    struct attention_range first = attention_keys(backward->shape, &item->segment, block->from);
    struct attention_range last = attention_keys(backward->shape, &item->segment, block->from + block->count - 1);
    return first.first < key + STRIPE && last.end > key;
}

static void stripe_task(void *arg, int64_t task, int thread)
{
    const struct backward *backward = arg;
    const struct wave_item *item = wave_find(&backward->wave, KEYS, &task);
    int64_t blocks = chunk_blocks(backward, item), key = task * STRIPE;
    _Atomic int64_t *passed = backward->passed + (item->row + key) / STRIPE;
    struct tile tile = {.backward = backward, .key = key, .row = item->row + key};
    tile.p = backward->tiles + thread * backward->tile_floats;
    tile.ds = tile.p + STRIPE * STRIPE;
    for (int64_t n = 0; n < blocks; n++) {
        struct block block = block_get(backward, item, n);
        if (!item->segment.hidden && block_meets(backward, item, &block, key)) {
            if (task > 0)
                wait_passed(passed - 1, n + 1);
            tile_run(&tile, item, &block);
        }
        atomic_store_explicit(passed, n + 1, memory_order_release);
    }
}

/* ---- a wave ---- */

static int64_t wave_count_keys(struct backward *backward)
{
    int64_t all = 0;
    for (int i = 0; i < backward->wave.n; i++) {
        struct wave_item *item = &backward->wave.item[i];
        item->first[KEYS] = all;
        all += blocks_of(item->segment.seq_k);
    }
    return all;
}

static int64_t wave_count_queries(struct backward *backward)
{
    int64_t all = 0;
    for (int i = 0; i < backward->wave.n; i++) {
        backward->wave.item[i].first[QUERIES] = all;
        all += chunk_blocks(backward, &backward->wave.item[i]);
    }
    return all;
}

void ATTENTION_CPU_NAMED(backward)(const struct attention_shape *shape, const struct attention_args *args,
                                   struct dev_queue *queue)
{
    struct backward backward = {.args = args, .scale = scale_split(shape->scale)};
    size_t used = 0;
    int64_t rows = backward_lay(&backward, shape, dev_queue_threads(queue), align_line(args->workspace), &used);
    backward.wave = wave_begin(shape, rows, STRIPE, (int)least(backward.slots, WAVE_ITEMS));
    while (wave_next(&backward.wave)) {
        int64_t stripes = wave_count_keys(&backward), queries;
        backward.per_item = backward.slots / backward.wave.n;
        dev_parallel(queue, stripes, keys_begin_task, &backward);
        for (backward.chunk = 0; (queries = wave_count_queries(&backward)) > 0; backward.chunk++) {
            for (int64_t i = 0; i < rows / STRIPE; i++)
                atomic_store_explicit(&backward.passed[i], 0, memory_order_relaxed);
            dev_parallel(queue, queries, queries_begin_task, &backward);
            dev_parallel(queue, stripes, stripe_task, &backward);
            dev_parallel(queue, queries, queries_end_task, &backward);
        }
        dev_parallel(queue, stripes, keys_end_task, &backward);
    }
}
