/* model/family_moe.c -- mixtures of experts with ordinary attention: Mixtral, Qwen MoE, gpt-oss. */
#include "base/mem.h"
#include "model/reader.h"

#include <math.h>
#include <stdlib.h>

static enum status read_mixtral(struct reader *r)
{
    TRY(reader_shape(r));
    TRY(reader_experts(r, "num_local_experts", "num_experts"));
    r->model->gated = true;
    count_dense(r->model, 2, &r->counts);
    count_experts(r->model, r->model->layers, &r->counts);
    return reader_window(r, 0, r->model->layers);
}

static enum status mark_dense(const struct reader *r, const json_t *only, bool *dense)
{
    for (size_t i = 0; i < json_array_size(only); i++) {
        const json_t *entry = json_array_get(only, i);
        double layer = json_number_value(entry);
        if (!json_is_number(entry) || layer != floor(layer) || layer < 0 || layer >= r->model->layers) {
            enum status s =
                FAIL(STATUS_USAGE, "entry %zu of mlp_only_layers is not one of the %d layers", i, r->model->layers);
            return reader_where(r, "mlp_only_layers", HINT(s, "layers are numbered from 0"));
        }
        dense[(int)layer] = true;
    }
    return STATUS_OK;
}

/* Sparse layers are every decoder_sparse_step-th, except those that mlp_only_layers names. */
static enum status count_sparse(const struct reader *r, int *out)
{
    const json_t *only = reader_get(r, "mlp_only_layers");
    int64_t step = 1;
    int layers = r->model->layers, sparse = 0;
    TRY(reader_size(r, "decoder_sparse_step", step, READER_LAYERS_MAX, &step));
    if (only != NULL && !json_is_array(only)) {
        enum status s = FAIL(STATUS_USAGE, "mlp_only_layers is not a list");
        return reader_where(r, "mlp_only_layers", HINT(s, "a list of layer numbers from 0"));
    }
    bool *dense = NULL;
    TRY(mem_alloc((size_t)layers, "dense layers", (void **)&dense));
    enum status status = mark_dense(r, only, dense);
    for (int i = 0; i < layers; i++)
        sparse += !dense[i] && (i + 1) % step == 0;
    free(dense);
    *out = sparse;
    return status;
}

static enum status read_window(struct reader *r)
{
    bool use = false;
    TRY(reader_bool(r, "use_sliding_window", false, &use));
    return use ? reader_window(r, 4096, r->model->layers) : reader_no_window(r);
}

/* The parts that both generations share; ffn becomes the width of one expert. */
static enum status read_qwen_experts(struct reader *r)
{
    struct model *m = r->model;
    int sparse = 0;
    TRY(reader_experts(r, "num_experts", "num_local_experts"));
    TRY(count_sparse(r, &sparse));
    m->gated = true;
    count_dense(m, 2, &r->counts);
    TRY(reader_size(r, "moe_intermediate_size", READER_REQUIRED, READER_FFN_MAX, &m->ffn));
    count_experts(m, sparse, &r->counts);
    return read_window(r);
}

static enum status read_qwen2_moe(struct reader *r)
{
    struct model *m = r->model;
    TRY(reader_shape(r));
    TRY(reader_bool(r, "qkv_bias", true, &m->qkv_bias));
    TRY(read_qwen_experts(r));
    TRY(reader_size(r, "shared_expert_intermediate_size", READER_REQUIRED, READER_FFN_MAX, &m->ffn_shared));
    /* The shared expert and its gate, one weight per hidden lane, serve every token. */
    int64_t shared = count_add(count_mlp(m, m->ffn_shared), m->hidden);
    r->counts.mlp_sparse = count_add(r->counts.mlp_sparse, shared);
    r->counts.mlp_sparse_active = count_add(r->counts.mlp_sparse_active, shared);
    return STATUS_OK;
}

static enum status read_qwen3_moe(struct reader *r)
{
    TRY(reader_shape(r));
    TRY(reader_biases(r));
    r->model->qk_norm = true;
    return read_qwen_experts(r);
}

/* Biases everywhere, router included, and one learnt sink per head. Every other layer slides, the first among them. */
static enum status read_gpt_oss(struct reader *r)
{
    struct model *m = r->model;
    bool bias = true;
    TRY(reader_shape(r));
    TRY(reader_experts(r, "num_local_experts", "num_experts"));
    TRY(reader_bool(r, "attention_bias", true, &bias));
    m->qkv_bias = m->o_bias = bias;
    m->gated = true;
    m->mlp_bias = true;
    count_dense(m, 2, &r->counts);
    r->counts.attention = count_add(r->counts.attention, m->heads);
    count_experts(m, m->layers, &r->counts);
    r->counts.mlp_sparse = count_add(r->counts.mlp_sparse, m->experts);
    r->counts.mlp_sparse_active = count_add(r->counts.mlp_sparse_active, m->experts);
    return reader_window(r, 128, (m->layers + 1) / 2);
}

static const char *const mixtral_reads[] = {"num_local_experts", "num_experts", NULL};
static const char *const qwen_reads[] = {"num_local_experts", "num_experts", "shared_expert_intermediate_size",
                                         "moe_intermediate_size", NULL};

const struct model_family family_moe[] = {
    {.type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .kv_heads = 8,
     .reads = mixtral_reads,
     .read = read_mixtral},
    {.type = "qwen2_moe",
     .architecture = "Qwen2MoeForCausalLM",
     .kv_heads = 16,
     .reads = qwen_reads,
     .read = read_qwen2_moe},
    {.type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .kv_heads = 4,
     .reads = qwen_reads,
     .read = read_qwen3_moe},
    {.type = "qwen3_vl_moe_text", .kv_heads = 16, .reads = qwen_reads, .read = read_qwen3_moe},
    {.type = "gpt_oss",
     .architecture = "GptOssForCausalLM",
     .kv_heads = 8,
     .head_dim = 64,
     .reads = mixtral_reads,
     .read = read_gpt_oss},
    {.type = NULL},
};
