/* bench/transformer.c -- weights, rows and positions of a block, and running it. */
#include "bench/transformer.h"

#include "base/clock.h"
#include "base/mem.h"
#include "bench/mirror.h"
#include "bench/subject.h"
#include "bench/transformer_state.h"

#include <math.h>
#include <stdlib.h>

struct verdict transformer_verdict(const struct problem *problem)
{
    if (problem->hidden < 1 || problem->ffn < 1)
        return verdict_no(RULE_KERNEL_CANNOT, "a block has a hidden size and an ffn of 1 or more, not %lld and %lld",
                          (long long)problem->hidden, (long long)problem->ffn);
    if (problem->head_dim % 2 != 0)
        return verdict_no(RULE_KERNEL_CANNOT, "RoPE turns the two halves of a head; head_dim %d has none",
                          problem->head_dim);
    if (problem_dim_v(problem) != problem->head_dim)
        return verdict_no(RULE_KERNEL_CANNOT, "the heads of a block are as wide for v as for q and k, not %d and %d",
                          problem_dim_v(problem), problem->head_dim);
    return VERDICT_YES;
}

/* ---- data ---- */

/* Of a row of weights variance 1 / its length, so that products keep that of what they are given; of norms around 1. */
static void weight_row(uint64_t seed, enum block_tensor tensor, int64_t row, int64_t n, float *out)
{
    bool norm = tensor == BLOCK_NORM || tensor == BLOCK_MLP_NORM;
    float scale = norm ? 0.25f : 1 / sqrtf((float)n), middle = norm ? 1 : 0;
    data_row(seed, DATA_A, 0, row, (int)tensor, 0, DTYPE_FP32, (int)n, out);
    for (int64_t i = 0; i < n; i++)
        out[i] = middle + scale * out[i];
}

struct piece transformer_piece(const struct transformer *t, enum block_tensor tensor)
{
    struct block_cut cut = block_cut_of(&t->shape, t->ways, tensor);
    struct piece piece = {.there = block_tensor_shape(&t->shape, tensor, &piece.whole_rows, &piece.whole_cols)};
    int64_t part = t->rank % t->ways / cut.copies;
    piece.rows = cut.dim == 0 ? piece.whole_rows / cut.parts : piece.whole_rows;
    piece.cols = cut.dim == 1 ? piece.whole_cols / cut.parts : piece.whole_cols;
    piece.first_row = cut.dim == 0 ? part * piece.rows : 0;
    piece.first_col = cut.dim == 1 ? part * piece.cols : 0;
    return piece;
}

static enum status weight_fill(const struct transformer *t, enum block_tensor tensor, const struct piece *piece)
{
    const enum dtype dtype = t->shape.dtype;
    struct mirror mirror = {0};
    void *row = NULL;
    size_t row_bytes = (size_t)(piece->cols * dtype_bytes(dtype));
    enum status status = mem_alloc((size_t)piece->whole_cols * sizeof(float), "a row of weights", &row);
    if (status == STATUS_OK)
        status = mirror_open(t->dev, t->weight[tensor], (size_t)piece->rows * row_bytes, &mirror);
    for (int64_t r = 0; r < piece->rows && status == STATUS_OK; r++) {
        weight_row(t->seed, tensor, piece->first_row + r, piece->whole_cols, row);
        dtype_store(dtype, (float *)row + piece->first_col, (char *)mirror.host + (size_t)r * row_bytes,
                    (int)piece->cols);
    }
    if (status == STATUS_OK)
        status = mirror_store(&mirror);
    mirror_close(&mirror);
    free(row);
    return status;
}

static enum status room(struct transformer *t, int64_t bytes, const char *what, void **out)
{
    TRY(dev_alloc(t->dev, (size_t)bytes, what, out));
    t->bytes += bytes;
    return STATUS_OK;
}

static enum status weights_open(struct transformer *t)
{
    for (int i = 0; i < BLOCK_TENSORS; i++) {
        struct piece piece = transformer_piece(t, (enum block_tensor)i);
        if (!piece.there)
            continue;
        TRY(room(t, piece.rows * piece.cols * dtype_bytes(t->shape.dtype), "weights of a block", &t->weight[i]));
        t->weights.of[i] = t->weight[i];
        TRY(weight_fill(t, (enum block_tensor)i, &piece));
        if (t->backward)
            TRY(room(t, piece.rows * piece.cols * (int64_t)sizeof(float), "gradients of a block",
                     (void **)&t->grads.of[i]));
    }
    return STATUS_OK;
}

static enum status row_fill(const struct transformer *t, enum data_tensor tensor, void *base)
{
    struct data_side side = {.base = base,
                             .dtype = t->shape.dtype,
                             .batch = t->problem.batch,
                             .seq = t->shard.local,
                             .heads = 1,
                             .dim = (int)t->shape.hidden,
                             .token_stride = t->shape.hidden,
                             .batch_first = t->batch_first};
    return mirror_shard_fill(t->dev, t->seed, tensor, &side, &t->shard);
}

/* Tokens that are not there have no gradient: one rank, which pads nothing, has none of them. */
static enum status padding_clear(const struct transformer *t, void *base, struct dev_queue *queue)
{
    size_t bytes = (size_t)(t->shape.hidden * dtype_bytes(t->shape.dtype));
    for (int64_t r = 0; r < t->rows; r++)
        if (shard_position(&t->shard, r % t->shard.local) >= t->problem.seq)
            TRY(dev_fill(queue, (char *)base + (size_t)r * bytes, 0, bytes));
    return STATUS_OK;
}

static enum status rows_open(struct transformer *t, struct dev_queue *queue)
{
    int64_t bytes = t->rows * t->shape.hidden * dtype_bytes(t->shape.dtype);
    TRY(room(t, bytes, "rows of a block", &t->x));
    TRY(room(t, bytes, "rows of a block", &t->y));
    TRY(room(t, t->rows * t->ways * (int64_t)sizeof *t->positions, "positions of rows", (void **)&t->positions));
    TRY(room(t, t->shape.head_dim / 2 * (int64_t)sizeof *t->inv_freq, "frequencies of RoPE", (void **)&t->inv_freq));
    TRY(row_fill(t, DATA_X, t->x));
    if (!t->backward)
        return STATUS_OK;
    TRY(room(t, bytes, "gradients of a block's rows", &t->dy));
    TRY(room(t, bytes, "gradients of a block's rows", &t->dx));
    TRY(row_fill(t, DATA_DY, t->dy));
    return padding_clear(t, t->dy, queue);
}

/* Of a token of the padded sequence, in its document; padding counts from 0. */
static int32_t position_of(const struct problem *problem, int64_t token)
{
    if (token >= problem->seq)
        return (int32_t)(token - problem->seq);
    for (int d = 0; d < problem->docs && token >= problem->doc_len[d]; d++)
        token -= problem->doc_len[d];
    return (int32_t)token;
}

static void rope_make(const struct transformer *t, int32_t *positions, float *inv_freq)
{
    for (int64_t r = 0; r < t->rows; r++)
        positions[r] = position_of(&t->problem, shard_position(&t->shard, r % t->shard.local));
    for (int i = 0; i < t->shape.head_dim / 2; i++)
        inv_freq[i] = (float)pow(10000, -2.0 * i / t->shape.head_dim);
}

/* What the host knows of RoPE, until the device has it. */
struct rope_staging {
    void *positions, *inv_freq;
    struct mirror mine, frequencies;
};

static enum status rope_stage(const struct transformer *t, struct rope_staging *out)
{
    size_t bytes = (size_t)t->rows * sizeof(int32_t), frequency_bytes = (size_t)t->shape.head_dim / 2 * sizeof(float);
    TRY(mem_alloc(bytes, "positions of rows", &out->positions));
    TRY(mem_alloc(frequency_bytes, "frequencies of RoPE", &out->inv_freq));
    rope_make(t, out->positions, out->inv_freq);
    TRY(mirror_of_host(t->dev, out->positions, bytes, &out->mine));
    return mirror_of_host(t->dev, out->inv_freq, frequency_bytes, &out->frequencies);
}

static void rope_unstage(struct rope_staging *staging)
{
    mirror_close(&staging->mine);
    mirror_close(&staging->frequencies);
    free(staging->positions);
    free(staging->inv_freq);
}

/* Collective over the group where rows are gathered. */
static enum status rope_store(const struct transformer *t, const struct rope_staging *staging, struct dev_queue *queue)
{
    TRY(dev_copy(queue, t->inv_freq, staging->frequencies.device, staging->frequencies.bytes));
    TRY(block_gather_positions(t->block, staging->mine.device, t->positions, queue));
    return dev_sync(queue, clock_deadline(SUBJECT_SYNC_US));
}

static enum status rope_open(struct bench_env *env, const struct transformer *t, struct dev_queue *queue)
{
    struct rope_staging staging = {0};
    enum status status = group_agree(env, rope_stage(t, &staging)); /* who has no positions would not come to gather */
    if (status == STATUS_OK)
        status = group_agree(env, rope_store(t, &staging, queue));
    rope_unstage(&staging);
    return status;
}

/* ---- life ---- */

static struct block_shape shape_of(const struct problem *problem)
{
    return (struct block_shape){.hidden = problem->hidden,
                                .ffn = problem->ffn,
                                .heads = problem->heads,
                                .kv_heads = problem->kv_heads,
                                .head_dim = problem->head_dim,
                                .eps = 1e-5f,
                                .dtype = problem->dtype};
}

static enum status parts_open(struct transformer *t, const struct group *group)
{
    struct block_parallel parallel = {t->ways > 1 ? group->comm : NULL, t->problem.batch};
    if (t->ways > 1)
        TRY(comm_sums_open(group->comm));
    TRY(exec_create(&t->problem, &t->plan, group->comm, t->dev, &t->exec));
    TRY(block_create(&t->shape, &parallel, t->rows, 0, t->dev, &t->block));
    TRY(block_keep(t->block, &t->kept));
    t->bytes += exec_bytes(t->exec) + block_bytes(t->block) + block_kept_bytes(t->kept);
    return STATUS_OK;
}

enum status transformer_open(struct bench_env *env, const struct group *group, const struct transformer_order *order,
                             struct dev_queue *queue, struct transformer **out)
{
    struct transformer *t = NULL;
    TRY(group_alloc(env, sizeof *t, "a block", (void **)&t));
    *t = (struct transformer){.dev = env->dev,
                              .group = group->comm,
                              .problem = *order->problem,
                              .plan = *order->plan,
                              .shape = shape_of(order->problem),
                              .backward = (order->problem->direction & PROBLEM_BACKWARD) != 0,
                              .rank = order->rank,
                              .ways = plan_ways(order->plan),
                              .seed = order->seed,
                              .batch_first = order->batch_first};
    if (t->backward)
        t->problem.direction = PROBLEM_BOTH; /* a backward starts from a forward */
    shard_of(&t->plan, shard_padded(&t->problem, &t->plan), t->rank, &t->shard);
    t->rows = t->problem.batch * t->shard.local;
    enum status status = group_hear(env, parts_open(t, group));
    if (status == STATUS_OK)
        status = group_hear(env, weights_open(t));
    if (status == STATUS_OK)
        status = group_hear(env, rows_open(t, queue));
    if (status == STATUS_OK)
        status = rope_open(env, t, queue);
    if (status != STATUS_OK) {
        transformer_close(t);
        return status;
    }
    *out = t;
    return STATUS_OK;
}

void transformer_close(struct transformer *t)
{
    if (t == NULL)
        return;
    for (int i = 0; i < BLOCK_TENSORS; i++) {
        dev_free(t->dev, t->weight[i]);
        dev_free(t->dev, t->grads.of[i]);
    }
    void *const all[] = {t->x, t->y, t->dy, t->dx, t->positions, t->inv_freq};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dev_free(t->dev, all[i]);
    block_kept_destroy(t->kept);
    block_destroy(t->block);
    exec_destroy(t->exec);
    free(t);
}

/* ---- running ---- */

enum status transformer_forward(struct transformer *t, struct dev_queue *queue)
{
    struct block_rope rope = {t->positions, t->inv_freq};
    return block_forward(t->block, &t->weights, &rope, t->exec, t->kept, t->x, t->y, queue);
}

enum status transformer_prepare(struct transformer *t, struct dev_queue *queue)
{
    for (int i = 0; i < BLOCK_TENSORS; i++) {
        struct piece piece = transformer_piece(t, (enum block_tensor)i);
        if (piece.there)
            TRY(dev_fill(queue, t->grads.of[i], 0, (size_t)(piece.rows * piece.cols) * sizeof(float)));
    }
    return dev_copy(queue, t->dx, t->dy, (size_t)(t->rows * t->shape.hidden * dtype_bytes(t->shape.dtype)));
}

enum status transformer_backward(struct transformer *t, struct dev_queue *queue)
{
    struct block_rope rope = {t->positions, t->inv_freq};
    return block_backward(t->block, &t->weights, &t->grads, &rope, t->exec, t->kept, t->x, t->dx, queue);
}

enum status transformer_poison(struct transformer *t, struct dev_queue *queue)
{
    return dev_fill(queue, t->y, 0xff, (size_t)(t->rows * t->shape.hidden * dtype_bytes(t->shape.dtype)));
}

struct exec *transformer_exec(struct transformer *t)
{
    return t->exec;
}

int64_t transformer_bytes(const struct transformer *t)
{
    return t->bytes;
}
