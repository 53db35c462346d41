/* sp/target_sptune.c -- our own harness: exchange direct, chunks, ZeRO over shard x sp.
 *
 * Memory coefficients are counts of buffers, not fits (docs/models.md, "Memory").
 */
#include "sp/shard.h"
#include "sp/target.h"

static const char *native_exchange(enum dev_kind dev, bool *stands_in)
{
    *stands_in = false;
    return dev == DEV_CPU ? "direct" : "push";
}

/* On GPUs which one wins depends on size, links and what attention leaves of the GPU. */
static const char *const *native_exchanges(enum dev_kind dev)
{
    static const char *const cuda[] = {"push", "pull", "ce", "nccl-window", "nccl", NULL};
    return dev == DEV_CUDA ? cuda : NULL;
}

static struct verdict native_check(const struct model *model, const struct problem *problem, const struct plan *plan)
{
    bool slides = model->window_layers > 0 && model->window > 0 && model->window < shard_padded(problem, plan);
    if (plan_ring(plan) > 1 && slides)
        return verdict_no(RULE_TARGET_CANNOT, "%d layers have a window of %lld tokens, which no step of a ring is",
                          model->window_layers, (long long)model->window);
    if (plan->method == PLAN_METHOD_SPLIT_GATHER && (model->hidden < 1 || model->ffn < 1 || model->experts > 0))
        return verdict_no(RULE_TARGET_CANNOT,
                          "split_gather cuts the products of whole layers with one MLP, which %s has not",
                          model->experts > 0 ? "a mixture of experts" : "a number of heads alone");
    if (plan->offload == PLAN_OFFLOAD_PARAMS)
        return verdict_no(RULE_TARGET_CANNOT, "the harness keeps parameters on the device");
    if (plan->tp > 1)
        return verdict_no(RULE_TARGET_CANNOT, "tp %d: `train --tp` runs it, but no model here has a price for it",
                          plan->tp);
    return VERDICT_YES;
}

/* The kernels of attentions[] that are meant to be fast; the reference is not among them. */
static const char *const classes[] = {"cpu", "cudnn", "flash2", NULL};

const struct target target_sptune = {
    .name = "sptune",
    .runtime = "sptune harness",
    .classes = classes,
    .methods = 1u << PLAN_METHOD_ULYSSES | 1u << PLAN_METHOD_RING | 1u << PLAN_METHOD_SPLIT_GATHER |
               1u << PLAN_METHOD_ULYSSES_RING,
    .searched = 1u << PLAN_METHOD_ULYSSES | 1u << PLAN_METHOD_RING | 1u << PLAN_METHOD_SPLIT_GATHER,
    .zero_min = 0,
    .zero_max = 3,
    .zero_over_world = false,
    .tiled_mlp = true,
    .overlap = true,
    .packed_sdpa = true,
    .own_kernels = true,
    .exchange = native_exchange,
    .exchanges = native_exchanges,
    .defaults = {.method = PLAN_METHOD_ULYSSES,
                 .sp = 1,
                 .dp_shard = 1,
                 .dp_replicate = 1,
                 .tp = 1,
                 .exchange = "direct",
                 .attention = "cpu",
                 .chunks = 1,
                 .zero_stage = 3,
                 .micro_batch = 1,
                 .accumulate = 1,
                 .checkpointing = PLAN_CHECKPOINTING_FULL},
    .memory =
        {.units = true,
         .master_fp32 = true,
         /* Two H200, in use beside what was allocated: 2.08 GB with a communicator that sums, 2.72 with one more that does not, 3.01
            where both do (docs/models.md). */
         .context_bytes = 1155000000,
         .comm_bytes = 629000000,
         .sum_bytes = 299000000,
         /* Measured, x86-64: 8.6 to 10.8 MB of program and OpenBLAS alone, 14.2 to 16.3 MB with UCX. */
         .context_cpu_bytes = 10000000,
         .comm_cpu_bytes = 5500000,
         .host_factor = 1},
    /* kernels/nn.h: a row's second reading comes from a cache; a norm's backward adds to the residual's gradient as it goes; the
     * activation runs again in backward. Of logits, fp32, one reading is for the loss, then they become gradients and are narrowed. */
    .elementwise = {.norm = {{2, 0}, {4, 0}},
                    .turn = {{2, 0}, {2, 0}},
                    .act = {{2, 0}, {3, 0}},
                    .gate = {{1, 0}, {5, 0}},
                    .sum = {{3, 0}, {0, 0}},
                    .loss = {[PLAN_LOSS_PLAIN] = {1, 4}, [PLAN_LOSS_TILED] = {1, 4}, [PLAN_LOSS_FUSED] = {1, 4}}},
    /* train/params_step.c: AdamW reads fp32 weight, gradient and two moments, writes three of them, and the weight in bf16, 30; the norm
     * reads gradients, 4; they are cleared, 4. */
    .optimizer_bytes = 38,
    .cleared_bytes = 4,
    .check = native_check,
};
