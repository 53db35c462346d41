/* bench/transformer_truth.c -- a block under a plan against the block of one rank. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "bench/mirror.h"
#include "bench/subject.h"
#include "bench/transformer_state.h"
#include "sp/exchange.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct truth {
    struct problem problem;
    struct shard shard;
    int64_t rows;
    bool backward;
    void *row[2];               /* y, dx: this rank's, [rows][hidden]; rows of padding stay zero */
    float *grad[BLOCK_TENSORS]; /* whole */
};

enum { ROWS_Y, ROWS_DX };

/* ---- the block of one rank ---- */

static struct plan plan_alone(const struct plan *plan, enum dev_kind dev)
{
    struct plan alone;
    plan_default(&alone);
    text_print(alone.attention, sizeof alone.attention, "%s", plan->attention);
    for (int i = 0; exchanges[i] != NULL; i++) /* it exchanges nothing, but a plan names one */
        if (exchanges[i]->dev == dev) {
            text_print(alone.exchange, sizeof alone.exchange, "%s", exchanges[i]->name);
            break;
        }
    return alone;
}

/* This rank's rows of those of all tokens. */
static enum status rows_keep(struct truth *truth, struct dev *dev, void *device, void **out)
{
    struct mirror all = {0};
    int64_t seq = truth->problem.seq;
    size_t bytes = (size_t)(truth->problem.hidden * dtype_bytes(truth->problem.dtype));
    TRY(mem_alloc((size_t)truth->rows * bytes, "rows to compare with", out));
    memset(*out, 0, (size_t)truth->rows * bytes);
    enum status status = mirror_open(dev, device, (size_t)(truth->problem.batch * seq) * bytes, &all);
    if (status == STATUS_OK)
        status = mirror_load(&all);
    for (int64_t r = 0; r < truth->rows && status == STATUS_OK; r++) {
        int64_t position = shard_position(&truth->shard, r % truth->shard.local), b = r / truth->shard.local;
        if (position < seq)
            memcpy((char *)*out + (size_t)r * bytes, (char *)all.host + (size_t)(b * seq + position) * bytes, bytes);
    }
    mirror_close(&all);
    return status;
}

static enum status grad_keep(struct dev *dev, float *device, int64_t n, float **out)
{
    struct mirror all = {0};
    TRY(mem_alloc((size_t)n * sizeof **out, "gradients to compare with", (void **)out));
    enum status status = mirror_open(dev, device, (size_t)n * sizeof **out, &all);
    if (status == STATUS_OK)
        status = mirror_load(&all);
    if (status == STATUS_OK)
        memcpy(*out, all.host, (size_t)n * sizeof **out);
    mirror_close(&all);
    return status;
}

static enum status outputs_keep(struct truth *truth, struct transformer *alone)
{
    if (!truth->backward)
        return rows_keep(truth, alone->dev, alone->y, &truth->row[ROWS_Y]);
    TRY(rows_keep(truth, alone->dev, alone->dx, &truth->row[ROWS_DX]));
    for (int i = 0; i < BLOCK_TENSORS; i++) {
        struct piece piece = transformer_piece(alone, (enum block_tensor)i);
        if (piece.there)
            TRY(grad_keep(alone->dev, alone->grads.of[i], piece.rows * piece.cols, &truth->grad[i]));
    }
    return STATUS_OK;
}

static enum status run_alone(struct transformer *alone, bool backward, struct dev_queue *queue)
{
    if (backward) {
        TRY(transformer_prepare(alone, queue));
        TRY(transformer_backward(alone, queue));
    } else
        TRY(transformer_forward(alone, queue));
    return dev_sync(queue, clock_deadline(SUBJECT_SYNC_US));
}

static enum status truth_make(struct bench_env *env, struct truth *truth, const struct transformer_order *order,
                              const struct group *group)
{
    struct plan plan = plan_alone(order->plan, dev_kind_of(env->dev));
    struct problem problem = *order->problem;
    struct transformer_order whole = *order;
    struct transformer *alone = NULL;
    struct dev_queue *queue = NULL;
    problem.world = 1;
    plan.micro_batch = problem.batch;
    whole.problem = &problem;
    whole.plan = &plan;
    whole.rank = 0;
    enum status status = group_agree(env, dev_queue_create(env->dev, &queue));
    if (status == STATUS_OK)
        status = transformer_open(env, group, &whole, queue, &alone);
    if (status == STATUS_OK)
        status = group_hear(env, run_alone(alone, false, queue));
    if (status == STATUS_OK && alone->backward)
        status = group_hear(env, run_alone(alone, true, queue));
    if (status == STATUS_OK)
        status = group_hear(env, outputs_keep(truth, alone));
    transformer_close(alone);
    dev_queue_destroy(queue);
    return status;
}

enum status truth_open(struct bench_env *env, const struct transformer_order *order, struct truth **out)
{
    struct truth *truth = NULL;
    struct group alone;
    TRY(group_alloc(env, sizeof *truth, "a block to compare with", (void **)&truth));
    *truth =
        (struct truth){.problem = *order->problem, .backward = (order->problem->direction & PROBLEM_BACKWARD) != 0};
    shard_of(order->plan, shard_padded(order->problem, order->plan), order->rank, &truth->shard);
    truth->rows = order->problem->batch * truth->shard.local;
    enum status status = group_open(env, 1, &alone);
    if (status == STATUS_OK) {
        status = truth_make(env, truth, order, &alone);
        group_close(&alone);
    }
    if (status != STATUS_OK) {
        truth_close(truth);
        return status;
    }
    *out = truth;
    return STATUS_OK;
}

void truth_close(struct truth *truth)
{
    if (truth == NULL)
        return;
    for (int i = 0; i < BLOCK_TENSORS; i++)
        free(truth->grad[i]);
    free(truth->row[ROWS_Y]);
    free(truth->row[ROWS_DX]);
    free(truth);
}

/* ---- comparing ---- */

/* Lengths of a difference and of what is compared with. docs/measurement.md tells where the shares allowed come from. */
struct distance {
    double off, all; /* squares */
};

static double allowed(enum dtype dtype)
{
    return dtype == DTYPE_FP32 ? 1e-5 : dtype == DTYPE_FP16 ? 3e-3 : 2e-2;
}

static void distance_add(struct distance *distance, double got, double want)
{
    distance->off += (got - want) * (got - want);
    distance->all += want * want;
}

static double distance_share(const struct distance *distance)
{
    return distance->off == 0 ? 0 : sqrt(distance->off / distance->all);
}

/* A NaN is not within anything. */
static bool within(const struct truth *truth, const struct distance *distance)
{
    return distance_share(distance) <= allowed(truth->problem.dtype);
}

static enum status rows_compare(const struct truth *truth, struct dev *dev, void *device, int which, bool *ok,
                                char why[256])
{
    const enum dtype dtype = truth->problem.dtype;
    int64_t hidden = truth->problem.hidden, local = truth->shard.local;
    struct mirror got = {0};
    TRY(mirror_open(dev, device, (size_t)(truth->rows * hidden * dtype_bytes(dtype)), &got));
    enum status status = mirror_load(&got);
    for (int64_t r = 0; r < truth->rows && status == STATUS_OK && *ok; r++) {
        struct distance distance = {0};
        int64_t position = shard_position(&truth->shard, r % local);
        if (position >= truth->problem.seq)
            continue;
        for (int64_t c = 0; c < hidden; c++)
            distance_add(&distance, (double)dtype_get(dtype, got.host, r * hidden + c),
                         (double)dtype_get(dtype, truth->row[which], r * hidden + c));
        *ok = within(truth, &distance);
        if (!*ok)
            text_print(
                why, 256,
                "%s of a block, batch %lld, token %lld, is off by %.2g of its length from the block of one rank, not "
                "by %.2g at most",
                which == ROWS_Y ? "y" : "dx", (long long)(r / local), (long long)position, distance_share(&distance),
                allowed(dtype));
    }
    mirror_close(&got);
    return status;
}

/* This rank's part at its place in the whole, where there is nothing else yet. */
static enum status piece_place(struct transformer *t, enum block_tensor tensor, const struct piece *piece, float *whole)
{
    struct mirror part = {0};
    size_t row_bytes = (size_t)piece->cols * sizeof *whole;
    memset(whole, 0, (size_t)(piece->whole_rows * piece->whole_cols) * sizeof *whole);
    TRY(mirror_open(t->dev, t->grads.of[tensor], (size_t)piece->rows * row_bytes, &part));
    enum status status = mirror_load(&part);
    for (int64_t r = 0; r < piece->rows && status == STATUS_OK; r++)
        memcpy(whole + (piece->first_row + r) * piece->whole_cols + piece->first_col,
               (char *)part.host + (size_t)r * row_bytes, row_bytes);
    mirror_close(&part);
    return status;
}

struct sum {
    float *whole; /* [largest tensor], of the host */
    void *scratch;
    struct dev_queue *queue;
};

static enum status parts_add(const struct transformer *t, struct mirror *parts, int64_t n, const struct sum *sum)
{
    TRY(comm_allreduce(t->group, parts->device, n, DTYPE_FP32, sum->scratch, sum->queue));
    TRY(dev_sync(sum->queue, clock_deadline(SUBJECT_SYNC_US)));
    return mirror_load(parts);
}

/* Parts of all ranks of the group added up in sum->whole. */
static enum status grad_sum(struct bench_env *env, struct transformer *t, enum block_tensor tensor,
                            const struct piece *piece, struct sum *sum)
{
    int64_t n = piece->whole_rows * piece->whole_cols;
    struct mirror device = {0};
    enum status status = piece_place(t, tensor, piece, sum->whole);
    if (status == STATUS_OK)
        status = mirror_of_host(t->dev, sum->whole, (size_t)n * sizeof *sum->whole, &device);
    status = group_agree(env, status);
    if (status == STATUS_OK)
        status = group_agree(env, parts_add(t, &device, n, sum));
    mirror_close(&device);
    return status;
}

static enum status grads_compare(struct bench_env *env, const struct truth *truth, struct transformer *t,
                                 struct sum *sum, bool *ok, char why[256])
{
    for (int i = 0; i < BLOCK_TENSORS; i++) {
        struct piece piece = transformer_piece(t, (enum block_tensor)i);
        struct distance distance = {0};
        if (!piece.there)
            continue;
        TRY(grad_sum(env, t, (enum block_tensor)i, &piece, sum));
        for (int64_t e = 0; e < piece.whole_rows * piece.whole_cols; e++)
            distance_add(&distance, (double)sum->whole[e], (double)truth->grad[i][e]);
        if (*ok && !within(truth, &distance)) {
            *ok = false;
            text_print(
                why, 256,
                "the gradient of %s is off by %.2g of its length from the block of one rank, not by %.2g at most",
                block_tensor_name((enum block_tensor)i), distance_share(&distance), allowed(truth->problem.dtype));
        }
    }
    return STATUS_OK;
}

static enum status sum_open(struct transformer *t, struct sum *sum)
{
    int64_t most = 0;
    for (int i = 0; i < BLOCK_TENSORS; i++) {
        struct piece piece = transformer_piece(t, (enum block_tensor)i);
        int64_t n = piece.there ? piece.whole_rows * piece.whole_cols : 0;
        most = n > most ? n : most;
    }
    TRY(mem_alloc((size_t)most * sizeof *sum->whole, "the sum of a gradient", (void **)&sum->whole));
    TRY(dev_alloc(t->dev, comm_allreduce_scratch(t->group, most, DTYPE_FP32), "scratch of a sum", &sum->scratch));
    return dev_queue_create(t->dev, &sum->queue);
}

enum status truth_compare(struct bench_env *env, const struct truth *truth, struct transformer *t, bool *ok,
                          char why[256])
{
    struct sum sum = {0};
    *ok = true;
    if (!truth->backward)
        return rows_compare(truth, t->dev, t->y, ROWS_Y, ok, why);
    enum status status = rows_compare(truth, t->dev, t->dx, ROWS_DX, ok, why);
    if (status == STATUS_OK)
        status = sum_open(t, &sum);
    status = group_agree(env, status);
    if (status == STATUS_OK)
        status = grads_compare(env, truth, t, &sum, ok, why);
    dev_queue_destroy(sum.queue);
    dev_free(t->dev, sum.scratch);
    free(sum.whole);
    return status;
}
