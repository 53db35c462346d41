/* model/family_deepseek.c -- DeepSeek V2 and V3: latent attention (MLA) and mixed dense and expert layers.
 *
 * K and V are stored compressed but attention sees them after the up-projection: as many KV heads as heads, q and k of
 * qk_nope + qk_rope lanes, v of v_head_dim. That is what the exchanges move, so num_key_value_heads is not consulted.
 */
#include "model/reader.h"

#include <string.h>

static enum status read_heads(struct reader *r, int64_t *nope, int64_t *rope)
{
    struct model *m = r->model;
    int64_t v = 0;
    TRY(reader_size(r, "qk_nope_head_dim", READER_REQUIRED, READER_HEAD_DIM_MAX / 2, nope));
    TRY(reader_size(r, "qk_rope_head_dim", READER_REQUIRED, READER_HEAD_DIM_MAX / 2, rope));
    TRY(reader_size(r, "v_head_dim", READER_REQUIRED, READER_HEAD_DIM_MAX, &v));
    m->kv_heads = m->heads;
    m->head_dim = (int)(*nope + *rope);
    m->head_dim_v = (int)v;
    return STATUS_OK;
}

/* hidden -> (q_lora ->) q; hidden -> latent + shared rope part; latent -> k, v; o. A norm on each latent. */
static enum status count_latent(struct reader *r, int64_t nope, int64_t rope)
{
    const struct model *m = r->model;
    bool bias = false;
    int64_t q_rank = 0, kv_rank = 0;
    TRY(reader_bool(r, "attention_bias", false, &bias));
    TRY(reader_size(r, "q_lora_rank", 0, READER_HIDDEN_MAX, &q_rank));
    TRY(reader_size(r, "kv_lora_rank", READER_REQUIRED, READER_HIDDEN_MAX, &kv_rank));
    int64_t q_width = (int64_t)m->heads * m->head_dim;
    int64_t q = count_linear(m->hidden, q_width, false);
    if (q_rank > 0)
        q = count_add(count_add(count_linear(m->hidden, q_rank, bias), q_rank), count_linear(q_rank, q_width, false));
    int64_t down = count_add(count_linear(m->hidden, kv_rank + rope, bias), kv_rank);
    int64_t up = count_linear(kv_rank, (int64_t)m->heads * (nope + m->head_dim_v), false);
    int64_t o = count_linear((int64_t)m->heads * m->head_dim_v, m->hidden, bias);
    r->counts.attention = count_add(count_add(q, down), count_add(up, o));
    return STATUS_OK;
}

/* Dense below first_k_dense_replace; from there on each moe_layer_freq-th layer has experts. */
static enum status read_sparse_layers(const struct reader *r, int *out)
{
    int64_t first = 0, step = 1, sparse = 0;
    TRY(reader_int(r, "first_k_dense_replace", 0, 0, READER_LAYERS_MAX, &first));
    TRY(reader_size(r, "moe_layer_freq", 1, READER_LAYERS_MAX, &step));
    for (int64_t i = first; i < r->model->layers; i++)
        sparse += i % step == 0;
    *out = (int)sparse;
    return STATUS_OK;
}

static enum status read_deepseek_experts(struct reader *r)
{
    struct model *m = r->model;
    int sparse = 0;
    int64_t shared = 0;
    TRY(reader_experts(r, "n_routed_experts", "num_local_experts"));
    TRY(reader_int(r, "n_shared_experts", 0, 0, 1024, &shared));
    TRY(read_sparse_layers(r, &sparse));
    TRY(reader_size(r, "moe_intermediate_size", READER_REQUIRED, READER_FFN_MAX, &m->ffn));
    m->ffn_shared = shared * m->ffn;
    count_experts(m, sparse, &r->counts);
    int64_t always = shared > 0 ? count_mlp(m, m->ffn_shared) : 0;
    if (strcmp(r->family->type, "deepseek_v2") != 0)
        always = count_add(always, m->experts); /* V3 balances its experts with a bias that is learnt */
    r->counts.mlp_sparse = count_add(r->counts.mlp_sparse, always);
    r->counts.mlp_sparse_active = count_add(r->counts.mlp_sparse_active, always);
    return STATUS_OK;
}

static enum status read_deepseek(struct reader *r)
{
    struct model *m = r->model;
    int64_t nope = 0, rope = 0;
    TRY(reader_sizes(r));
    TRY(reader_size(r, "intermediate_size", READER_REQUIRED, READER_FFN_MAX, &m->ffn));
    m->ffn_dense = m->ffn;
    TRY(read_heads(r, &nope, &rope));
    m->gated = true;
    count_dense(m, 2, &r->counts);
    TRY(count_latent(r, nope, rope));
    if (reader_get(r, "n_routed_experts") != NULL || reader_get(r, "num_local_experts") != NULL)
        TRY(read_deepseek_experts(r));
    return reader_no_window(r);
}

static const char *const deepseek_reads[] = {"num_local_experts",     "n_routed_experts", "n_shared_experts",
                                             "moe_intermediate_size", "kv_lora_rank",     "q_lora_rank",
                                             "first_k_dense_replace", "moe_layer_freq",   NULL};

const struct model_family family_deepseek[] = {
    {.type = "deepseek_v2", .architecture = "DeepseekV2ForCausalLM", .reads = deepseek_reads, .read = read_deepseek},
    {.type = "deepseek_v3", .architecture = "DeepseekV3ForCausalLM", .reads = deepseek_reads, .read = read_deepseek},
    {.type = "kimi_k2", .reads = deepseek_reads, .read = read_deepseek},
    {.type = NULL},
};
