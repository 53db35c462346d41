/* model/shipped.c -- well-known configurations under their usual names: values only, read by the same families as files.
 *
 * A row is a config.json text made of its columns. Compiled in, so that names work wherever the program was moved to.
 */
#include "model/shipped.h"
#include "model/model.h"

#include <stddef.h>
#include <strings.h>

#define KEY(name, value) "\"" name "\":" #value ","
/* Columns: layers, hidden, heads, KV heads, MLP width, vocabulary, positions; then keys of the family, if any. */
#define DENSE(type, layers, hidden, heads, kv, ffn, vocab, positions, more)                                            \
    "{\"model_type\":\"" type "\"," KEY("num_hidden_layers", layers) KEY("hidden_size", hidden)                        \
        KEY("num_attention_heads", heads) KEY("num_key_value_heads", kv) KEY("intermediate_size", ffn)                 \
            KEY("vocab_size", vocab) more "\"max_position_embeddings\":" #positions "}"
#define TIED KEY("tie_word_embeddings", true)
#define UNTIED KEY("tie_word_embeddings", false)
#define HEAD(dim) KEY("head_dim", dim)
#define WINDOW(tokens) KEY("sliding_window", tokens)

static const struct {
    const char *name, *config;
} shipped[] = {
    {"llama-3-8b", DENSE("llama", 32, 4096, 32, 8, 14336, 128256, 8192, )},
};

enum { COUNT = sizeof shipped / sizeof shipped[0] };

const char *shipped_find(const char *name)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (strcasecmp(name, shipped[i].name) == 0)
            return shipped[i].config;
    }
    return NULL;
}

const char *const *model_shipped(void)
{
    static const char *names[COUNT + 1];
    for (size_t i = 0; i < COUNT; i++)
        names[i] = shipped[i].name;
    return names;
}
