/* kernels/attention_gpu_reference.c -- the plain GPU attention: any dtype, head_dim and mask, fp32 throughout, for checks. */
#include "kernels/attention_gpu_reference.h"
#include "base/dev_cuda.h"
#include "kernels/attention_check.h"
#include "kernels/attention_flash2_plan.h"

enum { DIM_MAX = 2048 }; /* rows in 48 KiB of shared memory */

static struct flash2_plan plan_of(const struct attention_shape *shape, bool backward)
{
    struct flash2_tiles tiles = {1, 1, shape->head_dim};
    return flash2_plan_make(shape, tiles, backward, false);
}

static struct verdict gpu_reference_supports(const struct attention_shape *shape)
{
    struct verdict verdict = attention_shape_verdict(shape);
    if (!verdict_ok(&verdict))
        return verdict;
    if (shape->head_dim > DIM_MAX || shape->head_dim_v > DIM_MAX)
        return verdict_no(RULE_KERNEL_CANNOT, "gpu_reference has head_dim up to %d", DIM_MAX);
    double blocks = (double)shape->batch * shape->heads * (double)(shape->seq_q + shape->seq_k);
    if (blocks > INT32_MAX || shape->seq_q >= FLASH2_FAR || shape->seq_k >= FLASH2_FAR)
        return verdict_no(RULE_INDEX, "gpu_reference would need %.3g blocks, a launch has at most %d", blocks,
                          INT32_MAX);
    return VERDICT_YES;
}

static size_t gpu_reference_workspace_bytes(const struct attention_shape *shape, bool backward, int threads)
{
    (void)threads;
    struct verdict verdict = gpu_reference_supports(shape);
    return verdict_ok(&verdict) ? (size_t)plan_of(shape, backward).bytes : 0;
}

static enum status prepare(const struct attention_shape *shape, const struct attention_args *args, bool backward,
                           struct dev_queue *queue, struct flash2_call *out)
{
    TRY(attention_args_check(shape, args, backward, gpu_reference_workspace_bytes(shape, backward, 1)));
    struct verdict verdict = gpu_reference_supports(shape);
    if (!verdict_ok(&verdict))
        return FAIL(STATUS_UNSUPPORTED, "%s", verdict.why);
    struct flash2_plan plan = plan_of(shape, backward);
    TRY(flash2_documents_place(shape, args, &plan, queue));
    *out = flash2_call_make(shape, args, &plan, backward);
    return STATUS_OK;
}

static enum status gpu_reference_forward(const struct attention_shape *shape, const struct attention_args *args,
                                         struct dev_queue *queue)
{
    struct flash2_call call;
    TRY(prepare(shape, args, false, queue, &call));
    return gpu_reference_launch_forward(shape->head_dim, shape->head_dim_v, shape->dtype, &call, queue);
}

static enum status gpu_reference_backward(const struct attention_shape *shape, const struct attention_args *args,
                                          struct dev_queue *queue)
{
    struct flash2_call call;
    TRY(prepare(shape, args, true, queue, &call));
    return gpu_reference_launch_backward(shape->head_dim, shape->head_dim_v, shape->dtype, &call, queue);
}

extern const struct attention attention_gpu_reference;
const struct attention attention_gpu_reference = {
    .name = "gpu_reference",
    .stands_for = "",
    .dev = DEV_CUDA,
    .own_softmax = true,
    .supports = gpu_reference_supports,
    .workspace_bytes = gpu_reference_workspace_bytes,
    .forward = gpu_reference_forward,
    .backward = gpu_reference_backward,
};
