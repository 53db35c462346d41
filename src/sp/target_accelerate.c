/* sp/target_accelerate.c -- Accelerate with the DeepSpeed backend: what it refuses, and what its software stack costs
 * in memory.
 *
 * Rules: accelerate 1.12 to 1.15.0.dev0 parallelism_config.py and utils/dataclasses.py, deepspeed 0.18 to 0.19.6
 * runtime/sequence_parallel/ulysses_sp.py, parallel_state_sp.py and runtime/config.py. q, k, v and o are exchanged one
 * after another, permuted before and after; nothing overlaps; ZeRO shards over the whole world whatever the dp sizes
 * say.
 */
#include "sp/target.h"

#include <string.h>

extern const struct target target_accelerate;

static const char *own_exchange(enum dev_kind dev, bool *stands_in)
{
    *stands_in = dev == DEV_CPU; /* torch.distributed moves the data there, with NCCL on GPUs */
    return dev == DEV_CPU ? "packed-separate" : "nccl-separate";
}

struct verdict target_accelerate_sizes(int world, int dp_replicate, int dp_shard, int tp, int cp, int sp)
{
    if (world < 1 || dp_replicate < 1 || dp_shard < 1 || tp < 1 || cp < 1 || sp < 1)
        return verdict_no(RULE_WORLD,
                          "world %d, dp_replicate %d, dp_shard %d, tp %d, cp %d, sp %d: every size is 1 or more", world,
                          dp_replicate, dp_shard, tp, cp, sp);
    if (sp > 1 && cp > 1)
        return verdict_no(RULE_TARGET_CANNOT, "sp %d with cp %d: Accelerate takes one of them", sp, cp);
    if (sp > 1 && tp > 1)
        return verdict_no(RULE_TARGET_CANNOT,
                          "sp %d with tp %d: accepted by ParallelismConfig, but no mesh is built and the "
                          "tensor parallelism is not wired",
                          sp, tp);
    if ((tp > 1 || cp > 1) && dp_replicate > 1 && dp_shard == 1)
        return verdict_no(RULE_TARGET_CANNOT, "tp %d or cp %d with dp_replicate %d needs dp_shard above 1", tp, cp,
                          dp_replicate);
    const int sizes[] = {dp_replicate, dp_shard, tp, cp, sp};
    int64_t product = 1;
    for (int i = 0; i < 5; i++) {
        if (sizes[i] > world || product * sizes[i] > world)
            return verdict_no(RULE_WORLD,
                              "dp_replicate %d x dp_shard %d x tp %d x cp %d x sp %d is more than the %d processes",
                              dp_replicate, dp_shard, tp, cp, sp, world);
        product *= sizes[i];
    }
    if (product != world)
        return verdict_no(RULE_WORLD,
                          "dp_replicate %d x dp_shard %d x tp %d x cp %d x sp %d = %lld is not the %d processes",
                          dp_replicate, dp_shard, tp, cp, sp, (long long)product, world);
    return VERDICT_YES;
}

/* What FlashAttention 2 and 3 take: one head size for q, k and v up to 256 (3: v may be narrower), 32-bit token x
 * hidden indices in 2. Llama-8B with flash_attention_2 and Liger ended with an illegal access at 555,000 x 4,096
 * elements on one device, and ran at 500,000 x 4,096 (Arctic Training's recipes; Liger-Kernel issue 803);
 * flash_attention_3 ran at 1,200,000 x 4,096. */
static struct verdict class_check(const struct problem *problem, const struct plan *plan)
{
    const char *class = target_class(&target_accelerate, plan->attention);
    if (class == NULL || strcmp(class, "sdpa") == 0)
        return VERDICT_YES;
    int dim_v = problem_dim_v(problem);
    if (problem->head_dim > 256 || dim_v > 256)
        return verdict_no(RULE_KERNEL_CANNOT, "%s takes heads of up to 256, not %d", class,
                          problem->head_dim > dim_v ? problem->head_dim : dim_v);
    if (problem->dtype == DTYPE_FP32)
        return verdict_no(RULE_KERNEL_CANNOT, "%s takes bf16 and fp16, not fp32", class);
    if (strcmp(class, "flash_attention_2") != 0)
        return VERDICT_YES;
    if (problem->head_dim != dim_v)
        return verdict_no(RULE_KERNEL_CANNOT, "flash_attention_2 takes one head size, not %d for q and k and %d for v",
                          problem->head_dim, dim_v);
    double local = (double)problem->batch * (double)problem_local(problem, plan->sp);
    double width = (double)problem->heads * problem->head_dim;
    width = width > (double)problem->hidden ? width : (double)problem->hidden;
    if (local * width >= 2147483648.0)
        return verdict_no(RULE_INDEX, "%.0f local tokens x %.0f is beyond the 2^31 that flash_attention_2 can index",
                          local, width);
    return VERDICT_YES;
}

static struct verdict accelerate_check(const struct model *model, const struct problem *problem,
                                       const struct plan *plan)
{
    (void)model;
    struct verdict verdict =
        target_accelerate_sizes(problem->world, plan->dp_replicate, plan->dp_shard, plan->tp, 1, plan->sp);
    if (!verdict_ok(&verdict))
        return verdict;
    if (plan->offload == PLAN_OFFLOAD_OPTIMIZER && plan->zero_stage == 0)
        return verdict_no(RULE_TARGET_CANNOT, "offload=optimizer needs zero stage 1 to 3");
    if (plan->checkpointing == PLAN_CHECKPOINTING_OFFLOAD)
        return verdict_no(RULE_TARGET_CANNOT, "Transformers does not offload checkpoints to host memory");
    if (plan->sp > 1 && strcmp(plan->exchange, "packed-separate") != 0 && strcmp(plan->exchange, "nccl-separate") != 0)
        return verdict_no(RULE_TARGET_CANNOT, "accelerate exchanges q, k, v and o one after another, not %s",
                          plan->exchange);
    return class_check(problem, plan);
}

static const char *const classes[] = {"sdpa", "flash_attention_2", "flash_attention_3", NULL};

/* c_q and c_m are least-squares fits to eight published peaks of 1 to 64 H100 and H200 (Arctic Training's ALST recipes;
 * tests/sp/test_memory.c holds them). The rest is DeepSpeed's code (0.19.6 runtime/zero/stage3.py, stage_1_and_2.py,
 * partitioned_param_coordinator.py), the loss of the script that is emitted, and peaks measured on H200; docs/models.md
 * tells which is which and how far each is off. */
const struct target target_accelerate = {
    .name = "accelerate",
    .runtime = "accelerate+deepspeed",
    .classes = classes,
    .methods = 1u << PLAN_METHOD_ULYSSES,
    .searched = 1u << PLAN_METHOD_ULYSSES,
    .zero_min = 1, /* stage 0 with sequence parallelism ends in an error: DeepSpeed issue 7833 */
    .zero_max = 3,
    .zero_over_world = true,
    .tiled_mlp = false,
    .overlap = false,
    .packed_sdpa = false,
    .exchange = own_exchange,
    .defaults = {.method = PLAN_METHOD_ULYSSES,
                 .sp = 1,
                 .dp_shard = 1,
                 .dp_replicate = 1,
                 .tp = 1,
                 .exchange = "packed-separate",
                 .attention = "cpu",
                 .chunks = 1,
                 .zero_stage = 3,
                 .micro_batch = 1,
                 .accumulate = 1,
                 .checkpointing = PLAN_CHECKPOINTING_FULL},
    .memory = {.attention_copies = 17.9,   /* fit; flash_attention_2 ran in all eight */
               .class_copies = {0, 0, 12}, /* flash_attention_3: from one run, a guess */
               .mlp_copies = 6.15,         /* fit: gate, up, activation, product and gradients of them */
               .mlp_hidden = 3,            /* TiledMLP's docstring: input, output, gradient stay whole */
               .logits_bytes = 12,      /* log-softmax and two gradients in fp32; bf16 and its copy are gone by then */
               .logits_fp32_bytes = 16, /* the logits besides: measured peaks are above 13.2 */
               .tile_bytes = 20,        /* measured peaks are 4 % above what 15.2 gives */
               .reduce_elems = {500000000, /* DeepSpeed's default; with sp what ds_config.json says */
                                125000000},
               .reduce_bytes = {0, 4},   /* seq_parallel_communication_data_type fp32 */
               .reduce_buffers = 2,      /* overlap_comm */
               .live_elems = 1000000000, /* stage3_max_live_parameters, stage3_max_reuse_distance */
               .grads_late = true,
               .master_fp32 = true,
               .context_bytes = 1900000000, /* 1.77 GiB: a process in nvidia-smi less what its allocator reserves */
               .context_cpu_bytes =
                   500000000,       /* a Python process with PyTorch, Transformers and gloo: about 0.5 GB resident */
               .host_factor = 1.5}, /* DeepSpeed's estimator */
    /* Transformers 5.17's Llama run eagerly, a kernel an operation, counted by scripts/peers/elementwise.py. Sums, backward: residuals',
     * and what q, k, v and what gate and up give to their input. The plain loss makes fp32 of the logits, and softmax reads them three
     * times; tiles do so twice; Liger's works in place. */
    .elementwise = {.norm = {{4, 7}, {8, 19}},
                    .turn = {{10, 0}, {17, 0}},
                    .act = {{2, 0}, {3, 0}},
                    .gate = {{3, 0}, {6, 0}},
                    .sum = {{3, 0}, {7.5, 0}},
                    .loss = {[PLAN_LOSS_PLAIN] = {2, 11}, [PLAN_LOSS_TILED] = {3, 16}, [PLAN_LOSS_FUSED] = {3, 0}}},
    /* AdamW in one kernel (28, as train.py asks for it on GPUs; before PyTorch 2.5 and on CPUs it is more), and what DeepSpeed 0.19.8 does around
     * it once a step: gradients are made double (10) for their norm (8), laid one behind another (4), made fp32 (6), scaled (8), weights
     * narrowed (6). What it does to gradients before: work_step.c. In a profile on an H200 what is around took 1.6 times as long as copies
     * of so many bytes. */
    .optimizer_bytes = 70,
    .sums_whole = true, /* use_multi_rank_bucket_allreduce, its default */
    .keeps_late = true, /* runtime/zero/linear.py, in place of torch's; a profile on an H200 has its products */
    .check = accelerate_check,
};
