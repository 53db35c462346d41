/* kernels/attention_reference.c -- attention in plain double precision: obviously right, never optimised.
 *
 * One query at a time: its scores against every key, softmax, output; the mask is a question asked of every pair. The
 * backward pass recomputes the probabilities and needs neither o nor lse:
 *
 *   dV_j += P_ij dO_i     dP_ij = dO_i . V_j     dS_ij = P_ij (dP_ij - sum_j P_ij dP_ij)
 *   dQ_i = scale * sum_j dS_ij K_j               dK_j += scale * dS_ij Q_i
 *
 * Workspace, doubles: p and dp [keys], one row of q, o, dO, dq, and dk, dv of one kv head [keys][head_dim(_v)], for the
 * keys of the longest segment.
 */
#include "kernels/attention_check.h"
#include "kernels/attention_mask.h"

#include <math.h>

struct scratch {
    double *p, *dp;  /* [seq_k] */
    double *q, *dq;  /* [head_dim] */
    double *o, *d_o; /* [head_dim_v] */
    double *dk, *dv; /* [seq_k][head_dim], [seq_k][head_dim_v] */
};

/* One (segment, head): strides and first elements, so that row i starts at base + i * stride. */
struct view {
    const struct attention_shape *shape;
    struct attention_segment segment;
    int64_t q, k, v, o, lse;
};

static struct view view_make(const struct attention_shape *shape, const struct attention_segment *segment, int head)
{
    int kv = attention_kv_head(shape, head);
    int64_t q_token = attention_q_token(shape, segment, 0), k_token = attention_k_token(shape, segment, 0);
    return (struct view){
        .shape = shape,
        .segment = *segment,
        .q = q_token * shape->q_stride + (int64_t)head * shape->head_dim,
        .k = k_token * shape->k_stride + (int64_t)kv * shape->head_dim,
        .v = k_token * shape->v_stride + (int64_t)kv * shape->head_dim_v,
        .o = q_token * shape->o_stride + (int64_t)head * shape->head_dim_v,
        .lse = attention_lse_index(shape, segment, head, 0),
    };
}

static bool sees(const struct view *view, int64_t i, int64_t j)
{
    const struct attention_shape *shape = view->shape;
    int64_t position = i;
    if (shape->causal == ATTENTION_BOTTOM_RIGHT)
        position += view->segment.seq_k - view->segment.seq_q;
    if (view->segment.hidden)
        return false;
    if (shape->causal != ATTENTION_FULL && j > position)
        return false;
    return shape->window == 0 || position - j < shape->window;
}

static double dot(const double *a, const struct attention_shape *shape, const void *b, int64_t first, int n)
{
    double sum = 0;
    for (int t = 0; t < n; t++)
        sum += a[t] * (double)dtype_get(shape->dtype, b, first + t);
    return sum;
}

static void row_get(const struct attention_shape *shape, const void *base, int64_t first, double *row, int n)
{
    for (int t = 0; t < n; t++)
        row[t] = (double)dtype_get(shape->dtype, base, first + t);
}

static void row_set(enum dtype dtype, void *base, int64_t first, const double *row, int n)
{
    for (int t = 0; t < n; t++)
        dtype_set(dtype, base, first + t, (float)row[t]);
}

/* Probabilities of query i (already in scratch->q) over all keys; returns its LSE, -inf when it sees none. */
static double softmax(const struct view *view, const struct attention_args *args, int64_t i, struct scratch *scratch)
{
    const struct attention_shape *shape = view->shape;
    int64_t seq_k = view->segment.seq_k;
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < seq_k; j++) {
        scratch->p[j] = -INFINITY;
        if (sees(view, i, j))
            scratch->p[j] =
                (double)shape->scale * dot(scratch->q, shape, args->k, view->k + j * shape->k_stride, shape->head_dim);
        if (!(scratch->p[j] <= max)) /* also a NaN: it must not vanish */
            max = scratch->p[j];
    }
    for (int64_t j = 0; j < seq_k; j++) {
        scratch->p[j] = max == -INFINITY ? 0 : exp(scratch->p[j] - max);
        sum += scratch->p[j];
    }
    for (int64_t j = 0; j < seq_k; j++)
        scratch->p[j] = sum == 0 ? 0 : scratch->p[j] / sum;
    return max == -INFINITY ? -INFINITY : max + log(sum);
}

static void forward_head(const struct view *view, const struct attention_args *args, struct scratch *scratch)
{
    const struct attention_shape *shape = view->shape;
    for (int64_t i = 0; i < view->segment.seq_q; i++) {
        row_get(shape, args->q, view->q + i * shape->q_stride, scratch->q, shape->head_dim);
        args->lse[view->lse + i] = (float)softmax(view, args, i, scratch);
        for (int t = 0; t < shape->head_dim_v; t++)
            scratch->o[t] = 0;
        for (int64_t j = 0; j < view->segment.seq_k; j++) {
            if (!sees(view, i, j)) /* not even 0 * V: V may hold anything there */
                continue;
            for (int t = 0; t < shape->head_dim_v; t++)
                scratch->o[t] +=
                    scratch->p[j] * (double)dtype_get(shape->dtype, args->v, view->v + j * shape->v_stride + t);
        }
        row_set(shape->dtype, args->o, view->o + i * shape->o_stride, scratch->o, shape->head_dim_v);
    }
}

/* dQ of query i; adds its part to dK and dV. */
static void backward_row(const struct view *view, const struct attention_args *args, int64_t i, struct scratch *scratch)
{
    const struct attention_shape *shape = view->shape;
    int dim = shape->head_dim, dim_v = shape->head_dim_v;
    double mean = 0;
    row_get(shape, args->q, view->q + i * shape->q_stride, scratch->q, dim);
    row_get(shape, args->d_o, view->o + i * shape->o_stride, scratch->d_o, dim_v);
    softmax(view, args, i, scratch);
    for (int t = 0; t < dim; t++)
        scratch->dq[t] = 0;
    for (int64_t j = 0; j < view->segment.seq_k; j++) {
        scratch->dp[j] = 0;
        if (sees(view, i, j))
            scratch->dp[j] = dot(scratch->d_o, shape, args->v, view->v + j * shape->v_stride, dim_v);
        mean += scratch->p[j] * scratch->dp[j];
    }
    for (int64_t j = 0; j < view->segment.seq_k; j++) {
        if (!sees(view, i, j))
            continue;
        double p = scratch->p[j], ds = p * (scratch->dp[j] - mean) * (double)shape->scale;
        for (int t = 0; t < dim_v; t++)
            scratch->dv[j * dim_v + t] += p * scratch->d_o[t];
        for (int t = 0; t < dim; t++) {
            scratch->dq[t] += ds * (double)dtype_get(shape->dtype, args->k, view->k + j * shape->k_stride + t);
            scratch->dk[j * dim + t] += ds * scratch->q[t];
        }
    }
    row_set(shape->dtype, args->dq, view->q + i * shape->q_stride, scratch->dq, dim);
}

/* All query heads of one kv head, so that their sum is rounded once. */
static void backward_kv_head(const struct attention_shape *shape, const struct attention_args *args,
                             const struct attention_segment *segment, int kv, struct scratch *scratch)
{
    enum dtype out = args->dkv_fp32 ? DTYPE_FP32 : shape->dtype;
    struct attention_range heads = attention_heads_of(shape, kv);
    int64_t k_token = attention_k_token(shape, segment, 0);
    int64_t k = k_token * shape->k_stride + (int64_t)kv * shape->head_dim;
    int64_t v = k_token * shape->v_stride + (int64_t)kv * shape->head_dim_v;
    int dim = shape->head_dim, dim_v = shape->head_dim_v;
    for (int64_t j = 0; j < segment->seq_k; j++) {
        for (int t = 0; t < dim; t++)
            scratch->dk[j * dim + t] =
                args->dkv_accumulate ? (double)dtype_get(out, args->dk, k + j * shape->k_stride + t) : 0;
        for (int t = 0; t < dim_v; t++)
            scratch->dv[j * dim_v + t] =
                args->dkv_accumulate ? (double)dtype_get(out, args->dv, v + j * shape->v_stride + t) : 0;
    }
    for (int64_t head = heads.first; head < heads.end; head++) {
        struct view view = view_make(shape, segment, (int)head);
        for (int64_t i = 0; i < segment->seq_q; i++)
            backward_row(&view, args, i, scratch);
    }
    for (int64_t j = 0; j < segment->seq_k; j++) {
        row_set(out, args->dk, k + j * shape->k_stride, scratch->dk + j * dim, dim);
        row_set(out, args->dv, v + j * shape->v_stride, scratch->dv + j * dim_v, dim_v);
    }
}

static struct scratch scratch_lay(const struct attention_shape *shape, double *base, int64_t *out_doubles)
{
    int64_t seq_k = attention_longest_keys(shape), dim = shape->head_dim, dim_v = shape->head_dim_v;
    int64_t at[8], sizes[8] = {seq_k, seq_k, dim, dim, dim_v, dim_v, seq_k * dim, seq_k * dim_v}, sum = 0;
    for (int i = 0; i < 8; i++) {
        at[i] = sum;
        sum += sizes[i];
    }
    *out_doubles = sum;
    if (base == NULL)
        return (struct scratch){0};
    return (struct scratch){base + at[0], base + at[1], base + at[2], base + at[3],
                            base + at[4], base + at[5], base + at[6], base + at[7]};
}

static size_t reference_workspace_bytes(const struct attention_shape *shape, bool backward, int threads)
{
    (void)threads;
    (void)backward;
    int64_t doubles;
    if (!attention_shape_good(shape))
        return 0;
    scratch_lay(shape, NULL, &doubles);
    return (size_t)doubles * sizeof(double);
}

static enum status reference_forward(const struct attention_shape *shape, const struct attention_args *args,
                                     struct dev_queue *queue)
{
    (void)queue;
    int64_t doubles;
    TRY(attention_args_check(shape, args, false, 1));
    struct scratch scratch = scratch_lay(shape, args->workspace, &doubles);
    for (int64_t s = 0; s < attention_segment_count(shape); s++) {
        struct attention_segment segment = attention_segment_get(shape, s);
        for (int head = 0; head < shape->heads; head++) {
            struct view view = view_make(shape, &segment, head);
            forward_head(&view, args, &scratch);
        }
    }
    return STATUS_OK;
}

static enum status reference_backward(const struct attention_shape *shape, const struct attention_args *args,
                                      struct dev_queue *queue)
{
    (void)queue;
    int64_t doubles;
    TRY(attention_args_check(shape, args, true, 1));
    struct scratch scratch = scratch_lay(shape, args->workspace, &doubles);
    for (int64_t s = 0; s < attention_segment_count(shape); s++) {
        struct attention_segment segment = attention_segment_get(shape, s);
        for (int kv = 0; kv < shape->kv_heads; kv++)
            backward_kv_head(shape, args, &segment, kv, &scratch);
    }
    return STATUS_OK;
}

extern const struct attention attention_reference;
const struct attention attention_reference = {
    .name = "reference",
    .stands_for = "",
    .dev = DEV_CPU,
    .own_softmax = true,
    .supports = attention_shape_verdict,
    .workspace_bytes = reference_workspace_bytes,
    .forward = reference_forward,
    .backward = reference_backward,
};
