/* kernels/attention_cudnn_sdpa.c -- attention as the graph of operations that cuDNN recognises.
 *
 * P = [batch][heads][seq_q][seq_k] stands for inner tensors that never exist in memory. cuDNN looks for these operations in this
 * order, and finds no engine for the same arithmetic told otherwise.
 *
 *   forward    S = Q K^T; S *= scale; masks; m = max S; e = exp(S - m); l = sum e; LSE = m + log l; P = e / l (rounded); O = P V
 *   backward   D = rowsum(dO * O) * 1; P = exp(masks(Q K^T * scale - LSE)); dV = P^T dO; dS = (dO V^T - D) * P * scale;
 *              dK = dS^T Q; dQ = dS K, summed in fp32 memory by blocks of keys in any order and then rounded
 *   ordered    the same but for the end: dS goes through memory (seq_q x seq_k) and dQ comes from one matmul
 *
 * With GQA the gradients of K and V are those of each query head, rounded, and then summed over the group in fp32. Packed:
 * every tensor has the offsets of its documents, and each matmul is cut to the document's lengths.
 */
#include "kernels/attention_cudnn.h"

struct build {
    struct cudnn_graph *graph;
    const struct cudnn_key *key;
    cudnnDataType_t io;
    struct cudnn_dims scores, row;                             /* [b][h][q][k], [b][h][q][1] */
    cudnn_node len_q, len_k, at_q, at_k, at_v, at_o, at_stats; /* NULL unless packed */
    cudnn_node scale, never;
};

static cudnn_node floats(const struct build *build, struct cudnn_dims dims)
{
    return cudnn_inner(build->graph, CUDNN_DATA_FLOAT, dims, NULL);
}

/* A new inner tensor of x's shape. */
static cudnn_node apply(const struct build *build, cudnnPointwiseMode_t mode, cudnn_node x, cudnn_node b,
                        struct cudnn_dims dims)
{
    cudnn_node y = floats(build, dims);
    cudnn_pointwise(build->graph, mode, CUDNN_DATA_FLOAT, -1, x, b, NULL, y);
    return y;
}

/* Tokens outermost: [tokens][heads][dim] with `stride` elements between tokens. */
static struct cudnn_dims by_token(int64_t batch, int64_t heads, int64_t seq, int64_t dim, int64_t stride)
{
    return (struct cudnn_dims){{batch, heads, seq, dim}, {seq * stride, dim, stride, 1}};
}

static cudnn_node starts(struct build *build, enum cudnn_tensor name)
{
    struct cudnn_dims dims = {{build->key->batch + 1, 1, 1, 1}, {1, 1, 1, 1}};
    return build->key->packed ? cudnn_outer(build->graph, name, CUDNN_DATA_INT64, dims, NULL) : NULL;
}

static cudnn_node lengths(struct build *build, enum cudnn_tensor name)
{
    struct cudnn_dims dims = {{build->key->batch, 1, 1, 1}, {1, 1, 1, 1}};
    return build->key->packed ? cudnn_outer(build->graph, name, CUDNN_DATA_INT32, dims, NULL) : NULL;
}

static struct build begin(struct cudnn_graph *graph, const struct cudnn_key *key)
{
    struct build build = {.graph = graph,
                          .key = key,
                          .io = key->dtype == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
                          .scores = cudnn_dense(key->batch, key->heads, key->seq_q, key->seq_k),
                          .row = cudnn_dense(key->batch, key->heads, key->seq_q, 1)};
    build.len_q = lengths(&build, CUDNN_LEN_Q);
    build.len_k = lengths(&build, CUDNN_LEN_K);
    build.at_q = starts(&build, CUDNN_AT_Q);
    build.at_k = starts(&build, CUDNN_AT_K);
    build.at_v = starts(&build, CUDNN_AT_V);
    build.at_o = starts(&build, CUDNN_AT_O);
    build.at_stats = starts(&build, CUDNN_AT_STATS);
    build.scale = cudnn_value(graph, CUDNN_SCALE, CUDNN_DATA_FLOAT);
    if (key->packed || key->causal != ATTENTION_FULL || key->window > 0)
        build.never = cudnn_value(graph, CUDNN_NEVER, CUDNN_DATA_FLOAT);
    return build;
}

/* [batch][heads][seq] as in attention.h; packed: [tokens][heads], the only order that cuDNN has for documents. */
static struct cudnn_dims stats_dims(const struct cudnn_key *key)
{
    if (!key->packed)
        return cudnn_dense(key->batch, key->heads, key->seq_q, 1);
    return (struct cudnn_dims){{key->batch, key->heads, key->seq_q, 1}, {key->seq_q * key->heads, 1, key->heads, 1}};
}

static cudnn_node indices(const struct build *build, cudnn_node scores, int64_t axis)
{
    cudnn_node y = cudnn_inner(build->graph, CUDNN_DATA_INT32, build->scores, NULL);
    cudnn_pointwise(build->graph, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, axis, scores, NULL, NULL, y);
    return y;
}

static cudnn_node compare(const struct build *build, cudnnPointwiseMode_t mode, cudnn_node x, cudnn_node b)
{
    cudnn_node y = cudnn_inner(build->graph, CUDNN_DATA_BOOLEAN, build->scores, NULL);
    cudnn_pointwise(build->graph, mode, CUDNN_DATA_BOOLEAN, -1, x, b, NULL, y);
    return y;
}

static cudnn_node shift(const struct build *build, cudnnPointwiseMode_t mode, cudnn_node x, cudnn_node b,
                        cudnnDataType_t type)
{
    cudnn_node y = cudnn_inner(build->graph, type, build->scores, NULL);
    cudnn_pointwise(build->graph, mode, type, -1, x, b, NULL, y);
    return y;
}

static cudnn_node keep_where(const struct build *build, cudnn_node scores, cudnn_node seen)
{
    cudnn_node y = floats(build, build->scores);
    cudnn_pointwise(build->graph, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, scores, build->never, seen, y);
    return y;
}

enum { ROWS = 2, COLUMNS = 3 };

static cudnn_node mask_lengths(const struct build *build, cudnn_node scores)
{
    if (!build->key->packed)
        return scores;
    cudnn_node row = indices(build, scores, ROWS), column = indices(build, scores, COLUMNS);
    cudnn_node left = compare(build, CUDNN_POINTWISE_CMP_LT, row, build->len_q);
    cudnn_node right = compare(build, CUDNN_POINTWISE_CMP_LT, column, build->len_k);
    return keep_where(build, scores, compare(build, CUDNN_POINTWISE_LOGICAL_AND, left, right));
}

/* Lengths for the alignment at the bottom right: of each document, or of the whole tensors. */
static cudnn_node whole(const struct build *build, enum cudnn_tensor name, cudnn_node length)
{
    return length ? length : cudnn_value(build->graph, name, CUDNN_DATA_INT32);
}

/* row (+ seq_k - seq_q) >= column */
static cudnn_node mask_causal(const struct build *build, cudnn_node scores)
{
    if (build->key->causal == ATTENTION_FULL)
        return scores;
    cudnn_node row = indices(build, scores, ROWS), column = indices(build, scores, COLUMNS);
    if (build->key->causal == ATTENTION_BOTTOM_RIGHT) {
        row = shift(build, CUDNN_POINTWISE_ADD, row, whole(build, CUDNN_ALL_K, build->len_k), CUDNN_DATA_INT32);
        row = shift(build, CUDNN_POINTWISE_SUB, row, whole(build, CUDNN_ALL_Q, build->len_q), CUDNN_DATA_INT32);
    }
    return keep_where(build, scores, compare(build, CUDNN_POINTWISE_CMP_GE, row, column));
}

/* column + window (- seq_k + seq_q) > row; the value holds the whole shift when it is one for all, as a float then. */
static cudnn_node mask_window(const struct build *build, cudnn_node scores)
{
    const struct cudnn_key *key = build->key;
    if (key->window == 0)
        return scores;
    bool by_document = key->packed && key->causal == ATTENTION_BOTTOM_RIGHT;
    cudnnDataType_t type = by_document ? CUDNN_DATA_INT32 : CUDNN_DATA_FLOAT;
    cudnn_node row = indices(build, scores, ROWS), column = indices(build, scores, COLUMNS);
    column = shift(build, CUDNN_POINTWISE_ADD, column, cudnn_value(build->graph, CUDNN_WINDOW, type), type);
    if (by_document) {
        column = shift(build, CUDNN_POINTWISE_SUB, column, build->len_k, type);
        column = shift(build, CUDNN_POINTWISE_ADD, column, build->len_q, type);
    }
    return keep_where(build, scores, compare(build, CUDNN_POINTWISE_CMP_GT, column, row));
}

static struct cudnn_lengths cut(cudnn_node rows, cudnn_node columns, cudnn_node depth)
{
    return (struct cudnn_lengths){rows, columns, depth, false};
}

static void forward(struct cudnn_graph *graph, const struct cudnn_key *key)
{
    struct build build = begin(graph, key);
    struct cudnn_dims k_dims = by_token(key->batch, key->kv_heads, key->seq_k, key->head_dim, key->k_stride);
    cudnn_node q = cudnn_outer(graph, CUDNN_Q, build.io,
                               by_token(key->batch, key->heads, key->seq_q, key->head_dim, key->q_stride), build.at_q);
    cudnn_node k = cudnn_outer(graph, CUDNN_K, build.io, cudnn_swapped(k_dims), build.at_k);
    cudnn_node v =
        cudnn_outer(graph, CUDNN_V, build.io,
                    by_token(key->batch, key->kv_heads, key->seq_k, key->head_dim_v, key->v_stride), build.at_v);
    cudnn_node o =
        cudnn_outer(graph, CUDNN_O, build.io,
                    by_token(key->batch, key->heads, key->seq_q, key->head_dim_v, key->o_stride), build.at_o);
    cudnn_node stats = cudnn_outer(graph, CUDNN_STATS, CUDNN_DATA_FLOAT, stats_dims(key), build.at_stats);
    cudnn_node s = floats(&build, build.scores), top = floats(&build, build.row), total = floats(&build, build.row);
    cudnn_matmul(graph, q, k, s, (struct cudnn_lengths){build.len_q, build.len_k, NULL, key->packed != 0});
    s = apply(&build, CUDNN_POINTWISE_MUL, s, build.scale, build.scores);
    s = mask_window(&build, mask_causal(&build, mask_lengths(&build, s)));
    cudnn_reduce(graph, CUDNN_REDUCE_TENSOR_MAX, s, top);
    cudnn_node e = apply(&build, CUDNN_POINTWISE_EXP, apply(&build, CUDNN_POINTWISE_SUB, s, top, build.scores), NULL,
                         build.scores);
    cudnn_reduce(graph, CUDNN_REDUCE_TENSOR_ADD, e, total);
    cudnn_node log_total = apply(&build, CUDNN_POINTWISE_LOG, total, NULL, build.row);
    cudnn_pointwise(graph, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, top, log_total, NULL, stats);
    cudnn_node p = cudnn_inner(graph, build.io, build.scores, NULL);
    cudnn_pointwise(graph, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, -1, e, total, NULL, p);
    cudnn_matmul(graph, p, v, o, cut(build.len_q, NULL, build.len_k));
}

/* a^T b is the gradient of K or V: of the kv heads themselves, or of each query head and then summed over the group. */
static void gradient(const struct build *build, cudnn_node scores, cudnn_node b, cudnn_node out,
                     enum cudnn_tensor heads_name, struct cudnn_dims kv, cudnn_node at)
{
    const struct cudnn_key *key = build->key;
    cudnn_node turned = cudnn_inner(build->graph, build->io, cudnn_swapped(build->scores), NULL);
    cudnn_reshape(build->graph, scores, turned);
    if (key->heads == key->kv_heads) {
        cudnn_matmul(build->graph, turned, b, out, cut(build->len_k, NULL, build->len_q));
        return;
    }
    struct cudnn_dims dims = cudnn_dense(key->batch, key->heads, key->seq_k, kv.n[3]);
    cudnn_node each;
    if (key->packed) {
        /* Offsets are those of the sum; cuDNN multiplies them by the group. */
        int64_t group = key->heads / key->kv_heads;
        dims.strides[0] = kv.strides[0] * group;
        dims.strides[1] = kv.strides[1];
        dims.strides[2] = kv.strides[2] * group;
        each = cudnn_outer(build->graph, heads_name, build->io, dims, at);
    } else {
        each = cudnn_inner(build->graph, build->io, dims, NULL);
    }
    cudnn_matmul(build->graph, turned, b, each, cut(build->len_k, NULL, build->len_q));
    cudnn_reduce(build->graph, CUDNN_REDUCE_TENSOR_ADD, each, out);
}

static cudnn_node row_sums(const struct build *build, cudnn_node o, cudnn_node d_o)
{
    const struct cudnn_key *key = build->key;
    struct cudnn_dims dims = cudnn_dense(key->batch, key->heads, key->seq_q, key->head_dim_v);
    cudnn_node one = cudnn_value(build->graph, CUDNN_ONE, CUDNN_DATA_FLOAT);
    cudnn_node product = apply(build, CUDNN_POINTWISE_MUL, d_o, o, dims), sum = floats(build, build->row);
    cudnn_reduce(build->graph, CUDNN_REDUCE_TENSOR_ADD, product, sum);
    cudnn_node out = cudnn_outer(build->graph, CUDNN_SUM, CUDNN_DATA_FLOAT, stats_dims(key), build->at_stats);
    cudnn_pointwise(build->graph, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, sum, one, NULL, out);
    return out;
}

static void gradient_of_q(const struct build *build, cudnn_node ds, cudnn_node k_turned, struct cudnn_dims k,
                          struct cudnn_dims q, cudnn_node dq)
{
    const struct cudnn_key *key = build->key;
    cudnn_node plain = cudnn_inner(build->graph, build->io, k, build->at_k);
    cudnn_reshape(build->graph, k_turned, plain);
    if (key->ordered) {
        cudnn_matmul(build->graph, ds, plain, dq, cut(build->len_q, NULL, build->len_k));
        return;
    }
    struct cudnn_dims dims = key->packed ? q : cudnn_dense(key->batch, key->heads, key->seq_q, key->head_dim);
    cudnn_node sum = cudnn_outer(build->graph, CUDNN_DQ_SUM, CUDNN_DATA_FLOAT, dims, build->at_q);
    cudnn_matmul(build->graph, ds, plain, sum, cut(build->len_q, NULL, build->len_k));
    cudnn_pointwise(build->graph, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, -1, sum, NULL, NULL, dq);
}

static void backward(struct cudnn_graph *graph, const struct cudnn_key *key)
{
    struct build build = begin(graph, key);
    struct cudnn_dims q_dims = by_token(key->batch, key->heads, key->seq_q, key->head_dim, key->q_stride);
    struct cudnn_dims o_dims = by_token(key->batch, key->heads, key->seq_q, key->head_dim_v, key->o_stride);
    struct cudnn_dims k_dims = by_token(key->batch, key->kv_heads, key->seq_k, key->head_dim, key->k_stride);
    struct cudnn_dims v_dims = by_token(key->batch, key->kv_heads, key->seq_k, key->head_dim_v, key->v_stride);
    cudnn_node q = cudnn_outer(graph, CUDNN_Q, build.io, q_dims, build.at_q);
    cudnn_node k = cudnn_outer(graph, CUDNN_K, build.io, cudnn_swapped(k_dims), build.at_k);
    cudnn_node v = cudnn_outer(graph, CUDNN_V, build.io, cudnn_swapped(v_dims), build.at_v);
    cudnn_node o = cudnn_outer(graph, CUDNN_O, build.io, o_dims, build.at_o);
    cudnn_node d_o = cudnn_outer(graph, CUDNN_DO, build.io, o_dims, build.at_o);
    cudnn_node stats = cudnn_outer(graph, CUDNN_STATS, CUDNN_DATA_FLOAT, stats_dims(key), build.at_stats);
    cudnn_node dq = cudnn_outer(graph, CUDNN_DQ, build.io, q_dims, build.at_q);
    cudnn_node dk = cudnn_outer(graph, CUDNN_DK, build.io, k_dims, build.at_k);
    cudnn_node dv = cudnn_outer(graph, CUDNN_DV, build.io, v_dims, build.at_v);
    cudnn_node sums = row_sums(&build, o, d_o);
    cudnn_node s = floats(&build, build.scores), dp = floats(&build, build.scores);
    cudnn_matmul(graph, q, k, s, cut(build.len_q, build.len_k, NULL));
    s = apply(&build, CUDNN_POINTWISE_MUL, s, build.scale, build.scores);
    s = apply(&build, CUDNN_POINTWISE_SUB, s, stats, build.scores);
    s = mask_window(&build, mask_causal(&build, mask_lengths(&build, s)));
    cudnn_node p = apply(&build, CUDNN_POINTWISE_EXP, s, NULL, build.scores);
    gradient(&build, p, d_o, dv, CUDNN_DV_HEADS, v_dims, build.at_v);
    cudnn_matmul(graph, d_o, v, dp, cut(build.len_q, build.len_k, NULL));
    dp = apply(&build, CUDNN_POINTWISE_SUB, dp, sums, build.scores);
    dp = apply(&build, CUDNN_POINTWISE_MUL, dp, p, build.scores);
    cudnn_node ds = cudnn_inner(graph, key->ordered ? build.io : CUDNN_DATA_FLOAT, build.scores, NULL);
    cudnn_pointwise(graph, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, dp, build.scale, NULL, ds);
    gradient(&build, ds, q, dk, CUDNN_DK_HEADS, k_dims, build.at_k);
    gradient_of_q(&build, ds, k, k_dims, q_dims, dq);
}

void cudnn_sdpa(struct cudnn_graph *graph, const struct cudnn_key *key)
{
    if (key->backward)
        backward(graph, key);
    else
        forward(graph, key);
}
