/* sp/exec_run.c -- forward and backward of a layer: for each chunk exchange in, attention, exchange out.
 *
 * One queue carries everything, in order. A kv head that several chunks read collects its gradients in fp32 and is
 * rounded once, after the last chunk; with one chunk the kernel does that itself.
 */
#include "sp/exec_state.h"

#include "kernels/copy.h"

/* `count` local heads from `first` on, of q or o (heads) or of k or v (kv_heads). */
static struct exchange_tensor tensor_q(const struct exec *exec, void *seq, char *head, int dim, int first, int count)
{
    return (struct exchange_tensor){.seq = seq,
                                    .head = head + (int64_t)first * dim * exec->elem_bytes,
                                    .heads = exec->problem.heads,
                                    .local = exec->heads,
                                    .first = first,
                                    .count = count,
                                    .dim = dim,
                                    .head_stride = (int64_t)exec->heads * dim};
}

static struct exchange_tensor tensor_kv(const struct exec *exec, void *seq, char *head, int dim, int first, int count)
{
    return (struct exchange_tensor){.seq = seq,
                                    .head = head + (int64_t)first * dim * exec->elem_bytes,
                                    .heads = exec->problem.kv_heads,
                                    .local = exec->kv_heads,
                                    .first = first,
                                    .count = count,
                                    .dim = dim,
                                    .head_stride = (int64_t)exec->kv_heads * dim,
                                    .sum = true};
}

static enum status step_in(struct exec *exec, bool backward, const struct exec_step *step, struct dev_queue *queue)
{
    const struct exec_tensors *t = &exec->tensors;
    const struct exec_chunk *heads = &step->heads;
    struct exchange_tensor tensors[EXCHANGE_TENSORS_MAX];
    int n = 1;
    if (exec->exchange == NULL)
        return STATUS_OK;
    if (backward) {
        tensors[0] = tensor_q(exec, t->d_o, exec->d_o, exec->dim_v, heads->first, heads->count);
    } else {
        tensors[0] = tensor_q(exec, t->q, exec->q, exec->dim, heads->first, heads->count);
        if (heads->new_count > 0) {
            tensors[n++] = tensor_kv(exec, t->k, exec->k, exec->dim, heads->new_first, heads->new_count);
            tensors[n++] = tensor_kv(exec, t->v, exec->v, exec->dim_v, heads->new_first, heads->new_count);
        }
    }
    return exec->exchange->run(exec->exchange_state, EXCHANGE_TO_HEADS, tensors, n, queue);
}

static enum status step_out(struct exec *exec, bool backward, const struct exec_step *step, struct dev_queue *queue)
{
    const struct exec_tensors *t = &exec->tensors;
    const struct exec_chunk *heads = &step->heads;
    struct exchange_tensor tensors[EXCHANGE_TENSORS_MAX];
    int n = 1;
    if (exec->exchange == NULL)
        return STATUS_OK;
    if (backward) {
        tensors[0] = tensor_q(exec, t->dq, exec->dq, exec->dim, heads->first, heads->count);
        if (heads->out_count > 0) {
            tensors[n++] = tensor_kv(exec, t->dk, exec->dk, exec->dim, heads->out_first, heads->out_count);
            tensors[n++] = tensor_kv(exec, t->dv, exec->dv, exec->dim_v, heads->out_first, heads->out_count);
        }
    } else {
        tensors[0] = tensor_q(exec, t->o, exec->o, exec->dim_v, heads->first, heads->count);
    }
    return exec->exchange->run(exec->exchange_state, EXCHANGE_TO_SEQ, tensors, n, queue);
}

static int64_t kv_elems(const struct exec *exec, int dim)
{
    return exec->problem.batch * exec->tensors.seq * exec->kv_heads * dim;
}

static enum status sums_clear(struct exec *exec, struct dev_queue *queue)
{
    TRY(dev_fill(queue, exec->dk_sum, 0, (size_t)kv_elems(exec, exec->dim) * sizeof(float)));
    return dev_fill(queue, exec->dv_sum, 0, (size_t)kv_elems(exec, exec->dim_v) * sizeof(float));
}

static enum status sums_round(struct exec *exec, struct dev_queue *queue)
{
    enum dev_kind dev = dev_kind_of(exec->dev);
    TRY(copy_round(dev, exec->problem.dtype, exec->dk_sum, exec->dk, kv_elems(exec, exec->dim), queue));
    return copy_round(dev, exec->problem.dtype, exec->dv_sum, exec->dv, kv_elems(exec, exec->dim_v), queue);
}

static enum status step_attention(struct exec *exec, bool backward, int chunk, struct dev_queue *queue)
{
    const struct exec_step *step = &exec->steps[chunk];
    int64_t q = (int64_t)step->heads.first * exec->dim * exec->elem_bytes;
    int64_t o = (int64_t)step->heads.first * exec->dim_v * exec->elem_bytes;
    int64_t k = (int64_t)step->heads.kv_first * exec->dim, v = (int64_t)step->heads.kv_first * exec->dim_v;
    struct attention_args args = {.q = exec->q + q,
                                  .k = exec->k + k * exec->elem_bytes,
                                  .v = exec->v + v * exec->elem_bytes,
                                  .o = exec->o + o,
                                  .lse = step->lse,
                                  .workspace = exec->workspace};
    if (!backward)
        return exec->attention->forward(&step->shape, &args, queue);
    args.d_o = exec->d_o + o;
    args.dq = exec->dq + q;
    if (!exec->shared) {
        args.dk = exec->dk + k * exec->elem_bytes;
        args.dv = exec->dv + v * exec->elem_bytes;
        return exec->attention->backward(&step->shape, &args, queue);
    }
    args.dk = exec->dk_sum + k;
    args.dv = exec->dv_sum + v;
    args.dkv_fp32 = args.dkv_accumulate = true;
    if (chunk == 0)
        TRY(sums_clear(exec, queue));
    TRY(exec->attention->backward(&step->shape, &args, queue));
    return chunk + 1 == exec->plan.chunks ? sums_round(exec, queue) : STATUS_OK;
}

static enum status run(struct exec *exec, bool backward, unsigned parts, struct dev_queue *queue)
{
    if (backward && !(exec->problem.direction & PROBLEM_BACKWARD))
        return FAIL(STATUS_USAGE, "backward of a layer that was prepared for forward only");
    if (backward && (parts & EXEC_ATTENTION) && !exec->has_forward)
        return FAIL(STATUS_USAGE, "backward of a layer before its forward: there are no softmax statistics");
    exec->ran = 0;
    for (int c = 0; c < exec->plan.chunks; c++) {
        struct exec_step *step = &exec->steps[c];
        TRY(dev_event_record(step->mark[0], queue));
        if (parts & EXEC_IN)
            TRY(step_in(exec, backward, step, queue));
        TRY(dev_event_record(step->mark[1], queue));
        if (parts & EXEC_ATTENTION)
            TRY(step_attention(exec, backward, c, queue));
        TRY(dev_event_record(step->mark[2], queue));
        if (parts & EXEC_OUT)
            TRY(step_out(exec, backward, step, queue));
        TRY(dev_event_record(step->mark[3], queue));
    }
    exec->ran = parts;
    if (!backward && (parts & EXEC_ATTENTION))
        exec->has_forward = true;
    return STATUS_OK;
}

enum status exec_forward(struct exec *exec, struct dev_queue *queue)
{
    return run(exec, false, EXEC_ALL, queue);
}

enum status exec_backward(struct exec *exec, struct dev_queue *queue)
{
    return run(exec, true, EXEC_ALL, queue);
}

enum status exec_exchange(struct exec *exec, bool backward, bool in, struct dev_queue *queue)
{
    return run(exec, backward, in ? EXEC_IN : EXEC_OUT, queue);
}

enum status exec_attention(struct exec *exec, bool backward, struct dev_queue *queue)
{
    return run(exec, backward, EXEC_ATTENTION, queue);
}

/* Summed over chunks from marks `from` to the next one. */
static double part_us(const struct exec *exec, unsigned part, int from)
{
    double sum = 0, us;
    if (!(exec->ran & part))
        return 0;
    for (int c = 0; c < exec->plan.chunks; c++)
        if (dev_event_us(exec->steps[c].mark[from], exec->steps[c].mark[from + 1], &us) == STATUS_OK)
            sum += us;
    return sum;
}

const struct exec_times *exec_times(struct exec *exec)
{
    bool alone = exec->exchange == NULL;
    exec->times.exchange_in_us = alone ? 0 : part_us(exec, EXEC_IN, 0);
    exec->times.attention_us = part_us(exec, EXEC_ATTENTION, 1);
    exec->times.exchange_out_us = alone ? 0 : part_us(exec, EXEC_OUT, 2);
    exec->times.exposed_us = exec->times.exchange_in_us + exec->times.exchange_out_us;
    return &exec->times;
}
