/* sp/block.h -- one transformer block of a Llama-family decoder under sequence parallelism, forward and backward.
 *
 *   h = norm(x)   q, k, v = h W^T (+ bias)   [q, k = norm per head]   RoPE   o = attention(q, k, v)   x' = x + o W^T
 *   h' = norm(x')   y = x' + (silu(h' gate^T) * (h' up^T)) down^T
 *
 * x, y and their gradients [rows][hidden], rows = B * S/P tokens of this rank, in the order of its shard (sp/shard.h). The attention,
 * with its exchanges, is an exec's (sp/exec.h). Weights [out][in] as HuggingFace stores them, of the storage dtype; gradients of weights fp32, added
 * to what is there. A block holds no weights: those of any layer are given to each call.
 *
 * Neighbouring ranks may cut the weights too, a piece for each: the T of tp, or under method split_gather all P (plan_ways). They gather
 * their rows where these meet weights; the s that they have together are S/P with tp, S under split_gather:
 *
 *   [s/T] norm -> all-gather -> [s] q k v | gate up (my heads, my columns) -> attention | silu -> o | down -> reduce-scatter -> [s/T] +
 *
 * The exec has the heads of this rank alone, and its group the ranks with the same piece: sp of them with tp, under split_gather it
 * exchanges nothing. The reduce-scatter is of the storage dtype: comm.h says how it sums. Backward is the mirror image: dy is gathered, d of
 * the normalised rows summed and scattered; normalised rows are gathered once more instead of kept. What a rank has of a weight:
 * block_cut_of. A gradient is of this rank's tokens (norms) or heads (norms of q and k, kv heads that several ranks have): ranks that
 * have the same have to add theirs up.
 *
 * Backward needs what the forward of the same layer left: in `kept`, and in the exec. With one kept and one exec for all layers
 * (checkpointing full), block_forward runs again before block_backward; with one of each per layer it does not. The second time nobody
 * reads y: with y NULL, on every rank of the group, it runs no further than x', and backward makes what it needs of the MLP.
 *
 *     TRY(block_create(&shape, &parallel, rows, 0, dev, &block)); TRY(block_keep(block, &kept));
 *     TRY(block_forward(block, &weights, &rope, exec, kept, x, y, queue));
 *     TRY(block_backward(block, &weights, &grads, &rope, exec, kept, x, dy, queue));   // dy becomes dx
 */
#ifndef SPTUNE_SP_BLOCK_H
#define SPTUNE_SP_BLOCK_H

#include "base/dev.h"
#include "base/dtype.h"
#include "comm/comm.h"
#include "sp/exec.h"

#include <stdbool.h>
#include <stdint.h>

/* Name in HuggingFace's checkpoints behind "model.layers.N.". */
#define BLOCK_TENSOR_LIST(X)                                                                                           \
    X(NORM, "input_layernorm.weight")                                                                                  \
    X(Q, "self_attn.q_proj.weight")                                                                                    \
    X(K, "self_attn.k_proj.weight")                                                                                    \
    X(V, "self_attn.v_proj.weight")                                                                                    \
    X(Q_BIAS, "self_attn.q_proj.bias")                                                                                 \
    X(K_BIAS, "self_attn.k_proj.bias")                                                                                 \
    X(V_BIAS, "self_attn.v_proj.bias")                                                                                 \
    X(Q_NORM, "self_attn.q_norm.weight")                                                                               \
    X(K_NORM, "self_attn.k_norm.weight")                                                                               \
    X(O, "self_attn.o_proj.weight")                                                                                    \
    X(MLP_NORM, "post_attention_layernorm.weight")                                                                     \
    X(GATE, "mlp.gate_proj.weight")                                                                                    \
    X(UP, "mlp.up_proj.weight")                                                                                        \
    X(DOWN, "mlp.down_proj.weight")
#define BLOCK_ENUM_TENSOR(name, text) BLOCK_##name,
enum block_tensor { BLOCK_TENSOR_LIST(BLOCK_ENUM_TENSOR) BLOCK_TENSORS };

struct block_shape {
    int64_t hidden, ffn;
    int heads, kv_heads, head_dim;
    bool qkv_bias, qk_norm;
    float eps; /* of the norms */
    enum dtype dtype;
};

/* rows x cols; a vector has rows 1. False: a block of this shape has no such tensor. */
bool block_tensor_shape(const struct block_shape *shape, enum block_tensor tensor, int64_t *rows, int64_t *cols);
const char *block_tensor_name(enum block_tensor tensor); /* "mlp.up_proj.weight" */

/* What one of the ranks that cut a layer has: its heads, kv heads and columns of the MLP. */
struct block_shape block_shape_cut(const struct block_shape *whole, int ways);
/* How a whole tensor is cut: `parts` equal pieces along one dimension, each on `copies` neighbouring ranks; rank r has piece
 * r / copies. parts * copies = ways. */
struct block_cut {
    int dim; /* 0: rows, 1: columns */
    int parts, copies;
};
/* STATUS_USAGE: heads or columns that `ways` ranks cannot share, saying which. */
enum status block_cut_check(const struct block_shape *whole, int ways);
struct block_cut block_cut_of(const struct block_shape *whole, int ways, enum block_tensor tensor);

struct block_weights {
    const void *of[BLOCK_TENSORS]; /* NULL where there is none */
};
struct block_grads {
    float *of[BLOCK_TENSORS];
};

struct block;      /* scratch for calls of at most `rows` tokens */
struct block_kept; /* what a backward needs of its forward */

/* How ranks share it. */
struct block_parallel {
    struct comm *cut; /* those that cut its weights, borrowed; NULL: weights are whole */
    int64_t batch;    /* sequences in the rows; each is cut among the ranks */
};

/* shape: of whole weights. mlp_rows: rows of the MLP at a time, of which nothing is kept; 0: all, kept. */
enum status block_create(const struct block_shape *shape, const struct block_parallel *parallel, int64_t rows,
                         int64_t mlp_rows, struct dev *dev, struct block **out);
/* What such a block takes of the device, and each block_keep of it; nothing is taken. */
enum status block_need(const struct block_shape *shape, const struct block_parallel *parallel, int64_t rows,
                       int64_t mlp_rows, struct dev *dev, int64_t *out_block, int64_t *out_kept);
void block_destroy(struct block *block);
enum status block_keep(struct block *block,
                       struct block_kept **out); /* belongs to the block's device; destroyed before it */
void block_kept_destroy(struct block_kept *kept);
int64_t block_bytes(const struct block *block); /* scratch */
int64_t block_kept_bytes(const struct block_kept *kept);

/* all [rows * ways] from each rank's mine [rows]. Collective over those that cut weights. */
enum status block_gather_positions(struct block *block, const int32_t *mine, int32_t *all, struct dev_queue *queue);

/* positions [rows * ways] int32, inv_freq [head_dim / 2]: of RoPE, in device memory. y is not x; NULL: as above. exec: of as many rows and
 * of this rank's heads. */
struct block_rope {
    const int32_t *positions;
    const float *inv_freq;
};
enum status block_forward(struct block *block, const struct block_weights *weights, const struct block_rope *rope,
                          struct exec *exec, struct block_kept *kept, const void *x, void *y, struct dev_queue *queue);
/* dy [rows][hidden] becomes dx. x: what forward was given. */
enum status block_backward(struct block *block, const struct block_weights *weights, const struct block_grads *grads,
                           const struct block_rope *rope, struct exec *exec, struct block_kept *kept, const void *x,
                           void *dy, struct dev_queue *queue);

#endif
