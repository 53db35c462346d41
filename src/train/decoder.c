/* train/decoder.c -- the stack of blocks between embedding and loss. */
#include "train/decoder.h"

#include "base/mem.h"
#include "base/range.h"
#include "kernels/gemm.h"
#include "kernels/nn.h"
#include "sp/shard.h"
#include "sp/work.h"
#include "train/stash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct decoder {
    const struct layout *layout;
    struct params *params;
    struct plan plan;
    const struct groups *groups;
    struct dev *dev;
    int elem_bytes;
    float *inv_freq; /* [head_dim / 2] */
    bool timed;
    double exposed_us;
    struct stash *stash;  /* x_0 to x_L, of the largest problem so far: locking its memory takes long */
    struct dev_room room; /* of what depends on the problem, execs beside */
    /* All below depend on the problem. */
    struct problem problem;
    bool bound;
    int64_t rows, tile; /* tokens here; rows of logits at a time */
    int sets;           /* of exec and kept: 1, or one for each layer */
    struct exec **exec;
    struct block_kept **kept;
    struct block *block;
    void *h, *dx;  /* [rows][hidden] */
    float *rstd;   /* [rows] */
    float *logits; /* [tile][vocab] */
    void *narrow;  /* their gradients in the storage dtype; in fp32 that is `logits` */
    float *losses; /* [rows] */
    double *sum;   /* device */
    int32_t *ids, *labels, *positions;
    int32_t *all_positions; /* of the rows that attention sees: sp/block.h */
    void *scratch;          /* of products, norms, sums */
};

/* ---- RoPE ---- */

static enum status rope_fill(struct decoder *decoder)
{
    const struct model *m = &decoder->layout->model;
    int n = m->head_dim / 2;
    float *host = NULL;
    struct dev_queue *queue = NULL;
    TRY(mem_alloc((size_t)n * sizeof *host, "frequencies", (void **)&host));
    for (int i = 0; i < n; i++)
        host[i] = (float)model_rope_frequency(&m->rope, m->head_dim, i);
    enum status status = dev_alloc(decoder->dev, (size_t)n * sizeof *host, "frequencies", (void **)&decoder->inv_freq);
    if (status == STATUS_OK)
        status = dev_queue_create(decoder->dev, &queue);
    if (status == STATUS_OK)
        status = dev_copy_now(queue, decoder->inv_freq, host, (size_t)n * sizeof *host, INT64_MAX);
    dev_queue_destroy(queue);
    free(host);
    return status;
}

/* ---- life ---- */

enum status decoder_create(const struct layout *layout, struct params *params, const struct plan *plan,
                           const struct groups *groups, struct dev *dev, struct decoder **out)
{
    struct decoder *decoder = NULL;
    TRY(comm_alloc(groups->world, sizeof *decoder, "a decoder", "prepare a decoder", (void **)&decoder));
    decoder->layout = layout;
    decoder->params = params;
    decoder->plan = *plan;
    decoder->groups = groups;
    decoder->dev = dev;
    decoder->room.dev = dev;
    decoder->elem_bytes = dtype_bytes(layout->block.dtype);
    enum status status = comm_agree(groups->world, rope_fill(decoder), "prepare a decoder");
    if (status != STATUS_OK) {
        decoder_destroy(decoder);
        return status;
    }
    *out = decoder;
    return STATUS_OK;
}

static void unbind(struct decoder *decoder)
{
    dev_room_free(&decoder->room);
    for (int s = 0; s < decoder->sets; s++) {
        if (decoder->exec != NULL)
            exec_destroy(decoder->exec[s]);
        if (decoder->kept != NULL)
            block_kept_destroy(decoder->kept[s]);
    }
    block_destroy(decoder->block);
    free(decoder->exec);
    free(decoder->kept);
    memset((char *)decoder + offsetof(struct decoder, problem), 0, sizeof *decoder - offsetof(struct decoder, problem));
}

void decoder_destroy(struct decoder *decoder)
{
    if (decoder == NULL)
        return;
    unbind(decoder);
    stash_destroy(decoder->stash);
    dev_free(decoder->dev, decoder->inv_freq);
    free(decoder);
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The three products of the head. */
static struct gemm_shape logits_shape(const struct decoder *d, int64_t rows)
{
    const struct model *m = &d->layout->model;
    return (struct gemm_shape){
        .m = rows, .n = m->vocab, .k = m->hidden, .dtype = d->layout->block.dtype, .trans_b = true};
}

static struct gemm_shape head_rows_shape(const struct decoder *d, int64_t rows)
{
    const struct model *m = &d->layout->model;
    return (struct gemm_shape){
        .m = rows, .n = m->hidden, .k = m->vocab, .dtype = d->layout->block.dtype, .narrow = true};
}

static struct gemm_shape head_weight_shape(const struct decoder *d, int64_t rows)
{
    const struct model *m = &d->layout->model;
    return (struct gemm_shape){
        .m = m->vocab, .n = m->hidden, .k = rows, .dtype = d->layout->block.dtype, .trans_a = true, .add = true};
}

static size_t scratch_bytes(const struct decoder *d)
{
    enum dev_kind kind = dev_kind_of(d->dev);
    struct gemm_shape shapes[] = {logits_shape(d, d->tile), head_rows_shape(d, d->tile), head_weight_shape(d, d->tile)};
    size_t bytes = most(nn_norm_scratch(kind, d->rows, d->layout->model.hidden), nn_sum_scratch(d->rows));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        bytes = most(bytes, gemm_workspace(kind, &shapes[i]));
    return bytes;
}

static enum status rows_fit(struct decoder *d, size_t bytes)
{
    if (d->stash != NULL && stash_use(d->stash, bytes))
        return STATUS_OK;
    stash_destroy(d->stash);
    d->stash = NULL;
    return stash_create(d->layout->model.layers, d->plan.checkpointing == PLAN_CHECKPOINTING_OFFLOAD, bytes, d->dev,
                        &d->stash);
}

static enum status rows_alloc(struct decoder *d)
{
    const struct model *m = &d->layout->model;
    int64_t wide = m->hidden * d->elem_bytes;
    TRY(dev_room_take(&d->room, d->rows * wide, "normalised rows", &d->h));
    TRY(dev_room_take(&d->room, d->rows * wide, "gradients of activations", &d->dx));
    TRY(dev_room_take(&d->room, d->rows * 4, "statistics of the norm", &d->rstd));
    TRY(dev_room_take(&d->room, d->rows * 4, "losses", &d->losses));
    TRY(dev_room_take(&d->room, 8, "the loss", &d->sum));
    TRY(dev_room_take(&d->room, d->rows * 4, "ids", &d->ids));
    TRY(dev_room_take(&d->room, d->rows * 4, "labels", &d->labels));
    TRY(dev_room_take(&d->room, d->rows * 4, "positions", &d->positions));
    TRY(dev_room_take(&d->room, d->rows * plan_ways(&d->plan) * 4, "positions", &d->all_positions));
    TRY(dev_room_take(&d->room, d->tile * m->vocab * 4, "logits", &d->logits));
    d->narrow = d->logits;
    if (d->layout->block.dtype != DTYPE_FP32)
        TRY(dev_room_take(&d->room, d->tile * m->vocab * d->elem_bytes, "gradients of logits", &d->narrow));
    return dev_room_take(&d->room, (int64_t)scratch_bytes(d), "workspace of the head", &d->scratch);
}

/* Rows of logits at a time: all, or tiles of equal size but the last. */
static int64_t tile_rows(const struct decoder *d)
{
    int64_t bytes = work_logits_tile(dev_kind_of(d->dev));
    int64_t tiles = (4 * d->rows * d->layout->model.vocab + bytes - 1) / bytes;
    return d->plan.loss == PLAN_LOSS_PLAIN || tiles < 2 ? d->rows : (d->rows + tiles - 1) / tiles;
}

int decoder_sets(const struct plan *plan, int layers)
{
    return plan->checkpointing == PLAN_CHECKPOINTING_NONE ? layers : 1;
}

/* Of what depends on the problem: what is no memory. */
static void problem_set(struct decoder *d, const struct problem *problem)
{
    d->problem = *problem;
    d->rows = problem->batch * shard_local(problem, &d->plan);
    d->tile = tile_rows(d);
    d->sets = decoder_sets(&d->plan, d->layout->model.layers);
}

/* Rows of the MLP at a time, as sp/work_memory.c has it. */
static int64_t mlp_rows(const struct decoder *d)
{
    return d->plan.mlp == PLAN_MLP_TILED ? d->layout->model.hidden : 0;
}

static enum status own_alloc(struct decoder *d)
{
    struct block_parallel parallel = {d->groups->cut, d->problem.batch};
    TRY(mem_alloc((size_t)d->sets * sizeof *d->exec, "attention layers", (void **)&d->exec));
    TRY(mem_alloc((size_t)d->sets * sizeof *d->kept, "what layers keep", (void **)&d->kept));
    TRY(rows_fit(d, (size_t)(d->rows * d->layout->model.hidden * d->elem_bytes)));
    TRY(rows_alloc(d));
    TRY(block_create(&d->layout->block, &parallel, d->rows, mlp_rows(d), d->dev, &d->block));
    for (int s = 0; s < d->sets; s++)
        TRY(block_keep(d->block, &d->kept[s]));
    return STATUS_OK;
}

/* Packed rows differ in their documents, from micro-step to micro-step: those alone are new then. */
static enum status documents_set(struct decoder *d, const struct problem *problem)
{
    enum status status = STATUS_OK;
    d->bound = false;
    for (int s = 0; s < d->sets && status == STATUS_OK; s++)
        status = exec_documents(d->exec[s], problem);
    TRY(groups_agree(d->groups, status, "prepare a layer"));
    d->problem = *problem;
    d->bound = true;
    return STATUS_OK;
}

/* Rows of all groups are as long, so that all ranks come past documents_set together. */
static enum status bind(struct decoder *d, const struct problem *problem)
{
    if (d->bound && memcmp(&d->problem, problem, sizeof *problem) == 0)
        return STATUS_OK;
    if (d->bound && problem_alike(&d->problem, problem))
        return documents_set(d, problem);
    unbind(d);
    problem_set(d, problem);
    TRY(groups_await(d->groups, own_alloc(d), "allocate activations"));
    enum status status = STATUS_OK;
    for (int s = 0; s < d->sets && status == STATUS_OK; s++)
        status = groups_agree(d->groups, exec_create(problem, &d->plan, d->groups->sp, d->dev, &d->exec[s]),
                              "prepare a layer");
    TRY(groups_await(d->groups, status, "prepare a layer"));
    d->bound = true;
    return STATUS_OK;
}

enum status decoder_need(const struct layout *layout, const struct plan *plan, const struct problem *problem,
                         const struct groups *groups, struct dev *dev, struct decoder_need *out)
{
    struct decoder d = {.layout = layout, .plan = *plan, .groups = groups, .dev = dev, .room.counts = true};
    struct block_parallel parallel = {groups->cut, problem->batch};
    struct decoder_need need = {0};
    d.elem_bytes = dtype_bytes(layout->block.dtype);
    problem_set(&d, problem);
    TRY(rows_alloc(&d));
    TRY(block_need(&layout->block, &parallel, d.rows, mlp_rows(&d), dev, &need.mlp, &need.kept));
    stash_need(layout->model.layers, plan->checkpointing == PLAN_CHECKPOINTING_OFFLOAD,
               d.rows * layout->model.hidden * d.elem_bytes, &need.between, &need.host);
    need.kept =
        d.sets * (need.kept + work_exec_bytes(problem, plan) + work_kernel_bytes(problem, plan, dev_threads(dev)));
    need.logits = d.tile * layout->model.vocab * (4 + (layout->block.dtype != DTYPE_FP32 ? d.elem_bytes : 0));
    need.rest = d.room.bytes - need.logits;
    *out = need;
    return STATUS_OK;
}

void decoder_time(struct decoder *decoder)
{
    decoder->timed = true;
}

double decoder_exposed_us(struct decoder *decoder)
{
    double us = decoder->exposed_us;
    decoder->exposed_us = 0;
    return us;
}

int64_t decoder_bytes(const struct decoder *decoder)
{
    int64_t bytes = decoder->room.bytes + (decoder->block != NULL ? block_bytes(decoder->block) : 0) +
                    (decoder->stash != NULL ? stash_bytes(decoder->stash) : 0);
    for (int s = 0; decoder->bound && s < decoder->sets; s++)
        bytes += exec_bytes(decoder->exec[s]) + block_kept_bytes(decoder->kept[s]);
    return bytes;
}

int64_t decoder_host_bytes(const struct decoder *decoder)
{
    return decoder->stash != NULL ? stash_host_bytes(decoder->stash) : 0;
}

/* ---- layers ---- */

/* next: the layer that comes after it. One before the first is the embedding, one behind the last the head. */
static enum status layer_weights(struct decoder *d, int layer, int next, struct block_weights *out,
                                 struct dev_queue *queue)
{
    const void *base;
    int64_t offset[BLOCK_TENSORS];
    TRY(params_weights(d->params, 1 + layer, queue, &base));
    TRY(params_prefetch(d->params, 1 + next, queue));
    layout_layer(d->layout, layer, offset);
    for (int t = 0; t < BLOCK_TENSORS; t++)
        out->of[t] = offset[t] < 0 ? NULL : (const char *)base + offset[t] * d->elem_bytes;
    return STATUS_OK;
}

static enum status layer_grads(struct decoder *d, int layer, struct block_grads *out, struct dev_queue *queue)
{
    float *base;
    int64_t offset[BLOCK_TENSORS];
    TRY(params_grads(d->params, 1 + layer, queue, &base));
    layout_layer(d->layout, layer, offset);
    for (int t = 0; t < BLOCK_TENSORS; t++)
        out->of[t] = offset[t] < 0 ? NULL : base + offset[t];
    return STATUS_OK;
}

static int set_of(const struct decoder *d, int layer)
{
    return d->sets > 1 ? layer : 0;
}

static enum status layer_time(struct decoder *d, int layer, struct dev_queue *queue)
{
    if (!d->timed)
        return STATUS_OK;
    TRY(dev_sync(queue, INT64_MAX));
    d->exposed_us += exec_times(d->exec[set_of(d, layer)])->exposed_us;
    return STATUS_OK;
}

/* y: NULL where only backward is to come. */
static enum status layer_run(struct decoder *d, int layer, int next, const void *x, void *y, struct dev_queue *queue)
{
    struct block_weights weights;
    struct block_rope rope = {d->all_positions, d->inv_freq};
    TRY(layer_weights(d, layer, next, &weights, queue));
    TRY(block_forward(d->block, &weights, &rope, d->exec[set_of(d, layer)], d->kept[set_of(d, layer)], x, y, queue));
    return layer_time(d, layer, queue);
}

static enum status layer_forward(struct decoder *d, int layer, struct dev_queue *queue)
{
    const void *x;
    void *y;
    TRY(stash_forward(d->stash, layer, queue, &x, &y));
    return layer_run(d, layer, layer + 1, x, y, queue);
}

/* dx: of the layer's output, then of its input. */
static enum status layer_backward(struct decoder *d, int layer, struct dev_queue *queue)
{
    struct block_weights weights;
    struct block_grads grads;
    struct block_rope rope = {d->all_positions, d->inv_freq};
    const void *x;
    TRY(stash_backward(d->stash, layer, queue, &x));
    if (d->sets == 1)
        TRY(layer_run(d, layer, layer - 1, x, NULL, queue)); /* its output is known; what it keeps is what is wanted */
    TRY(layer_weights(d, layer, layer - 1, &weights, queue));
    TRY(layer_grads(d, layer, &grads, queue));
    TRY(block_backward(d->block, &weights, &grads, &rope, d->exec[set_of(d, layer)], d->kept[set_of(d, layer)], x,
                       d->dx, queue));
    TRY(layer_time(d, layer, queue));
    return params_reduce(d->params, 1 + layer, queue);
}

/* ---- head ---- */

/* Rows [from, from + n): their losses; with gradients, those of the head's weights and of the normalised rows, which dx gets. */
static enum status tile_run(struct decoder *d, const void *head, float *head_grads, int64_t from, int64_t n,
                            float scale, struct dev_queue *queue)
{
    const struct model *m = &d->layout->model;
    enum dev_kind kind = dev_kind_of(d->dev);
    const char *h = (const char *)d->h + from * m->hidden * d->elem_bytes;
    char *dh = (char *)d->dx + from * m->hidden * d->elem_bytes;
    struct gemm_shape forward = logits_shape(d, n), to_rows = head_rows_shape(d, n),
                      to_weight = head_weight_shape(d, n);
    TRY(gemm_run(kind, &forward, h, head, d->logits, d->scratch, queue));
    TRY(nn_loss(n, m->vocab, m->vocab, d->logits, d->labels + from, scale, head_grads != NULL, d->losses + from,
                queue));
    if (head_grads == NULL)
        return STATUS_OK;
    if (d->narrow != d->logits)
        TRY(nn_convert(n * m->vocab, DTYPE_FP32, d->logits, d->layout->block.dtype, d->narrow, queue));
    TRY(gemm_run(kind, &to_weight, d->narrow, h, head_grads, d->scratch, queue));
    return gemm_run(kind, &to_rows, d->narrow, head, dh, d->scratch, queue);
}

static enum status head_run(struct decoder *d, float scale, bool backward, struct dev_queue *queue)
{
    const struct layout *layout = d->layout;
    const struct model *m = &layout->model;
    int last = layout->units - 1, unit = layout_head_unit(layout);
    const void *x = stash_at(d->stash, m->layers), *norm, *head;
    float *norm_grads = NULL, *head_grads = NULL;
    TRY(params_weights(d->params, last, queue, &norm));
    TRY(params_weights(d->params, unit, queue, &head));
    norm = (const char *)norm + layout_norm_offset(layout) * d->elem_bytes;
    head = (const char *)head + layout_head_offset(layout) * d->elem_bytes;
    TRY(nn_norm_forward(d->rows, m->hidden, layout->block.dtype, x, norm, layout->block.eps, d->h, d->rstd, queue));
    if (backward) {
        TRY(params_grads(d->params, last, queue, &norm_grads));
        TRY(params_grads(d->params, unit, queue, &head_grads));
        norm_grads += layout_norm_offset(layout);
        head_grads += layout_head_offset(layout);
    }
    for (int64_t from = 0; from < d->rows; from += d->tile) {
        int64_t n = d->rows - from < d->tile ? d->rows - from : d->tile;
        TRY(tile_run(d, head, head_grads, from, n, scale, queue));
    }
    if (!backward)
        return STATUS_OK;
    TRY(nn_norm_backward(d->rows, m->hidden, layout->block.dtype, x, norm, d->rstd, d->dx, false, d->dx, norm_grads,
                         d->scratch, queue));
    return params_reduce(d->params, last, queue);
}

/* ---- all of it ---- */

static enum status embed_forward(struct decoder *d, struct dev_queue *queue)
{
    const void *table;
    TRY(params_weights(d->params, 0, queue, &table));
    TRY(params_prefetch(d->params, 1, queue));
    return nn_embed_forward(d->rows, d->layout->model.hidden, d->layout->block.dtype, d->ids, table,
                            stash_first(d->stash), queue);
}

static enum status embed_backward(struct decoder *d, struct dev_queue *queue)
{
    const struct model *m = &d->layout->model;
    float *grads;
    TRY(params_grads(d->params, 0, queue, &grads));
    TRY(nn_embed_backward(d->rows, m->vocab, m->hidden, d->layout->block.dtype, d->ids, d->dx, grads, queue));
    return params_reduce(d->params, 0, queue);
}

static enum status loss_sum(struct decoder *d, struct dev_queue *queue, double *out)
{
    TRY(nn_sum(d->rows, d->losses, false, d->sum, d->scratch, queue));
    return dev_copy_now(queue, out, d->sum, sizeof *out, INT64_MAX);
}

enum status decoder_run(struct decoder *d, const struct problem *problem, const struct decoder_batch *batch,
                        float scale, bool backward, struct dev_queue *queue, double *loss)
{
    int layers = d->layout->model.layers;
    TRY(bind(d, problem));
    size_t bytes = (size_t)d->rows * sizeof(int32_t);
    TRY(dev_copy(queue, d->ids, batch->ids, bytes));
    TRY(dev_copy(queue, d->labels, batch->labels, bytes));
    TRY(dev_copy(queue, d->positions, batch->positions, bytes));
    TRY(block_gather_positions(d->block, d->positions, d->all_positions, queue));
    TRY(embed_forward(d, queue));
    for (int l = 0; l < layers; l++)
        TRY(RANGE_AT("layer forward", l, layer_forward(d, l, queue)));
    TRY(RANGE("head", head_run(d, scale, backward, queue)));
    for (int l = layers - 1; l >= 0 && backward; l--)
        TRY(RANGE_AT("layer backward", l, layer_backward(d, l, queue)));
    if (backward)
        TRY(embed_backward(d, queue));
    return loss_sum(d, queue, loss);
}

static enum status need_run(const struct decoder *d)
{
    return d->bound ? STATUS_OK : FAIL(STATUS_USAGE, "a decoder that has not run has no activations");
}

enum status decoder_logits(struct decoder *d, int64_t row, struct dev_queue *queue, float *out)
{
    const struct model *m = &d->layout->model;
    enum dev_kind kind = dev_kind_of(d->dev);
    struct gemm_shape shape = logits_shape(d, 1);
    const void *head;
    TRY(need_run(d));
    TRY(params_weights(d->params, layout_head_unit(d->layout), queue, &head));
    if (row < 0)
        return STATUS_OK;
    head = (const char *)head + layout_head_offset(d->layout) * d->elem_bytes;
    TRY(gemm_run(kind, &shape, (const char *)d->h + row * m->hidden * d->elem_bytes, head, d->logits, d->scratch,
                 queue));
    return dev_copy_now(queue, out, d->logits, (size_t)m->vocab * sizeof *out, INT64_MAX);
}

/* A sum, in double, is finite where all that was added is. */
enum status decoder_not_finite(struct decoder *d, struct dev_queue *queue, int *out)
{
    const struct model *m = &d->layout->model;
    int64_t n = d->rows * m->hidden;
    float *wide = NULL;
    double *sum = NULL;
    void *scratch = NULL;
    enum status status;
    int found = -1;
    TRY(need_run(d));
    TRY_OUT(dev_alloc(d->dev, (size_t)n * sizeof *wide, "activations as fp32", (void **)&wide));
    TRY_OUT(dev_alloc(d->dev, sizeof *sum, "a sum", (void **)&sum));
    TRY_OUT(dev_alloc(d->dev, nn_sum_scratch(n), "workspace of a sum", &scratch));
    for (int l = 0; l <= m->layers && found < 0; l++) {
        double host;
        TRY_OUT(nn_convert(n, d->layout->block.dtype, stash_at(d->stash, l), DTYPE_FP32, wide, queue));
        TRY_OUT(nn_sum(n, wide, false, sum, scratch, queue));
        TRY_OUT(dev_copy_now(queue, &host, sum, sizeof host, INT64_MAX));
        found = isfinite(host) ? -1 : l;
    }
    *out = found;
out:
    dev_free(d->dev, scratch);
    dev_free(d->dev, sum);
    dev_free(d->dev, wide);
    return status;
}
