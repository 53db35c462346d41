/* tests/model/test_shipped.c -- every shipped configuration reads, and its count is the published checkpoint's. */
#include "model_test.h"

/* Element counts of the published weights (embedding once when tied, no multi-token-prediction layers). */
static const struct {
    const char *name;
    int64_t params;
} published[] = {
    /* Nobody publishes the toy: 256 x 128 of the embedding, which is tied; 4 layers of q and o 128 x 128, k and v 64 x 128, three of 384 x
     * 128 and two norms of 128; the last norm. 32,768 + 4 x 196,864 + 128. */
    {"toy", 820352},
    {"llama-2-7b", 6738415616},
    {"llama-2-13b", 13015864320},
    {"llama-2-70b", 68976648192},
    {"llama-3-8b", 8030261248},
    {"llama-3-70b", 70553706496},
    {"llama-3.1-8b", 8030261248},
    {"llama-3.1-70b", 70553706496},
    {"llama-3.1-405b", 405853388800},
    {"llama-3.2-1b", 1235814400},
    {"llama-3.2-3b", 3212749824},
    {"llama-3.3-70b", 70553706496},
    {"tinyllama-1.1b", 1100048384},
    {"smollm2-135m", 134515008},
    {"smollm2-360m", 361821120},
    {"smollm2-1.7b", 1711376384},
    {"smollm3-3b", 3075098624},
    {"olmo-2-7b", 7298617344},
    {"olmo-2-13b", 13716198400},
    {"olmo-2-32b", 32234279936},
    {"qwen2-0.5b", 494032768},
    {"qwen2-1.5b", 1543714304},
    {"qwen2-7b", 7615616512},
    {"qwen2-72b", 72706203648},
    {"qwen2.5-0.5b", 494032768},
    {"qwen2.5-1.5b", 1543714304},
    {"qwen2.5-3b", 3085938688},
    {"qwen2.5-7b", 7615616512},
    {"qwen2.5-14b", 14770033664},
    {"qwen2.5-32b", 32763876352},
    {"qwen2.5-72b", 72706203648},
    {"qwen3-0.6b", 596049920},
    {"qwen3-1.7b", 1720574976},
    {"qwen3-4b", 4022468096},
    {"qwen3-8b", 8190735360},
    {"qwen3-14b", 14768307200},
    {"qwen3-32b", 32762123264},
    {"qwen3-30b-a3b", 30532122624},
    {"qwen3-235b-a22b", 235093634560},
    {"qwen1.5-moe-a2.7b", 14315784192},
    {"mistral-7b-v0.1", 7241732096},
    {"mistral-7b-v0.3", 7248023552},
    {"mistral-nemo", 12247782400},
    {"mistral-small-24b", 23572403200},
    {"mixtral-8x7b", 46702792704},
    {"mixtral-8x22b", 140620634112},
    {"gemma-2b", 2506172416},
    {"gemma-7b", 8537680896},
    {"gemma-2-2b", 2614341888},
    {"gemma-2-9b", 9241705984},
    {"gemma-2-27b", 27227128320},
    {"gemma-3-1b", 999885952},
    {"gemma-3-4b", 3880263168},
    {"gemma-3-12b", 11766034176},
    {"gemma-3-27b", 27009346304},
    {"phi-2", 2779683840},
    {"phi-3-mini", 3821079552},
    {"phi-3-mini-128k", 3821079552},
    {"phi-3-medium", 13960238080},
    {"phi-3-medium-128k", 13960238080},
    {"phi-4", 14659507200},
    {"phi-4-mini", 3836021760},
    {"gpt2", 124439808},
    {"gpt2-medium", 354823168},
    {"gpt2-large", 774030080},
    {"gpt2-xl", 1557611200},
    {"pythia-70m", 70426624},
    {"pythia-160m", 162322944},
    {"pythia-1b", 1011781632},
    {"pythia-6.9b", 6857302016},
    {"starcoder2-3b", 3030371328},
    {"starcoder2-7b", 7173923840},
    {"falcon-7b", 6921720704},
    {"falcon-40b", 41303293952},
    {"gpt-oss-20b", 20914757184},
    {"gpt-oss-120b", 116829156672},
    {"deepseek-v2-lite", 15706484224},
    {"deepseek-v2", 235741434880},
    {"deepseek-v3", 671026419200},
};

static void every_count_is_the_published_one(void **state)
{
    (void)state;
    size_t n = 0;
    for (const char *const *name = model_shipped(); *name != NULL; name++, n++) {
        struct model model;
        size_t row = 0, rows = sizeof published / sizeof published[0];
        while (row < rows && strcmp(published[row].name, *name) != 0)
            row++;
        if (row == rows)
            fail_msg("%s has no published count here", *name);
        if (model_load(*name, &model) != STATUS_OK)
            fail_msg("%s: %s", *name, status_last()->what);
        if (model.params != published[row].params)
            fail_msg("%s: %lld, published %lld", *name, (long long)model.params, (long long)published[row].params);
        assert_string_equal(model.name, *name);
        assert_true(model.params_exact);
    }
    assert_int_equal(n, sizeof published / sizeof published[0]);
}

static void the_parts_add_up(void **state)
{
    (void)state;
    for (const char *const *name = model_shipped(); *name != NULL; name++) {
        struct model m;
        assert_int_equal(model_load(*name, &m), STATUS_OK);
        int64_t embeddings = (m.tied ? 1 : 2) * m.params_embedding;
        assert_int_equal(m.params_embedding, m.vocab * m.hidden);
        assert_true(m.params_active <= m.params);
        assert_int_equal(m.params_active<m.params, m.experts> 0);
        assert_true(m.params - embeddings <=
                    m.params_layer * m.layers + m.max_positions * m.hidden + 4 * m.hidden + m.vocab);
        if (m.dense_layers == m.layers)
            assert_true(m.params - embeddings >= m.params_layer * m.layers);
        assert_true(m.window_layers >= 0 && m.window_layers <= m.layers);
        assert_int_equal(m.window > 0, m.window_layers > 0);
        assert_int_equal(m.heads % m.kv_heads, 0);
    }
}

static void c34_head_dim_is_not_hidden_over_heads(void **state)
{
    (void)state;
    struct model m;
    assert_int_equal(model_load("qwen3-32b", &m), STATUS_OK);
    assert_int_equal(m.head_dim, 128); /* 5120 / 64 would be 80 */
    assert_int_equal(m.params, 32762123264);
    assert_int_equal(model_load("gemma-3-1b", &m), STATUS_OK);
    assert_int_equal(m.head_dim, 256); /* 1152 / 4 = 288 */
    assert_int_equal(model_load("gpt-oss-20b", &m), STATUS_OK);
    assert_int_equal(m.head_dim, 64); /* 2880 / 64 = 45 */
}

static void c37_latent_attention(void **state)
{
    (void)state;
    struct model m;
    assert_int_equal(model_load("deepseek-v3", &m), STATUS_OK);
    assert_int_equal(m.head_dim, 192);
    assert_int_equal(m.head_dim_v, 128);
    assert_int_equal(m.kv_heads, 128);
    int64_t row = 32768 / 8 * 128 * 2; /* tokens here x heads x bf16, as the exchange sends them */
    int64_t q = row * m.head_dim, k = row * m.kv_heads / m.heads * m.head_dim;
    int64_t v = row * m.kv_heads / m.heads * m.head_dim_v, o = row * m.head_dim_v;
    assert_int_equal(q >> 20, 192);
    assert_int_equal(k >> 20, 192);
    assert_int_equal(v >> 20, 128);
    assert_int_equal(o >> 20, 128);
    assert_int_equal((q + k + v + o) >> 20, 640);
    assert_int_equal(m.dense_layers, 3);
    assert_int_equal(m.ffn, 2048);
    assert_int_equal(m.ffn_shared, 2048);
    assert_int_equal(m.ffn_dense, 18432);
    assert_int_equal(m.experts, 256);
    assert_int_equal(m.experts_per_token, 8);
    struct verdict verdict = model_sp(&m, 64, 64);
    assert_true(verdict_ok(&verdict)); /* the up-projected heads split as heads do */
}

static void windows_of_the_families(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t window;
        int layers;
    } want[] = {
        {"gemma-2-9b", 4096, 21}, {"gemma-3-1b", 512, 22},       {"gemma-3-27b", 1024, 52},
        {"gpt-oss-20b", 128, 12}, {"mistral-7b-v0.1", 4096, 32}, {"mistral-7b-v0.3", 0, 0},
        {"qwen2-7b", 0, 0},       {"llama-3-8b", 0, 0},          {"phi-3-mini", 2047, 32},
        {"phi-4", 0, 0},          {"mixtral-8x7b", 0, 0},        {"starcoder2-3b", 4096, 30},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct model m;
        assert_int_equal(model_load(want[i].name, &m), STATUS_OK);
        if (m.window != want[i].window || m.window_layers != want[i].layers)
            fail_msg("%s: window %lld on %d layers", want[i].name, (long long)m.window, m.window_layers);
    }
}

static void active_parameters(void **state)
{
    (void)state;
    struct model m;
    assert_int_equal(model_load("mixtral-8x7b", &m), STATUS_OK);
    assert_int_equal(m.params_active, m.params - INT64_C(32) * 6 * 3 * 4096 * 14336); /* 6 of 8 experts rest */
    assert_int_equal(model_load("qwen3-30b-a3b", &m), STATUS_OK);
    assert_int_equal(m.params_active, m.params - INT64_C(48) * 120 * 3 * 2048 * 768);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_count_is_the_published_one),
        cmocka_unit_test(the_parts_add_up),
        cmocka_unit_test(c34_head_dim_is_not_hidden_over_heads),
        cmocka_unit_test(c37_latent_attention),
        cmocka_unit_test(windows_of_the_families),
        cmocka_unit_test(active_parameters),
    };
    log_setup(LOG_QUIET, true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
