/* sp/ring.c -- buffers, passes and steps of a ring; see ring.h for their order. */
#include "sp/ring.h"

#include "base/mem.h"
#include "base/range.h"
#include "kernels/copy.h"
#include "kernels/merge.h"
#include "kernels/nn.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum mark { COMPUTE_BEGINS, COMPUTE_ENDS, KV_BEGINS, KV_ENDS, DKV_BEGINS, DKV_ENDS, MARKS };

struct step {
    struct ring *ring; /* back, for a queue that calls */
    int index;
    struct ring_block block;
    struct attention_shape shape;
    bool some; /* any query that sees any key */
    struct dev_event *mark[MARKS];
    struct dev_event *done; /* its passes may begin */
};

struct ring {
    struct ring_shape shape;
    struct comm *comm;
    struct dev *dev;
    struct dev_room room;
    int64_t local;            /* tokens of a row here */
    int64_t k_elems, v_elems; /* of all keys of a rank, all rows */
    int elem_bytes;
    struct step *steps;        /* [ranks] */
    struct dev_queue *beside;  /* NULL: passes and steps take turns on the caller's queue */
    struct dev_queue *carrier; /* of this run: beside, or the caller's */
    struct dev_event *begins;
    struct ring_tensors tensors; /* of this run */
    char *kv[2];                 /* keys, then values, that arrived */
    char *part;                  /* o or dq of a step, one row */
    float *lse_part;
    float *sum;      /* o or dq */
    float *lse_high; /* statistics of the second half of the queries, [batch][heads][local / 2]; causal backward */
    float *dkv[2], *dkv_in; /* dk, then dv: a step's, and what arrived */
    int64_t workspace_bytes;
    bool ran, ran_backward;
};

/* ---- life ---- */

/* Its block and its call of the kernel, by the documents of the row. */
static enum status step_shape(struct ring *ring, struct step *step)
{
    struct attention_shape *shape = &step->shape;
    const struct attention *attention = ring->shape.attention;
    ring_block_free(&step->block);
    TRY(ring_block_make(&ring->shape.row, step->index, &step->block));
    *shape = ring->shape.heads;
    shape->batch = 1; /* a call per row: the pieces of two rows are not neighbours */
    shape->seq_q = step->block.q_count;
    shape->seq_k = step->block.k_count;
    shape->causal = step->block.causal;
    shape->window = 0;
    shape->docs = step->block.docs;
    shape->cu_q = step->block.cu_q;
    shape->cu_k = step->block.cu_k;
    step->some = attention_pairs(shape) > 0;
    assert(step->index > 0 || step->some ||
           ring->local == 0); /* a token sees itself: the first step sets all of ring->sum */
    struct verdict verdict = attention->supports(shape);
    if (!verdict_ok(&verdict))
        return FAIL(STATUS_UNSUPPORTED, "attention %s: %s", attention->name, verdict.why);
    return STATUS_OK;
}

/* The most of any step's calls. */
static enum status workspace_find(struct ring *ring)
{
    const struct attention *attention = ring->shape.attention;
    const struct attention_shape **shapes = NULL;
    int ranks = ring->shape.row.ranks;
    TRY(mem_alloc((size_t)ranks * sizeof *shapes, "shapes of a ring", (void **)&shapes));
    for (int s = 0; s < ranks; s++)
        shapes[s] = &ring->steps[s].shape;
    attention_prepare(attention, shapes, ranks, ring->shape.backward);
    ring->workspace_bytes = 0;
    for (int s = 0; s < ranks; s++)
        for (int backward = 0; backward <= (ring->shape.backward ? 1 : 0); backward++) {
            int64_t bytes = (int64_t)attention->workspace_bytes(shapes[s], backward != 0, dev_threads(ring->dev));
            ring->workspace_bytes = bytes > ring->workspace_bytes ? bytes : ring->workspace_bytes;
        }
    free(shapes);
    return STATUS_OK;
}

static enum status step_make(struct ring *ring, int index)
{
    struct step *step = &ring->steps[index];
    step->ring = ring;
    step->index = index;
    for (int m = 0; m < MARKS; m++)
        TRY(dev_event_create(ring->dev, &step->mark[m]));
    return dev_event_create(ring->dev, &step->done);
}

static enum status buffers_alloc(struct ring *ring)
{
    const struct attention_shape *heads = &ring->shape.heads;
    const int64_t fp32 = (int64_t)sizeof(float);
    int64_t batch = ring->shape.batch, row = ring->local * heads->heads, kv = ring->k_elems + ring->v_elems;
    int64_t wide = ring->shape.backward && heads->head_dim > heads->head_dim_v ? heads->head_dim : heads->head_dim_v;
    for (int i = 0; i < 2 && i < ring->shape.row.ranks - 1; i++)
        TRY(dev_room_take(&ring->room, kv * ring->elem_bytes, "keys and values of a ring", &ring->kv[i]));
    TRY(dev_room_take(&ring->room, row * wide * ring->elem_bytes, "a step's part of a row", &ring->part));
    TRY(dev_room_take(&ring->room, row * fp32, "a step's softmax statistics", &ring->lse_part));
    TRY(dev_room_take(&ring->room, batch * row * wide * fp32, "sums of a ring", &ring->sum));
    if (ring->shape.backward) {
        if (ring->shape.row.causal)
            TRY(dev_room_take(&ring->room, batch * row / 2 * fp32, "softmax statistics of half the queries",
                              &ring->lse_high));
        for (int i = 0; i < 2; i++)
            TRY(dev_room_take(&ring->room, kv * fp32, "dk and dv of a step", &ring->dkv[i]));
        TRY(dev_room_take(&ring->room, kv * fp32, "dk and dv of a ring", &ring->dkv_in));
    }
    return STATUS_OK;
}

static enum status prepare(struct ring *ring)
{
    const struct attention_shape *heads = &ring->shape.heads;
    int ranks = ring->shape.row.ranks;
    ring->local = ring->shape.row.padded / ranks;
    ring->elem_bytes = dtype_bytes(heads->dtype);
    ring->k_elems = ring->shape.batch * ring->local * heads->kv_heads * heads->head_dim;
    ring->v_elems = ring->shape.batch * ring->local * heads->kv_heads * heads->head_dim_v;
    TRY(mem_alloc((size_t)ranks * sizeof *ring->steps, "steps of a ring", (void **)&ring->steps));
    for (int s = 0; s < ranks; s++)
        TRY(step_make(ring, s));
    TRY(ring_documents(ring, ring->shape.row.docs, ring->shape.row.cu));
    TRY(dev_event_create(ring->dev, &ring->begins));
    if (dev_can_overlap(ring->dev))
        TRY(dev_queue_create_beside(ring->dev, &ring->beside));
    return buffers_alloc(ring);
}

enum status ring_create(const struct ring_shape *shape, struct comm *comm, struct dev *dev, struct ring **out)
{
    struct ring *ring = NULL;
    if (shape->row.ranks < 2 || shape->row.ranks != comm_size(comm) || shape->row.padded % (2 * shape->row.ranks) != 0)
        return HINT(FAIL(STATUS_USAGE, "a ring of %d ranks over a group of %d, rows of %lld tokens", shape->row.ranks,
                         comm_size(comm), (long long)shape->row.padded),
                    "as many ranks as the group, 2 or more, and tokens a multiple of 2 x ranks");
    TRY(mem_alloc(sizeof *ring, "a ring", (void **)&ring));
    ring->shape = *shape;
    ring->comm = comm;
    ring->dev = dev;
    ring->room.dev = dev;
    enum status status = prepare(ring);
    if (status != STATUS_OK) {
        ring_destroy(ring);
        return status;
    }
    *out = ring;
    return STATUS_OK;
}

enum status ring_documents(struct ring *ring, int docs, const int64_t *cu)
{
    ring->shape.row.docs = docs;
    ring->shape.row.cu = cu;
    for (int s = 0; s < ring->shape.row.ranks; s++)
        TRY(step_shape(ring, &ring->steps[s]));
    return workspace_find(ring);
}

void ring_destroy(struct ring *ring)
{
    if (ring == NULL)
        return;
    dev_queue_destroy(ring->beside);
    dev_event_destroy(ring->begins);
    for (int s = 0; ring->steps != NULL && s < ring->shape.row.ranks; s++) {
        ring_block_free(&ring->steps[s].block);
        for (int m = 0; m < MARKS; m++)
            dev_event_destroy(ring->steps[s].mark[m]);
        dev_event_destroy(ring->steps[s].done);
    }
    dev_room_free(&ring->room);
    free(ring->steps);
    free(ring);
}

int64_t ring_bytes(const struct ring *ring)
{
    return ring->room.bytes;
}

int64_t ring_workspace_bytes(const struct ring *ring)
{
    return ring->workspace_bytes;
}

/* ---- passes: to the next rank, from the one before ---- */

static enum status pass(const struct ring *ring, const void *send, void *recv, int64_t bytes)
{
    int ranks = ring->shape.row.ranks, rank = ring->shape.row.rank;
    if (bytes == 0)
        return STATUS_OK;
    return comm_sendrecv(ring->comm, send, (rank + 1) % ranks, recv, (rank + ranks - 1) % ranks, (size_t)bytes,
                         ring->carrier);
}

/* Keys and values that step `step` computes with. */
static const char *keys_at(const struct ring *ring, int step)
{
    return step == 0 ? ring->tensors.k : ring->kv[(step - 1) % 2];
}

static const char *values_at(const struct ring *ring, int step)
{
    return step == 0 ? ring->tensors.v : ring->kv[(step - 1) % 2] + ring->k_elems * ring->elem_bytes;
}

/* What this step computes with goes on to the next rank, which needs it at its next step. Own tensors are two messages: they need not
 * be neighbours. */
static enum status call_pass_kv(void *arg)
{
    struct step *step = arg;
    struct ring *ring = step->ring;
    int64_t k_bytes = ring->k_elems * ring->elem_bytes, v_bytes = ring->v_elems * ring->elem_bytes;
    char *to = ring->kv[step->index % 2];
    bool apart = step->index == 0;
    TRY(dev_mark(step->mark[KV_BEGINS], ring->carrier));
    TRY(pass(ring, keys_at(ring, step->index), to, apart ? k_bytes : k_bytes + v_bytes));
    return apart ? pass(ring, values_at(ring, step->index), to + k_bytes, v_bytes) : STATUS_OK;
}

static enum status call_pass_dkv(void *arg)
{
    struct step *step = arg;
    struct ring *ring = step->ring;
    TRY(dev_mark(step->mark[DKV_BEGINS], ring->carrier));
    return pass(ring, ring->dkv[step->index % 2], ring->dkv_in,
                (ring->k_elems + ring->v_elems) * (int64_t)sizeof(float));
}

/* Sums that are whole go home, rounded: half the bytes in 16-bit types, and the bits that rounding at home would give. They lie where the last
 * step's keys were. */
static enum status call_pass_home(void *arg)
{
    struct step *step = arg;
    struct ring *ring = step->ring;
    int64_t k_bytes = ring->k_elems * ring->elem_bytes, v_bytes = ring->v_elems * ring->elem_bytes;
    const char *sums = keys_at(ring, step->index);
    TRY(dev_mark(step->mark[DKV_BEGINS], ring->carrier));
    TRY(pass(ring, sums, ring->tensors.dk, k_bytes));
    return pass(ring, sums + k_bytes, ring->tensors.dv, v_bytes);
}

/* `ends` is more than a mark: the step that needs what arrived waits for it. */
static enum status pass_put(struct ring *ring, enum status (*fn)(void *arg), int step, enum mark ends)
{
    TRY(dev_call(ring->carrier, fn, &ring->steps[step]));
    return dev_event_record(ring->steps[step].mark[ends], ring->carrier);
}

/* The last step's keys go nowhere. After what was put on the caller's queue: the buffer they arrive in was read by the step before. */
static enum status pass_kv(struct ring *ring, int step, struct dev_event *after)
{
    if (step >= ring->shape.row.ranks - 1)
        return STATUS_OK;
    TRY(dev_event_wait(ring->carrier, after));
    return pass_put(ring, call_pass_kv, step, KV_ENDS);
}

/* ---- steps ---- */

static int64_t q_at(const struct ring *ring, const struct step *step, int64_t row)
{
    return row * ring->local + step->block.q_first;
}

/* The call of one row, without what only one direction has. */
static struct attention_args args_of(const struct ring *ring, const struct step *step, int64_t row)
{
    const struct attention_shape *shape = &step->shape;
    int64_t q = q_at(ring, step, row) * shape->q_stride * ring->elem_bytes;
    int64_t k = row * ring->local + step->block.k_first;
    return (struct attention_args){.q = (const char *)ring->tensors.q + q,
                                   .k = keys_at(ring, step->index) + k * shape->k_stride * ring->elem_bytes,
                                   .v = values_at(ring, step->index) + k * shape->v_stride * ring->elem_bytes,
                                   .workspace = ring->tensors.workspace};
}

static enum status step_forward(struct ring *ring, const struct step *step, struct dev_queue *queue)
{
    const struct attention_shape *shape = &step->shape;
    for (int64_t row = 0; row < ring->shape.batch && step->some; row++) {
        struct attention_args args = args_of(ring, step, row);
        struct merge_part part = {.tokens = shape->seq_q,
                                  .heads = shape->heads,
                                  .dim = shape->head_dim_v,
                                  .dtype = shape->dtype,
                                  .o = ring->part,
                                  .lse = ring->lse_part,
                                  .o_sum = ring->sum + q_at(ring, step, row) * shape->o_stride,
                                  .lse_sum = ring->tensors.lse + row * ring->local * shape->heads + step->block.q_first,
                                  .lse_stride = ring->local,
                                  .first = step->index == 0};
        args.o = ring->part;
        args.lse = ring->lse_part;
        TRY(RANGE_AT("attention forward", step->index, ring->shape.attention->forward(shape, &args, queue)));
        TRY(merge_out(dev_kind_of(ring->dev), &part, queue));
    }
    return STATUS_OK;
}

/* Statistics as a call for this step's queries reads them. */
static float *lse_of(const struct ring *ring, const struct step *step, int64_t row)
{
    if (step->block.q_count == ring->local)
        return ring->tensors.lse + row * ring->local * step->shape.heads;
    return ring->lse_high + row * step->block.q_count * step->shape.heads;
}

/* Gradients of keys that nobody sees here are 0. */
static enum status step_backward(struct ring *ring, const struct step *step, struct dev_queue *queue)
{
    const struct attention_shape *shape = &step->shape;
    float *dk = ring->dkv[step->index % 2], *dv = dk + ring->k_elems;
    if (!step->some || step->block.k_count < ring->local)
        TRY(dev_fill(queue, dk, 0, (size_t)(ring->k_elems + ring->v_elems) * sizeof *dk));
    for (int64_t row = 0; row < ring->shape.batch && step->some; row++) {
        struct attention_args args = args_of(ring, step, row);
        int64_t q = q_at(ring, step, row), k = row * ring->local + step->block.k_first;
        args.o = (char *)ring->tensors.o + q * shape->o_stride * ring->elem_bytes;
        args.d_o = (const char *)ring->tensors.d_o + q * shape->o_stride * ring->elem_bytes;
        args.lse = lse_of(ring, step, row);
        args.dq = ring->part;
        args.dk = dk + k * shape->k_stride;
        args.dv = dv + k * shape->v_stride;
        args.dkv_fp32 = true;
        TRY(RANGE_AT("attention backward", step->index, ring->shape.attention->backward(shape, &args, queue)));
        TRY(merge_add(dev_kind_of(ring->dev), shape->dtype, ring->part, ring->sum + q * shape->q_stride,
                      shape->seq_q * shape->q_stride, step->index == 0, queue));
    }
    return STATUS_OK;
}

/* ---- runs ---- */

static enum status forward(struct ring *ring, struct dev_queue *queue)
{
    const struct attention_shape *heads = &ring->shape.heads;
    int ranks = ring->shape.row.ranks;
    TRY(pass_kv(ring, 0, ring->begins));
    for (int s = 0; s < ranks; s++) {
        struct step *step = &ring->steps[s];
        if (s > 0)
            TRY(dev_event_wait(queue, ring->steps[s - 1].mark[KV_ENDS]));
        TRY(dev_mark(step->mark[COMPUTE_BEGINS], queue));
        TRY(step_forward(ring, step, queue));
        TRY(dev_mark(step->mark[COMPUTE_ENDS], queue));
        TRY(dev_event_record(step->done, queue));
        TRY(pass_kv(ring, s + 1, step->done));
    }
    return nn_convert(ring->shape.batch * ring->local * heads->o_stride, DTYPE_FP32, ring->sum, heads->dtype,
                      ring->tensors.o, queue);
}

/* The second half of each head's statistics, one behind the other. */
static enum status lse_halve(struct ring *ring, struct dev_queue *queue)
{
    int64_t half = ring->local / 2, fp32 = (int64_t)sizeof(float), heads = ring->shape.heads.heads;
    struct copy_job job = {.src = ring->tensors.lse + half,
                           .dst = ring->lse_high,
                           .n = {1, ring->shape.batch, heads},
                           .src_stride = {0, heads * ring->local * fp32, ring->local * fp32},
                           .dst_stride = {0, heads * half * fp32, half * fp32},
                           .row_bytes = (size_t)(half * fp32)};
    return ring->lse_high != NULL ? copy_run(dev_kind_of(ring->dev), &job, 1, queue) : STATUS_OK;
}

/* The last step's: in the place of its keys, from where they go home. */
static enum status round_home(struct ring *ring, const struct step *step, struct dev_queue *queue)
{
    char *home = ring->kv[(step->index - 1) % 2];
    return nn_convert(ring->k_elems + ring->v_elems, DTYPE_FP32, ring->dkv[step->index % 2], ring->shape.heads.dtype,
                      home, queue);
}

/* What arrived was added up by the ranks before this one: they come before this step's share. dkv_in is free again when the step ends,
 * and so is the buffer of the step before: its pass has ended. */
static enum status backward(struct ring *ring, struct dev_queue *queue)
{
    const struct attention_shape *heads = &ring->shape.heads;
    int ranks = ring->shape.row.ranks, last = ranks - 1;
    TRY(pass_kv(ring, 0, ring->begins));
    TRY(lse_halve(ring, queue));
    for (int s = 0; s < ranks; s++) {
        struct step *step = &ring->steps[s], *before = step - 1;
        if (s > 0)
            TRY(dev_event_wait(queue, before->mark[KV_ENDS]));
        TRY(dev_mark(step->mark[COMPUTE_BEGINS], queue));
        TRY(step_backward(ring, step, queue));
        TRY(dev_mark(step->mark[COMPUTE_ENDS], queue));
        if (s > 0) {
            TRY(dev_event_wait(queue, before->mark[DKV_ENDS]));
            TRY(merge_add(dev_kind_of(ring->dev), DTYPE_FP32, ring->dkv_in, ring->dkv[s % 2],
                          ring->k_elems + ring->v_elems, false, queue));
        }
        if (s == last)
            TRY(round_home(ring, step, queue));
        TRY(dev_event_record(step->done, queue));
        TRY(dev_event_wait(ring->carrier, step->done));
        TRY(pass_put(ring, s == last ? call_pass_home : call_pass_dkv, s, DKV_ENDS));
        TRY(pass_kv(ring, s + 1, step->done));
    }
    TRY(nn_convert(ring->shape.batch * ring->local * heads->q_stride, DTYPE_FP32, ring->sum, heads->dtype,
                   ring->tensors.dq, queue));
    return dev_event_wait(queue, ring->steps[last].mark[DKV_ENDS]);
}

static enum status run(struct ring *ring, const struct ring_tensors *tensors, bool back, struct dev_queue *queue)
{
    ring->tensors = *tensors;
    ring->carrier = ring->beside != NULL ? ring->beside : queue;
    ring->ran = false;
    ring->ran_backward = back;
    dev_queue_marks(ring->carrier, dev_queue_marks_on(queue));
    TRY(dev_event_record(ring->begins, queue));
    enum status status = back ? backward(ring, queue) : forward(ring, queue);
    ring->ran = status == STATUS_OK;
    return ring->ran || ring->beside == NULL ? status : dev_queue_drain(ring->beside, status);
}

enum status ring_forward(struct ring *ring, const struct ring_tensors *tensors, struct dev_queue *queue)
{
    return run(ring, tensors, false, queue);
}

enum status ring_backward(struct ring *ring, const struct ring_tensors *tensors, struct dev_queue *queue)
{
    return run(ring, tensors, true, queue);
}

static double span_us(const struct step *step, enum mark from)
{
    double us;
    return dev_event_us(step->mark[from], step->mark[from + 1], &us) == STATUS_OK ? us : 0;
}

void ring_times(const struct ring *ring, double *attention_us, double *pass_us)
{
    *attention_us = *pass_us = 0;
    for (int s = 0; s < ring->shape.row.ranks && ring->ran; s++) {
        *attention_us += span_us(&ring->steps[s], COMPUTE_BEGINS);
        *pass_us += s + 1 < ring->shape.row.ranks ? span_us(&ring->steps[s], KV_BEGINS) : 0;
        *pass_us += ring->ran_backward ? span_us(&ring->steps[s], DKV_BEGINS) : 0;
    }
}
