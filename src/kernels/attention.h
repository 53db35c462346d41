/* kernels/attention.h -- scaled dot-product attention on one device, forward and backward.
 *
 *   S = scale * Q K^T + mask,  P = softmax(S),  O = P V,  LSE = log(sum(exp(S)))
 *
 * Shapes, row-major, D contiguous; strides are elements between tokens, so a kernel can read a group of heads out of a wider
 * buffer. Tokens of batch b start at b * seq. Offsets are int64.
 *   q, dq   [batch][seq_q][heads][head_dim]        o, d_o  [batch][seq_q][heads][head_dim_v]
 *   k, dk   [batch][seq_k][kv_heads][head_dim]     v, dv   [batch][seq_k][kv_heads][head_dim_v]
 *   lse     [batch][heads][seq_q] fp32
 * Packed documents: batch 1, cu_q and cu_k give docs + 1 offsets into [tokens]; a query sees keys of its own document only;
 * causal and window apply inside the document. A document may be empty on either side. Tokens before cu[0] and from cu[docs]
 * on (padding) belong to none: they see nothing and nobody sees them.
 * GQA: query head i of this call uses kv head (group_first + i) / group, group = query heads per kv head.
 * causal top-left: key j is seen by query i when j <= i; bottom-right: when j <= i + (seq_k - seq_q). Per document.
 * window w > 0: additionally j > i' - w where i' is the aligned query position (the query itself and w - 1 before it); i' = i
 * without causal. A kv head that no query head uses has zero gradients.
 * A row that sees no key: O = 0, LSE = -inf, all its gradients 0. Storage dtype in and out, fp32 accumulation, deterministic
 * (unless `unordered`): the same bits on any number of threads.
 * Sizes may be 0. No NaN is made where the inputs have none and sums of products stay within fp32; a NaN that a query sees shows.
 *
 * FLOPs: forward 2 * heads * (d_qk + d_v) * pairs, backward 2.5 times that (attention_pairs counts the unmasked pairs).
 *
 * An attention is one file exporting one const struct attention, plus one row in attentions[] (attention.c).
 */
#ifndef SPTUNE_KERNELS_ATTENTION_H
#define SPTUNE_KERNELS_ATTENTION_H

#include "base/dev.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/verdict.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum attention_causal { ATTENTION_FULL, ATTENTION_TOP_LEFT, ATTENTION_BOTTOM_RIGHT };

struct attention_shape {
    int64_t batch, seq_q, seq_k;
    int heads, kv_heads;
    int group;       /* query heads per kv head, >= 1 */
    int group_first; /* position of query head 0 of this call within its group */
    int head_dim, head_dim_v;
    enum dtype dtype;
    float scale;     /* usually 1/sqrt(head_dim) */
    enum attention_causal causal;
    int64_t window;  /* 0: none */
    int docs;        /* 0: not packed */
    const int64_t *cu_q, *cu_k; /* docs + 1 each, host memory, borrowed; NULL when not packed */
    int64_t q_stride, k_stride, v_stride, o_stride; /* elements between tokens; gradients use the same as their tensor */
};

struct attention_args {
    const void *q, *k, *v;
    void *o;
    float *lse;
    /* backward only */
    const void *d_o;
    void *dq;
    void *dk, *dv;      /* storage dtype, or fp32 when dkv_fp32 */
    bool dkv_fp32;
    bool dkv_accumulate; /* add to dk, dv (fp32 only): a kv head shared by several calls is rounded once, by the caller. The sums
                            start from dk, dv, so calls on a group's heads in order give the bits of one call (kernel "cpu") */
    void *workspace;    /* at least the bytes asked for; contents free */
};

struct attention {
    const char *name;   /* "reference", "cpu" ... */
    const char *stands_for; /* class of a target's kernel this is nearest to: "sdpa", "flash_attention_2", or "" */
    enum dev_kind dev;
    const char *(*version)(void); /* of a library that it loads, "" when that is absent; NULL: all of it is in this program */
    bool rounds_calls; /* with dkv_fp32, what a call adds to dk and dv was rounded to the storage dtype */
    bool own_softmax; /* its backward makes the softmax anew from the call's keys and reads neither o nor lse. Others take both as given: those
                         of all keys make a call's gradients its exact share of a larger attention's */
    bool unordered; /* its backward adds in an order that differs between runs: not the same bits twice */
    struct verdict (*supports)(const struct attention_shape *shape);
    /* NULL, or before the first use of n shapes: what takes long for each, side by side. What fails says so in its call. */
    void (*prepare)(const struct attention_shape *const *shapes, int n, bool backward);
    /* O(longest document), for calls on queues of at most `threads` threads (dev_queue_threads); 0 when refused. */
    size_t (*workspace_bytes)(const struct attention_shape *shape, bool backward, int threads);
    enum status (*forward)(const struct attention_shape *shape, const struct attention_args *args, struct dev_queue *queue);
    enum status (*backward)(const struct attention_shape *shape, const struct attention_args *args, struct dev_queue *queue);
};

extern const struct attention *const attentions[]; /* NULL-terminated; the reference first */
const struct attention *attention_find(const char *name);
/* Shape rules that hold for every kernel (positive counts, group covers kv_heads, cu ascending ...); STATUS_USAGE. */
enum status attention_shape_check(const struct attention_shape *shape);
/* Before the first use of n shapes, forward or both directions: cuDNN compiles a kernel for each. Never needed, only faster. */
void attention_prepare(const struct attention *attention, const struct attention_shape *const *shapes, int n,
                       bool backward);
/* Contiguous strides, group = heads / kv_heads, scale 1/sqrt(head_dim). */
void attention_shape_fill(struct attention_shape *shape);
/* Unmasked (query, key) pairs of one head, over batch and documents. */
double attention_pairs(const struct attention_shape *shape);
double attention_flops(const struct attention_shape *shape, bool backward);

#ifdef __cplusplus
}
#endif
#endif
