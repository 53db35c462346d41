/* tests/sp/test_target.c -- what a runtime refuses, and what stands in for its parts here. */
#include "sp/sp_test.h"

#include "kernels/attention.h"
#include "sp/exchange.h"
#include "sp/target.h"

static struct plan accelerate_plan(int sp, int world)
{
    struct plan plan = target_find("accelerate")->defaults;
    plan.sp = sp;
    plan.dp_shard = world / sp;
    return plan;
}

static void says(const struct target *target, const struct problem *problem, const struct plan *plan, enum rule rule,
                 const char *word)
{
    struct model model = {.layers = 1};
    struct verdict verdict = target_check(target, &model, problem, plan);
    if (verdict.rule != rule || strstr(verdict.why, word) == NULL)
        fail_msg("expected %s '%s', got %s '%s'", rule_code(rule), word, rule_code(verdict.rule), verdict.why);
}

static void table_is_sound(void **state)
{
    (void)state;
    for (int i = 0; targets[i] != NULL; i++) {
        const struct target *target = targets[i];
        bool stands_in;
        assert_ptr_equal(target_find(target->name), target);
        const char *exchange = target->exchange(DEV_CPU, &stands_in);
        assert_non_null(exchange_find(exchange));
        assert_string_equal(exchange, target->defaults.exchange);
        int classes = 0;
        while (target->classes[classes] != NULL)
            classes++;
        assert_in_range(classes, 1, TARGET_CLASSES);
        /* what a target does by default it may do */
        struct problem problem = small_problem(8, 8, 64, 8);
        struct plan plan = target->defaults;
        plan.dp_shard = 4;
        plan.sp = 2;
        says(target, &problem, &plan, RULE_OK, "");
        struct verdict verdict = plan_check(&problem, &plan, DEV_CPU);
        assert_string_equal(verdict.why, "");
    }
    assert_null(target_find("acelerate"));
    assert_null(target_find(NULL));
}

static void stand_ins_on_the_cpu(void **state)
{
    (void)state;
    const struct target *accelerate = target_find("accelerate"), *sptune = target_find("sptune");
    bool stands_in = false;
    assert_string_equal(target_stand_in(accelerate, "sdpa", DEV_CPU), "cpu");
    assert_null(target_stand_in(accelerate, "flash_attention_2", DEV_CPU));
    assert_null(target_stand_in(accelerate, "flash_attention_3", DEV_CPU));
    assert_null(target_stand_in(accelerate, "eager", DEV_CPU));
#if SPTUNE_CUDNN
    assert_string_equal(target_stand_in(accelerate, "sdpa", DEV_CUDA), "cudnn");
#else
    assert_null(target_stand_in(accelerate, "sdpa", DEV_CUDA));
#endif
    assert_string_equal(accelerate->exchange(DEV_CUDA, &stands_in), "nccl-separate");
    assert_false(stands_in);
    assert_string_equal(sptune->exchange(DEV_CUDA, &stands_in), "push");
    assert_string_equal(target_stand_in(sptune, "cpu", DEV_CPU), "cpu");
    assert_string_equal(target_class(accelerate, "cpu"), "sdpa");
    assert_string_equal(target_class(accelerate, "flash_attention_3"), "flash_attention_3");
    assert_null(target_class(accelerate, "reference"));
    assert_true(target_class_exists("flash_attention_2"));
    assert_false(target_class_exists("eager"));
    assert_string_equal(accelerate->exchange(DEV_CPU, &stands_in), "packed-separate");
    assert_true(stands_in);
    assert_string_equal(sptune->exchange(DEV_CPU, &stands_in), "direct");
    assert_false(stands_in);
}

static void advised(const char *target, const struct problem *problem, const struct plan *plan, const char *why)
{
    struct verdict no = target_advise(target_find(target), problem, plan, plan_check(problem, plan, DEV_CPU));
    assert_string_equal(no.why, why);
}

/* More ranks than heads: a ring where there is one. */
static void rings_are_advised(void **state)
{
    (void)state;
    const struct problem problem = small_problem(4, 4, 64, 8), more = small_problem(8, 8, 64, 16);
    struct plan p = small_plan(8, 8);
    advised("sptune", &problem, &p, "4 query heads are fewer than 8 ranks; method ring splits no heads");
    advised("accelerate", &problem, &p, "4 query heads are fewer than 8 ranks");
    p.dp_shard = 1;
    p.tp = 2;
    advised("sptune", &more, &p, "beside tp 2: 4 query heads are fewer than 8 ranks; method ring splits no heads");
    p.tp = 8; /* tp is the matter */
    p.sp = 1;
    advised("sptune", &problem, &p, "tp 8: 4 query heads are fewer than 8 ranks");
}

static void accelerate_refuses(void **state)
{
    (void)state;
    const struct target *accelerate = target_find("accelerate");
    const struct problem problem = small_problem(8, 8, 64, 8);
    const struct plan good = accelerate_plan(2, 8);
    struct plan p;
    says(accelerate, &problem, &good, RULE_OK, "");
    says(accelerate, &problem, (p = good, p.method = PLAN_METHOD_RING, &p), RULE_TARGET_CANNOT, "ring");
    says(accelerate, &problem, (p = good, p.chunks = 2, &p), RULE_TARGET_CANNOT, "2 chunks");
    says(accelerate, &problem, (p = good, p.mlp = PLAN_MLP_TILED, &p), RULE_TARGET_CANNOT, "tiled MLP");
    says(accelerate, &problem, (p = good, p.zero_stage = 0, p.offload = PLAN_OFFLOAD_OPTIMIZER, &p), RULE_TARGET_CANNOT,
         "1 to 3");
    says(accelerate, &problem, (p = good, p.checkpointing = PLAN_CHECKPOINTING_OFFLOAD, &p), RULE_TARGET_CANNOT,
         "checkpoints");
    p = good;
    strcpy(p.exchange, "packed");
    says(accelerate, &problem, &p, RULE_TARGET_CANNOT, "one after another");
    p.sp = 1; /* nothing is exchanged: nothing to refuse */
    p.dp_shard = 8;
    says(accelerate, &problem, &p, RULE_OK, "");
}

static void c32_zero_stage_0(void **state)
{
    (void)state;
    const struct target *accelerate = target_find("accelerate");
    struct problem problem = small_problem(8, 8, 64, 2);
    struct plan plan = accelerate_plan(2, 2);
    plan.zero_stage = 0;
    says(accelerate, &problem, &plan, RULE_TARGET_CANNOT, "stages 1 to 3");
    for (plan.zero_stage = 1; plan.zero_stage <= 3; plan.zero_stage++)
        says(accelerate, &problem, &plan, RULE_OK, "");
    says(accelerate, &problem, &plan, RULE_TARGET_CANNOT, "not 4");
    plan.zero_stage = 0;
    says(target_find("sptune"), &problem, (strcpy(plan.exchange, "packed"), &plan), RULE_OK, "");
}

static void c11_c31_sdpa_and_packed_documents(void **state)
{
    (void)state;
    const struct target *accelerate = target_find("accelerate");
    struct problem problem = small_problem(8, 8, 8, 2);
    struct plan plan = accelerate_plan(2, 2);
    problem.docs = 2;
    problem.doc_len[0] = 3;
    problem.doc_len[1] = 5;
    says(accelerate, &problem, &plan, RULE_TARGET_CANNOT, "flash_attention_2"); /* cpu stands for sdpa */
    strcpy(plan.attention, "sdpa");
    says(accelerate, &problem, &plan, RULE_TARGET_CANNOT, "flash_attention_2");
    strcpy(plan.attention, "flash_attention_2");
    says(accelerate, &problem, &plan, RULE_OK, "");
    strcpy(plan.attention, "flash_attention_3");
    says(accelerate, &problem, &plan, RULE_OK, "");
    strcpy(plan.attention, "eager");
    says(accelerate, &problem, &plan, RULE_TARGET_CANNOT, "eager");
    strcpy(plan.attention, "flex_attention");
    says(accelerate, &problem, &plan, RULE_TARGET_CANNOT, "flex_attention");
    struct plan native = target_find("sptune")->defaults;
    native.sp = 2;
    says(target_find("sptune"), &problem, &native, RULE_OK, ""); /* our own kernel takes documents */
}

static void config(enum rule rule, const char *word, int world, int dp_replicate, int dp_shard, int tp, int cp, int sp)
{
    struct verdict verdict = target_accelerate_sizes(world, dp_replicate, dp_shard, tp, cp, sp);
    if (verdict.rule != rule || strstr(verdict.why, word) == NULL)
        fail_msg("expected %s '%s', got %s '%s'", rule_code(rule), word, rule_code(verdict.rule), verdict.why);
}

static void c29_sp_with_other_sizes(void **state)
{
    (void)state;
    /*                                    world rep shard tp cp sp */
    config(RULE_TARGET_CANNOT, "one of them", 4, 1, 1, 1, 2, 2);
    config(RULE_WORLD, "8 processes", 8, 1, 8, 1, 8, 1); /* 64 is not 8: dp_shard is not orthogonal to cp by itself */
    config(RULE_TARGET_CANNOT, "dp_shard above 1", 4, 2, 1, 1, 2, 1);
    config(RULE_OK, "", 4, 2, 1, 1, 1, 2); /* the ban covers tp and cp only */
    config(RULE_TARGET_CANNOT, "tensor parallelism", 4, 1, 1, 2, 1, 2);
    config(RULE_OK, "", 8, 1, 2, 1, 1, 4);
    config(RULE_OK, "", 8, 2, 2, 1, 1, 2);
    config(RULE_WORLD, "= 4", 8, 1, 2, 1, 1, 2);
    config(RULE_WORLD, "1 or more", 8, 0, 8, 1, 1, 1);
    config(RULE_WORLD, "1 or more", 8, 1, 8, 1, 1, -1);
    config(RULE_WORLD, "more than", 8, INT32_MAX, INT32_MAX, 1, 1, INT32_MAX);
}

static void flash_attention_limits(void **state)
{
    (void)state;
    const struct target *accelerate = target_find("accelerate");
    struct problem problem = small_problem(32, 8, 500000, 1);
    struct plan plan = accelerate_plan(1, 1);
    problem.head_dim = 128;
    problem.hidden = 4096;
    strcpy(plan.attention, "flash_attention_2");
    says(accelerate, &problem, &plan, RULE_OK, ""); /* the recipe that ran */
    problem.seq = 555000;
    says(accelerate, &problem, &plan, RULE_INDEX, "2^31"); /* the one that did not */
    strcpy(plan.attention, "flash_attention_3");
    says(accelerate, &problem, &plan, RULE_OK, "");
    problem.seq = 4096;
    problem.head_dim = 192;
    problem.head_dim_v = 128;
    says(accelerate, &problem, &plan, RULE_OK, "");
    strcpy(plan.attention, "flash_attention_2");
    says(accelerate, &problem, &plan, RULE_KERNEL_CANNOT, "one head size");
    problem.head_dim = 320;
    says(accelerate, &problem, &plan, RULE_KERNEL_CANNOT, "up to 256");
    problem.head_dim = problem.head_dim_v = 128;
    problem.dtype = DTYPE_FP32;
    says(accelerate, &problem, &plan, RULE_KERNEL_CANNOT, "fp32");
}

static void harness_keeps_parameters_on_the_device(void **state)
{
    (void)state;
    struct problem problem = small_problem(8, 8, 64, 8);
    const struct target *sptune = target_find("sptune");
    struct plan plan = sptune->defaults;
    plan.chunks = 2;
    plan.mlp = PLAN_MLP_TILED;
    says(sptune, &problem, &plan, RULE_OK, "");
    plan.offload = PLAN_OFFLOAD_OPTIMIZER;
    says(sptune, &problem, &plan, RULE_OK, "");
    plan.offload = PLAN_OFFLOAD_PARAMS;
    says(sptune, &problem, &plan, RULE_TARGET_CANNOT, "parameters");
    plan.offload = PLAN_OFFLOAD_NONE;
    plan.checkpointing = PLAN_CHECKPOINTING_OFFLOAD;
    says(sptune, &problem, &plan, RULE_OK, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_sound),
        cmocka_unit_test(stand_ins_on_the_cpu),
        cmocka_unit_test(rings_are_advised),
        cmocka_unit_test(accelerate_refuses),
        cmocka_unit_test(c32_zero_stage_0),
        cmocka_unit_test(c11_c31_sdpa_and_packed_documents),
        cmocka_unit_test(c29_sp_with_other_sizes),
        cmocka_unit_test(flash_attention_limits),
        cmocka_unit_test(harness_keeps_parameters_on_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
