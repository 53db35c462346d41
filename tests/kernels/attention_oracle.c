/* tests/kernels/attention_oracle.c -- attention by whole matrices, in double or in the storage type's precision. */
#include "kernels/attention_oracle.h"

#include <math.h>
#include <stdlib.h>

/* One head of one batch item as dense matrices. */
struct head {
    const struct attention_shape *shape;
    enum precision precision;
    double *q, *k, *v, *d_o; /* [seq][dim] */
    double *s, *p, *dp, *ds; /* [seq_q][seq_k] */
    double *ds_terms;        /* magnitudes of what is added up in ds */
};

/* A stored intermediate. */
static double keep(const struct head *head, double value)
{
    float narrow = (float)value;
    if (head->precision == EXACT)
        return value;
    dtype_set(head->shape->dtype, &narrow, 0, narrow);
    return (double)dtype_get(head->shape->dtype, &narrow, 0);
}

/* sum + a * b, each operation rounded to fp32 when plain. */
static double add(const struct head *head, double sum, double a, double b)
{
    if (head->precision == EXACT)
        return sum + a * b;
    float product = (float)a * (float)b, next = (float)sum + product;
    return (double)next;
}

bool oracle_sees(const struct attention_shape *shape, int64_t i, int64_t j)
{
    int64_t q_from = 0, q_to = shape->seq_q, k_from = 0, k_to = shape->seq_k;
    if (shape->docs > 0) {
        int doc = 0;
        while (doc < shape->docs && !(i >= shape->cu_q[doc] && i < shape->cu_q[doc + 1]))
            doc++;
        if (doc == shape->docs)
            return false;
        q_from = shape->cu_q[doc], q_to = shape->cu_q[doc + 1];
        k_from = shape->cu_k[doc], k_to = shape->cu_k[doc + 1];
        if (j < k_from || j >= k_to)
            return false;
    }
    int64_t at = i - q_from, key = j - k_from;
    if (shape->causal == ATTENTION_BOTTOM_RIGHT)
        at = (k_to - k_from) - (q_to - q_from) + at;
    if (shape->causal != ATTENTION_FULL && key > at)
        return false;
    return shape->window == 0 || key > at - shape->window;
}

static double *matrix(int64_t rows, int64_t cols)
{
    double *out = calloc((size_t)(rows * cols) + 1, sizeof *out);
    assert_non_null(out);
    return out;
}

static double *dense(const struct attention_shape *shape, const void *base, int64_t token, int64_t seq, int64_t stride,
                     int head, int dim)
{
    double *out = matrix(seq, dim);
    for (int64_t i = 0; i < seq; i++)
        for (int t = 0; t < dim; t++)
            out[i * dim + t] = (double)dtype_get(shape->dtype, base, (token + i) * stride + (int64_t)head * dim + t);
    return out;
}

static void softmax(const struct head *head, double *lse)
{
    const struct attention_shape *shape = head->shape;
    int64_t seq_k = shape->seq_k;
    for (int64_t i = 0; i < shape->seq_q; i++) {
        double max = -INFINITY, sum = 0, *s = head->s + i * seq_k, *p = head->p + i * seq_k;
        for (int64_t j = 0; j < seq_k; j++) {
            for (int t = 0; t < shape->head_dim; t++)
                s[j] = add(head, s[j], head->q[i * shape->head_dim + t], head->k[j * shape->head_dim + t]);
            s[j] = keep(head, s[j] * (double)shape->scale);
            if (oracle_sees(shape, i, j))
                max = fmax(max, s[j]);
        }
        for (int64_t j = 0; j < seq_k; j++) {
            if (!oracle_sees(shape, i, j))
                continue;
            p[j] = exp(s[j] - max);
            if (head->precision == PLAIN)
                p[j] = (double)(float)p[j];
            sum = add(head, sum, p[j], 1.0);
        }
        for (int64_t j = 0; j < seq_k; j++)
            if (sum > 0)
                p[j] = keep(head, p[j] / sum);
        lse[i] = sum > 0 ? max + log(sum) : -INFINITY;
        if (head->precision == PLAIN)
            lse[i] = (double)(float)lse[i];
    }
}

static void forward(const struct head *head, double *o, int64_t o_stride)
{
    const struct attention_shape *shape = head->shape;
    int dim = shape->head_dim_v;
    for (int64_t i = 0; i < shape->seq_q; i++)
        for (int t = 0; t < dim; t++) {
            double sum = 0;
            for (int64_t j = 0; j < shape->seq_k; j++)
                sum = add(head, sum, head->p[i * shape->seq_k + j], head->v[j * dim + t]);
            o[i * o_stride + t] = keep(head, sum);
        }
}

static void score_gradients(const struct head *head)
{
    const struct attention_shape *shape = head->shape;
    int dim = shape->head_dim_v;
    for (int64_t i = 0; i < shape->seq_q; i++) {
        int64_t row = i * shape->seq_k;
        double mean = 0, mean_terms = 0, *dp = head->dp + row, *p = head->p + row, *terms = head->ds_terms + row;
        for (int64_t j = 0; j < shape->seq_k; j++) {
            if (p[j] == 0)
                continue;
            for (int t = 0; t < dim; t++) {
                dp[j] = add(head, dp[j], head->d_o[i * dim + t], head->v[j * dim + t]);
                terms[j] += fabs(head->d_o[i * dim + t] * head->v[j * dim + t]);
            }
            dp[j] = keep(head, dp[j]);
            mean = add(head, mean, p[j], dp[j]);
            mean_terms += p[j] * terms[j];
        }
        for (int64_t j = 0; j < shape->seq_k; j++) {
            head->ds[row + j] = keep(head, keep(head, p[j] * (dp[j] - mean)) * (double)shape->scale);
            terms[j] = p[j] * (terms[j] + mean_terms) * fabs((double)shape->scale);
        }
    }
}

/* Where one head's gradients lie in the oracle's arrays: first element and step between tokens. */
struct place {
    int64_t q, q_step, k, k_step, v, v_step;
};

/* dk and dv gather over the heads of a group and are rounded by the caller. */
static void backward(const struct head *head, struct oracle *oracle, struct place at)
{
    const struct attention_shape *shape = head->shape;
    int dim = shape->head_dim, dim_v = shape->head_dim_v;
    for (int64_t i = 0; i < shape->seq_q; i++)
        for (int64_t j = 0; j < shape->seq_k; j++) {
            int64_t pair = i * shape->seq_k + j, q = at.q + i * at.q_step, k = at.k + j * at.k_step,
                    v = at.v + j * at.v_step;
            if (head->p[pair] == 0)
                continue;
            for (int t = 0; t < dim; t++) {
                double of_q = head->k[j * dim + t], of_k = head->q[i * dim + t];
                oracle->dq[q + t] = add(head, oracle->dq[q + t], head->ds[pair], of_q);
                oracle->dk[k + t] = add(head, oracle->dk[k + t], head->ds[pair], of_k);
                oracle->dq_terms[q + t] += fabs(head->ds_terms[pair] * of_q);
                oracle->dk_terms[k + t] += fabs(head->ds_terms[pair] * of_k);
            }
            for (int t = 0; t < dim_v; t++) {
                oracle->dv[v + t] = add(head, oracle->dv[v + t], head->p[pair], head->d_o[i * dim_v + t]);
                oracle->dv_terms[v + t] += fabs(head->p[pair] * head->d_o[i * dim_v + t]);
            }
        }
}

static void one_head(const struct inputs *in, struct oracle *oracle, enum precision precision, int64_t b, int h)
{
    const struct attention_shape *shape = &in->shape;
    int64_t sq = shape->seq_q, sk = shape->seq_k, kv = (shape->group_first + h) / shape->group;
    int dim = shape->head_dim, dim_v = shape->head_dim_v;
    struct head head = {
        .shape = shape,
        .precision = precision,
        .q = dense(shape, in->q, b * sq, sq, shape->q_stride, h, dim),
        .k = dense(shape, in->k, b * sk, sk, shape->k_stride, (int)kv, dim),
        .v = dense(shape, in->v, b * sk, sk, shape->v_stride, (int)kv, dim_v),
        .d_o = dense(shape, in->d_o, b * sq, sq, shape->o_stride, h, dim_v),
        .s = matrix(sq, sk),
        .p = matrix(sq, sk),
        .dp = matrix(sq, sk),
        .ds = matrix(sq, sk),
        .ds_terms = matrix(sq, sk),
    };
    struct place at = {.q = (b * sq * shape->heads + h) * dim,
                       .q_step = (int64_t)shape->heads * dim,
                       .k = (b * sk * shape->kv_heads + kv) * dim,
                       .k_step = (int64_t)shape->kv_heads * dim,
                       .v = (b * sk * shape->kv_heads + kv) * dim_v,
                       .v_step = (int64_t)shape->kv_heads * dim_v};
    softmax(&head, oracle->lse + (b * shape->heads + h) * sq);
    forward(&head, oracle->o + (b * sq * shape->heads + h) * dim_v, (int64_t)shape->heads * dim_v);
    score_gradients(&head);
    backward(&head, oracle, at);
    double *all[] = {head.q, head.k, head.v, head.d_o, head.s, head.p, head.dp, head.ds, head.ds_terms};
    for (int i = 0; i < CHECK_COUNT(all); i++)
        free(all[i]);
}

struct oracle *oracle_create(const struct inputs *in, enum precision precision)
{
    const struct attention_shape *shape = &in->shape;
    int64_t q_heads = shape->batch * shape->seq_q * shape->heads;
    int64_t k_heads = shape->batch * shape->seq_k * shape->kv_heads;
    struct head rounding = {.shape = shape, .precision = precision};
    struct oracle *oracle = calloc(1, sizeof *oracle);
    assert_non_null(oracle);
    *oracle = (struct oracle){.o = matrix(q_heads, shape->head_dim_v),
                              .lse = matrix(q_heads, 1),
                              .dq = matrix(q_heads, shape->head_dim),
                              .dk = matrix(k_heads, shape->head_dim),
                              .dv = matrix(k_heads, shape->head_dim_v),
                              .dq_terms = matrix(q_heads, shape->head_dim),
                              .dk_terms = matrix(k_heads, shape->head_dim),
                              .dv_terms = matrix(k_heads, shape->head_dim_v)};
    for (int64_t b = 0; b < shape->batch; b++)
        for (int h = 0; h < shape->heads; h++)
            one_head(in, oracle, precision, b, h);
    for (int64_t i = 0; i < q_heads * shape->head_dim; i++)
        oracle->dq[i] = keep(&rounding, oracle->dq[i]);
    for (int64_t i = 0; i < k_heads * shape->head_dim; i++)
        oracle->dk[i] = keep(&rounding, oracle->dk[i]);
    for (int64_t i = 0; i < k_heads * shape->head_dim_v; i++)
        oracle->dv[i] = keep(&rounding, oracle->dv[i]);
    return oracle;
}

void oracle_destroy(struct oracle *oracle)
{
    if (oracle == NULL)
        return;
    double *all[] = {oracle->o,  oracle->lse,      oracle->dq,       oracle->dk,
                     oracle->dv, oracle->dq_terms, oracle->dk_terms, oracle->dv_terms};
    for (int i = 0; i < CHECK_COUNT(all); i++)
        free(all[i]);
    free(oracle);
}
