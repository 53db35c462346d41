/* tests/cli/test_train_verify.c -- `sptune train --verify`: under each split, norm, type and mask, and where it has to fail. */
#include "cli/train_run.h"

#include <math.h>

static void test_verify(void **state)
{
    (void)state;
    static const char *const splits[] = {"--sp 2", "--sp 2 --method split_gather", "--tp 2", "--sp 1 --zero 2",
                                         "--sp 1 --dp-replicate 2 --accumulate 2"};
    for (int i = 0; i < CHECK_COUNT(splits); i++) {
        struct run run;
        run_do(&run, TINY "--verify %s --json", splits[i]);
        run_expect(&run, 0);
        json_t *document = run_json(&run, "train"), *verify = json_object_get(document, "verify");
        assert_int_equal(json_integer_value(json_object_get(document, "rows_per_step")), i < 3 ? 2 : i == 3 ? 4 : 8);
        assert_int_equal(json_integer_value(json_object_get(verify, "tensors")), 38); /* 9 a layer, embedding, norm */
        assert_true(json_real_value(json_object_get(verify, "grad_error")) <= 1e-5);
        json_decref(document);
        run_free(&run);
    }
    struct run run;
    run_do(&run, TINY "--verify --jsonl");
    run_expect(&run, 0);
    assert_int_equal(run_lines(run.out), 1);
    run_says(run.out, "\"verify\":{\"loss\":");
    run_free(&run);
}

/* The loss of the first step by either norm, which differ where rows differ in their labels, and of neither are gradients off. */
static double verified_loss(const char *norm)
{
    struct run run;
    run_do(&run,
           TINY
           "--verify --sp 1 --micro-batch 1 --accumulate 3 --data uneven.txt --separator '\n' --loss-norm %s --json",
           norm);
    run_expect(&run, 0);
    json_t *document = run_json(&run, "train");
    double loss = json_real_value(json_object_get(json_object_get(document, "verify"), "loss"));
    json_decref(document);
    run_free(&run);
    return loss;
}

static void test_verify_norms(void **state)
{
    (void)state;
    char rows[12][64]; /* row i ends after every (2 + i)th byte, so no two rows have as many labels as one another */
    for (int i = 0; i < 12; i++)
        for (int k = 0; k < 64; k++)
            rows[i][k] = (char)(k % (2 + i) == 1 + i ? '\n' : 'a' + (7 * i + 5 * k) % 26);
    put("uneven.txt", rows, sizeof rows);
    assert_true(fabs(verified_loss("tokens") - verified_loss("group")) > 1e-6);
}

/* Weights that make a softmax of one key alone: its gradients are what rounding leaves, and that is another in a ring. */
static void test_verify_fails(void **state)
{
    (void)state;
    struct run run;
    plant();
    spoil("seedling/step-1/model.safetensors", "sharp.safetensors", "model.layers.0.input_layernorm.weight", 0, -1,
          3000);
    run_do(&run, TINY "--verify --method ring --from sharp.safetensors");
    run_expect(&run, 1);
    run_says(run.err, "the sharded run is not the whole one: loss off by ");
    run_says(run.err, "the gradient of model.layers.0.self_attn.");
    run_fits(run.out, true);
    run_says_words(run.out, "gradients of 38 tensors: largest relative error");
    run_free(&run);
}

/* Of rows of one token the gradients of queries and keys are 0 but for rounding: no difference to speak of. */
static void test_verify_nothing(void **state)
{
    (void)state;
    static const char *const splits[] = {"--sp 1", "--sp 2", "--sp 2 --method ring"};
    for (int i = 0; i < CHECK_COUNT(splits); i++) {
        struct run run;
        run_do(&run, TINY "--seq 1 --verify %s", splits[i]);
        run_expect(&run, 0);
        run_free(&run);
    }
}

/* Narrow types are held against fp32, to twice what the whole run in their type is off. */
static void test_verify_narrow(void **state)
{
    (void)state;
    static const char *const types[] = {"bf16", "fp16"};
    for (int i = 0; i < CHECK_COUNT(types); i++) {
        struct run run;
        run_do(&run, TINY "--verify --sp 2 --method ring --dtype %s --json", types[i]);
        run_expect(&run, 0);
        json_t *document = run_json(&run, "train"), *verify = json_object_get(document, "verify");
        double error = json_real_value(json_object_get(verify, "grad_error")),
               most = json_real_value(json_object_get(verify, "grad_error_allowed"));
        assert_true(error > 1e-5 && error <= most);
        assert_true(most > 1e-4 && most < 0.5);
        json_decref(document);
        run_free(&run);
    }
}

/* fp16 with so many labels that a token's share of the gradients is less than the type holds: the same step as in fp32. */
static void test_verify_many_labels(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":32,\"num_attention_heads\":2,"
        "\"num_key_value_heads\":2,\"intermediate_size\":32,\"vocab_size\":256}";
    static const char line[] =
        "train --model many.json --ranks 2 --sp 2 --seq 256 --micro-batch 32 --accumulate 4 --progress none";
    put("many.json", config, sizeof config - 1);
    struct run run;
    run_do(&run, "%s --verify --dtype fp16 --json", line);
    run_expect(&run, 0);
    json_t *document = run_json(&run, "train"), *verify = json_object_get(document, "verify");
    assert_true(json_real_value(json_object_get(verify, "grad_error")) < 5e-3);
    assert_true(json_real_value(json_object_get(verify, "grad_error_allowed")) < 1e-2);
    json_decref(document);
    run_free(&run);
    double norm[2];
    for (int i = 0; i < 2; i++) {
        run_do(&run, "%s --steps 1 --jsonl --dtype %s", line, i == 0 ? "fp32" : "fp16");
        run_expect(&run, 0);
        json_t *row = json_loads(run.out, JSON_DISABLE_EOF_CHECK, NULL);
        norm[i] = json_real_value(json_object_get(row, "grad_norm"));
        json_decref(row);
        run_free(&run);
    }
    assert_true(norm[0] > 0 && fabs(norm[1] - norm[0]) < 2e-3 * norm[0]);
}

/* In a ring a window as long as a row is none; a shorter one is refused, and ulysses has it. */
static void test_verify_window(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\":\"mistral\",\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"intermediate_size\":32,\"vocab_size\":256,\"sliding_window\":64}";
    static const struct {
        const char *more;
        int code;
    } runs[] = {{"--seq 64 --method ring", 0},
                {"--seq 61 --method ring", 0}, /* padded to 64 */
                {"--seq 64 --method ring --separator '\n' --micro-batch 1", 0},
                {"--seq 64 --method ulysses+ring --ring 2", 0},
                {"--seq 65 --method ring", 2},
                {"--seq 64,65 --method ring", 2},
                {"--seq 65", 0}};
    put("window.json", config, sizeof config - 1);
    for (int i = 0; i < CHECK_COUNT(runs); i++) {
        struct run run;
        run_do(&run, TINY "--model window.json --micro-batch 1 --sp 2 --verify %s", runs[i].more);
        run_expect(&run, runs[i].code);
        if (runs[i].code == 0)
            run_says_words(run.out, "; at most 1e-05");
        else
            run_says(run.err, "window 64 in rows of 68 tokens: between pieces of a ring it is shifted");
        run_free(&run);
    }
    struct run run;
    run_do(&run, TINY "--model window.json --micro-batch 1 --sp 2 --seq 61 --method ring --steps 1 --sample 70 -q");
    run_expect(&run, 0);
    run_says(run.out, "drawn, 70 tokens");
    run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verify),        cmocka_unit_test(test_verify_norms),
        cmocka_unit_test(test_verify_fails),  cmocka_unit_test(test_verify_nothing),
        cmocka_unit_test(test_verify_narrow), cmocka_unit_test(test_verify_many_labels),
        cmocka_unit_test(test_verify_window),
    };
    return cmocka_run_group_tests(tests, train_place, run_leave);
}
