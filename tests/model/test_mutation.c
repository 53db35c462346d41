/* tests/model/test_mutation.c -- broken and random files never crash the reader; what it accepts is sound.
 *
 * Seeded: a failure repeats. SPTUNE_TEST_SEED changes the seed for a longer hunt.
 */
#include "model_test.h"

#include "base/rng.h"

#include <stdlib.h>

enum { ROUNDS = 60000, TEXT_MAX = 1024 };

static const char *const seeds[] = {
    "{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_hidden_layers\":32,\"num_attention_heads\":32,"
    "\"num_key_value_heads\":8,\"intermediate_size\":14336,\"vocab_size\":128256,\"head_dim\":null,\"layer_types\":"
    "null}",
    "{\"model_type\":\"gpt2\",\"n_embd\":768,\"n_head\":12,\"n_layer\":12,\"n_inner\":null,\"vocab_size\":50257}",
    "{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,"
    "\"intermediate_size\":10240,\"num_hidden_layers\":34,\"sliding_window\":1024}}",
    "{\"model_type\":\"falcon\",\"hidden_size\":4544,\"num_hidden_layers\":32,\"num_attention_heads\":71,"
    "\"num_kv_heads\":71,\"multi_query\":true,\"vocab_size\":65024}",
    "{\"model_type\":\"deepseek_v3\",\"hidden_size\":7168,\"num_hidden_layers\":61,\"num_attention_heads\":128,"
    "\"intermediate_size\":18432,\"moe_intermediate_size\":2048,\"n_routed_experts\":256,\"num_experts_per_tok\":8,"
    "\"n_shared_experts\":1,\"first_k_dense_replace\":3,\"kv_lora_rank\":512,\"q_lora_rank\":1536,"
    "\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"vocab_size\":129280}",
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":2048,\"num_hidden_layers\":6,\"num_attention_heads\":32,"
    "\"num_key_value_heads\":4,\"head_dim\":128,\"intermediate_size\":6144,\"moe_intermediate_size\":768,"
    "\"num_experts\":128,\"num_experts_per_tok\":8,\"mlp_only_layers\":[1,2],\"vocab_size\":151936,"
    "\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\","
    "\"full_attention\"]}",
};

/* Values that a digit string may become. */
static const char *const values[] = {"0",
                                     "-1",
                                     "1",
                                     "null",
                                     "true",
                                     "1e30",
                                     "1000000000000000000",
                                     "[]",
                                     "{}",
                                     "\"\"",
                                     "0.5",
                                     "1e-30",
                                     "[8,4]",
                                     "4096.0",
                                     "-0",
                                     "9223372036854775807",
                                     "65536",
                                     "99999999999999999999999999999999"};

static size_t flip_bytes(struct rng *rng, char *text, size_t len)
{
    for (int64_t n = 1 + rng_below(rng, 4); n > 0; n--)
        text[rng_below(rng, (int64_t)len)] = (char)rng_below(rng, 256);
    return len;
}

static size_t cut(struct rng *rng, char *text, size_t len)
{
    size_t from = (size_t)rng_below(rng, (int64_t)len), n = (size_t)rng_below(rng, (int64_t)(len - from)) + 1;
    memmove(text + from, text + from + n, len - from - n);
    return len - n;
}

/* Replace one number by one of `values`: the text stays JSON, its meaning breaks. */
static size_t replace_number(struct rng *rng, char *text, size_t len)
{
    size_t at = 1 + (size_t)rng_below(rng, (int64_t)len);
    while (at < len && (text[at] < '0' || text[at] > '9' || text[at - 1] != ':'))
        at++;
    size_t end = at;
    while (end < len && text[end] >= '0' && text[end] <= '9')
        end++;
    const char *value = values[rng_below(rng, sizeof values / sizeof values[0])];
    size_t put = strlen(value);
    if (at >= len || len - (end - at) + put >= TEXT_MAX)
        return len;
    memmove(text + at + put, text + end, len - end);
    memcpy(text + at, value, put);
    return len - (end - at) + put;
}

static void assert_sound(const struct model *m)
{
    assert_true(m->layers > 0 && m->hidden > 0 && m->heads > 0 && m->kv_heads > 0 && m->head_dim > 0);
    assert_true(m->head_dim_v > 0 && m->ffn > 0 && m->vocab > 0 && m->max_positions >= 0);
    assert_int_equal(m->heads % m->kv_heads, 0);
    assert_true(m->params > 0 && m->params_active > 0 && m->params_active <= m->params);
    assert_true(m->window_layers >= 0 && m->window_layers <= m->layers);
    assert_true(m->dense_layers >= 0 && m->dense_layers <= m->layers);
    struct verdict verdict = model_sp(m, 1, 0);
    assert_true(verdict_ok(&verdict));
}

static void try_text(const char *text, size_t len)
{
    struct model model;
    char *exact = malloc(len > 0 ? len : 1); /* no byte behind it: a read beyond the end is seen by asan */
    memcpy(exact, text, len);
    if (model_parse(exact, len, "mutated", &model) == STATUS_OK)
        assert_sound(&model);
    else
        assert_true(status_last()->code == STATUS_USAGE && status_last()->what[0] != '\0');
    free(exact);
}

static void mutated_files(void **state)
{
    (void)state;
    const char *seed = getenv("SPTUNE_TEST_SEED");
    struct rng rng;
    rng_seed(&rng, seed != NULL ? strtoull(seed, NULL, 10) : 1, 0);
    for (int round = 0; round < ROUNDS; round++) {
        char text[TEXT_MAX];
        const char *from = seeds[rng_below(&rng, sizeof seeds / sizeof seeds[0])];
        size_t len = strlen(from);
        memcpy(text, from, len);
        for (int64_t n = rng_below(&rng, 3); n >= 0 && len > 0; n--) {
            int64_t kind = rng_below(&rng, 6);
            len = kind == 0   ? flip_bytes(&rng, text, len)
                  : kind == 1 ? cut(&rng, text, len)
                              : replace_number(&rng, text, len);
        }
        try_text(text, len);
    }
}

static void random_bytes(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 2, 0);
    for (int round = 0; round < 2000; round++) {
        char text[64];
        size_t len = (size_t)rng_below(&rng, sizeof text);
        for (size_t i = 0; i < len; i++)
            text[i] = (char)rng_below(&rng, 256);
        try_text(text, len);
    }
}

/* Words on the command line: none is a path here, whatever bytes it has. */
static void random_words(void **state)
{
    (void)state;
    static const char letters[] = "abz09-._/~ \x1b\xff\"'%n";
    struct rng rng;
    rng_seed(&rng, 3, 0);
    setenv("HOME", "/nonexistent", 1);
    for (int round = 0; round < 500; round++) {
        char word[400] = "nonexistent/";
        size_t len = strlen(word), end = len + (size_t)rng_below(&rng, (int64_t)(sizeof word - len - 1));
        while (len < end)
            word[len++] = letters[rng_below(&rng, sizeof letters - 1)];
        word[len] = '\0';
        struct model model;
        assert_int_equal(model_load(word, &model), STATUS_USAGE);
        assert_true(status_last()->what[0] != '\0' && status_last()->hint[0] != '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutated_files),
        cmocka_unit_test(random_bytes),
        cmocka_unit_test(random_words),
    };
    log_setup(LOG_QUIET, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
