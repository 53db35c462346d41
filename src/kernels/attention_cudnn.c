/* kernels/attention_cudnn.c -- kernels "cudnn" and "cudnn-ordered": NVIDIA's cuDNN, loaded at run time.
 *
 * Why: on Hopper its forward is the fastest there is to call, and it is one of the two things that PyTorch's sdpa runs there; by
 * version of PyTorch and by shape the other is flash attention 2. Thus "cudnn" stands for "sdpa". Measured on an H200 with cuDNN 9.19,
 * bf16, causal, 16 query and 4 kv heads of 128, medians of 7 x 20 calls, TFLOP/s forward and backward: 471 385 (4k), 572 467 (8k), 576
 * 523 (16k), 598 527 (32k); PyTorch 2.11's cuDNN backend in the same minute 458 378, 567 462, 574 516, 595 528.
 *
 * Backward of "cudnn" adds the parts of dQ in the order in which blocks finish: results differ between runs in their last bits, which
 * `unordered` says. "cudnn-ordered" has a fixed order and pays with seq_q x seq_k elements for each head: 4.4 GB for 32 heads of 8k.
 * With fewer kv heads than query heads both round each query head's dK and dV to the storage type before the sum over the group.
 *
 * A shape is supported when some engine takes the graphs of both directions on this process's GPU; until a GPU was opened the rules
 * that need none answer. Compiling waits for the first use.
 */
#include "kernels/attention_cudnn.h"

#include "base/dev_cuda.h"
#include "kernels/attention_check.h"
#include "kernels/attention_cudnn_pack.h"
#include "kernels/attention_mask.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Has this thread a GPU? Asking cuDNN without would take GPU 0. */
static bool gpu_is_open(void)
{
    int (*current)(void **context) = NULL;
    void *context = NULL, *symbol = NULL;
    enum cudaDriverEntryPointQueryResult found;
    if (!dev_cuda_opened())
        return false;
    if (cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &symbol, 12000, cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    memcpy(&current, &symbol, sizeof current);
    return current && current(&context) == 0 && context;
}

static enum status plan_of(struct cudnn_key *key, bool compiled, const struct cudnn_plan **out)
{
    int device = 0;
    TRY(dev_cuda_status(cudaGetDevice(&device), "asking which GPU this is"));
    key->device = device;
    return cudnn_plan_get(key, compiled, out);
}

static struct verdict from_status(void)
{
    struct verdict verdict = verdict_no(RULE_ABSENT, "%s", status_last()->what);
    status_clear();
    return verdict;
}

/* Of this thread's GPU. */
static enum status capability(int *out_major)
{
    int device = 0;
    TRY(dev_cuda_status(cudaGetDevice(&device), "asking which GPU this is"));
    return dev_cuda_status(cudaDeviceGetAttribute(out_major, cudaDevAttrComputeCapabilityMajor, device),
                           "asking what it is");
}

static struct verdict check_plan(struct cudnn_key *key)
{
    const struct cudnn_plan *plan;
    int major = 0;
    if (capability(&major) != STATUS_OK)
        return from_status();
    struct verdict verdict = cudnn_key_on(key, major);
    if (!verdict_ok(&verdict))
        return verdict;
    if (plan_of(key, false, &plan) != STATUS_OK)
        return from_status();
    if (plan->why[0])
        return verdict_no(RULE_KERNEL_CANNOT, "cudnn, %s: %s", key->backward ? "backward" : "forward", plan->why);
    return VERDICT_YES;
}

/* dS of every head goes through memory when sums are ordered. */
static struct verdict check_memory(const struct cudnn_key *key)
{
    size_t free_bytes = 0, total_bytes = 0;
    double bytes = 2.0 * (double)key->batch * key->heads * (double)key->seq_q * (double)key->seq_k;
    if (key->ordered && cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess && bytes > (double)total_bytes)
        return verdict_no(RULE_MEMORY, "cudnn-ordered needs %.0f GiB of workspace for this shape", bytes / (1 << 30));
    return VERDICT_YES;
}

static struct verdict supports(const struct attention_shape *shape, bool ordered)
{
    const struct cudnn_api *api;
    struct cudnn_key forward, backward;
    struct verdict verdict = cudnn_key_of(shape, false, ordered, &forward);
    if (!verdict_ok(&verdict))
        return verdict;
    if (cudnn_load(&api) != STATUS_OK)
        return from_status();
    if (!gpu_is_open())
        return VERDICT_YES;
    verdict = check_plan(&forward);
    if (verdict_ok(&verdict))
        verdict = cudnn_key_of(shape, true, ordered, &backward);
    if (verdict_ok(&verdict))
        verdict = check_memory(&backward);
    return verdict_ok(&verdict) ? check_plan(&backward) : verdict;
}

static void prepare(const struct attention_shape *const *shapes, int n, bool backward, bool ordered)
{
    int device = 0, major = 0, wanted = 0;
    struct cudnn_key *keys = NULL;
    if (n > 0 && gpu_is_open() && cudaGetDevice(&device) == cudaSuccess && capability(&major) == STATUS_OK)
        keys = calloc(2 * (size_t)n, sizeof *keys);
    for (int i = 0; keys && i < n; i++)
        for (int back = 0; back <= backward; back++) {
            struct cudnn_key *key = &keys[wanted];
            struct verdict verdict = cudnn_key_of(shapes[i], back != 0, ordered, key);
            if (verdict_ok(&verdict))
                verdict = cudnn_key_on(key, major);
            key->device = device;
            wanted += verdict_ok(&verdict);
        }
    if (wanted > 0)
        cudnn_plans_compile(keys, wanted);
    free(keys);
}

static size_t workspace_bytes(const struct attention_shape *shape, bool backward, bool ordered)
{
    struct cudnn_key key;
    const struct cudnn_plan *plan;
    struct verdict verdict = cudnn_key_of(shape, backward, ordered, &key);
    if (!verdict_ok(&verdict) || !gpu_is_open())
        return 0;
    if (plan_of(&key, true, &plan) != STATUS_OK) {
        status_clear();
        return 0;
    }
    return plan->why[0] ? 0 : cudnn_room_of(&key, plan->workspace_bytes).bytes;
}

/* One call on its way. */
struct call {
    const struct attention_shape *shape;
    const struct attention_args *args;
    struct dev_queue *queue;
    struct cudnn_key key;
    const struct cudnn_plan *plan;
    struct cudnn_room room;
    void *memory[CUDNN_TENSORS];
};

static void *at(const struct call *call, size_t offset)
{
    return (char *)call->args->workspace + offset;
}

static enum status aligned(const void *pointer, const char *name)
{
    if ((uintptr_t)pointer % 16 != 0)
        return FAIL(STATUS_UNSUPPORTED, "attention: cudnn needs %s at a multiple of 16 bytes", name);
    return STATUS_OK;
}

static enum status begin(const struct attention_shape *shape, const struct attention_args *args, bool backward,
                         bool ordered, struct dev_queue *queue, struct call *call)
{
    *call = (struct call){.shape = shape, .args = args, .queue = queue};
    TRY(attention_args_check(shape, args, backward, 1));
    int major = 0;
    struct verdict verdict = cudnn_key_of(shape, backward, ordered, &call->key);
    if (verdict_ok(&verdict)) {
        TRY(capability(&major));
        verdict = cudnn_key_on(&call->key, major);
    }
    if (!verdict_ok(&verdict))
        return FAIL(STATUS_UNSUPPORTED, "attention: %s", verdict.why);
    TRY(aligned(args->q, "q"));
    TRY(aligned(args->k, "k"));
    TRY(aligned(args->v, "v"));
    TRY(aligned(args->o, "o"));
    TRY(aligned(args->workspace, "workspace"));
    TRY(plan_of(&call->key, true, &call->plan));
    if (call->plan->why[0])
        return FAIL(STATUS_UNSUPPORTED, "attention: cudnn: %s", call->plan->why);
    call->room = cudnn_room_of(&call->key, call->plan->workspace_bytes);
    call->memory[CUDNN_Q] = (void *)(uintptr_t)args->q;
    call->memory[CUDNN_K] = (void *)(uintptr_t)args->k;
    call->memory[CUDNN_V] = (void *)(uintptr_t)args->v;
    call->memory[CUDNN_O] = args->o;
    call->memory[CUDNN_STATS] = call->key.packed ? at(call, call->room.stats) : args->lse;
    return STATUS_OK;
}

/* Tokens with work: those of documents. */
static int64_t first_of(const int64_t *cu)
{
    return cu[0];
}

static int64_t end_of(const struct attention_shape *shape, const int64_t *cu)
{
    return cu[shape->docs];
}

/* Documents without tokens are left out. */
static enum status write_index(struct call *call)
{
    const struct attention_shape *shape = call->shape;
    int64_t n = 0, *q = malloc(((size_t)shape->docs + 1) * 2 * sizeof *q);
    struct cudnn_index index = {.len_q = at(call, call->room.len_q),
                                .len_k = at(call, call->room.len_k),
                                .at_q = at(call, call->room.at_q),
                                .at_k = at(call, call->room.at_k),
                                .at_v = at(call, call->room.at_v),
                                .at_o = at(call, call->room.at_o),
                                .at_stats = at(call, call->room.at_stats),
                                .q = shape->q_stride,
                                .k = shape->k_stride,
                                .v = shape->v_stride,
                                .o = shape->o_stride,
                                .stats = shape->heads,
                                .places = call->key.batch};
    if (!q)
        return FAIL(STATUS_NOMEM, "no memory for %d documents", shape->docs);
    int64_t *k = q + shape->docs + 1;
    for (int i = 0; i < shape->docs; i++)
        if (shape->cu_q[i + 1] > shape->cu_q[i]) {
            q[n] = shape->cu_q[i];
            k[n++] = shape->cu_k[i];
        }
    q[n] = shape->cu_q[shape->docs];
    k[n] = shape->cu_k[shape->docs];
    enum status status = cudnn_pack_index(&index, q, k, n, call->queue);
    free(q);
    call->memory[CUDNN_LEN_Q] = index.len_q;
    call->memory[CUDNN_LEN_K] = index.len_k;
    call->memory[CUDNN_AT_Q] = index.at_q;
    call->memory[CUDNN_AT_K] = index.at_k;
    call->memory[CUDNN_AT_V] = index.at_v;
    call->memory[CUDNN_AT_O] = index.at_o;
    call->memory[CUDNN_AT_STATS] = index.at_stats;
    return status;
}

/* rows [first, end) of `width` elements from column `column` on become 0 */
static enum status clear(const struct call *call, void *tensor, int64_t elem_bytes, int64_t stride, int64_t first,
                         int64_t end, int64_t column, int64_t width)
{
    if (first >= end || width <= 0)
        return STATUS_OK;
    char *from = (char *)tensor + (first * stride + column) * elem_bytes;
    return dev_cuda_status(cudaMemset2DAsync(from, (size_t)(stride * elem_bytes), 0, (size_t)(width * elem_bytes),
                                             (size_t)(end - first), dev_cuda_stream(call->queue)),
                           "zeros of attention");
}

/* Tokens before the first and behind the last document. */
static enum status clear_hidden(const struct call *call, void *tensor, int64_t elem_bytes, int64_t stride,
                                int64_t width, int64_t tokens, const int64_t *cu)
{
    if (!call->key.packed)
        return STATUS_OK;
    TRY(clear(call, tensor, elem_bytes, stride, 0, first_of(cu), 0, width));
    return clear(call, tensor, elem_bytes, stride, end_of(call->shape, cu), tokens, 0, width);
}

static enum status run_forward(const struct attention_shape *shape, const struct attention_args *args,
                               struct dev_queue *queue, bool ordered)
{
    struct call call;
    TRY(begin(shape, args, false, ordered, queue, &call));
    if (call.key.packed)
        TRY(write_index(&call));
    TRY(cudnn_plan_run(call.plan, call.memory, at(&call, call.room.own), queue));
    if (!call.key.packed)
        return STATUS_OK;
    TRY(cudnn_pack_lse(at(&call, call.room.stats), args->lse, shape->heads, shape->seq_q, first_of(shape->cu_q),
                       end_of(shape, shape->cu_q), queue));
    return clear_hidden(&call, args->o, 2, shape->o_stride, (int64_t)shape->heads * shape->head_dim_v, shape->seq_q,
                        shape->cu_q);
}

/* A gradient of K or V: what cuDNN left becomes what the caller wants. */
static enum status finish_gradient(const struct call *call, const void *made, void *wanted, int64_t stride, int dim)
{
    const struct attention_shape *shape = call->shape;
    int64_t tokens = shape->batch * shape->seq_k, used = (int64_t)call->key.kv_heads * dim,
            all = (int64_t)shape->kv_heads * dim;
    int64_t first = call->key.packed ? first_of(shape->cu_k) : 0,
            end = call->key.packed ? end_of(shape, shape->cu_k) : tokens;
    int64_t elem_bytes = call->args->dkv_fp32 ? 4 : 2;
    if (call->args->dkv_fp32)
        TRY(cudnn_pack_widen(shape->dtype, (const char *)made + first * stride * 2, (float *)wanted + first * stride,
                             end - first, used, stride, call->args->dkv_accumulate, call->queue));
    if (call->args->dkv_accumulate)
        return STATUS_OK; /* what nobody adds to stays */
    TRY(clear_hidden(call, wanted, elem_bytes, stride, all, tokens, shape->cu_k));
    return clear(call, wanted, elem_bytes, stride, 0, tokens, used, all - used);
}

static enum status run_backward(const struct attention_shape *shape, const struct attention_args *args,
                                struct dev_queue *queue, bool ordered)
{
    struct call call;
    TRY(begin(shape, args, true, ordered, queue, &call));
    TRY(aligned(args->d_o, "d_o"));
    TRY(aligned(args->dq, "dq"));
    TRY(aligned(args->dk, "dk"));
    TRY(aligned(args->dv, "dv"));
    void *dk = args->dkv_fp32 ? at(&call, call.room.dk) : args->dk,
         *dv = args->dkv_fp32 ? at(&call, call.room.dv) : args->dv;
    call.memory[CUDNN_DO] = (void *)(uintptr_t)args->d_o;
    call.memory[CUDNN_DQ] = args->dq;
    call.memory[CUDNN_DK] = dk;
    call.memory[CUDNN_DV] = dv;
    call.memory[CUDNN_SUM] = at(&call, call.room.sum);
    call.memory[CUDNN_DQ_SUM] = at(&call, call.room.dq_sum);
    call.memory[CUDNN_DK_HEADS] = at(&call, call.room.dk_heads);
    call.memory[CUDNN_DV_HEADS] = at(&call, call.room.dv_heads);
    if (call.key.packed) {
        TRY(write_index(&call));
        TRY(cudnn_pack_stats(args->lse, at(&call, call.room.stats), shape->heads, shape->seq_q, first_of(shape->cu_q),
                             end_of(shape, shape->cu_q), queue));
    }
    TRY(cudnn_plan_run(call.plan, call.memory, at(&call, call.room.own), queue));
    TRY(clear_hidden(&call, args->dq, 2, shape->q_stride, (int64_t)shape->heads * shape->head_dim, shape->seq_q,
                     shape->cu_q));
    TRY(finish_gradient(&call, dk, args->dk, shape->k_stride, shape->head_dim));
    return finish_gradient(&call, dv, args->dv, shape->v_stride, shape->head_dim_v);
}

static struct verdict cudnn_supports(const struct attention_shape *shape)
{
    return supports(shape, false);
}

static size_t cudnn_workspace_bytes(const struct attention_shape *shape, bool backward, int threads)
{
    (void)threads;
    return workspace_bytes(shape, backward, false);
}

static void cudnn_prepare(const struct attention_shape *const *shapes, int n, bool backward)
{
    prepare(shapes, n, backward, false);
}

static const char *cudnn_version(void)
{
    static char text[32];
    const struct cudnn_api *api;
    if (cudnn_load(&api) == STATUS_OK)
        snprintf(text, sizeof text, "%d.%d.%d", api->version / 10000, api->version / 100 % 100, api->version % 100);
    else
        status_clear();
    return text;
}

static enum status cudnn_forward(const struct attention_shape *shape, const struct attention_args *args,
                                 struct dev_queue *queue)
{
    return run_forward(shape, args, queue, false);
}

static enum status cudnn_backward(const struct attention_shape *shape, const struct attention_args *args,
                                  struct dev_queue *queue)
{
    return run_backward(shape, args, queue, false);
}

extern const struct attention attention_cudnn;
const struct attention attention_cudnn = {
    .name = "cudnn",
    .stands_for = "sdpa",
    .dev = DEV_CUDA,
    .version = cudnn_version,
    .rounds_calls = true,
    .unordered = true,
    .supports = cudnn_supports,
    .prepare = cudnn_prepare,
    .workspace_bytes = cudnn_workspace_bytes,
    .forward = cudnn_forward,
    .backward = cudnn_backward,
};

static struct verdict ordered_supports(const struct attention_shape *shape)
{
    return supports(shape, true);
}

static size_t ordered_workspace_bytes(const struct attention_shape *shape, bool backward, int threads)
{
    (void)threads;
    return workspace_bytes(shape, backward, true);
}

static void ordered_prepare(const struct attention_shape *const *shapes, int n, bool backward)
{
    prepare(shapes, n, backward, true);
}

static enum status ordered_forward(const struct attention_shape *shape, const struct attention_args *args,
                                   struct dev_queue *queue)
{
    return run_forward(shape, args, queue, true);
}

static enum status ordered_backward(const struct attention_shape *shape, const struct attention_args *args,
                                    struct dev_queue *queue)
{
    return run_backward(shape, args, queue, true);
}

extern const struct attention attention_cudnn_ordered;
const struct attention attention_cudnn_ordered = {
    .name = "cudnn-ordered",
    .stands_for = "",
    .dev = DEV_CUDA,
    .version = cudnn_version,
    .rounds_calls = true,
    .supports = ordered_supports,
    .prepare = ordered_prepare,
    .workspace_bytes = ordered_workspace_bytes,
    .forward = ordered_forward,
    .backward = ordered_backward,
};
