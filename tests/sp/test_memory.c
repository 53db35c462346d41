/* tests/sp/test_memory.c -- the memory model against peaks that others published and that were measured here, within the stated errors.
 *
 * Set A: eight peaks of Arctic Training's ALST recipes (8 B, 70 B and 32 B models, 1 to 64 H100 or H200, ZeRO-3, CPU
 * Adam, flash_attention_2; one-device rows offload parameters too). c_q and c_m are fitted to them; their trainer's plain
 * loss holds more than that of the script which is emitted, and their gradients are reduced in bf16. Set B: peaks of
 * Qwen3-4B on one and four H100 under Accelerate (Hugging Face's article on Ulysses), DeepSpeed's defaults: nothing is
 * fitted to them.
 */
#include "sp/memory_test.h"

#include "base/json.h"

#include <math.h>
#include <stdio.h>

static const double GiB = 1073741824.0;

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

/* The decoder of scripts/figures.d/llama_small.py. */
static const char llama_small[] =
    "{\"model_type\":\"llama\",\"hidden_size\":1024,\"num_hidden_layers\":8,\"num_attention_heads\":16,"
    "\"num_key_value_heads\":8,\"intermediate_size\":2816,\"vocab_size\":4096}";

static int64_t number(const json_t *row, const char *key)
{
    assert_true(json_is_integer(json_object_get(row, key)));
    return json_integer_value(json_object_get(row, key));
}

/* One run of `train` on GPUs as its document tells it. off: the largest share by which a peak is missed. */
static void hold_against(const struct model *model, const json_t *row, int64_t seq, double *off)
{
    const char *text = json_string_value(json_object_get(row, "plan"));
    struct plan plan;
    struct problem problem;
    struct work_memory memory;
    assert_non_null(text);
    CHECK_OK(plan_parse(text, &plan));
    problem_from_model(model, seq, 2, &problem);
    problem.batch = plan.micro_batch;
    work_memory_on(model, &problem, &plan, target_find("sptune"), DEV_CUDA, 1, &memory);
    double taken = (double)number(row, "peak_bytes"), allocated = (double)number(row, "memory_bytes");
    double own = (double)(memory.peak_bytes - term(&memory, "context")->bytes - term(&memory, "communicators")->bytes -
                          term(&memory, "windows")->bytes);
    double miss = fabs((double)memory.peak_bytes / taken - 1);
    if (miss > 0.05 || fabs(own / allocated - 1) > 0.02 || memory.host_bytes != number(row, "host_memory_bytes"))
        fail_msg("%s: predicted %.0f and of the trainer %.0f, taken %.0f and %.0f", text, (double)memory.peak_bytes,
                 own, taken, allocated);
    *off = fmax(*off, miss);
}

/* results/measured/h200x2: twelve plans of which the constants of what libraries take are made, three for three ways to have communicators,
 * and one of twice the length, which is not among them. */
static void the_harness_under_each_plan_on_two_gpus(void **state)
{
    (void)state;
    struct model model;
    json_t *row;
    char line[16384];
    double off = 0;
    int rows = 0;
    CHECK_OK(model_parse(llama_small, strlen(llama_small), "test", &model));
    FILE *file = fopen("results/measured/h200x2/verify-plans.jsonl", "r");
    assert_non_null(file);
    for (; fgets(line, sizeof line, file) != NULL; rows++) {
        CHECK_OK(json_parse_line(line, strlen(line), "verify-plans.jsonl", rows + 1, &row));
        hold_against(&model, row, json_integer_value(json_array_get(json_object_get(row, "seq"), 0)), &off);
        json_decref(row);
    }
    fclose(file);
    assert_int_equal(rows, 12);
    CHECK_OK(json_read("results/measured/h200x2/verify.json", &row));
    hold_against(&model, row, 8192, &off);
    json_decref(row);
    print_message("peaks of 13 runs missed by %.1f %% at most\n", 100 * off);
}

/* results/measured/h200x2/train-256k.json: Llama-3-8B, 262,144 tokens on two H200, which no constant was fitted to; the host's bytes are those
 * that the trainer allocates, counted. */
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
    work_memory_on(&model, &problem, &plan, target_find("sptune"), DEV_CUDA, 1, &memory);
    print_message("predicted %.1f GB of %.1f taken\n", (double)memory.peak_bytes / 1e9, taken / 1e9);
    assert_true(fabs((double)memory.peak_bytes - taken) <= 0.05 * taken);
    assert_int_equal(memory.host_bytes, 81467564032);
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
    work_memory_on(&model, &problem, &two, target_find("accelerate"), DEV_CUDA, 1, &half);
    assert_int_equal(term(&half, "context")->bytes, target_find("accelerate")->memory.context_bytes);
    strcpy(two.exchange, "torch");
    half = memory_of(&model, 4096, &two, "accelerate");
    assert_int_equal(term(&half, "context")->bytes, target_find("accelerate")->memory.context_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_a_of_published_peaks),
        cmocka_unit_test(set_b_of_accelerate),
        cmocka_unit_test(runs_that_fitted_are_not_called_too_large),
        cmocka_unit_test(c39_logits),
        cmocka_unit_test(the_harness_under_each_plan_on_two_gpus),
        cmocka_unit_test(the_harness_on_two_gpus),
        cmocka_unit_test(a_small_model_on_two_cpu_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
