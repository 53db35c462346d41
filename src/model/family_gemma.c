/* model/family_gemma.c -- Gemma 1 to 3: wide heads given by head_dim, tied embeddings, windows on most layers. */
#include "model/reader.h"

static enum status read_gemma(struct reader *r)
{
    TRY(reader_shape(r));
    TRY(reader_biases(r));
    r->model->gated = true;
    count_dense(r->model, 2, &r->counts);
    return reader_no_window(r);
}

/* Norms before and after both attention and MLP; every other layer slides, the first one among them. */
static enum status read_gemma2(struct reader *r)
{
    TRY(reader_shape(r));
    TRY(reader_biases(r));
    r->model->gated = true;
    count_dense(r->model, 4, &r->counts);
    return reader_window(r, 4096, (r->model->layers + 1) / 2);
}

/* As Gemma 2 with norms on q and k; each sliding_window_pattern-th layer (6th) sees everything, the others slide. */
static enum status read_gemma3(struct reader *r)
{
    struct model *m = r->model;
    int64_t pattern = 6;
    const char *key = reader_get(r, "_sliding_window_pattern") ? "_sliding_window_pattern" : "sliding_window_pattern";
    TRY(reader_shape(r));
    TRY(reader_biases(r));
    TRY(reader_size(r, key, pattern, READER_LAYERS_MAX, &pattern));
    m->gated = true;
    m->qk_norm = true;
    count_dense(m, 4, &r->counts);
    return reader_window(r, 4096, m->layers - m->layers / (int)pattern);
}

const struct model_family family_gemma[] = {
    {.type = "gemma",
     .architecture = "GemmaForCausalLM",
     .tied = true,
     .kv_heads = 16,
     .head_dim = 256,
     .defaults = {[ROLE_LAYERS] = 28, [ROLE_HIDDEN] = 3072, [ROLE_HEADS] = 16, [ROLE_FFN] = 24576},
     .default_vocab = 256000,
     .read = read_gemma},
    {.type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .tied = true,
     .kv_heads = 4,
     .head_dim = 256,
     .defaults = {[ROLE_LAYERS] = 26, [ROLE_HIDDEN] = 2304, [ROLE_HEADS] = 8, [ROLE_FFN] = 9216},
     .default_vocab = 256000,
     .read = read_gemma2},
    {.type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .tied = true,
     .kv_heads = 4,
     .head_dim = 256,
     .defaults =
         {[ROLE_LAYERS] = 26, [ROLE_HIDDEN] = 2304, [ROLE_HEADS] = 8, [ROLE_FFN] = 9216, [ROLE_POSITIONS] = 131072},
     .default_vocab = 262208,
     .read = read_gemma3},
    {.type = NULL},
};
