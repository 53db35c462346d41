/* sp/exchange_direct_jobs.c -- blocks of both sides, on this rank and as they lie in a peer's memory. */
#include "sp/exchange_direct_jobs.h"
#include "sp/exchange_block.h"

/* The tensor as rank p has it: the same, in its memory. */
static struct exchange_tensor tensor_of(const struct direct_call *call, int i, int p)
{
    struct exchange_tensor tensor = call->tensors[i];
    tensor.seq = direct_memory_at(call->memory, p, tensor.seq);
    tensor.head = direct_memory_at(call->memory, p, tensor.head);
    return tensor;
}

/* What rank `from` gives to rank `to`, where it lies before and after. */
static struct exchange_block source(const struct direct_call *call, int i, int from, int to)
{
    struct exchange_tensor tensor = tensor_of(call, i, from);
    return call->direction == EXCHANGE_TO_HEADS ? exchange_block_seq(call->shape, &tensor, call->size, to)
                                                : exchange_block_head(call->shape, &tensor, call->size, to);
}

static struct exchange_block target(const struct direct_call *call, int i, int from, int to)
{
    struct exchange_tensor tensor = tensor_of(call, i, to);
    return call->direction == EXCHANGE_TO_HEADS ? exchange_block_head(call->shape, &tensor, call->size, from)
                                                : exchange_block_seq(call->shape, &tensor, call->size, from);
}

bool direct_merges(const struct direct_call *call, int i)
{
    return exchange_merges(&call->tensors[i], call->direction, call->size);
}

bool direct_moves(const struct direct_call *call, int i)
{
    return call->tensors[i].count > 0 && call->shape->batch > 0 && call->shape->seq_local > 0;
}

static int jobs_between(const struct direct_call *call, int from, int to, struct copy_job jobs[EXCHANGE_TENSORS_MAX])
{
    int n = 0;
    for (int i = 0; i < call->n; i++) {
        if (direct_merges(call, i) || !direct_moves(call, i))
            continue;
        struct exchange_block a = source(call, i, from, to), b = target(call, i, from, to);
        jobs[n++] = (struct copy_job){.src = a.base,
                                      .dst = b.base,
                                      .n = {1, a.batch, a.seq},
                                      .src_stride = {0, a.batch_stride, a.token_stride},
                                      .dst_stride = {0, b.batch_stride, b.token_stride},
                                      .row_bytes = (size_t)a.row_bytes};
    }
    return n;
}

int direct_push_jobs(const struct direct_call *call, int p, struct copy_job jobs[EXCHANGE_TENSORS_MAX])
{
    return jobs_between(call, call->rank, p, jobs);
}

int direct_pull_jobs(const struct direct_call *call, int p, struct copy_job jobs[EXCHANGE_TENSORS_MAX])
{
    return jobs_between(call, p, call->rank, jobs);
}

/* Copies of head j are held by the ranks j*copies .. j*copies + copies-1. */
void direct_sum(const struct direct_call *call, int i, int head, const void **copies, struct copy_sum *out)
{
    const struct exchange_tensor *tensor = &call->tensors[i];
    int n = model_kv_copies(tensor->heads, call->size), first = head * n;
    struct exchange_block to = target(call, i, first, call->rank), from = to;
    for (int c = 0; c < n; c++) {
        from = source(call, i, first + c, call->rank);
        copies[c] = from.base;
    }
    *out = (struct copy_sum){.srcs = copies,
                             .copies = tensor->sum ? n : 1,
                             .dst = to.base,
                             .n = {1, to.batch, to.seq},
                             .src_stride = {0, from.batch_stride, from.token_stride},
                             .dst_stride = {0, to.batch_stride, to.token_stride},
                             .elems = (int64_t)tensor->count * tensor->dim,
                             .dtype = call->shape->dtype};
}

enum status direct_check(const struct direct_call *call)
{
    TRY(exchange_check_tensors(call->tensors, call->n, call->size));
    for (int i = 0; i < call->n; i++) {
        const struct exchange_tensor *tensor = &call->tensors[i];
        if (direct_moves(call, i) && (direct_memory_at(call->memory, call->rank, tensor->seq) == NULL ||
                                      direct_memory_at(call->memory, call->rank, tensor->head) == NULL))
            return HINT(FAIL(STATUS_USAGE, "an exchange of memory that peers cannot reach"),
                        "both sides come from the exchange's alloc");
    }
    return STATUS_OK;
}
