/* sp/exec_step.c -- the three parts of a chunk: exchange in, attention, exchange out.
 *
 * A kv head that several chunks read collects its gradients in fp32 and is rounded once, after the last chunk; with one
 * chunk the kernel does that itself.
 */
#include "sp/exec_state.h"

#include "base/range.h"
#include "kernels/nn.h"

/* `count` local heads from `first` on, of q or o (heads) or of k or v (kv_heads). */
static struct exchange_tensor tensor_q(const struct exec *exec, void *seq, char *head, int dim, int first, int count)
{
    return (struct exchange_tensor){.seq = seq,
                                    .head = head + (int64_t)first * dim * exec->elem_bytes,
                                    .heads = exec->problem.heads,
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
                                    .first = first,
                                    .count = count,
                                    .dim = dim,
                                    .head_stride = (int64_t)exec->kv_heads * dim,
                                    .sum = true};
}

enum status exec_step_in(struct exec *exec, bool backward, const struct exec_chunk *heads, int chunk, struct dev_queue *queue)
{
    const struct exec_tensors *t = &exec->tensors;
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
    return RANGE_AT("exchange in", chunk,
                    exec->exchange->run(exec->exchange_state, EXCHANGE_TO_HEADS, tensors, n, queue));
}

enum status exec_step_out(struct exec *exec, bool backward, const struct exec_step *step, struct dev_queue *queue)
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
    return RANGE_AT("exchange out", step - exec->steps,
                    exec->exchange->run(exec->exchange_state, EXCHANGE_TO_SEQ, tensors, n, queue));
}

static int64_t kv_elems(const struct exec *exec, int dim)
{
    return exec->problem.batch * exec->tokens * exec->kv_heads * dim;
}

static enum status sums_clear(struct exec *exec, struct dev_queue *queue)
{
    TRY(dev_fill(queue, exec->dk_sum, 0, (size_t)kv_elems(exec, exec->dim) * sizeof(float)));
    return dev_fill(queue, exec->dv_sum, 0, (size_t)kv_elems(exec, exec->dim_v) * sizeof(float));
}

static enum status sums_round(struct exec *exec, struct dev_queue *queue)
{
    TRY(nn_convert(kv_elems(exec, exec->dim), DTYPE_FP32, exec->dk_sum, exec->problem.dtype, exec->dk, queue));
    return nn_convert(kv_elems(exec, exec->dim_v), DTYPE_FP32, exec->dv_sum, exec->problem.dtype, exec->dv, queue);
}

static enum status ring_run(struct exec *exec, bool backward, struct dev_queue *queue)
{
    const struct ring_tensors tensors = {.q = exec->q,
                                         .k = exec->k,
                                         .v = exec->v,
                                         .o = exec->o,
                                         .lse = exec->lse,
                                         .d_o = exec->d_o,
                                         .dq = exec->dq,
                                         .dk = exec->dk,
                                         .dv = exec->dv,
                                         .workspace = exec->workspace};
    return backward ? ring_backward(exec->ring, &tensors, queue) : ring_forward(exec->ring, &tensors, queue);
}

enum status exec_step_attention(struct exec *exec, bool backward, int chunk, struct dev_queue *queue)
{
    const struct exec_step *step = &exec->steps[chunk];
    if (exec->ring != NULL)
        return ring_run(exec, backward, queue);
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
        return RANGE_AT("attention forward", chunk, exec->attention->forward(&step->shape, &args, queue));
    args.d_o = exec->d_o + o;
    args.dq = exec->dq + q;
    if (!exec->shared) {
        args.dk = exec->dk + k * exec->elem_bytes;
        args.dv = exec->dv + v * exec->elem_bytes;
        return RANGE_AT("attention backward", chunk, exec->attention->backward(&step->shape, &args, queue));
    }
    args.dk = exec->dk_sum + k;
    args.dv = exec->dv_sum + v;
    args.dkv_fp32 = args.dkv_accumulate = true;
    if (chunk == 0)
        TRY(sums_clear(exec, queue));
    TRY(RANGE_AT("attention backward", chunk, exec->attention->backward(&step->shape, &args, queue)));
    return chunk + 1 == exec->plan.chunks ? sums_round(exec, queue) : STATUS_OK;
}
