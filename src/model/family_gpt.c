/* model/family_gpt.c -- GPT-2 and other decoders with LayerNorm, biases and an ungated MLP. */
#include "model/reader.h"

static void set_biases(struct model *m, bool bias)
{
    m->qkv_bias = m->o_bias = m->mlp_bias = bias;
}

/* LayerNorm has weight and bias: twice the parameters of an RMS norm. */
static void count_layer_norms(struct reader *r, int norms)
{
    count_dense(r->model, 2 * norms, &r->counts);
    r->counts.outside = count_mul(2, r->model->hidden);
}

static enum status read_gpt2(struct reader *r)
{
    struct model *m = r->model;
    TRY(reader_sizes(r));
    TRY(reader_either(r, "intermediate_size", "n_inner", count_mul(4, m->hidden), READER_FFN_MAX, &m->ffn));
    m->ffn_dense = m->ffn;
    m->kv_heads = m->heads;
    TRY(reader_head_dim(r));
    if (m->max_positions == 0)
        m->max_positions = 1024;
    set_biases(m, true);
    count_layer_norms(r, 2);
    r->counts.outside = count_add(r->counts.outside, count_mul(m->max_positions, m->hidden));
    return reader_no_window(r);
}

static enum status read_gpt_neox(struct reader *r)
{
    struct model *m = r->model;
    TRY(reader_shape(r));
    set_biases(m, true);
    TRY(reader_bool(r, "attention_bias", true, &m->qkv_bias));
    m->o_bias = m->qkv_bias;
    count_layer_norms(r, 2);
    return reader_no_window(r);
}

/* One norm before attention and MLP, which run side by side; the lm_head has a bias. */
static enum status read_phi(struct reader *r)
{
    struct model *m = r->model;
    bool norm = false;
    TRY(reader_shape(r));
    TRY(reader_bool(r, "qk_layernorm", false, &norm));
    set_biases(m, true);
    m->qk_norm = norm;
    count_layer_norms(r, 1);
    if (norm)
        r->counts.attention = count_add(r->counts.attention, 2 * (int64_t)m->head_dim);
    r->counts.outside = count_add(r->counts.outside, m->vocab);
    return reader_no_window(r);
}

static enum status read_starcoder2(struct reader *r)
{
    bool bias = true;
    TRY(reader_shape(r));
    TRY(reader_bool(r, "use_bias", true, &bias));
    set_biases(r->model, bias);
    count_layer_norms(r, 2);
    return reader_window(r, 0, r->model->layers);
}

const struct model_family family_gpt[] = {
    {.type = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .tied = true,
     .alias = {[ROLE_LAYERS] = "n_layer",
               [ROLE_HIDDEN] = "n_embd",
               [ROLE_HEADS] = "n_head",
               [ROLE_POSITIONS] = "n_positions"},
     .read = read_gpt2},
    {.type = "gpt_neox", .architecture = "GPTNeoXForCausalLM", .read = read_gpt_neox},
    {.type = "phi", .architecture = "PhiForCausalLM", .read = read_phi},
    {.type = "starcoder2",
     .architecture = "Starcoder2ForCausalLM",
     .tied = true,
     .kv_heads = 2,
     .read = read_starcoder2},
    {.type = NULL},
};
