/* sp/exec_layer.c -- every method's layer: buffers of both sides, one kernel call prepared per chunk, the ring. */
#include "sp/exec_state.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Memory of one side: the exchange's when there is one, so that it can be mapped memory. */
static enum status side_alloc(struct exec *exec, int64_t bytes, const char *what, void *out)
{
    void *memory = NULL;
    if (exec->exchange == NULL)
        return dev_room_take(&exec->room, bytes, what, out);
    assert(exec->nside < EXEC_SIDE);
    TRY(exec->exchange->alloc(exec->exchange_state, (size_t)bytes, what, &memory));
    exec->side[exec->nside++] = memory;
    exec->exchange_bytes += bytes;
    memcpy(out, &memory, sizeof memory);
    return STATUS_OK;
}

static bool has_backward(const struct exec *exec)
{
    return (exec->problem.direction & PROBLEM_BACKWARD) != 0;
}

static enum status seq_side_alloc(struct exec *exec)
{
    const struct problem *problem = &exec->problem;
    struct exec_tensors *t = &exec->tensors;
    int64_t row = problem->batch * t->seq_local * exec->elem_bytes;
    t->q_bytes = (size_t)(row * problem->heads * exec->dim);
    t->k_bytes = (size_t)(row * problem->kv_heads * exec->dim);
    t->v_bytes = (size_t)(row * problem->kv_heads * exec->dim_v);
    t->o_bytes = (size_t)(row * problem->heads * exec->dim_v);
    TRY(side_alloc(exec, (int64_t)t->q_bytes, "q", &t->q));
    TRY(side_alloc(exec, (int64_t)t->k_bytes, "k", &t->k));
    TRY(side_alloc(exec, (int64_t)t->v_bytes, "v", &t->v));
    TRY(side_alloc(exec, (int64_t)t->o_bytes, "o", &t->o));
    if (!has_backward(exec))
        return STATUS_OK;
    TRY(side_alloc(exec, (int64_t)t->o_bytes, "d_o", &t->d_o));
    TRY(side_alloc(exec, (int64_t)t->q_bytes, "dq", &t->dq));
    TRY(side_alloc(exec, (int64_t)t->k_bytes, "dk", &t->dk));
    return side_alloc(exec, (int64_t)t->v_bytes, "dv", &t->dv);
}

static enum status head_side_alloc(struct exec *exec)
{
    const struct exec_tensors *t = &exec->tensors;
    if (exec->head_ranks == 1) {
        exec->q = t->q;
        exec->k = t->k;
        exec->v = t->v;
        exec->o = t->o;
        exec->d_o = t->d_o;
        exec->dq = t->dq;
        exec->dk = t->dk;
        exec->dv = t->dv;
        return STATUS_OK;
    }
    int64_t row = exec->problem.batch * exec->tokens * exec->elem_bytes;
    int64_t q = row * exec->heads * exec->dim, k = row * exec->kv_heads * exec->dim;
    int64_t v = row * exec->kv_heads * exec->dim_v, o = row * exec->heads * exec->dim_v;
    TRY(side_alloc(exec, q, "q by heads", &exec->q));
    TRY(side_alloc(exec, k, "k by heads", &exec->k));
    TRY(side_alloc(exec, v, "v by heads", &exec->v));
    TRY(side_alloc(exec, o, "o by heads", &exec->o));
    if (!has_backward(exec))
        return STATUS_OK;
    TRY(side_alloc(exec, o, "d_o by heads", &exec->d_o));
    TRY(side_alloc(exec, q, "dq by heads", &exec->dq));
    TRY(side_alloc(exec, k, "dk by heads", &exec->dk));
    return side_alloc(exec, v, "dv by heads", &exec->dv);
}

static enum status kernel_memory_alloc(struct exec *exec)
{
    int64_t tokens = exec->problem.batch * exec->tokens;
    TRY(dev_room_take(&exec->room, tokens * exec->heads * (int64_t)sizeof(float), "softmax statistics", &exec->lse));
    if (exec->shared && has_backward(exec)) {
        int64_t row = tokens * exec->kv_heads * (int64_t)sizeof(float);
        TRY(dev_room_take(&exec->room, row * exec->dim, "dk in fp32", &exec->dk_sum));
        TRY(dev_room_take(&exec->room, row * exec->dim_v, "dv in fp32", &exec->dv_sum));
    }
    for (int c = 0; c < exec->plan.chunks; c++)
        exec->steps[c].lse = exec->lse + tokens * exec->steps[c].heads.first;
    return STATUS_OK;
}

static int64_t workspace_need(const struct exec *exec)
{
    size_t most = 0;
    if (exec->ring != NULL)
        return ring_workspace_bytes(exec->ring);
    for (int c = 0; c < exec->plan.chunks; c++)
        for (int backward = 0; backward <= (has_backward(exec) ? 1 : 0); backward++) {
            size_t bytes =
                exec->attention->workspace_bytes(&exec->steps[c].shape, backward != 0, dev_threads(exec->dev));
            most = bytes > most ? bytes : most;
        }
    return (int64_t)most;
}

static enum status kernels_prepare(const struct exec *exec)
{
    const struct attention_shape **shapes = NULL;
    TRY(mem_alloc((size_t)exec->plan.chunks * sizeof *shapes, "shapes of chunks", (void **)&shapes));
    for (int c = 0; c < exec->plan.chunks; c++)
        shapes[c] = &exec->steps[c].shape;
    attention_prepare(exec->attention, shapes, exec->plan.chunks, has_backward(exec));
    free(shapes);
    return STATUS_OK;
}

static enum status workspace_alloc(struct exec *exec)
{
    if (exec->ring == NULL)
        TRY(kernels_prepare(exec));
    int64_t bytes = workspace_need(exec);
    if (exec->workspace != NULL && bytes <= exec->workspace_bytes)
        return STATUS_OK;
    dev_free(exec->dev, exec->workspace);
    exec->workspace = NULL;
    exec->workspace_bytes = 0;
    TRY(dev_alloc(exec->dev, (size_t)bytes, "attention workspace", &exec->workspace));
    exec->workspace_bytes = bytes;
    return STATUS_OK;
}

static void shape_fill(const struct exec *exec, const struct exec_chunk *heads, struct attention_shape *shape)
{
    const struct problem *problem = &exec->problem;
    *shape = (struct attention_shape){.batch = problem->batch,
                                      .seq_q = exec->tokens,
                                      .seq_k = exec->tokens,
                                      .heads = heads->count,
                                      .kv_heads = heads->kv_count,
                                      .head_dim = exec->dim,
                                      .head_dim_v = exec->dim_v,
                                      .dtype = problem->dtype,
                                      .causal = problem->causal ? ATTENTION_BOTTOM_RIGHT : ATTENTION_FULL,
                                      .window = problem->window};
    attention_shape_fill(shape);
    if (exec->docs > 0 && exec->places == 1) { /* offsets run over the whole batch */
        shape->docs = exec->docs;
        shape->cu_q = shape->cu_k = exec->cu;
        shape->seq_q = shape->seq_k = problem->batch * exec->tokens;
        shape->batch = 1;
    }
    shape->group = problem->heads / problem->kv_heads;
    shape->group_first = heads->group_first;
    shape->q_stride = (int64_t)exec->heads * exec->dim;
    shape->k_stride = (int64_t)exec->kv_heads * exec->dim;
    shape->v_stride = (int64_t)exec->kv_heads * exec->dim_v;
    shape->o_stride = (int64_t)exec->heads * exec->dim_v;
}

static enum status steps_create(struct exec *exec)
{
    TRY(mem_alloc((size_t)exec->plan.chunks * sizeof *exec->steps, "chunks", (void **)&exec->steps));
    for (int c = 0; c < exec->plan.chunks; c++) {
        struct exec_step *step = &exec->steps[c];
        step->exec = exec;
        exec_chunk(&exec->problem, &exec->plan, exec->head_rank, c, &step->heads);
        for (int m = 0; m < EXEC_MARKS; m++)
            TRY(dev_event_create(exec->dev, &step->mark[m]));
    }
    exec_chunk_rest(&exec->steps[0].heads, exec->heads, exec->kv_heads, &exec->rest);
    return STATUS_OK;
}

/* Calls of the kernel, by the documents there are. Those of the whole batch for kernels that see all of it; a ring cuts those of one row at every
 * step. */
static enum status shapes_make(struct exec *exec)
{
    struct problem rows = exec->problem;
    rows.batch = exec->places > 1 ? 1 : rows.batch;
    free(exec->cu);
    exec->cu = NULL;
    TRY(problem_offsets(&rows, exec->tensors.seq, &exec->cu, &exec->docs));
    for (int c = 0; c < exec->plan.chunks; c++) {
        struct exec_step *step = &exec->steps[c];
        shape_fill(exec, &step->heads, &step->shape);
        struct verdict verdict = exec->attention->supports(&step->shape);
        if (!verdict_ok(&verdict))
            return FAIL(STATUS_UNSUPPORTED, "attention %s: %s", exec->attention->name, verdict.why);
    }
    return STATUS_OK;
}

/* Exchanges run beside attention where there are several chunks and the device can do both at once. */
static enum status queues_create(struct exec *exec)
{
    if (exec->plan.chunks == 1 || exec->head_ranks == 1 || !dev_can_overlap(exec->dev))
        return STATUS_OK;
    for (int i = 0; i < 2; i++)
        TRY(dev_event_create(exec->dev, &exec->arrived[i]));
    exec->together = dev_kind_of(exec->dev) != DEV_CPU;
    return dev_queue_create_beside(exec->dev, &exec->beside);
}

static enum status exchange_open(struct exec *exec)
{
    struct exchange_shape shape = {.batch = exec->problem.batch,
                                   .seq_local = exec->tensors.seq_local,
                                   .dtype = exec->problem.dtype,
                                   .row_elems_max = exec_row_elems(&exec->problem, &exec->plan),
                                   .beside = exec->beside != NULL};
    const struct exchange *exchange = exchange_find(exec->plan.exchange);
    if (exec->head_ranks == 1)
        return STATUS_OK;
    TRY(exchange->create(&shape, exec->head_group, &exec->exchange_state));
    exec->exchange = exchange;
    if (exchange->staging_bytes != NULL)
        exec->exchange_bytes += exchange->staging_bytes(exec->exchange_state);
    return STATUS_OK;
}

enum status exec_layer_prepare(struct exec *exec)
{
    const struct problem *problem = &exec->problem;
    exec->places = plan_ring(&exec->plan);
    exec->head_ranks = plan_head_ranks(&exec->plan);
    exec->place = exec->rank / exec->head_ranks;
    exec->head_rank = exec->rank % exec->head_ranks;
    exec->heads = problem->heads / exec->head_ranks;
    exec->kv_heads = model_kv_local(problem->kv_heads, exec->head_ranks);
    exec->head_first = exec->head_rank * exec->heads;
    exec->kv_first = model_kv_first(problem->kv_heads, exec->head_ranks, exec->head_rank);
    exec->shared = exec_chunk_shared(problem, &exec->plan, exec->head_rank);
    exec->tensors.seq = shard_padded(problem, &exec->plan);
    exec->tensors.seq_local = shard_local(problem, &exec->plan);
    exec->tokens = exec->tensors.seq_local * exec->head_ranks;
    shard_of(&exec->plan, exec->tensors.seq, exec->rank, &exec->tensors.shard);
    TRY(steps_create(exec));
    TRY(shapes_make(exec));
    return queues_create(exec);
}

/* Ranks that share a place are neighbours: their exchange moves more at once than the ring does. */
static enum status groups_open(struct exec *exec)
{
    if (exec->places == 1)
        exec->head_group = exec->group;
    if (exec->head_ranks == 1)
        exec->ring_group = exec->group;
    if (exec->places == 1 || exec->head_ranks == 1)
        return STATUS_OK;
    exec->groups_owned = true;
    TRY(comm_split(exec->group, exec->place, exec->head_rank, &exec->head_group));
    return comm_split(exec->group, exec->head_rank, exec->place, &exec->ring_group);
}

static enum status ring_open(struct exec *exec)
{
    struct ring_shape shape = {.batch = exec->problem.batch,
                               .row = {.ranks = exec->places,
                                       .rank = exec->place,
                                       .padded = exec->tensors.seq,
                                       .causal = exec->problem.causal,
                                       .docs = exec->docs,
                                       .cu = exec->cu},
                               .heads = exec->steps[0].shape,
                               .attention = exec->attention,
                               .backward = has_backward(exec)};
    if (exec->places == 1)
        return STATUS_OK;
    return ring_create(&shape, exec->ring_group, exec->dev, &exec->ring);
}

/* The exchange and its memory are made by all ranks together: see exchange->alloc. */
enum status exec_layer_build(struct exec *exec)
{
    TRY(groups_open(exec));
    TRY(exchange_open(exec));
    TRY(seq_side_alloc(exec));
    TRY(head_side_alloc(exec));
    TRY(kernel_memory_alloc(exec));
    TRY(ring_open(exec)); /* the last two: they fail on one rank alone */
    return workspace_alloc(exec);
}

enum status exec_layer_documents(struct exec *exec)
{
    TRY(shapes_make(exec));
    if (exec->ring != NULL)
        TRY(ring_documents(exec->ring, exec->docs, exec->cu));
    return workspace_alloc(exec);
}

void exec_layer_destroy(struct exec *exec)
{
    dev_queue_destroy(exec->beside);
    for (int i = 0; i < 2; i++)
        dev_event_destroy(exec->arrived[i]);
    while (exec->nside > 0)
        exec->exchange->free(exec->exchange_state, exec->side[--exec->nside]);
    dev_free(exec->dev, exec->workspace);
    dev_room_free(&exec->room);
    if (exec->steps != NULL)
        for (int c = 0; c < exec->plan.chunks; c++)
            for (int m = 0; m < EXEC_MARKS; m++)
                dev_event_destroy(exec->steps[c].mark[m]);
    free(exec->steps);
    free(exec->cu);
    ring_destroy(exec->ring);
    if (exec->exchange != NULL)
        exec->exchange->destroy(exec->exchange_state);
    if (exec->groups_owned) {
        comm_close(exec->ring_group);
        comm_close(exec->head_group);
    }
}

struct exec_middle exec_middle(const struct exec *exec)
{
    struct exec_middle out = {
        .q = exec->q,
        .k = exec->k,
        .v = exec->v,
        .o = exec->o,
        .heads = exec->heads,
        .kv_heads = exec->kv_heads,
        .head_first = exec->head_first,
        .kv_first = exec->kv_first,
    };
    shard_get(exec->places, exec->tensors.seq, exec->places, exec->place, &out.shard);
    return out;
}
