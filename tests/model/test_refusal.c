/* tests/model/test_refusal.c -- what is not read is named and refused, with the file, the key and what would be right.
 */
#include "model_test.h"

#include <stdlib.h>

static void unknown_types(void **state)
{
    (void)state;
    assert_refused("{'model_type':'lama','hidden_size':64}", "lama", "model_type");
    assert_non_null(strstr(status_last()->hint, "did you mean llama"));
    assert_refused("{'model_type':'some_new_thing'}", "some_new_thing", "model_type");
    assert_non_null(strstr(status_last()->hint, "llama"));
    assert_non_null(strstr(status_last()->hint, "deepseek_v3"));
    assert_refused("{'model_type':''}", "model_type", "model_type");
    assert_refused("{'model_type':7}", "not a string", "model_type");
    assert_refused("{'model_type':['llama']}", "not a string", "model_type");
    assert_refused("{'model_type':'\\u001b[2Jx'}", "?[2Jx", "model_type");
    assert_refused("[]", "one object", "config.json");
    assert_refused("{}", "model_type is missing", "config.json");
}

static void known_types_that_are_not_modelled(void **state)
{
    (void)state;
    assert_refused("{'model_type':'qwen3_next'}", "linear attention", "model_type");
    assert_refused("{'model_type':'openelm'}", "differ from layer to layer", "model_type");
    assert_refused("{'model_type':'mllama','text_config':{'model_type':'mllama_text_model'}}", "cross-attention",
                   "model_type");
    assert_refused("{'model_type':'llama4','text_config':{'model_type':'llama4_text'}}", "chunked", "model_type");
    assert_refused("{'model_type':'gemma3n','text_config':{}}", "share K and V", "model_type");
    assert_refused("{'model_type':'t5'}", "encoder-decoder", "model_type");
    assert_refused("{'model_type':'mamba'}", "no attention", "model_type");
    assert_refused("{'model_type':'llava','text_config':{'model_type':'qwen3_next'}}", "linear attention",
                   "model_type");
    assert_refused("{'model_type':'llava','text_config':{'model_type':'llava'}}", "wrapper", "text_config");
    assert_refused("{'model_type':'llava','text_config':7}", "not an object", "text_config");
}

#define SIZES                                                                                                          \
    "'hidden_size':64,'num_hidden_layers':2,'num_attention_heads':8,'num_key_value_heads':4,'intermediate_size':128,"  \
    "'vocab_size':100"
#define LLAMA "{'model_type':'llama'," SIZES ","

static void keys_that_change_shapes(void **state)
{
    (void)state;
    parse_ok(LLAMA "'is_encoder_decoder':false,'add_cross_attention':false,'num_local_experts':0,'block_configs':null,"
                   "'cross_attention_layers':[]}");
    assert_refused(LLAMA "'is_encoder_decoder':true}", "is_encoder_decoder", "is_encoder_decoder");
    assert_refused(LLAMA "'add_cross_attention':true}", "cross-attention", "add_cross_attention");
    assert_refused(LLAMA "'cross_attention_layers':[3,8]}", "cross-attention", "cross_attention_layers");
    assert_refused(LLAMA "'block_configs':[{'attention':{}}]}", "different shapes", "block_configs");
    assert_refused(LLAMA "'num_local_experts':8}", "experts", "num_local_experts");
    assert_refused(LLAMA "'kv_lora_rank':512}", "latent", "kv_lora_rank");
    assert_refused(LLAMA "'num_kv_shared_layers':2}", "share K and V", "num_kv_shared_layers");
    assert_refused(LLAMA "'layer_types':['full_attention','linear_attention']}", "linear_attention", "layer_types");
    assert_refused(LLAMA "'layer_types':['full_attention']}", "1 layers", "layer_types");
    assert_refused(LLAMA "'layer_types':['full_attention',7]}", "layer 1", "layer_types");
    assert_refused(LLAMA "'layer_types':'full_attention'}", "layer_types", "layer_types");
    assert_refused(LLAMA "'layer_types':['full_attention','sliding_attention']}", "no window", "layer_types");
    assert_refused("{'model_type':'llama','hidden_size':64,'num_hidden_layers':2,'num_attention_heads':[8,4],"
                   "'intermediate_size':128,'vocab_size':100}",
                   "differ from layer to layer", "num_attention_heads");
    assert_refused("{'model_type':'llama','hidden_size':64,'num_hidden_layers':2,'num_attention_heads':8,"
                   "'num_key_value_heads':[4,2],'intermediate_size':128,'vocab_size':100}",
                   "differ from layer to layer", "num_key_value_heads");
    assert_refused("{'model_type':'llama','hidden_size':64,'num_hidden_layers':2,'num_attention_heads':8,"
                   "'intermediate_size':[128,256],'vocab_size':100}",
                   "differ from layer to layer", "intermediate_size");
}

/* One config with one key replaced by one bad value. */
static void assert_value_refused(const char *key, const char *value)
{
    static const char *const keys[] = {
        "hidden_size", "num_hidden_layers", "num_attention_heads",    "num_key_value_heads", "intermediate_size",
        "vocab_size",  "head_dim",          "max_position_embeddings"};
    static const char *const values[] = {"64", "2", "8", "4", "128", "100", "8", "4096"};
    char text[1024];
    int at = snprintf(text, sizeof text, "{'model_type':'llama'");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *put = strcmp(keys[i], key) == 0 ? value : values[i];
        at += snprintf(text + at, sizeof text - (size_t)at, ",'%s':%s", keys[i], put);
    }
    snprintf(text + at, sizeof text - (size_t)at, "}");
    assert_refused(text, key, key);
}

static void bad_values_of_every_size(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "hidden_size", "num_hidden_layers", "num_attention_heads",    "num_key_value_heads", "intermediate_size",
        "vocab_size",  "head_dim",          "max_position_embeddings"};
    static const char *const values[] = {
        "0",   "-1",     "-8",   "0.5", "8.5", "1000000000000000000", "1e30", "-1e30", "1e300",
        "'8'", "'many'", "true", "{}",  "[]",  "-9223372036854775808"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        for (size_t j = 0; j < sizeof values / sizeof values[0]; j++)
            assert_value_refused(keys[i], values[j]);
    }
}

static void missing_sizes(void **state)
{
    (void)state;
    static const char *const parts[] = {"'hidden_size':64", "'num_hidden_layers':2", "'num_attention_heads':8",
                                        "'intermediate_size':128", "'vocab_size':100"};
    static const char *const keys[] = {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                                       "vocab_size"};
    for (size_t skip = 0; skip < 5; skip++) {
        char text[512];
        int at = snprintf(text, sizeof text, "{'model_type':'llama'");
        for (size_t i = 0; i < 5; i++)
            at += i == skip ? 0 : snprintf(text + at, sizeof text - (size_t)at, ",%s", parts[i]);
        snprintf(text + at, sizeof text - (size_t)at, "}");
        assert_refused(text, "missing", keys[skip]);
    }
}

static void contradicting_sizes(void **state)
{
    (void)state;
    assert_refused("{'model_type':'llama','hidden_size':64,'num_hidden_layers':2,'num_attention_heads':8,"
                   "'num_key_value_heads':3,'intermediate_size':128,'vocab_size':100}",
                   "8 query heads cannot share 3", "num_key_value_heads");
    assert_refused("{'model_type':'llama','hidden_size':64,'num_hidden_layers':2,'num_attention_heads':8,"
                   "'num_key_value_heads':16,'intermediate_size':128,'vocab_size':100}",
                   "16", "num_key_value_heads");
    assert_refused("{'model_type':'llama','hidden_size':100,'num_hidden_layers':2,'num_attention_heads':8,"
                   "'intermediate_size':128,'vocab_size':100}",
                   "100 is not a whole multiple of 8", "hidden_size");
    assert_refused("{'model_type':'llama','hidden_size':4194304,'num_hidden_layers':2,'num_attention_heads':1,"
                   "'intermediate_size':128,'vocab_size':100}",
                   "4194304", "head_dim");
    assert_refused("{'model_type':'mixtral'," SIZES ",'num_local_experts':4,'num_experts_per_tok':5}", "5 of 4",
                   "num_experts_per_tok");
    assert_refused("{'model_type':'qwen3_moe'," SIZES ",'num_experts':4,'num_experts_per_tok':2,"
                   "'moe_intermediate_size':8,'mlp_only_layers':[2]}",
                   "entry 0", "mlp_only_layers");
    assert_refused("{'model_type':'qwen3_moe'," SIZES ",'num_experts':4,'num_experts_per_tok':2,"
                   "'moe_intermediate_size':8,'mlp_only_layers':3}",
                   "not a list", "mlp_only_layers");
}

/* Each value alone is in range; their product is not. */
static void products_beyond_int64(void **state)
{
    (void)state;
    struct model m;
    assert_int_equal(parse("{'model_type':'mixtral','hidden_size':4194304,'num_hidden_layers':10000,"
                           "'num_attention_heads':16384,'num_key_value_heads':16384,'intermediate_size':67108864,"
                           "'vocab_size':134217728,'num_local_experts':65536,'num_experts_per_tok':65536}",
                           &m),
                     STATUS_USAGE);
    assert_non_null(strstr(status_last()->what, "2^63"));
    assert_non_null(strstr(status_last()->where, "config.json"));
}

static void malformed_text(void **state)
{
    (void)state;
    struct model m;
    assert_int_equal(model_parse("{\n  \"a\": ,\n}", 12, "f/config.json", &m), STATUS_USAGE);
    assert_non_null(strstr(status_last()->where, "f/config.json line 2 column"));
    assert_int_equal(model_parse("", 0, "f", &m), STATUS_USAGE);
    assert_int_equal(model_parse("null", 4, "f", &m), STATUS_USAGE);
    assert_int_equal(model_parse("3", 1, "f", &m), STATUS_USAGE);
    size_t depth = 100000;
    char *deep = malloc(depth);
    memset(deep, '[', depth);
    assert_int_equal(model_parse(deep, depth, "f", &m), STATUS_USAGE);
    assert_non_null(strstr(status_last()->what, "deep"));
    free(deep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_types),           cmocka_unit_test(known_types_that_are_not_modelled),
        cmocka_unit_test(keys_that_change_shapes), cmocka_unit_test(bad_values_of_every_size),
        cmocka_unit_test(missing_sizes),           cmocka_unit_test(contradicting_sizes),
        cmocka_unit_test(products_beyond_int64),   cmocka_unit_test(malformed_text),
    };
    log_setup(LOG_QUIET, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
