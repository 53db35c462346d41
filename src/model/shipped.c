/* model/shipped.c -- well-known configurations under their usual names: values only, read by the same families as
 * files.
 *
 * A row is a config.json text made of its columns. Compiled in, so that names work wherever the program was moved to.
 */
#include "model/shipped.h"
#include "model/model.h"

#include <pthread.h>
#include <stddef.h>
#include <strings.h>

#define KEY(name, value) "\"" name "\":" #value ","
/* Columns: layers, hidden, heads, KV heads, MLP width, vocabulary, positions; then keys of the family, if any. */
#define CONFIG(type, layers, hidden, heads, kv, ffn, vocab, positions, more)                                           \
    "{\"model_type\":\"" type "\"," KEY("num_hidden_layers", layers) KEY("hidden_size", hidden)                        \
        KEY("num_attention_heads", heads) KEY("num_key_value_heads", kv) KEY("intermediate_size", ffn)                 \
            KEY("vocab_size", vocab) more "\"max_position_embeddings\":" #positions "}"
#define PLAIN                ""
#define TIED                 KEY("tie_word_embeddings", true)
#define HEAD(dim)            KEY("head_dim", dim)
#define WINDOW(tokens)       KEY("sliding_window", tokens)
#define EXPERTS(total, used) KEY("num_local_experts", total) KEY("num_experts_per_tok", used)
#define QWEN_EXPERTS(total, used, width)                                                                               \
    KEY("num_experts", total) KEY("num_experts_per_tok", used) KEY("moe_intermediate_size", width)
#define SHARED(width) KEY("shared_expert_intermediate_size", width)
#define GPT2(layers, hidden, heads)                                                                                    \
    "{\"model_type\":\"gpt2\"," KEY("n_layer", layers) KEY("n_embd", hidden) KEY("n_head", heads)                      \
        KEY("n_positions", 1024) "\"vocab_size\":50257}"
/* Latent attention: ranks of q (null: none) and kv, then the experts: all, used, shared, their width, dense layers. */
#define LATENT(q_rank, kv_rank)                                                                                        \
    KEY("q_lora_rank", q_rank)                                                                                         \
    KEY("kv_lora_rank", kv_rank) KEY("qk_nope_head_dim", 128) KEY("qk_rope_head_dim", 64) KEY("v_head_dim", 128)
#define ROUTED(total, used, shared, width, dense)                                                                      \
    KEY("n_routed_experts", total)                                                                                     \
    KEY("num_experts_per_tok", used)                                                                                   \
    KEY("n_shared_experts", shared) KEY("moe_intermediate_size", width) KEY("first_k_dense_replace", dense)
#define FALCON_40B KEY("new_decoder_architecture", true) KEY("num_kv_heads", 8)

/* clang-format off */
static const struct {
    const char *name, *config;
} shipped[] = {
    /*                             type    L   hidden  Hq   Hkv   ffn    vocab  positions */
    {"toy",                 CONFIG("llama",  4,   128,   4,  2,   384,    256,   4096, HEAD(32) TIED)},
    {"llama-2-7b",          CONFIG("llama", 32,  4096,  32, 32, 11008,  32000,   4096, PLAIN)},
    {"llama-2-13b",         CONFIG("llama", 40,  5120,  40, 40, 13824,  32000,   4096, PLAIN)},
    {"llama-2-70b",         CONFIG("llama", 80,  8192,  64,  8, 28672,  32000,   4096, PLAIN)},
    {"llama-3-8b",          CONFIG("llama", 32,  4096,  32,  8, 14336, 128256,   8192, PLAIN)},
    {"llama-3-70b",         CONFIG("llama", 80,  8192,  64,  8, 28672, 128256,   8192, PLAIN)},
    {"llama-3.1-8b",        CONFIG("llama", 32,  4096,  32,  8, 14336, 128256, 131072, PLAIN)},
    {"llama-3.1-70b",       CONFIG("llama", 80,  8192,  64,  8, 28672, 128256, 131072, PLAIN)},
    {"llama-3.1-405b",      CONFIG("llama", 126, 16384, 128, 8, 53248, 128256, 131072, PLAIN)},
    {"llama-3.2-1b",        CONFIG("llama", 16,  2048,  32,  8,  8192, 128256, 131072, HEAD(64) TIED)},
    {"llama-3.2-3b",        CONFIG("llama", 28,  3072,  24,  8,  8192, 128256, 131072, HEAD(128) TIED)},
    {"llama-3.3-70b",       CONFIG("llama", 80,  8192,  64,  8, 28672, 128256, 131072, PLAIN)},
    {"tinyllama-1.1b",      CONFIG("llama", 22,  2048,  32,  4,  5632,  32000,   2048, PLAIN)},
    {"smollm2-135m",        CONFIG("llama", 30,   576,   9,  3,  1536,  49152,   8192, TIED)},
    {"smollm2-360m",        CONFIG("llama", 32,   960,  15,  5,  2560,  49152,   8192, TIED)},
    {"smollm2-1.7b",        CONFIG("llama", 24,  2048,  32, 32,  8192,  49152,   8192, TIED)},
    {"smollm3-3b",          CONFIG("smollm3", 36, 2048, 16,  4, 11008, 128256,  65536, TIED)},
    {"olmo-2-7b",           CONFIG("olmo2", 32,  4096,  32, 32, 11008, 100352,   4096, PLAIN)},
    {"olmo-2-13b",          CONFIG("olmo2", 40,  5120,  40, 40, 13824, 100352,   4096, PLAIN)},
    {"olmo-2-32b",          CONFIG("olmo2", 64,  5120,  40,  8, 27648, 100352,   4096, PLAIN)},

    {"qwen2-0.5b",          CONFIG("qwen2", 24,   896,  14,  2,  4864, 151936, 131072, TIED)},
    {"qwen2-1.5b",          CONFIG("qwen2", 28,  1536,  12,  2,  8960, 151936, 131072, TIED)},
    {"qwen2-7b",            CONFIG("qwen2", 28,  3584,  28,  4, 18944, 152064, 131072, PLAIN)},
    {"qwen2-72b",           CONFIG("qwen2", 80,  8192,  64,  8, 29568, 152064, 131072, PLAIN)},
    {"qwen2.5-0.5b",        CONFIG("qwen2", 24,   896,  14,  2,  4864, 151936,  32768, TIED)},
    {"qwen2.5-1.5b",        CONFIG("qwen2", 28,  1536,  12,  2,  8960, 151936, 131072, TIED)},
    {"qwen2.5-3b",          CONFIG("qwen2", 36,  2048,  16,  2, 11008, 151936,  32768, TIED)},
    {"qwen2.5-7b",          CONFIG("qwen2", 28,  3584,  28,  4, 18944, 152064, 131072, PLAIN)},
    {"qwen2.5-14b",         CONFIG("qwen2", 48,  5120,  40,  8, 13824, 152064, 131072, PLAIN)},
    {"qwen2.5-32b",         CONFIG("qwen2", 64,  5120,  40,  8, 27648, 152064, 131072, PLAIN)},
    {"qwen2.5-72b",         CONFIG("qwen2", 80,  8192,  64,  8, 29568, 152064, 131072, PLAIN)},
    {"qwen3-0.6b",          CONFIG("qwen3", 28,  1024,  16,  8,  3072, 151936,  40960, HEAD(128) TIED)},
    {"qwen3-1.7b",          CONFIG("qwen3", 28,  2048,  16,  8,  6144, 151936,  40960, HEAD(128) TIED)},
    {"qwen3-4b",            CONFIG("qwen3", 36,  2560,  32,  8,  9728, 151936,  40960, HEAD(128) TIED)},
    {"qwen3-8b",            CONFIG("qwen3", 36,  4096,  32,  8, 12288, 151936,  40960, HEAD(128))},
    {"qwen3-14b",           CONFIG("qwen3", 40,  5120,  40,  8, 17408, 151936,  40960, HEAD(128))},
    {"qwen3-32b",           CONFIG("qwen3", 64,  5120,  64,  8, 25600, 151936,  40960, HEAD(128))},
    {"qwen3-30b-a3b",       CONFIG("qwen3_moe", 48, 2048, 32, 4, 6144, 151936,  40960, HEAD(128) QWEN_EXPERTS(128, 8, 768))},
    {"qwen3-235b-a22b",     CONFIG("qwen3_moe", 94, 4096, 64, 4, 12288, 151936, 40960, HEAD(128) QWEN_EXPERTS(128, 8, 1536))},
    {"qwen1.5-moe-a2.7b",   CONFIG("qwen2_moe", 24, 2048, 16, 16, 5632, 151936,  8192, QWEN_EXPERTS(60, 4, 1408) SHARED(5632))},

    {"mistral-7b-v0.1",     CONFIG("mistral", 32, 4096, 32,  8, 14336,  32000,  32768, WINDOW(4096))},
    {"mistral-7b-v0.3",     CONFIG("mistral", 32, 4096, 32,  8, 14336,  32768,  32768, WINDOW(null))},
    {"mistral-nemo",        CONFIG("mistral", 40, 5120, 32,  8, 14336, 131072, 131072, HEAD(128) WINDOW(null))},
    {"mistral-small-24b",   CONFIG("mistral", 40, 5120, 32,  8, 32768, 131072,  32768, HEAD(128) WINDOW(null))},
    {"mixtral-8x7b",        CONFIG("mixtral", 32, 4096, 32,  8, 14336,  32000,  32768, EXPERTS(8, 2))},
    {"mixtral-8x22b",       CONFIG("mixtral", 56, 6144, 48,  8, 16384,  32000,  65536, EXPERTS(8, 2))},

    {"gemma-2b",            CONFIG("gemma",  18, 2048,   8,  1, 16384, 256000,   8192, HEAD(256))},
    {"gemma-7b",            CONFIG("gemma",  28, 3072,  16, 16, 24576, 256000,   8192, HEAD(256))},
    {"gemma-2-2b",          CONFIG("gemma2", 26, 2304,   8,  4,  9216, 256000,   8192, HEAD(256) WINDOW(4096))},
    {"gemma-2-9b",          CONFIG("gemma2", 42, 3584,  16,  8, 14336, 256000,   8192, HEAD(256) WINDOW(4096))},
    {"gemma-2-27b",         CONFIG("gemma2", 46, 4608,  32, 16, 36864, 256000,   8192, HEAD(128) WINDOW(4096))},
    {"gemma-3-1b",          CONFIG("gemma3_text", 26, 1152, 4, 1, 6912, 262144, 32768, HEAD(256) WINDOW(512))},
    {"gemma-3-4b",          CONFIG("gemma3_text", 34, 2560, 8, 4, 10240, 262208, 131072, HEAD(256) WINDOW(1024))},
    {"gemma-3-12b",         CONFIG("gemma3_text", 48, 3840, 16, 8, 15360, 262208, 131072, HEAD(256) WINDOW(1024))},
    {"gemma-3-27b",         CONFIG("gemma3_text", 62, 5376, 32, 16, 21504, 262208, 131072, HEAD(128) WINDOW(1024))},

    /* The plain Phi-3 names are the first releases: 4k positions, a window of 2047. */
    {"phi-2",               CONFIG("phi",  32, 2560,  32, 32, 10240,  51200,   2048, PLAIN)},
    {"phi-3-mini",          CONFIG("phi3", 32, 3072,  32, 32,  8192,  32064,   4096, WINDOW(2047))},
    {"phi-3-mini-128k",     CONFIG("phi3", 32, 3072,  32, 32,  8192,  32064, 131072, WINDOW(262144))},
    {"phi-3-medium",        CONFIG("phi3", 40, 5120,  40, 10, 17920,  32064,   4096, WINDOW(2047))},
    {"phi-3-medium-128k",   CONFIG("phi3", 40, 5120,  40, 10, 17920,  32064, 131072, WINDOW(131072))},
    {"phi-4",               CONFIG("phi3", 40, 5120,  40, 10, 17920, 100352,  16384, WINDOW(null))},
    {"phi-4-mini",          CONFIG("phi3", 32, 3072,  24,  8,  8192, 200064, 131072, WINDOW(262144) TIED)},

    {"gpt2",                GPT2(12,  768, 12)},
    {"gpt2-medium",         GPT2(24, 1024, 16)},
    {"gpt2-large",          GPT2(36, 1280, 20)},
    {"gpt2-xl",             GPT2(48, 1600, 25)},
    {"pythia-70m",          CONFIG("gpt_neox",  6,  512,  8,  8,  2048, 50304, 2048, PLAIN)},
    {"pythia-160m",         CONFIG("gpt_neox", 12,  768, 12, 12,  3072, 50304, 2048, PLAIN)},
    {"pythia-1b",           CONFIG("gpt_neox", 16, 2048,  8,  8,  8192, 50304, 2048, PLAIN)},
    {"pythia-6.9b",         CONFIG("gpt_neox", 32, 4096, 32, 32, 16384, 50432, 2048, PLAIN)},
    {"starcoder2-3b",       CONFIG("starcoder2", 30, 3072, 24, 2, 12288, 49152, 16384, WINDOW(4096))},
    {"starcoder2-7b",       CONFIG("starcoder2", 32, 4608, 36, 4, 18432, 49152, 16384, WINDOW(4096))},
    {"falcon-7b",           CONFIG("falcon", 32, 4544,  71,  1, 18176, 65024, 2048, KEY("multi_query", true))},
    {"falcon-40b",          CONFIG("falcon", 60, 8192, 128,  8, 32768, 65024, 2048, FALCON_40B)},

    {"gpt-oss-20b",         CONFIG("gpt_oss", 24, 2880, 64, 8, 2880, 201088, 131072, HEAD(64) WINDOW(128) EXPERTS(32, 4))},
    {"gpt-oss-120b",        CONFIG("gpt_oss", 36, 2880, 64, 8, 2880, 201088, 131072, HEAD(64) WINDOW(128) EXPERTS(128, 4))},
    {"deepseek-v2-lite",    CONFIG("deepseek_v2", 27, 2048, 16, 16, 10944, 102400, 163840, LATENT(null, 512) ROUTED(64, 6, 2, 1408, 1))},
    {"deepseek-v2",         CONFIG("deepseek_v2", 60, 5120, 128, 128, 12288, 102400, 163840, LATENT(1536, 512) ROUTED(160, 6, 2, 1536, 1))},
    {"deepseek-v3",         CONFIG("deepseek_v3", 61, 7168, 128, 128, 18432, 129280, 163840, LATENT(1536, 512) ROUTED(256, 8, 1, 2048, 3))},
};
/* clang-format on */

enum { COUNT = sizeof shipped / sizeof shipped[0] };

const char *shipped_find(const char *name)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (strcasecmp(name, shipped[i].name) == 0)
            return shipped[i].config;
    }
    return NULL;
}

static const char *names[COUNT + 1];
static pthread_once_t names_once = PTHREAD_ONCE_INIT;

static void fill_names(void)
{
    for (size_t i = 0; i < COUNT; i++)
        names[i] = shipped[i].name;
}

const char *const *model_shipped(void)
{
    pthread_once(&names_once, fill_names);
    return names;
}
