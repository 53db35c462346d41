/* sp/block.c -- a transformer block: norms, projections, RoPE and MLP around an exec.
 *
 * What a forward keeps of each of R rows: x' (hidden), 1/rms of both norms, gate and up (2 ffn), q and k before their norms where there are
 * such. Where T ranks cut the weights, R of x' and the norms is a T-th of that of the rest, of which a rank has 1/T of the columns.
 * Normalised rows are made again in backward from x and 1/rms: a pass over memory instead of 2 R hidden kept. With the MLP in tiles of rows
 * nothing of it is kept, and of gate, up and their product there is a tile: backward makes those of a tile again in front of its gradients.
 *
 * FLOPs of a row: 2 * (weights of the block) forward, twice that backward; everything else but attention is passes over memory.
 */
#include "sp/block.h"

#include "base/mem.h"
#include "base/range.h"
#include "kernels/gemm.h"
#include "kernels/nn.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

struct block {
    struct block_shape shape; /* of this rank's pieces */
    int ways;
    struct comm *cut;         /* that rows are gathered from; not used where ways is 1 */
    int64_t batch, rows, all; /* all = rows * ways: what meets weights and attention */
    int64_t tile;             /* rows of the MLP at a time; all of them unless it is tiled */
    bool tiled;
    struct dev_room room;
    void *h;    /* [all][hidden] normalised rows */
    void *part; /* [rows][hidden] this rank's of them, then of their gradient; where ways is 1 that is `h` */
    void *d_h;  /* [all][hidden] their gradient; before, dy of all ranks; in forward what is to be summed over them */
    void *act;  /* [tile][ffn] silu(gate) * up; in backward then its gradient */
    void *gate, *up; /* [tile][ffn] of a tiled MLP */
    float *rstd;     /* [rows] of norms that nobody asks for again */
    void *scratch;   /* of products and norms, one after the other */
    size_t scratch_bytes;
};

struct block_kept {
    struct dev_room room;
    void *x2;               /* [rows][hidden] between attention and MLP */
    float *rstd, *rstd2;    /* [rows] */
    void *gate, *up;        /* [all][ffn]; NULL of a tiled MLP */
    bool mlp;               /* are they made? */
    void *q, *k;            /* before their norms; NULL without */
    float *q_rstd, *k_rstd; /* [all * heads], [all * kv_heads] */
};

bool block_tensor_shape(const struct block_shape *s, enum block_tensor tensor, int64_t *rows, int64_t *cols)
{
    int64_t q = (int64_t)s->heads * s->head_dim, kv = (int64_t)s->kv_heads * s->head_dim;
    const struct {
        bool there;
        int64_t rows, cols;
    } table[BLOCK_TENSORS] = {
        [BLOCK_NORM] = {true, 1, s->hidden},
        [BLOCK_Q] = {true, q, s->hidden},
        [BLOCK_K] = {true, kv, s->hidden},
        [BLOCK_V] = {true, kv, s->hidden},
        [BLOCK_Q_BIAS] = {s->qkv_bias, 1, q},
        [BLOCK_K_BIAS] = {s->qkv_bias, 1, kv},
        [BLOCK_V_BIAS] = {s->qkv_bias, 1, kv},
        [BLOCK_Q_NORM] = {s->qk_norm, 1, s->head_dim},
        [BLOCK_K_NORM] = {s->qk_norm, 1, s->head_dim},
        [BLOCK_O] = {true, s->hidden, q},
        [BLOCK_MLP_NORM] = {true, 1, s->hidden},
        [BLOCK_GATE] = {true, s->ffn, s->hidden},
        [BLOCK_UP] = {true, s->ffn, s->hidden},
        [BLOCK_DOWN] = {true, s->hidden, s->ffn},
    };
    *rows = table[tensor].rows;
    *cols = table[tensor].cols;
    return table[tensor].there;
}

const char *block_tensor_name(enum block_tensor tensor)
{
#define TEXT(name, text) text,
    static const char *const names[] = {BLOCK_TENSOR_LIST(TEXT)};
#undef TEXT
    return names[tensor];
}

/* ---- pieces ---- */

struct block_shape block_shape_cut(const struct block_shape *whole, int ways)
{
    struct block_shape shape = *whole;
    shape.heads /= ways;
    shape.kv_heads = model_kv_local(whole->kv_heads, ways);
    shape.ffn /= ways;
    return shape;
}

enum status block_cut_check(const struct block_shape *whole, int ways)
{
    struct verdict heads = model_sp_heads(whole->heads, whole->kv_heads, ways, 0);
    if (!verdict_ok(&heads))
        return FAIL(STATUS_USAGE, "a layer cut %d ways: %s", ways, heads.why);
    if (whole->ffn % ways != 0)
        return FAIL(STATUS_USAGE, "a layer cut %d ways: %lld columns of the MLP leave %lld over", ways,
                    (long long)whole->ffn, (long long)(whole->ffn % ways));
    return STATUS_OK;
}

struct block_cut block_cut_of(const struct block_shape *whole, int ways, enum block_tensor tensor)
{
    enum { ROWS, COLUMNS };
    int kv = ways / model_kv_copies(whole->kv_heads, ways);
    const struct {
        int dim, parts;
    } table[BLOCK_TENSORS] = {
        [BLOCK_NORM] = {COLUMNS, 1},    [BLOCK_Q] = {ROWS, ways},         [BLOCK_K] = {ROWS, kv},
        [BLOCK_V] = {ROWS, kv},         [BLOCK_Q_BIAS] = {COLUMNS, ways}, [BLOCK_K_BIAS] = {COLUMNS, kv},
        [BLOCK_V_BIAS] = {COLUMNS, kv}, [BLOCK_Q_NORM] = {COLUMNS, 1},    [BLOCK_K_NORM] = {COLUMNS, 1},
        [BLOCK_O] = {COLUMNS, ways},    [BLOCK_MLP_NORM] = {COLUMNS, 1},  [BLOCK_GATE] = {ROWS, ways},
        [BLOCK_UP] = {ROWS, ways},      [BLOCK_DOWN] = {COLUMNS, ways},
    };
    int parts = table[tensor].parts;
    return (struct block_cut){.dim = table[tensor].dim, .parts = parts, .copies = ways / parts};
}

/* ---- life ---- */

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The products of a block, with the operands either way round. */
static size_t product_bytes(const struct block_shape *s, int64_t rows, enum dev_kind dev)
{
    size_t bytes = 0;
    for (int t = 0; t < BLOCK_TENSORS; t++) {
        int64_t out, in;
        if (!block_tensor_shape(s, (enum block_tensor)t, &out, &in) || out == 1)
            continue;
        struct gemm_shape forward = {.m = rows, .n = out, .k = in, .dtype = s->dtype, .trans_b = true, .narrow = true};
        struct gemm_shape to_rows = {.m = rows, .n = in, .k = out, .dtype = s->dtype, .add = true, .narrow = true};
        struct gemm_shape to_weights = {.m = out, .n = in, .k = rows, .dtype = s->dtype, .trans_a = true, .add = true};
        bytes = most(bytes, most(gemm_workspace(dev, &forward),
                                 most(gemm_workspace(dev, &to_rows), gemm_workspace(dev, &to_weights))));
    }
    return bytes;
}

static enum status scratch_alloc(struct block *block)
{
    const struct block_shape *s = &block->shape;
    enum dev_kind kind = dev_kind_of(block->room.dev);
    int64_t elem = dtype_bytes(s->dtype);
    block->scratch_bytes = product_bytes(s, block->all, kind);
    if (block->ways > 1) /* of a sum over ranks, a sequence at a time */
        block->scratch_bytes =
            most(block->scratch_bytes,
                 comm_reduce_scatter_scratch(block->cut, block->rows / block->batch * s->hidden, s->dtype));
    block->scratch_bytes = most(block->scratch_bytes, nn_norm_scratch(kind, block->rows, s->hidden));
    block->scratch_bytes = most(block->scratch_bytes, nn_norm_scratch(kind, block->all * s->heads, s->head_dim));
    TRY(dev_room_take(&block->room, block->all * s->hidden * elem, "normalised rows", &block->h));
    block->part = block->h;
    if (block->ways > 1)
        TRY(dev_room_take(&block->room, block->rows * s->hidden * elem, "this rank's rows", &block->part));
    TRY(dev_room_take(&block->room, block->all * s->hidden * elem, "their gradient", &block->d_h));
    TRY(dev_room_take(&block->room, block->tile * s->ffn * elem, "the MLP's activations", &block->act));
    if (block->tiled) {
        TRY(dev_room_take(&block->room, block->tile * s->ffn * elem, "the MLP's gate", &block->gate));
        TRY(dev_room_take(&block->room, block->tile * s->ffn * elem, "the MLP's up", &block->up));
    }
    TRY(dev_room_take(&block->room, block->rows * 4, "statistics of norms", &block->rstd));
    return dev_room_take(&block->room, (int64_t)block->scratch_bytes, "workspace of a block", &block->scratch);
}

/* Everything but memory. */
static enum status block_fill(const struct block_shape *shape, const struct block_parallel *parallel, int64_t rows,
                              int64_t mlp_rows, struct dev *dev, struct block *block)
{
    int ways = parallel->cut != NULL ? comm_size(parallel->cut) : 1;
    TRY(block_cut_check(shape, ways));
    if (parallel->batch < 1 || rows % parallel->batch != 0)
        return FAIL(STATUS_USAGE, "%lld rows are not a multiple of the batch %lld", (long long)rows,
                    (long long)parallel->batch);
    block->shape = block_shape_cut(shape, ways);
    block->ways = ways;
    block->cut = parallel->cut;
    block->batch = parallel->batch;
    block->rows = rows;
    block->all = rows * ways;
    block->tiled = mlp_rows > 0;
    block->tile = block->tiled && mlp_rows < block->all ? mlp_rows : block->all;
    block->room.dev = dev;
    return STATUS_OK;
}

enum status block_create(const struct block_shape *shape, const struct block_parallel *parallel, int64_t rows,
                         int64_t mlp_rows, struct dev *dev, struct block **out)
{
    struct block *block = NULL;
    TRY(mem_alloc(sizeof *block, "a block", (void **)&block));
    enum status status = block_fill(shape, parallel, rows, mlp_rows, dev, block);
    if (status == STATUS_OK)
        status = scratch_alloc(block);
    if (status != STATUS_OK) {
        block_destroy(block);
        return status;
    }
    *out = block;
    return STATUS_OK;
}

void block_destroy(struct block *block)
{
    if (block == NULL)
        return;
    dev_room_free(&block->room);
    free(block);
}

static enum status kept_alloc(const struct block *block, struct block_kept *kept)
{
    const struct block_shape *s = &block->shape;
    int64_t rows = block->rows, all = block->all, elem = dtype_bytes(s->dtype);
    TRY(dev_room_take(&kept->room, rows * s->hidden * elem, "rows between attention and MLP", &kept->x2));
    TRY(dev_room_take(&kept->room, rows * 4, "statistics of norms", &kept->rstd));
    TRY(dev_room_take(&kept->room, rows * 4, "statistics of norms", &kept->rstd2));
    if (!block->tiled) {
        TRY(dev_room_take(&kept->room, all * s->ffn * elem, "the MLP's gate", &kept->gate));
        TRY(dev_room_take(&kept->room, all * s->ffn * elem, "the MLP's up", &kept->up));
    }
    if (!s->qk_norm)
        return STATUS_OK;
    TRY(dev_room_take(&kept->room, all * s->heads * s->head_dim * elem, "q before its norm", &kept->q));
    TRY(dev_room_take(&kept->room, all * s->kv_heads * s->head_dim * elem, "k before its norm", &kept->k));
    TRY(dev_room_take(&kept->room, all * s->heads * 4, "statistics of norms", &kept->q_rstd));
    return dev_room_take(&kept->room, all * s->kv_heads * 4, "statistics of norms", &kept->k_rstd);
}

enum status block_keep(struct block *block, struct block_kept **out)
{
    struct block_kept *kept = NULL;
    TRY(mem_alloc(sizeof *kept, "what a block keeps", (void **)&kept));
    kept->room.dev = block->room.dev;
    enum status status = kept_alloc(block, kept);
    if (status != STATUS_OK) {
        block_kept_destroy(kept);
        return status;
    }
    *out = kept;
    return STATUS_OK;
}

enum status block_need(const struct block_shape *shape, const struct block_parallel *parallel, int64_t rows,
                       int64_t mlp_rows, struct dev *dev, int64_t *out_block, int64_t *out_kept)
{
    struct block block = {.room.counts = true};
    struct block_kept kept = {.room.counts = true};
    TRY(block_fill(shape, parallel, rows, mlp_rows, dev, &block));
    TRY(scratch_alloc(&block));
    TRY(kept_alloc(&block, &kept));
    *out_block = block.room.bytes;
    *out_kept = kept.room.bytes;
    return STATUS_OK;
}

void block_kept_destroy(struct block_kept *kept)
{
    if (kept == NULL)
        return;
    dev_room_free(&kept->room);
    free(kept);
}

int64_t block_bytes(const struct block *block)
{
    return block->room.bytes;
}

int64_t block_kept_bytes(const struct block_kept *kept)
{
    return kept->room.bytes;
}

/* ---- rows of other ranks: a sequence at a time, so that each is in order ---- */

/* Nothing where ways is 1: then there is one buffer of rows, whatever its name. */
static enum status gather(const struct block *block, const void *mine, int64_t row_bytes, void *all,
                          struct dev_queue *queue)
{
    int64_t bytes = block->rows / block->batch * row_bytes;
    for (int64_t b = 0; b < block->batch && block->ways > 1; b++)
        TRY(comm_allgather(block->cut, (const char *)mine + b * bytes, (char *)all + b * bytes * block->ways,
                           (size_t)bytes, queue));
    return STATUS_OK;
}

/* mine: the sum of what all ranks have for it. */
static enum status scatter(const struct block *block, const void *all, void *mine, struct dev_queue *queue)
{
    int64_t elems = block->rows / block->batch * block->shape.hidden, bytes = elems * dtype_bytes(block->shape.dtype);
    for (int64_t b = 0; b < block->batch && block->ways > 1; b++)
        TRY(comm_reduce_scatter(block->cut, (const char *)all + b * bytes * block->ways, (char *)mine + b * bytes,
                                elems, block->shape.dtype, block->scratch, queue));
    return STATUS_OK;
}

enum status block_gather_positions(struct block *block, const int32_t *mine, int32_t *all, struct dev_queue *queue)
{
    return block->ways > 1 ? gather(block, mine, sizeof *mine, all, queue)
                           : dev_copy(queue, all, mine, (size_t)block->rows * sizeof *mine);
}

/* block->h: all ranks' rows, normalised. */
static enum status normalise(const struct block *block, const void *x, const void *weight, float *rstd,
                             struct dev_queue *queue)
{
    const struct block_shape *s = &block->shape;
    TRY(nn_norm_forward(block->rows, s->hidden, s->dtype, x, weight, s->eps, block->part, rstd, queue));
    return gather(block, block->part, s->hidden * dtype_bytes(s->dtype), block->h, queue);
}

/* dy of all ranks; lives until d_h is written. */
static enum status gather_dy(const struct block *block, void *dy, struct dev_queue *queue, void **all)
{
    *all = block->ways > 1 ? block->d_h : dy;
    return gather(block, dy, block->shape.hidden * dtype_bytes(block->shape.dtype), block->d_h, queue);
}

/* d_h, through the norm, onto dx. */
static enum status normalise_back(const struct block *block, const void *x, const void *weight, const float *rstd,
                                  void *dx, float *grad, struct dev_queue *queue)
{
    const struct block_shape *s = &block->shape;
    TRY(scatter(block, block->d_h, block->part, queue));
    return nn_norm_backward(block->rows, s->hidden, s->dtype, x, weight, rstd,
                            block->ways > 1 ? block->part : block->d_h, true, dx, grad, block->scratch, queue);
}

/* ---- products of some rows: y = x W^T, dx (+)= dy W, dW += dy^T x ---- */

static enum status project(const struct block *block, int64_t rows, const void *x, const void *weight, int64_t out,
                           int64_t in, void *y, struct dev_queue *queue)
{
    struct gemm_shape shape = {
        .m = rows, .n = out, .k = in, .dtype = block->shape.dtype, .trans_b = true, .narrow = true};
    return gemm_run(dev_kind_of(block->room.dev), &shape, x, weight, y, block->scratch, queue);
}

static enum status to_rows(const struct block *block, int64_t rows, const void *dy, const void *weight, int64_t out,
                           int64_t in, bool add, void *dx, struct dev_queue *queue)
{
    struct gemm_shape shape = {.m = rows, .n = in, .k = out, .dtype = block->shape.dtype, .add = add, .narrow = true};
    return gemm_run(dev_kind_of(block->room.dev), &shape, dy, weight, dx, block->scratch, queue);
}

static enum status to_weight(const struct block *block, int64_t rows, const void *dy, const void *x, int64_t out,
                             int64_t in, float *dw, struct dev_queue *queue)
{
    struct gemm_shape shape = {.m = out, .n = in, .k = rows, .dtype = block->shape.dtype, .trans_a = true, .add = true};
    return gemm_run(dev_kind_of(block->room.dev), &shape, dy, x, dw, block->scratch, queue);
}

/* The same of weights whose columns are cut: y [rows][out], summed over ranks. */
static enum status project_down(const struct block *block, const void *x, const void *weight, int64_t in, void *y,
                                struct dev_queue *queue)
{
    void *sum = block->ways > 1 ? block->d_h : y;
    TRY(project(block, block->all, x, weight, block->shape.hidden, in, sum, queue));
    return scatter(block, sum, y, queue);
}

/* ---- attention ---- */

/* One of q, k, v: where it goes, and what makes it. */
struct head_tensor {
    enum block_tensor weight, bias, norm;
    int heads;
    void *to, *grad, *before; /* before: as it was before its norm */
    float *rstd;
    bool turned; /* by RoPE */
};

static void head_tensors(const struct block *block, const struct block_kept *kept, const struct exec *exec,
                         struct head_tensor out[3])
{
    const struct block_shape *s = &block->shape;
    const struct exec_tensors *t = exec_tensors(exec);
    out[0] =
        (struct head_tensor){BLOCK_Q, BLOCK_Q_BIAS, BLOCK_Q_NORM, s->heads, t->q, t->dq, kept->q, kept->q_rstd, true};
    out[1] = (struct head_tensor){BLOCK_K, BLOCK_K_BIAS, BLOCK_K_NORM, s->kv_heads, t->k,
                                  t->dk,   kept->k,      kept->k_rstd, true};
    out[2] = (struct head_tensor){BLOCK_V, BLOCK_V_BIAS, BLOCK_V, s->kv_heads, t->v, t->dv, NULL, NULL, false};
}

static enum status head_tensor_make(const struct block *block, const struct block_weights *weights,
                                    const struct block_rope *rope, const struct head_tensor *head,
                                    struct dev_queue *queue)
{
    const struct block_shape *s = &block->shape;
    int64_t width = (int64_t)head->heads * s->head_dim;
    void *made = head->before != NULL ? head->before : head->to;
    TRY(project(block, block->all, block->h, weights->of[head->weight], width, s->hidden, made, queue));
    if (s->qkv_bias)
        TRY(nn_bias(block->all, width, s->dtype, made, weights->of[head->bias], queue));
    if (head->before != NULL)
        TRY(nn_norm_forward(block->all * head->heads, s->head_dim, s->dtype, made, weights->of[head->norm], s->eps,
                            head->to, head->rstd, queue));
    return head->turned ? nn_rope(block->all, head->heads, s->head_dim, s->dtype, head->to, rope->positions,
                                  rope->inv_freq, false, queue)
                        : STATUS_OK;
}

/* d_h += what comes through this tensor; block->h holds the normalised rows. */
static enum status head_tensor_back(const struct block *block, const struct block_weights *weights,
                                    const struct block_grads *grads, const struct block_rope *rope,
                                    const struct head_tensor *head, bool add, struct dev_queue *queue)
{
    const struct block_shape *s = &block->shape;
    int64_t width = (int64_t)head->heads * s->head_dim;
    if (head->turned)
        TRY(nn_rope(block->all, head->heads, s->head_dim, s->dtype, head->grad, rope->positions, rope->inv_freq, true,
                    queue));
    if (head->before != NULL)
        TRY(nn_norm_backward(block->all * head->heads, s->head_dim, s->dtype, head->before, weights->of[head->norm],
                             head->rstd, head->grad, false, head->grad, grads->of[head->norm], block->scratch, queue));
    if (s->qkv_bias)
        TRY(nn_bias_backward(block->all, width, s->dtype, head->grad, grads->of[head->bias], queue));
    TRY(to_weight(block, block->all, head->grad, block->h, width, s->hidden, grads->of[head->weight], queue));
    return to_rows(block, block->all, head->grad, weights->of[head->weight], width, s->hidden, add, block->d_h, queue);
}

static enum status attention_forward(struct block *block, const struct block_weights *weights,
                                     const struct block_rope *rope, struct exec *exec, struct block_kept *kept,
                                     const void *x, struct dev_queue *queue)
{
    const struct block_shape *s = &block->shape;
    struct head_tensor heads[3];
    TRY(normalise(block, x, weights->of[BLOCK_NORM], kept->rstd, queue));
    head_tensors(block, kept, exec, heads);
    for (int i = 0; i < 3; i++)
        TRY(head_tensor_make(block, weights, rope, &heads[i], queue));
    TRY(exec_forward(exec, queue));
    TRY(project_down(block, exec_tensors(exec)->o, weights->of[BLOCK_O], (int64_t)s->heads * s->head_dim, kept->x2,
                     queue));
    return nn_add(block->rows * s->hidden, s->dtype, kept->x2, x, queue);
}

/* dy: of x'; becomes that of x. */
static enum status attention_backward(struct block *block, const struct block_weights *weights,
                                      const struct block_grads *grads, const struct block_rope *rope, struct exec *exec,
                                      struct block_kept *kept, const void *x, void *dy, struct dev_queue *queue)
{
    const struct block_shape *s = &block->shape;
    const struct exec_tensors *t = exec_tensors(exec);
    int64_t width = (int64_t)s->heads * s->head_dim;
    struct head_tensor heads[3];
    void *all;
    TRY(gather_dy(block, dy, queue, &all));
    TRY(to_weight(block, block->all, all, t->o, s->hidden, width, grads->of[BLOCK_O], queue));
    TRY(to_rows(block, block->all, all, weights->of[BLOCK_O], s->hidden, width, false, t->d_o, queue));
    TRY(exec_backward(exec, queue));
    TRY(normalise(block, x, weights->of[BLOCK_NORM], block->rstd, queue));
    head_tensors(block, kept, exec, heads);
    for (int i = 0; i < 3; i++)
        TRY(head_tensor_back(block, weights, grads, rope, &heads[i], i > 0, queue));
    return normalise_back(block, x, weights->of[BLOCK_NORM], kept->rstd, dy, grads->of[BLOCK_NORM], queue);
}

/* ---- MLP ---- */

/* Rows [from, from + rows) of it, all of them where it is not tiled. */
struct tile {
    int64_t from, rows;
    const void *h;   /* normalised */
    void *gate, *up; /* kept, or the block's */
};

static char *row_at(const struct block *block, void *base, int64_t row)
{
    return (char *)base + row * block->shape.hidden * dtype_bytes(block->shape.dtype);
}

static struct tile tile_at(const struct block *block, const struct block_kept *kept, int64_t from)
{
    int64_t left = block->all - from;
    return (struct tile){.from = from,
                         .rows = left < block->tile ? left : block->tile,
                         .h = row_at(block, block->h, from),
                         .gate = block->tiled ? block->gate : kept->gate,
                         .up = block->tiled ? block->up : kept->up};
}

static enum status gate_up(const struct block *block, const struct block_weights *weights, const struct tile *tile,
                           struct dev_queue *queue)
{
    const struct block_shape *s = &block->shape;
    TRY(project(block, tile->rows, tile->h, weights->of[BLOCK_GATE], s->ffn, s->hidden, tile->gate, queue));
    return project(block, tile->rows, tile->h, weights->of[BLOCK_UP], s->ffn, s->hidden, tile->up, queue);
}

static enum status mlp_forward(struct block *block, const struct block_weights *weights, struct block_kept *kept,
                               void *y, struct dev_queue *queue)
{
    const struct block_shape *s = &block->shape;
    void *sum = block->ways > 1 ? block->d_h : y;
    TRY(normalise(block, kept->x2, weights->of[BLOCK_MLP_NORM], kept->rstd2, queue));
    for (int64_t from = 0; from < block->all; from += block->tile) {
        struct tile tile = tile_at(block, kept, from);
        TRY(gate_up(block, weights, &tile, queue));
        TRY(nn_swiglu_forward(tile.rows * s->ffn, s->dtype, tile.gate, tile.up, block->act, queue));
        TRY(project(block, tile.rows, block->act, weights->of[BLOCK_DOWN], s->hidden, s->ffn, row_at(block, sum, from),
                    queue));
    }
    TRY(scatter(block, sum, y, queue));
    return nn_add(block->rows * s->hidden, s->dtype, y, kept->x2, queue);
}

/* dy: of these rows of y; d_h may lie where it does. gate and up become their gradients: nobody reads them again. */
static enum status tile_backward(const struct block *block, const struct block_weights *weights,
                                 const struct block_grads *grads, const struct tile *tile, const void *dy,
                                 struct dev_queue *queue)
{
    const struct block_shape *s = &block->shape;
    int64_t rows = tile->rows, n = rows * s->ffn;
    void *d_h = row_at(block, block->d_h, tile->from);
    TRY(nn_swiglu_forward(n, s->dtype, tile->gate, tile->up, block->act, queue));
    TRY(to_weight(block, rows, dy, block->act, s->hidden, s->ffn, grads->of[BLOCK_DOWN], queue));
    TRY(to_rows(block, rows, dy, weights->of[BLOCK_DOWN], s->hidden, s->ffn, false, block->act, queue));
    TRY(nn_swiglu_backward(n, s->dtype, tile->gate, tile->up, block->act, tile->gate, tile->up, queue));
    TRY(to_weight(block, rows, tile->gate, tile->h, s->ffn, s->hidden, grads->of[BLOCK_GATE], queue));
    TRY(to_weight(block, rows, tile->up, tile->h, s->ffn, s->hidden, grads->of[BLOCK_UP], queue));
    TRY(to_rows(block, rows, tile->gate, weights->of[BLOCK_GATE], s->ffn, s->hidden, false, d_h, queue));
    return to_rows(block, rows, tile->up, weights->of[BLOCK_UP], s->ffn, s->hidden, true, d_h, queue);
}

/* dy: of y; becomes that of x'. */
static enum status mlp_backward(struct block *block, const struct block_weights *weights,
                                const struct block_grads *grads, struct block_kept *kept, void *dy,
                                struct dev_queue *queue)
{
    void *all;
    TRY(normalise(block, kept->x2, weights->of[BLOCK_MLP_NORM], kept->rstd2, queue));
    TRY(gather_dy(block, dy, queue, &all));
    for (int64_t from = 0; from < block->all; from += block->tile) {
        struct tile tile = tile_at(block, kept, from);
        if (!kept->mlp)
            TRY(gate_up(block, weights, &tile, queue));
        TRY(tile_backward(block, weights, grads, &tile, row_at(block, all, from), queue));
    }
    return normalise_back(block, kept->x2, weights->of[BLOCK_MLP_NORM], kept->rstd2, dy, grads->of[BLOCK_MLP_NORM],
                          queue);
}

enum status block_forward(struct block *block, const struct block_weights *weights, const struct block_rope *rope,
                          struct exec *exec, struct block_kept *kept, const void *x, void *y, struct dev_queue *queue)
{
    TRY(RANGE("block attention", attention_forward(block, weights, rope, exec, kept, x, queue)));
    kept->mlp = y != NULL && !block->tiled;
    return y != NULL ? RANGE("block mlp", mlp_forward(block, weights, kept, y, queue)) : STATUS_OK;
}

enum status block_backward(struct block *block, const struct block_weights *weights, const struct block_grads *grads,
                           const struct block_rope *rope, struct exec *exec, struct block_kept *kept, const void *x,
                           void *dy, struct dev_queue *queue)
{
    TRY(RANGE("block mlp", mlp_backward(block, weights, grads, kept, dy, queue)));
    return RANGE("block attention", attention_backward(block, weights, grads, rope, exec, kept, x, dy, queue));
}
