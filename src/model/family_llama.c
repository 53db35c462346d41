/* model/family_llama.c -- Llama and the decoders built like it: two RMS norms, a gated MLP, optional biases. */
#include "model/reader.h"

static enum status read_llama(struct reader *r)
{
    TRY(reader_shape(r));
    TRY(reader_biases(r));
    r->model->gated = true;
    count_dense(r->model, 2, &r->counts);
    return reader_no_window(r);
}

/* The window is on every layer; a file without the key has the class's 4096. */
static enum status read_mistral(struct reader *r)
{
    TRY(reader_shape(r));
    r->model->gated = true;
    count_dense(r->model, 2, &r->counts);
    return reader_window(r, 4096, r->model->layers);
}

/* The successor has no window unless it says so. */
static enum status read_ministral(struct reader *r)
{
    TRY(reader_shape(r));
    r->model->gated = true;
    count_dense(r->model, 2, &r->counts);
    return reader_window(r, 0, r->model->layers);
}

/* qkv and gate_up are one matrix each; the count is the same. */
static enum status read_phi3(struct reader *r)
{
    TRY(reader_shape(r));
    r->model->gated = true;
    count_dense(r->model, 2, &r->counts);
    return reader_window(r, 0, r->model->layers);
}

/* Norms after attention and MLP, and over all of q and k together before they are split into heads. */
static enum status read_olmo2(struct reader *r)
{
    struct model *m = r->model;
    TRY(reader_shape(r));
    TRY(reader_biases(r));
    m->gated = true;
    m->qk_norm = true;
    count_dense(m, 2, &r->counts);
    int64_t per_head = 2 * (int64_t)m->head_dim;
    int64_t whole = ((int64_t)m->heads + m->kv_heads) * m->head_dim;
    r->counts.attention = count_add(r->counts.attention, whole - per_head);
    return reader_no_window(r);
}

/* Attention and MLP side by side behind one norm; with use_qk_norm one weight per head and lane. */
static enum status read_cohere_block(struct reader *r)
{
    struct model *m = r->model;
    TRY(reader_shape(r));
    TRY(reader_biases(r));
    TRY(reader_bool(r, "use_qk_norm", false, &m->qk_norm));
    m->gated = true;
    count_dense(m, 1, &r->counts);
    if (m->qk_norm) {
        int64_t per_head = 2 * (int64_t)m->head_dim;
        int64_t whole = ((int64_t)m->heads + m->kv_heads) * m->head_dim;
        r->counts.attention = count_add(r->counts.attention, whole - per_head);
    }
    return STATUS_OK;
}

static enum status read_cohere(struct reader *r)
{
    TRY(read_cohere_block(r));
    return reader_no_window(r);
}

static enum status read_cohere2(struct reader *r)
{
    int64_t pattern = 4;
    TRY(read_cohere_block(r));
    TRY(reader_size(r, "sliding_window_pattern", pattern, READER_LAYERS_MAX, &pattern));
    return reader_window(r, 4096, r->model->layers - r->model->layers / (int)pattern);
}

const struct model_family family_llama[] = {
    {.type = "llama",
     .architecture = "LlamaForCausalLM",
     .decoder = true,
     .defaults = {[ROLE_LAYERS] = 32, [ROLE_HIDDEN] = 4096, [ROLE_HEADS] = 32, [ROLE_FFN] = 11008},
     .default_vocab = 32000,
     .read = read_llama},
    {.type = "mistral",
     .architecture = "MistralForCausalLM",
     .decoder = true,
     .kv_heads = 8,
     .defaults = {[ROLE_LAYERS] = 32, [ROLE_HIDDEN] = 4096, [ROLE_HEADS] = 32, [ROLE_FFN] = 14336},
     .default_vocab = 32000,
     .read = read_mistral},
    {.type = "ministral3",
     .architecture = "Ministral3ForCausalLM",
     .kv_heads = 8,
     .head_dim = 128,
     .defaults = {[ROLE_LAYERS] = 34, [ROLE_HIDDEN] = 4096, [ROLE_HEADS] = 32, [ROLE_FFN] = 14336},
     .default_vocab = 131072,
     .read = read_ministral},
    {.type = "phi3", .architecture = "Phi3ForCausalLM", .read = read_phi3},
    {.type = "granite", .architecture = "GraniteForCausalLM", .read = read_llama},
    {.type = "smollm3", .architecture = "SmolLM3ForCausalLM", .tied = true, .kv_heads = 4, .read = read_llama},
    {.type = "olmo2", .architecture = "Olmo2ForCausalLM", .read = read_olmo2},
    {.type = "cohere", .architecture = "CohereForCausalLM", .tied = true, .read = read_cohere},
    {.type = "cohere2", .architecture = "Cohere2ForCausalLM", .tied = true, .read = read_cohere2},
    {.type = NULL},
};
