/* tests/sp/test_memory.c -- the memory model: published peaks within the stated errors, exact terms, and what each choice
 * changes.
 *
 * Set A: eight peaks of Arctic Training's ALST recipes (8 B, 70 B and 32 B models, 1 to 64 H100 or H200, ZeRO-3, CPU
 * Adam, flash_attention_2; one-device rows offload parameters too). c_q and c_m are fitted to them; their trainer's plain
 * loss holds more than that of the script which is emitted, and their gradients are reduced in bf16. Set B: peaks of
 * Qwen3-4B on one and four H100 under Accelerate (Hugging Face's article on Ulysses), DeepSpeed's defaults: nothing is
 * fitted to them.
 */
#include "sp/sp_test.h"

#include "sp/work.h"

#include <math.h>
#include <stdio.h>

static const double GiB = 1073741824.0;

static struct model dense(int layers, int64_t hidden, int heads, int kv_heads, int64_t ffn, int64_t vocab, bool tied,
                          int64_t params)
{
    struct model model = {.layers = layers,
                          .hidden = hidden,
                          .heads = heads,
                          .kv_heads = kv_heads,
                          .head_dim = 128,
                          .head_dim_v = 128,
                          .ffn = ffn,
                          .gated = true,
                          .vocab = vocab,
                          .tied = tied,
                          .params = params};
    int64_t q = (int64_t)heads * 128, kv = (int64_t)kv_heads * 128;
    model.params_layer = 2 * hidden * q + 2 * hidden * kv + 3 * hidden * ffn + 2 * hidden;
    model.params_embedding = vocab * hidden;
    return model;
}

static struct model llama_8b(void)
{
    return dense(32, 4096, 32, 8, 14336, 128256, false, 8030261248);
}

static struct model llama_70b(void)
{
    return dense(80, 8192, 64, 8, 28672, 128256, false, 70553706496);
}

static struct model qwen3_32b(void)
{
    return dense(64, 5120, 64, 8, 25600, 151936, false, 32762123264);
}

static struct model qwen3_4b(void)
{
    return dense(36, 2560, 32, 8, 9728, 151936, true, 4022468096);
}

/* A plan on GPUs: no exchange of this build, so that the context is CUDA's. */
static struct plan gpu_plan(int sp, int world, const char *attention)
{
    struct plan plan = small_plan(sp, world);
    strcpy(plan.exchange, "torch");
    strcpy(plan.attention, attention);
    plan.checkpointing = PLAN_CHECKPOINTING_FULL;
    return plan;
}

static struct work_memory memory_in(const struct model *model, int64_t seq, const struct plan *plan,
                                    const struct target *target)
{
    struct problem problem;
    struct work_memory memory;
    problem_from_model(model, seq, plan->sp * plan->dp_shard, &problem);
    work_memory(model, &problem, plan, target, &memory);
    return memory;
}

static struct work_memory memory_of(const struct model *model, int64_t seq, const struct plan *plan, const char *target)
{
    return memory_in(model, seq, plan, target_find(target));
}

/* accelerate with DeepSpeed's own bucket of 5e8 elements where sequences are split, too. */
static struct target default_bucket(void)
{
    struct target target = *target_find("accelerate");
    target.memory.reduce_elems[1] = target.memory.reduce_elems[0];
    return target;
}

static const struct work_term *term(const struct work_memory *memory, const char *name)
{
    static const struct work_term none = {.bytes = 0};
    for (int i = 0; i < memory->n; i++)
        if (strcmp(memory->term[i].name, name) == 0)
            return &memory->term[i];
    return &none;
}

static void set_a_of_published_peaks(void **state)
{
    (void)state;
    const struct {
        struct model model;
        int sp;
        int64_t seq;
        bool liger, tiled, offload_checkpoints;
        double observed_GiB;
    } rows[] = {
        {llama_8b(), 1, 32000, false, false, false, 71.91},   {llama_70b(), 32, 4000000, true, true, true, 47.70},
        {llama_70b(), 64, 10000000, true, true, true, 53.83}, {qwen3_32b(), 32, 7000000, true, true, true, 71.55},
        {qwen3_32b(), 64, 15000000, true, true, true, 71.00}, {llama_8b(), 1, 65000, false, false, false, 137.36},
        {llama_8b(), 1, 300000, true, false, false, 134.96},  {llama_8b(), 1, 650000, true, false, true, 126.81},
    };
    struct target recipes = default_bucket();
    recipes.memory.reduce_bytes[1] = 0; /* the recipes reduce in bf16 */
    recipes.memory.logits_bytes = 15.2; /* fitted: their trainer on Transformers 4.51 */
    double squares = 0, worst = 0;
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct plan plan = gpu_plan(rows[i].sp, rows[i].sp, "flash_attention_2");
        plan.offload = rows[i].sp == 1 ? PLAN_OFFLOAD_PARAMS : PLAN_OFFLOAD_OPTIMIZER;
        plan.loss = rows[i].liger ? PLAN_LOSS_FUSED : PLAN_LOSS_PLAIN;
        plan.mlp = rows[i].tiled ? PLAN_MLP_TILED : PLAN_MLP_PLAIN;
        plan.checkpointing = rows[i].offload_checkpoints ? PLAN_CHECKPOINTING_OFFLOAD : PLAN_CHECKPOINTING_FULL;
        struct work_memory memory = memory_in(&rows[i].model, rows[i].seq, &plan, &recipes);
        double error = (double)memory.peak_bytes / GiB / rows[i].observed_GiB - 1;
        squares += error * error;
        worst = fabs(error) > worst ? fabs(error) : worst;
        /* as the target prices it: what its script's loss does not hold is 16 and 17 % of the two peaks at a plain loss */
        memory = memory_of(&rows[i].model, rows[i].seq, &plan, "accelerate");
        double own = (double)memory.peak_bytes / GiB / rows[i].observed_GiB - 1;
        if (rows[i].liger ? fabs(own) > 0.045 : own < -0.175 || own > -0.16)
            fail_msg("row %d: %.1f %%", i, 100 * own);
    }
    if (!(sqrt(squares / CHECK_COUNT(rows)) < 0.017 && worst < 0.0355)) /* rms 1.65 %, worst 3.5 % */
        fail_msg("rms %.4f, worst %.4f", sqrt(squares / CHECK_COUNT(rows)), worst);
}

/* Never low, at most 8 % high. With the smaller bucket that is emitted the sp 4 rows take 1.5 GB less: within 2 %. */
static void set_b_of_accelerate(void **state)
{
    (void)state;
    const struct {
        int sp;
        int64_t seq;
        double observed_GiB;
    } rows[] = {{1, 8192, 76.4}, {4, 8192, 23.4}, {4, 32768, 35.0}, {4, 65536, 50.5}, {4, 98304, 66.0}};
    const struct model model = qwen3_4b();
    const struct target wide = default_bucket();
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct plan plan = gpu_plan(rows[i].sp, rows[i].sp, "flash_attention_2");
        struct work_memory memory = memory_in(&model, rows[i].seq, &plan, &wide);
        double error = (double)memory.peak_bytes / GiB / rows[i].observed_GiB - 1;
        if (error < 0.015 || error > 0.08)
            fail_msg("sp %d seq %lld: %.1f %%", rows[i].sp, (long long)rows[i].seq, 100 * error);
        struct work_memory emitted = memory_of(&model, rows[i].seq, &plan, "accelerate");
        assert_int_equal(memory.peak_bytes - emitted.peak_bytes, rows[i].sp > 1 ? 1500000000 : 0);
        error = (double)emitted.peak_bytes / GiB / rows[i].observed_GiB - 1;
        if (error < -0.005 || error > 0.06)
            fail_msg("sp %d seq %lld, emitted: %.1f %%", rows[i].sp, (long long)rows[i].seq, 100 * error);
    }
}

static void runs_that_fitted_are_not_called_too_large(void **state)
{
    (void)state;
    const struct {
        struct model model;
        int sp, world;
        int64_t seq;
        bool tiled, offload_checkpoints;
    } rows[] = {
        {llama_8b(), 1, 8, 160000, false, false},   {llama_8b(), 8, 8, 1100000, false, false},
        {llama_8b(), 8, 8, 1200000, true, false},   {llama_8b(), 8, 8, 2400000, false, true},
        {llama_8b(), 1, 1, 500000, true, true},     {llama_8b(), 8, 8, 3800000, true, true},
        {llama_8b(), 16, 16, 8000000, true, true},  {llama_8b(), 32, 32, 15500000, true, true},
        {llama_70b(), 8, 8, 200000, true, false},   {llama_70b(), 16, 16, 1200000, true, true},
        {qwen3_32b(), 1, 1, 230000, true, true},    {qwen3_32b(), 8, 8, 1550000, true, true},
        {qwen3_32b(), 16, 16, 4000000, true, true},
    };
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct plan plan = gpu_plan(rows[i].sp, rows[i].world, "flash_attention_2");
        plan.loss = PLAN_LOSS_FUSED;
        plan.offload = rows[i].world == 1 ? PLAN_OFFLOAD_PARAMS : PLAN_OFFLOAD_OPTIMIZER;
        plan.mlp = rows[i].tiled ? PLAN_MLP_TILED : PLAN_MLP_PLAIN;
        plan.checkpointing = rows[i].offload_checkpoints ? PLAN_CHECKPOINTING_OFFLOAD : PLAN_CHECKPOINTING_FULL;
        struct work_memory memory = memory_of(&rows[i].model, rows[i].seq, &plan, "accelerate");
        double peak = (double)memory.peak_bytes / GiB;
        if (peak < 37 || peak > 80)
            fail_msg("row %d: %.1f GiB", i, peak);
    }
}

/* bytes as GiB with two decimals, the way the reports quote them */
static double hundredths(int64_t bytes)
{
    return round((double)bytes / GiB * 100) / 100;
}

static void c39_logits(void **state)
{
    (void)state;
    struct model model = dense(28, 3584, 28, 4, 18944, 248320, false, 7615616512);
    struct plan plan = gpu_plan(1, 1, "sdpa");
    struct work_memory memory = memory_of(&model, 11600, &plan, "accelerate");
    assert_true(hundredths(term(&memory, "logits_fp32")->bytes) == 10.73);
    memory = memory_of(&model, 8192, &plan, "accelerate");
    assert_true(hundredths(term(&memory, "logits_fp32")->bytes) == 7.58);
    model.vocab = 256000;
    memory = memory_of(&model, 8192, &plan, "accelerate");
    assert_true(hundredths(term(&memory, "logits_fp32")->bytes) == 7.81);
    model.vocab = 152064;
    plan = gpu_plan(4, 4, "sdpa");
    memory = memory_of(&model, 131072, &plan, "accelerate");
    assert_true(hundredths(term(&memory, "logits")->bytes) == 9.28);
    assert_true(hundredths(term(&memory, "logits_fp32")->bytes) == 18.56);
    assert_true(term(&memory, "logits_grad")->bytes >=
                term(&memory, "logits_fp32")->bytes); /* a gradient of that size */
    assert_string_equal(memory.peak_at, "loss");
    assert_true(term(&memory, "logits_fp32")->live_at_peak);
    assert_non_null(strstr(term(&memory, "logits_fp32")->formula, "4 B x 32768 tokens x 152064"));
}

static void peak_is_the_sum_of_live_terms(void **state)
{
    (void)state;
    const struct model model = qwen3_4b();
    for (int i = 0; i < 4 * 3 * 3 * 3 * 2; i++) {
        struct plan plan = gpu_plan(1 + i % 2, 2, "sdpa");
        plan.dp_shard = 2 / plan.sp;
        plan.zero_stage = i % 4;
        plan.checkpointing = (enum plan_checkpointing)(i / 4 % 3);
        plan.offload = (enum plan_offload)(i / 12 % 3);
        plan.loss = (enum plan_loss)(i / 36 % 3);
        plan.mlp = (enum plan_mlp)(i / 108 % 2);
        for (int t = 0; targets[t] != NULL; t++) {
            struct work_memory memory = memory_of(&model, 16384, &plan, targets[t]->name);
            int64_t device = 0, host = 0;
            for (int k = 0; k < memory.n; k++) {
                assert_true(memory.term[k].bytes > 0);
                assert_true(memory.term[k].formula[0] != '\0');
                assert_false(memory.term[k].host && memory.term[k].live_at_peak);
                device += memory.term[k].live_at_peak ? memory.term[k].bytes : 0;
                host += memory.term[k].host ? memory.term[k].bytes : 0;
                for (int j = 0; j < k; j++)
                    assert_string_not_equal(memory.term[k].name, memory.term[j].name);
            }
            assert_int_equal(device, memory.peak_bytes);
            assert_int_equal(host, memory.host_bytes);
        }
    }
}

static void a_stage_shards_one_kind_more(void **state)
{
    (void)state;
    const struct model model = qwen3_4b();
    const int64_t whole = model.params, part = model.params / 4;
    const int64_t want[4][3] = {                                    /* params, grads, states */
                                {2 * whole, 4 * whole, 12 * whole}, /* gradients are fp32 */
                                {2 * whole, 4 * whole, 12 * part},
                                {2 * whole, 4 * part, 12 * part},
                                {2 * part, 4 * part, 12 * part}};
    for (int stage = 0; stage < 4; stage++) {
        struct plan plan = gpu_plan(2, 4, "sdpa");
        plan.zero_stage = stage;
        struct work_memory memory = memory_of(&model, 8192, &plan, "sptune");
        assert_int_equal(term(&memory, "params")->bytes, want[stage][0]);
        assert_int_equal(term(&memory, "grads")->bytes, want[stage][1]);
        assert_int_equal(term(&memory, "states")->bytes, want[stage][2]);
        assert_int_equal(term(&memory, "step_grads")->bytes, 0);
    }
    struct plan plan = gpu_plan(2, 4, "sdpa"); /* DeepSpeed's estimates of the step: 18 P/G, and 2 P + 18 P/G */
    struct work_memory memory = memory_of(&model, 8192, &plan, "accelerate");
    assert_int_equal(term(&memory, "params")->bytes + term(&memory, "grads")->bytes + term(&memory, "states")->bytes +
                         term(&memory, "step_grads")->bytes,
                     18 * part);
    plan.zero_stage = 2;
    memory = memory_of(&model, 8192, &plan, "accelerate");
    assert_int_equal(term(&memory, "params")->bytes + term(&memory, "grads")->bytes + term(&memory, "states")->bytes +
                         term(&memory, "step_grads")->bytes,
                     2 * whole + 18 * part);
}

/* Buffers in which gradients are reduced, weights that stay gathered, gradients that come late: DeepSpeed's, by stage. */
static void what_deepspeed_holds_when(void **state)
{
    (void)state;
    const struct model model = qwen3_4b();
    struct plan plan = gpu_plan(1, 4, "sdpa");
    const int64_t unit = model.params_embedding + model.params_layer;
    plan.zero_stage = 3;
    struct work_memory memory = memory_of(&model, 65536, &plan, "accelerate");
    assert_string_equal(memory.peak_at, "loss");
    assert_int_equal(term(&memory, "buckets")->bytes, INT64_C(2) * 500000000); /* of the parameters' type */
    assert_true(term(&memory, "buckets")->live_at_peak && term(&memory, "grads")->live_at_peak);
    assert_int_equal(term(&memory, "gather")->bytes, 2 * (INT64_C(1000000000) + unit));
    plan.sp = 4;
    plan.dp_shard = 1;
    memory = memory_of(&model, 65536, &plan, "accelerate");
    assert_int_equal(term(&memory, "buckets")->bytes, INT64_C(4) * 125000000); /* reduced in fp32: a smaller one */
    for (int stage = 1; stage <= 2; stage++) { /* two, and none of it before the first layer's backward */
        plan.zero_stage = stage;
        memory = memory_of(&model, 65536, &plan, "accelerate");
        assert_string_equal(memory.peak_at, "loss");
        assert_int_equal(term(&memory, "buckets")->bytes, INT64_C(2) * 2 * 125000000);
        assert_false(term(&memory, "buckets")->live_at_peak || term(&memory, "grads")->live_at_peak);
        assert_int_equal(term(&memory, "gather")->bytes, 0);
        int64_t first = memory.peak_bytes;
        plan.accumulate = 2; /* the second micro-step's loss comes on top of the first one's gradients */
        memory = memory_of(&model, 65536, &plan, "accelerate");
        assert_true(term(&memory, "grads")->live_at_peak);
        assert_int_equal(memory.peak_bytes - first, term(&memory, "grads")->bytes);
        plan.accumulate = 1;
        plan.loss = PLAN_LOSS_FUSED;
        memory = memory_of(&model, 1048576, &plan, "accelerate");
        assert_true(term(&memory, "buckets")->live_at_peak && term(&memory, "grads")->live_at_peak);
        memory = memory_of(&model, 1024, &plan, "accelerate"); /* the optimizer steps: buffers are back */
        assert_string_equal(memory.peak_at, "step");
        assert_true(!term(&memory, "buckets")->live_at_peak && term(&memory, "grads")->live_at_peak);
        plan.loss = PLAN_LOSS_PLAIN;
    }
    struct model small = model; /* what it keeps is at most all there is */
    small.params = 600000000;
    plan.zero_stage = 3;
    memory = memory_of(&small, 65536, &plan, "accelerate");
    assert_int_equal(term(&memory, "gather")->bytes, 2 * (small.params + unit));
}

/* Our harness: two layers of weights, as many of gradients where one is reduced beside the next; its embedding is the head. */
static void what_the_harness_holds_by_units(void **state)
{
    (void)state;
    const struct model model = qwen3_4b();
    const int64_t layer = model.params_layer, outside = model.params_embedding, part = model.params / 4;
    const int64_t units[4] = {0, 0, 2 * layer + outside, 2 * layer + outside};
    struct plan plan = gpu_plan(2, 4, "sdpa");
    struct problem problem;
    assert_true(model.tied && outside > layer && model.params % 4 == 0 && outside % 4 == 0);
    problem_from_model(&model, 8192, 4, &problem);
    for (int stage = 0; stage < 4; stage++) {
        int64_t sums = stage == 1 ? part : 0, most = stage == 0 ? outside : outside / 4;
        struct work_memory memory, cpu;
        plan.zero_stage = stage;
        work_memory_on(&model, &problem, &plan, target_find("sptune"), DEV_CUDA, &memory);
        work_memory_on(&model, &problem, &plan, target_find("sptune"), DEV_CPU, &cpu);
        assert_int_equal(term(&memory, "gather")->bytes, stage == 0  ? 0
                                                         : stage < 3 ? 2 * part
                                                                     : 2 * (2 * layer + outside));
        assert_int_equal(term(&memory, "buckets")->bytes, 4 * (units[stage] + sums + most));
        /* one layer at a time, and sums need room */
        assert_int_equal(term(&cpu, "buckets")->bytes - term(&memory, "buckets")->bytes,
                         4 * (outside - (stage >= 2 ? layer : 0)));
    }
    plan.dp_shard = 1; /* groups of half the ranks sum without room, too */
    plan.dp_replicate = 2;
    plan.zero_stage = 3;
    struct work_memory memory;
    work_memory_on(&model, &problem, &plan, target_find("sptune"), DEV_CUDA, &memory);
    assert_int_equal(term(&memory, "buckets")->bytes, 4 * (2 * layer + outside + outside / 2));
}

/* results/measured/h200x2/train-256k.json: Llama-3-8B, 262,144 tokens on two H200. The constant of what libraries take was fitted to it; the
 * host's bytes are those that the trainer allocates, counted. */
static void the_harness_on_two_gpus(void **state)
{
    (void)state;
    const struct model model = llama_8b();
    const double taken = 62311497728.0;
    struct plan plan = gpu_plan(2, 2, "cudnn");
    struct problem problem;
    struct work_memory memory;
    strcpy(plan.exchange, "push");
    plan.zero_stage = 3;
    plan.checkpointing = PLAN_CHECKPOINTING_OFFLOAD;
    plan.offload = PLAN_OFFLOAD_OPTIMIZER;
    plan.loss = PLAN_LOSS_TILED;
    plan.mlp = PLAN_MLP_TILED;
    problem_from_model(&model, 262144, 2, &problem);
    work_memory_on(&model, &problem, &plan, target_find("sptune"), DEV_CUDA, &memory);
    print_message("predicted %.1f GB of %.1f taken\n", (double)memory.peak_bytes / 1e9, taken / 1e9);
    assert_true(fabs((double)memory.peak_bytes - taken) <= 0.05 * taken);
    assert_int_equal(memory.host_bytes, 81467564032);
}

/* 12 bytes an entry of the logits in bf16, 16 in fp32; four bytes of each state, and of the buffers, in fp32. */
static void storage_types(void **state)
{
    (void)state;
    const struct model model = qwen3_4b();
    struct plan plan = gpu_plan(1, 1, "sdpa");
    struct problem problem;
    problem_from_model(&model, 8192, 1, &problem);
    const int64_t entries = 8192 * model.vocab;
    for (int fp32 = 0; fp32 < 2; fp32++) {
        struct work_memory memory;
        problem.dtype = fp32 ? DTYPE_FP32 : DTYPE_BF16;
        plan.zero_stage = 3;
        work_memory(&model, &problem, &plan, target_find("accelerate"), &memory);
        assert_int_equal(term(&memory, "logits")->bytes + term(&memory, "logits_fp32")->bytes +
                             term(&memory, "logits_grad")->bytes,
                         (fp32 ? 16 : 12) * entries);
        assert_int_equal(term(&memory, "buckets")->bytes, INT64_C(500000000) * (fp32 ? 4 : 2));
        assert_int_equal(term(&memory, "states")->bytes, (fp32 ? 8 : 12) * model.params);
        plan.zero_stage = 1; /* a copy of the parameters even of fp32 ones */
        work_memory(&model, &problem, &plan, target_find("accelerate"), &memory);
        assert_int_equal(term(&memory, "states")->bytes, 12 * model.params);
        work_memory(&model, &problem, &plan, target_find("sptune"), &memory);
        assert_int_equal(term(&memory, "states")->bytes, 12 * model.params);
    }
}

/* The MLP of a mixture: the experts that a token visits and the shared ones, or a dense layer where that is wider. */
static void mixtures_have_wide_mlps(void **state)
{
    (void)state;
    struct model model = qwen3_4b();
    struct plan plan = gpu_plan(1, 1, "sdpa");
    model.experts = 64;
    model.experts_per_token = 6;
    model.ffn = 1408;
    model.ffn_shared = 2816;
    struct work_memory memory = memory_of(&model, 8192, &plan, "sptune");
    assert_int_equal(term(&memory, "mlp")->bytes, 2 * 8192 * 3 * (6 * 1408 + 2816));
    model.dense_layers = 1;
    model.ffn_dense = 18432;
    memory = memory_of(&model, 8192, &plan, "sptune");
    assert_int_equal(term(&memory, "mlp")->bytes, 2 * 8192 * 3 * 18432);
}

static void offloads_move_to_the_host(void **state)
{
    (void)state;
    const struct model model = llama_8b();
    struct plan plan = gpu_plan(8, 8, "flash_attention_2");
    struct work_memory none = memory_of(&model, 131072, &plan, "accelerate");
    assert_int_equal(none.host_bytes, 0);
    plan.offload = PLAN_OFFLOAD_OPTIMIZER;
    struct work_memory optimizer = memory_of(&model, 131072, &plan, "accelerate");
    assert_int_equal(optimizer.host_bytes, model.params / 8 * 16 * 3 / 2); /* DeepSpeed: 16 P/W x 1.5 */
    assert_int_equal(term(&optimizer, "params")->bytes, 2 * model.params / 8);
    assert_int_equal(term(&optimizer, "states")->bytes + term(&optimizer, "grads")->bytes, 0);
    struct work_memory ours = memory_of(&model, 131072, &plan, "sptune"); /* gradients stay, the fp32 ones too */
    assert_int_equal(ours.host_bytes, model.params / 8 * 12);
    assert_int_equal(term(&ours, "grads")->bytes + term(&ours, "step_grads")->bytes, 4 * model.params / 8);
    assert_int_equal(term(&ours, "states")->bytes, 0);
    plan.offload = PLAN_OFFLOAD_PARAMS;
    struct work_memory params = memory_of(&model, 131072, &plan, "accelerate");
    assert_int_equal(params.host_bytes, model.params / 8 * 18 * 3 / 2);
    assert_int_equal(term(&params, "params")->bytes, 0);
    plan.checkpointing = PLAN_CHECKPOINTING_OFFLOAD;
    struct work_memory ckpt = memory_of(&model, 131072, &plan, "accelerate");
    assert_int_equal(ckpt.host_bytes - params.host_bytes, INT64_C(32) * 16384 * 4096 * 2); /* 256 KiB a token */
    assert_int_equal(term(&none, "checkpoints")->bytes, INT64_C(32) * 16384 * 4096 * 2);
    assert_int_equal(term(&ckpt, "checkpoints")->bytes, 0);
}

static void savers_save(void **state)
{
    (void)state;
    const struct model model = llama_8b();
    struct plan plan = gpu_plan(8, 8, "flash_attention_2");
    struct work_memory full = memory_of(&model, 131072, &plan, "accelerate");
    plan.checkpointing = PLAN_CHECKPOINTING_NONE;
    struct work_memory kept = memory_of(&model, 131072, &plan, "accelerate");
    /* per token: 4 x 4096 hidden, q 4096, o 4096, k v 2 x 8 x 128, in 2 bytes; softmax 32 x 4; 4 x 14336 in 2 bytes */
    int64_t token = 2 * (4 * 4096 + 4096 + 4096 + 2 * 8 * 128 + 4 * 14336) + 4 * 32;
    assert_int_equal(term(&kept, "activations")->bytes, 32 * 16384 * token);
    assert_true(kept.peak_bytes > full.peak_bytes);
    plan.checkpointing = PLAN_CHECKPOINTING_FULL;
    plan.loss = PLAN_LOSS_TILED;
    struct work_memory tiled = memory_of(&model, 131072, &plan, "accelerate");
    assert_in_range(term(&tiled, "logits_fp32")->bytes, 1 << 29, 1 << 30); /* about a GiB of fp32 at a time */
    plan.loss = PLAN_LOSS_FUSED;
    struct work_memory fused = memory_of(&model, 131072, &plan, "accelerate");
    assert_int_equal(term(&fused, "logits")->bytes, 0);
    assert_string_not_equal(fused.peak_at, "loss");
    int64_t plain = term(&fused, "mlp")->bytes;
    plan.mlp = PLAN_MLP_TILED;
    struct work_memory mlp = memory_of(&model, 131072, &plan, "accelerate");
    /* tiles of `hidden` rows: 6.15 x 2 x 4096 x 14336, and 3 x 2 x 16384 x 4096 that stay */
    assert_int_equal(term(&mlp, "mlp")->bytes, (int64_t)ceil(6.15 * 2 * 4096 * 14336 + 6.0 * 16384 * 4096));
    assert_true(term(&mlp, "mlp")->bytes < plain);
}

static void replicated_kv_heads_stop_shrinking(void **state)
{
    (void)state;
    const struct model model = llama_8b();
    struct plan plan = gpu_plan(8, 32, "flash_attention_2");
    struct work_memory memory = memory_of(&model, 131072, &plan, "accelerate");
    assert_int_equal(term(&memory, "kv_copies")->bytes, 0); /* 8 kv heads over 8 ranks */
    plan = gpu_plan(32, 32, "flash_attention_2");
    memory = memory_of(&model, 131072, &plan, "accelerate");
    assert_int_equal(term(&memory, "kv_copies")->bytes, 2 * 4096 * (32 - 8) * (128 + 128));
    plan = gpu_plan(32, 32, "flash_attention_3");
    struct work_memory third = memory_of(&model, 131072, &plan, "accelerate");
    assert_int_equal(term(&third, "attention")->bytes + term(&third, "kv_copies")->bytes,
                     INT64_C(12) * 2 * 4096 * 4096);
    /* the fitted coefficient has the copies in it: shown apart, not added */
    int64_t both = term(&memory, "attention")->bytes + term(&memory, "kv_copies")->bytes;
    assert_int_equal(both, (int64_t)ceil(17.9 * 2 * 4096 * 4096));
}

static void a_small_model_on_two_cpu_ranks(void **state)
{
    (void)state;
    struct model model = {.layers = 24,
                          .hidden = 896,
                          .heads = 14,
                          .kv_heads = 2,
                          .head_dim = 64,
                          .head_dim_v = 64,
                          .ffn = 4864,
                          .gated = true,
                          .vocab = 151936,
                          .tied = true,
                          .params = 494032768,
                          .params_layer = 14912384,
                          .params_embedding = 136134656};
    struct plan one = target_find("accelerate")->defaults, two = one;
    one.dp_shard = 2;
    two.sp = 2;
    struct work_memory whole = memory_of(&model, 4096, &one, "accelerate"),
                       half = memory_of(&model, 4096, &two, "accelerate");
    assert_string_equal(whole.peak_at, "loss");
    /* a device memory in between decides for sp 2 */
    int64_t between = (whole.peak_bytes + half.peak_bytes) / 2;
    assert_int_equal(work_fit(whole.peak_bytes, between), WORK_DOES_NOT_FIT);
    assert_int_not_equal(work_fit(half.peak_bytes, between), WORK_DOES_NOT_FIT);
    /* the context is that of a process, not of CUDA */
    assert_int_equal(term(&half, "context")->bytes, target_find("accelerate")->memory.context_cpu_bytes);
    struct problem problem; /* measured on this stand-in, planned for a GPU */
    problem_from_model(&model, 4096, 2, &problem);
    work_memory_on(&model, &problem, &two, target_find("accelerate"), DEV_CUDA, &half);
    assert_int_equal(term(&half, "context")->bytes, target_find("accelerate")->memory.context_bytes);
    strcpy(two.exchange, "torch");
    half = memory_of(&model, 4096, &two, "accelerate");
    assert_int_equal(term(&half, "context")->bytes, target_find("accelerate")->memory.context_bytes);
}

static void heads_alone_and_absurd_sizes(void **state)
{
    (void)state;
    struct model model = {.layers = 1, .heads = 8, .kv_heads = 2, .head_dim = 64, .head_dim_v = 64};
    struct plan plan = gpu_plan(2, 2, "sdpa");
    struct work_memory memory = memory_of(&model, 1024, &plan, "accelerate");
    assert_string_equal(memory.peak_at, "attention");
    assert_int_equal(term(&memory, "logits")->bytes + term(&memory, "mlp")->bytes + term(&memory, "params")->bytes, 0);
    memory = memory_of(&model, 0, &plan, "accelerate");
    assert_int_equal(memory.peak_bytes, target_find("accelerate")->memory.context_bytes);
    model = llama_8b();
    model.params = INT64_MAX;
    model.vocab = INT64_C(1) << 50;
    memory = memory_of(&model, INT64_C(1) << 40, &plan, "accelerate");
    assert_true(memory.peak_bytes > 0 && memory.host_bytes >= 0); /* saturated, not wrapped */
    assert_int_equal(work_fit(memory.peak_bytes, INT64_C(1) << 40), WORK_DOES_NOT_FIT);
}

static void fit_has_two_thresholds(void **state)
{
    (void)state;
    assert_int_equal(work_fit(80, 100), WORK_FITS);
    assert_int_equal(work_fit(81, 100), WORK_MEASURE_FIRST);
    assert_int_equal(work_fit(95, 100), WORK_MEASURE_FIRST);
    assert_int_equal(work_fit(96, 100), WORK_DOES_NOT_FIT);
    assert_int_equal(work_fit(1, 0), WORK_DOES_NOT_FIT);
}

/* Half of the layers' weights, a quarter of what they share, and rows of all ranks beside them. */
static void split_gather_cuts_layers(void **state)
{
    (void)state;
    const struct model model = llama_8b();
    struct plan plan = gpu_plan(4, 8, "cudnn");
    plan.zero_stage = 3;
    struct work_memory ulysses = memory_of(&model, 32768, &plan, "sptune");
    plan.method = PLAN_METHOD_SPLIT_GATHER;
    strcpy(plan.exchange, PLAN_GATHER_EXCHANGE);
    struct work_memory cut = memory_of(&model, 32768, &plan, "sptune");
    int64_t norms = 2 * 4096, layer = norms + (model.params_layer - norms) / 4;
    int64_t rest = model.params - 32 * model.params_layer;
    assert_int_equal(term(&cut, "params")->bytes, 2 * (32 * layer / 2 + rest / 8));
    assert_int_equal(term(&cut, "states")->bytes, 12 * (32 * layer / 2 + rest / 8));
    assert_int_equal(term(&cut, "gather")->bytes, 2 * 2 * (model.params_embedding + layer));
    assert_int_equal(term(&cut, "rows")->bytes, INT64_C(2) * 2 * 32768 * 4096);
    assert_int_equal(term(&ulysses, "rows")->bytes, 0);
    assert_int_equal(term(&cut, "checkpoints")->bytes, term(&ulysses, "checkpoints")->bytes);
    assert_int_equal(term(&cut, "logits")->bytes, term(&ulysses, "logits")->bytes);
    int64_t part = model.params_embedding / 8 > layer / 2 ? model.params_embedding / 8 : layer / 2;
    assert_int_equal(term(&cut, "buckets")->bytes, 4 * (2 * (layer + model.params_embedding) + part));
    struct work_memory cpu; /* where sums need room, of a sequence and of a unit, and one layer is whole at a time */
    struct problem problem;
    problem_from_model(&model, 32768, 8, &problem);
    work_memory_on(&model, &problem, &plan, target_find("sptune"), DEV_CPU, &cpu);
    assert_int_equal(term(&cpu, "rows")->bytes, INT64_C(2) * 3 * 32768 * 4096);
    assert_int_equal(term(&cpu, "buckets")->bytes - term(&cut, "buckets")->bytes, 4 * (model.params_embedding - layer));
    plan.zero_stage = 0;
    cut = memory_of(&model, 32768, &plan, "sptune");
    assert_int_equal(term(&cut, "params")->bytes, 2 * (32 * layer + rest));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_gather_cuts_layers),
        cmocka_unit_test(set_a_of_published_peaks),
        cmocka_unit_test(set_b_of_accelerate),
        cmocka_unit_test(runs_that_fitted_are_not_called_too_large),
        cmocka_unit_test(c39_logits),
        cmocka_unit_test(peak_is_the_sum_of_live_terms),
        cmocka_unit_test(a_stage_shards_one_kind_more),
        cmocka_unit_test(what_deepspeed_holds_when),
        cmocka_unit_test(what_the_harness_holds_by_units),
        cmocka_unit_test(the_harness_on_two_gpus),
        cmocka_unit_test(storage_types),
        cmocka_unit_test(mixtures_have_wide_mlps),
        cmocka_unit_test(offloads_move_to_the_host),
        cmocka_unit_test(savers_save),
        cmocka_unit_test(replicated_kv_heads_stop_shrinking),
        cmocka_unit_test(a_small_model_on_two_cpu_ranks),
        cmocka_unit_test(heads_alone_and_absurd_sizes),
        cmocka_unit_test(fit_has_two_thresholds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
