/* tests/model/test_decoder.c -- what a decoder computes with: epsilon, RoPE, and why some are not Llama's. */
#include "base/check.h"

#include "model/model.h"

#include <math.h>
#include <string.h>

static struct model read_with(const char *type, const char *more)
{
    char text[1024];
    struct model model;
    snprintf(text, sizeof text,
             "{\"model_type\":\"%s\",\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
             "\"intermediate_size\":96,\"vocab_size\":100%s%s}",
             type, more[0] != '\0' ? "," : "", more);
    CHECK_OK(model_parse(text, strlen(text), "config.json", &model));
    return model;
}

static void epsilon_and_theta(void **state)
{
    (void)state;
    struct model m = read_with("llama", "");
    assert_true(m.norm_eps == 1e-6 && m.rope.theta == 10000 && m.rope.factor == 1 && m.rope.original == 0);
    m = read_with("llama", "\"rms_norm_eps\":1e-5,\"rope_theta\":500000.0");
    assert_true(m.norm_eps == 1e-5 && m.rope.theta == 500000);
    m = read_with("llama", "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":250000}");
    assert_true(m.rope.theta == 250000);
    assert_string_equal(m.unlike, "");
}

static void scaled_rope(void **state)
{
    (void)state;
    struct model m = read_with("llama", "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
                                        "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}");
    assert_true(m.rope.factor == 8 && m.rope.low == 1 && m.rope.high == 4 && m.rope.original == 8192);
    assert_string_equal(m.unlike, "");
    m = read_with("llama", "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}");
    assert_true(m.rope.factor == 2 && m.rope.original == 0);
    m = read_with("llama", "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}");
    assert_non_null(strstr(m.unlike, "yarn"));
}

/* Llama 3.1 8B's, from the formulas that came with it: what stays, two on the ramp, what is an eighth; then all halved. */
static void frequencies(void **state)
{
    (void)state;
    static const struct {
        int pair;
        double llama3, linear;
    } rows[] = {{0, 1, 0.5},
                {1, 0.8146172338565447, 0.8146172338565447 / 2},
                {28, 0.0032114459947525913, 0.0032114459947525913 / 2},
                {29, 0.002166570763503359, 0.0026160992529250353 / 2},
                {34, 0.00017850781276799638, 0.0009384738703573801 / 2},
                {35, 9.556212353964683e-05, 0.0007644969883171747 / 2},
                {63, 3.068925988914511e-07, 2.455140791131609e-06 / 2}};
    const struct model_rope llama3 = {.theta = 500000, .factor = 8, .low = 1, .high = 4, .original = 8192},
                            linear = {.theta = 500000, .factor = 2};
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        assert_true(fabs(model_rope_frequency(&llama3, 128, rows[i].pair) / rows[i].llama3 - 1) < 1e-12);
        assert_true(fabs(model_rope_frequency(&linear, 128, rows[i].pair) / rows[i].linear - 1) < 1e-12);
    }
}

static void dropout(void **state)
{
    (void)state;
    struct model m;
    static const char *const bad[] = {"1", "-0.1", "\"some\""};
    assert_true(read_with("llama", "").dropout == 0 && read_with("llama", "\"attention_dropout\":null").dropout == 0);
    assert_true(read_with("qwen3", "\"attention_dropout\":0.25").dropout == 0.25);
    for (int i = 0; i < CHECK_COUNT(bad); i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,"
                 "\"intermediate_size\":96,\"vocab_size\":100,\"attention_dropout\":%s}",
                 bad[i]);
        CHECK_FAILS(STATUS_USAGE, "", model_parse(text, strlen(text), "config.json", &m));
        assert_non_null(strstr(status_last()->where, "attention_dropout"));
    }
}

static void numbers_that_are_none(void **state)
{
    (void)state;
    struct model m;
    const char *text = "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,"
                       "\"intermediate_size\":96,\"vocab_size\":100,\"rope_theta\":-1}";
    CHECK_FAILS(STATUS_USAGE, "rope_theta is -1", model_parse(text, strlen(text), "config.json", &m));
}

static void decoders_of_another_kind(void **state)
{
    (void)state;
    static const struct {
        const char *type, *more, *why;
    } rows[] = {
        {"llama", "\"hidden_act\":\"gelu\"", "silu"},
        {"llama", "\"mlp_bias\":true", "biases"},
        {"llama", "\"partial_rotary_factor\":0.5", "part of each head"},
        {"olmo2", "", "Llama's"},
        {"mixtral", "\"num_local_experts\":4,\"num_experts_per_tok\":2", "Llama's"},
        {"qwen2", "\"use_sliding_window\":true,\"sliding_window\":16,\"max_window_layers\":1", "some of its layers"},
    };
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct model m = read_with(rows[i].type, rows[i].more);
        if (strstr(m.unlike, rows[i].why) == NULL)
            fail_msg("%s: '%s', not '%s'", rows[i].type, m.unlike, rows[i].why);
    }
    static const char *const good[] = {"llama", "mistral", "qwen2", "qwen3"};
    for (int i = 0; i < CHECK_COUNT(good); i++)
        assert_string_equal(read_with(good[i], "\"hidden_act\":\"silu\"").unlike, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(epsilon_and_theta),
        cmocka_unit_test(scaled_rope),
        cmocka_unit_test(frequencies),
        cmocka_unit_test(dropout),
        cmocka_unit_test(numbers_that_are_none),
        cmocka_unit_test(decoders_of_another_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
