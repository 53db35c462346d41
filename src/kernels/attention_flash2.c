/* kernels/attention_flash2.c -- attention with our own tensor-core kernels on CUDA GPUs of compute capability 8.0 and later.
 *
 * bf16 and fp16, head_dim 64, 96, 128, 256 (the same for V), any mask, GQA, packed documents. Deterministic: every sum has
 * one order, fixed by the shape. A key or value that a query does not see but a neighbour in its tile does is multiplied by 0, so
 * a NaN there shows.
 *
 * Workspace of the backward pass: per query head and token 4 * head_dim bytes for fp32 sums of dQ and 8 for LSE and
 * rowsum(dO * O); where key tiles are few, fp32 copies of dK and dV for each part of a group.
 *
 * Measured on an H200, bf16, causal, 16 query and 4 kv heads, TFLOP/s forward | backward, in brackets the flash backend of torch 2.11
 * in the same run:
 *   head_dim 128   4096: 329-340 | 243 (199 | 196)   8192: 369-382 | 277-282 (272 | 245)   32768: 407 | 303 (342 | 316)
 *   head_dim 64    8192: 301-309 | 231 (218 | 207)   32768: 312 | 253 (297 | 278)
 *   head_dim 96    8192: 316 | 252 (259 | 216)       head_dim 256    8192: 258 | 189 (284 | 238)
 */
#include "base/dev_cuda.h"
#include "kernels/attention_check.h"
#include "kernels/attention_flash2_plan.h"

static bool tokens_fit(const struct attention_shape *shape)
{
    return shape->seq_q < FLASH2_FAR && shape->seq_k < FLASH2_FAR;
}

static struct flash2_plan plan_of(const struct attention_shape *shape, bool backward, bool roomy)
{
    struct flash2_tiles tiles =
        backward ? flash2_backward_tiles(shape->head_dim, roomy) : flash2_forward_tiles(shape->head_dim);
    return flash2_plan_make(shape, tiles, backward, backward);
}

static struct verdict flash2_supports(const struct attention_shape *shape)
{
    struct verdict verdict = attention_shape_verdict(shape);
    int64_t strides = shape->q_stride | shape->k_stride | shape->v_stride | shape->o_stride;
    if (!verdict_ok(&verdict))
        return verdict;
    if (shape->dtype == DTYPE_FP32)
        return verdict_no(RULE_KERNEL_CANNOT, "flash2 computes bf16 and fp16, not fp32");
    if (shape->head_dim != shape->head_dim_v)
        return verdict_no(RULE_KERNEL_CANNOT, "flash2 needs head_dim and head_dim_v alike, not %d and %d",
                          shape->head_dim, shape->head_dim_v);
    if (shape->head_dim != 64 && shape->head_dim != 96 && shape->head_dim != 128 && shape->head_dim != 256)
        return verdict_no(RULE_KERNEL_CANNOT, "flash2 has head_dim 64, 96, 128 and 256, not %d", shape->head_dim);
    if (strides % 8 != 0)
        return verdict_no(RULE_KERNEL_CANNOT, "flash2 reads 16 bytes at a time: strides are multiples of 8 elements");
    if (!(shape->scale > 0))
        return verdict_no(RULE_KERNEL_CANNOT, "flash2 needs a positive scale, not %g", (double)shape->scale);
    if (!tokens_fit(shape))
        return verdict_no(RULE_INDEX, "flash2 counts fewer than %d tokens per batch item", FLASH2_FAR);
    for (int backward = 0; backward < 2; backward++) {
        struct flash2_plan plan = plan_of(shape, backward != 0, false);
        double blocks = (double)shape->batch * shape->heads * plan.parts * (backward != 0 ? plan.splits : 1) *
                        (double)(plan.q_tiles + plan.k_tiles);
        if (blocks > INT32_MAX)
            return verdict_no(RULE_INDEX, "flash2 would need %.3g blocks, a launch has at most %d", blocks, INT32_MAX);
    }
    return VERDICT_YES;
}

static size_t flash2_workspace_bytes(const struct attention_shape *shape, bool backward, int threads)
{
    (void)threads;
    struct verdict verdict = flash2_supports(shape);
    return verdict_ok(&verdict) ? (size_t)plan_of(shape, backward, true).bytes : 0;
}

static enum status aligned(const void *pointer, const char *name)
{
    return (uintptr_t)pointer % 16 == 0 ? STATUS_OK
                                        : HINT(FAIL(STATUS_USAGE, "flash2: %s starts at %p", name, pointer),
                                               "start tensors at multiples of 16 bytes");
}

static enum status args_check(const struct attention_shape *shape, const struct attention_args *args, bool backward)
{
    TRY(attention_args_check(shape, args, backward, flash2_workspace_bytes(shape, backward, 1)));
    struct verdict verdict = flash2_supports(shape);
    if (!verdict_ok(&verdict))
        return FAIL(STATUS_UNSUPPORTED, "%s", verdict.why);
    TRY(aligned(args->q, "q"));
    TRY(aligned(args->k, "k"));
    TRY(aligned(args->v, "v"));
    TRY(aligned(args->o, "o"));
    TRY(aligned(args->workspace, "the workspace"));
    if (!backward)
        return STATUS_OK;
    TRY(aligned(args->d_o, "d_o"));
    TRY(aligned(args->dq, "dq"));
    TRY(aligned(args->dk, "dk"));
    return aligned(args->dv, "dv");
}

static enum status run(const struct attention_shape *shape, const struct attention_args *args, bool backward,
                       struct dev_queue *queue)
{
    TRY(args_check(shape, args, backward));
    int shared_bytes = 0;
    TRY(flash2_shared_most(queue, &shared_bytes));
    struct flash2_plan plan = plan_of(shape, backward, shared_bytes >= FLASH2_ROOMY);
    struct flash2_call call = flash2_call_make(shape, args, &plan, backward);
    TRY(flash2_documents_place(shape, args, &plan, queue));
    if (!backward)
        return flash2_launch_forward(shape->head_dim, shape->dtype, &call, queue);
    TRY(dev_fill(queue, (char *)args->workspace + plan.ticket_at, 0, (size_t)plan.zeroed_bytes));
    return flash2_launch_backward(shape->head_dim, shape->dtype, &call, queue);
}

static enum status flash2_forward(const struct attention_shape *shape, const struct attention_args *args,
                                  struct dev_queue *queue)
{
    return run(shape, args, false, queue);
}

static enum status flash2_backward(const struct attention_shape *shape, const struct attention_args *args,
                                   struct dev_queue *queue)
{
    return run(shape, args, true, queue);
}

extern const struct attention attention_flash2;
const struct attention attention_flash2 = {
    .name = "flash2",
    .stands_for = "flash_attention_2",
    .dev = DEV_CUDA,
    .supports = flash2_supports,
    .workspace_bytes = flash2_workspace_bytes,
    .forward = flash2_forward,
    .backward = flash2_backward,
};
