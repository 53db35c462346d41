/* cli/test_model.c -- `sptune model`: which sizes are accepted, what the document says. */
#include "cli/run.h"

#include <stdarg.h>

/* A Llama-like config with these heads. */
static void put_config(const char *name, int heads, int kv_heads)
{
    char text[512];
    snprintf(
        text, sizeof text,
        "{\"model_type\": \"llama\", \"hidden_size\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, "
        "\"num_hidden_layers\": 2, \"vocab_size\": 1000, \"intermediate_size\": 256}",
        heads * 64, heads, kv_heads);
    temp_put(&run_temp, name, text);
}

/* Exactly the sizes listed (0 ends the list) are accepted, on the screen and in the document. */
static void accepts(const char *config, int world, const int *sizes)
{
    struct run run, screen;
    run_do(&run, "model %s --world %d --json", config, world);
    run_expect(&run, 0);
    run_do(&screen, "model %s --world %d", config, world);
    run_expect(&screen, 0);
    run_fits(screen.out, true);
    json_t *document = run_json(&run, "model"), *row, *rows = json_object_get(document, "sp");
    assert_int_equal(json_array_size(rows), world);
    size_t at;
    int n = 0;
    json_array_foreach(rows, at, row)
    {
        char line[32];
        int size = (int)json_integer_value(json_object_get(row, "size"));
        bool ok = json_is_true(json_object_get(row, "ok")), expected = sizes[n] == size;
        assert_int_equal(size, at + 1);
        if (ok != expected)
            fail_msg("%s on %d: sp %d is %s", config, world, size, ok ? "accepted" : "refused");
        n += expected;
        if (!ok) {
            assert_true(strlen(json_string_value(json_object_get(row, "why"))) > 0);
            assert_string_not_equal(json_string_value(json_object_get(row, "rule")), "ok");
        }
        snprintf(line, sizeof line, "\n%4d  %s", size, ok ? "yes" : "no ");
        if (world <= 64 || ok) /* of a larger world the screen lists the divisors */
            run_says(screen.out, line);
    }
    json_decref(document);
    run_free(&run);
    run_free(&screen);
}

static void test_sizes_accepted(void **state)
{
    (void)state;
    put_config("28-4.json", 28, 4);
    put_config("9-3.json", 9, 3);
    put_config("40-8.json", 40, 8);
    temp_put(&run_temp, "falcon/config.json",
             "{\"model_type\": \"falcon\", \"hidden_size\": 4544, \"num_attention_heads\": 71, \"num_kv_heads\": 71, "
             "\"multi_query\": true, "
             "\"new_decoder_architecture\": false, \"num_hidden_layers\": 32, \"vocab_size\": 65024, "
             "\"parallel_attn\": true, "
             "\"bias\": false, \"alibi\": false}");
    accepts("28-4.json", 8, (const int[]){1, 2, 4, 0});
    accepts("9-3.json", 6, (const int[]){1, 3, 0});
    accepts("falcon", 8, (const int[]){1, 0});
    accepts("falcon/config.json", 71, (const int[]){1, 71, 0});
    accepts("falcon-7b", 8, (const int[]){1, 0});
    accepts("40-8.json", 40, (const int[]){1, 2, 4, 8, 40, 0});
}

static void test_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        long long params;
        const char *screen;
    } models[] = {{"llama-3-8b", 8030261248, "8,030,261,248 parameters"},
                  {"qwen2-7b", 7615616512, "7,615,616,512 parameters"},
                  {"qwen3-32b", 32762123264, "32,762,123,264 parameters"}};
    for (int i = 0; i < CHECK_COUNT(models); i++) {
        struct run run;
        run_do(&run, "model %s", models[i].name);
        run_expect(&run, 0);
        run_says(run.out, models[i].screen);
        run_free(&run);
        run_do(&run, "model %s --json", models[i].name);
        run_expect(&run, 0);
        json_t *document = run_json(&run, "model");
        assert_int_equal(json_integer_value(json_object_get(document, "params")), models[i].params);
        json_decref(document);
        run_free(&run);
    }
}

static void test_length(void **state)
{
    (void)state;
    struct run run;
    run_do(&run, "model llama-3-8b --seq 4097 --world 8");
    run_expect(&run, 0);
    run_says(run.out, "pads 4097 tokens to 4104");
    run_fits(run.out, true);
    run_free(&run);
    run_do(&run, "model llama-3-8b --seq 4097 --world 8 --json");
    json_t *document = run_json(&run, "model"), *row = json_array_get(json_object_get(document, "sp"), 7);
    assert_int_equal(json_integer_value(json_object_get(document, "seq")), 4097);
    assert_int_equal(json_integer_value(json_object_get(row, "padded_seq")), 4104);
    json_decref(document);
    run_free(&run);
}

static void test_replicated_heads(void **state)
{
    (void)state;
    struct run run;
    put_config("16-2.json", 16, 2);
    run_do(&run, "model 16-2.json --world 8 --seq 10");
    run_expect(&run, 0);
    run_says(run.out, "each KV head on 4 ranks; pads 10 tokens to 16");
    run_free(&run);
}

/* Everything the repository ships, and a world beyond any screen. */
static void test_every_shipped_model(void **state)
{
    (void)state;
    struct run list;
    run_do(&list, "model list --json");
    run_expect(&list, 0);
    json_t *document = run_json(&list, "list"), *item;
    size_t at;
    json_array_foreach(json_object_get(document, "items"), at, item)
    {
        struct run run;
        run_do(&run, "model %s --world 64", json_string_value(json_object_get(item, "name")));
        run_expect(&run, 0);
        run_fits(run.out, true);
        run_free(&run);
    }
    assert_true(at > 50);
    json_decref(document);
    run_free(&list);
    struct run run;
    run_do(&run, "model llama-3-8b --world 65536");
    run_expect(&run, 0);
    run_fits(run.out, true);
    run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_accepted),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_replicated_heads),
        cmocka_unit_test(test_every_shipped_model),
    };
    return cmocka_run_group_tests(tests, run_place, run_leave);
}
