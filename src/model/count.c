/* model/count.c -- parameter counts from shapes, in saturating arithmetic. */
#include "model/count.h"

int64_t count_add(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

int64_t count_mul(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

int64_t count_linear(int64_t in, int64_t out, bool bias)
{
    return count_add(count_mul(in, out), bias ? out : 0);
}

int64_t count_attention(const struct model *m)
{
    int64_t q = count_linear(m->hidden, (int64_t)m->heads * m->head_dim, m->qkv_bias);
    int64_t k = count_linear(m->hidden, (int64_t)m->kv_heads * m->head_dim, m->qkv_bias);
    int64_t v = count_linear(m->hidden, (int64_t)m->kv_heads * m->head_dim_v, m->qkv_bias);
    int64_t o = count_linear((int64_t)m->heads * m->head_dim_v, m->hidden, m->o_bias);
    int64_t norms = m->qk_norm ? 2 * (int64_t)m->head_dim : 0;
    return count_add(count_add(count_add(q, k), count_add(v, o)), norms);
}

int64_t count_mlp(const struct model *m, int64_t width)
{
    int64_t up = count_linear(m->hidden, width, m->mlp_bias);
    int64_t down = count_linear(width, m->hidden, m->mlp_bias);
    return count_add(m->gated ? count_mul(2, up) : up, down);
}

void count_dense(const struct model *m, int norms, struct counts *counts)
{
    *counts = (struct counts){
        .attention = count_attention(m),
        .norms = count_mul(norms, m->hidden),
        .mlp_dense = count_mlp(m, m->ffn),
        .dense_layers = m->layers,
        .outside = m->hidden,
    };
}

void count_experts(const struct model *m, int sparse_layers, struct counts *counts)
{
    int64_t router = count_linear(m->hidden, m->experts, false);
    int64_t expert = count_mlp(m, m->ffn);
    counts->mlp_sparse = count_add(router, count_mul(m->experts, expert));
    counts->mlp_sparse_active = count_add(router, count_mul(m->experts_per_token, expert));
    counts->sparse_layers = sparse_layers;
    counts->dense_layers = m->layers - sparse_layers;
}

enum status count_finish(const struct counts *c, struct model *m)
{
    int64_t common = count_add(c->attention, c->norms);
    int64_t dense = count_add(common, c->mlp_dense);
    int64_t sparse = count_add(common, c->mlp_sparse);
    int64_t sparse_active = count_add(common, c->mlp_sparse_active);
    m->params_embedding = count_mul(m->vocab, m->hidden);
    int64_t outside = count_add(count_mul(m->tied ? 1 : 2, m->params_embedding), c->outside);
    int64_t dense_all = count_add(outside, count_mul(c->dense_layers, dense));
    m->params = count_add(dense_all, count_mul(c->sparse_layers, sparse));
    m->params_active = count_add(dense_all, count_mul(c->sparse_layers, sparse_active));
    m->params_layer = c->sparse_layers > 0 && (sparse > dense || c->dense_layers == 0) ? sparse : dense;
    m->dense_layers = c->dense_layers;
    if (m->params == INT64_MAX)
        return FAIL(STATUS_USAGE, "the sizes multiply to more parameters than 2^63");
    return STATUS_OK;
}
