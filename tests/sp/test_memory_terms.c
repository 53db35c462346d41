/* tests/sp/test_memory_terms.c -- the memory model's terms, exact, and what each choice changes. */
#include "sp/memory_test.h"

#include <math.h>
#include <stdio.h>

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
    work_memory_on(&model, &problem, &plan, target_find("sptune"), DEV_CPU, 1, &cpu);
    assert_int_equal(term(&cpu, "rows")->bytes, term(&cut, "rows")->bytes);
    assert_true(term(&cpu, "workspace")->bytes >= INT64_C(2) * 32768 * 4096);
    assert_int_equal(term(&cpu, "buckets")->bytes - term(&cut, "buckets")->bytes, 4 * (model.params_embedding - layer));
    plan.zero_stage = 0;
    cut = memory_of(&model, 32768, &plan, "sptune");
    assert_int_equal(term(&cut, "params")->bytes, 2 * (32 * layer + rest));
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
        int64_t sums = stage == 1 ? part : 0, most = stage < 2 ? 0 : outside / 4;
        struct work_memory memory, cpu;
        plan.zero_stage = stage;
        work_memory_on(&model, &problem, &plan, target_find("sptune"), DEV_CUDA, 1, &memory);
        work_memory_on(&model, &problem, &plan, target_find("sptune"), DEV_CPU, 1, &cpu);
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
    work_memory_on(&model, &problem, &plan, target_find("sptune"), DEV_CUDA, 1, &memory);
    assert_int_equal(term(&memory, "buckets")->bytes, 4 * (2 * layer + outside + outside / 2));
}

/* tp cuts as split_gather does, beside an sp that exchanges the heads which are left. */
static void tp_cuts_layers(void **state)
{
    (void)state;
    const struct model model = llama_8b();
    struct plan split = gpu_plan(4, 8, "cudnn"), tp = split;
    split.zero_stage = tp.zero_stage = 3;
    split.method = PLAN_METHOD_SPLIT_GATHER;
    strcpy(split.exchange, PLAN_GATHER_EXCHANGE);
    tp.sp = 1;
    tp.tp = 4;
    struct problem problem;
    struct work_memory a, b;
    problem_from_model(&model, 32768, 8, &problem);
    work_memory_on(&model, &problem, &split, target_find("sptune"), DEV_CUDA, 1, &a);
    work_memory_on(&model, &problem, &tp, target_find("sptune"), DEV_CUDA, 1, &b);
    assert_int_equal(a.n, b.n);
    for (int i = 0; i < a.n; i++) {
        assert_string_equal(a.term[i].name, b.term[i].name);
        assert_int_equal(a.term[i].bytes, b.term[i].bytes);
    }
    tp.sp = tp.tp = 2; /* half the rows of a sequence meet half of each layer, and heads are exchanged */
    work_memory_on(&model, &problem, &tp, target_find("sptune"), DEV_CUDA, 1, &b);
    int64_t norms = 2 * 4096, layer = norms + (model.params_layer - norms) / 2;
    int64_t rest = model.params - 32 * model.params_layer;
    assert_int_equal(term(&b, "params")->bytes, 2 * (32 * layer / 4 + rest / 8));
    assert_int_equal(term(&b, "rows")->bytes, term(&a, "rows")->bytes / 2);
    assert_int_equal(term(&b, "mlp")->bytes, term(&a, "mlp")->bytes);
    assert_int_equal(term(&b, "checkpoints")->bytes, term(&a, "checkpoints")->bytes);
}

/* Communicators as the trainer opens them (params.c), of which some sum. */
static void connections_of_a_job(void **state)
{
    (void)state;
    const struct model model = llama_8b();
    const struct target *target = target_find("sptune");
    static const struct {
        enum plan_method method;
        int sp, tp, shard, replicate, zero, n, sums;
    } jobs[] = {{PLAN_METHOD_ULYSSES, 1, 1, 1, 1, 3, 0, 0},     {PLAN_METHOD_ULYSSES, 2, 1, 1, 1, 0, 1, 1},
                {PLAN_METHOD_ULYSSES, 2, 1, 1, 1, 1, 1, 1},     {PLAN_METHOD_ULYSSES, 2, 1, 1, 1, 3, 2, 1},
                {PLAN_METHOD_ULYSSES, 1, 1, 1, 2, 3, 1, 1},     {PLAN_METHOD_SPLIT_GATHER, 2, 1, 1, 1, 3, 2, 2},
                {PLAN_METHOD_ULYSSES, 1, 2, 1, 1, 3, 2, 2},     {PLAN_METHOD_ULYSSES, 1, 2, 1, 1, 0, 1, 1},
                {PLAN_METHOD_ULYSSES, 2, 1, 1, 2, 3, 4, 2},       /* shard groups and replicates: of two ranks each */
                {PLAN_METHOD_ULYSSES, 2, 2, 1, 1, 3, 5, 4},       /* the layer's ranks beside; those that cut, twice */
                {PLAN_METHOD_SPLIT_GATHER, 2, 1, 2, 1, 1, 3, 3}}; /* of the job: all, a layer's, those that cut */
    for (int i = 0; i < CHECK_COUNT(jobs); i++) {
        int world = jobs[i].sp * jobs[i].tp * jobs[i].shard * jobs[i].replicate;
        struct plan plan = gpu_plan(jobs[i].sp, world, "cudnn");
        struct problem problem;
        struct work_memory memory;
        plan.method = jobs[i].method;
        plan.tp = jobs[i].tp;
        plan.dp_shard = jobs[i].shard;
        plan.dp_replicate = jobs[i].replicate;
        plan.zero_stage = jobs[i].zero;
        problem_from_model(&model, 8192, world, &problem);
        work_memory_on(&model, &problem, &plan, target, DEV_CUDA, 1, &memory);
        int64_t want = jobs[i].n * target->memory.comm_bytes + jobs[i].sums * target->memory.sum_bytes;
        if (term(&memory, "communicators")->bytes != want)
            fail_msg("job %d: %s", i, term(&memory, "communicators")->formula);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peak_is_the_sum_of_live_terms),
        cmocka_unit_test(a_stage_shards_one_kind_more),
        cmocka_unit_test(what_deepspeed_holds_when),
        cmocka_unit_test(storage_types),
        cmocka_unit_test(mixtures_have_wide_mlps),
        cmocka_unit_test(offloads_move_to_the_host),
        cmocka_unit_test(savers_save),
        cmocka_unit_test(replicated_kv_heads_stop_shrinking),
        cmocka_unit_test(heads_alone_and_absurd_sizes),
        cmocka_unit_test(fit_has_two_thresholds),
        cmocka_unit_test(split_gather_cuts_layers),
        cmocka_unit_test(tp_cuts_layers),
        cmocka_unit_test(connections_of_a_job),
        cmocka_unit_test(what_the_harness_holds_by_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
