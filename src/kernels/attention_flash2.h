/* kernels/attention_flash2.h -- what flash2's host code hands to its launchers; nobody else includes it. */
#ifndef SPTUNE_KERNELS_ATTENTION_FLASH2_H
#define SPTUNE_KERNELS_ATTENTION_FLASH2_H

#include "kernels/attention.h"
#include "kernels/attention_flash2_index.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tiles of one direction and head_dim: rows of queries and of keys that a block has at a time, and for the backward
 * pass the columns of the gradients that it holds. */
struct flash2_tiles {
    int q, k, columns;
};

struct flash2_call {
    const void *q, *k, *v, *d_o;
    void *o, *dq, *dk, *dv;
    float *lse;
    int64_t q_stride, k_stride, v_stride, o_stride;
    int64_t seq_q, seq_k, window;
    int32_t batch, heads, kv_heads, group, group_first, causal;
    float scale;
    int32_t entries; /* packed: of `entry`, the end included; 0 otherwise */
    int32_t dkv_fp32, dkv_accumulate;
    const struct flash2_entry *entry; /* device memory */
    struct flash2_order order;
    int64_t q_tiles; /* per head, over all segments */
    /* backward, device memory; [batch * heads][seq_q] unless said */
    float *delta;             /* rowsum(dO * O) */
    float *lse2;              /* LSE * log2(e), +inf where the row sees no key */
    float *dq_sum;            /* [batch * heads][parts][q_tiles] tiles in the order of the threads that add to them */
    uint32_t *turn;           /* [batch * heads][parts][q_tiles]: key blocks added so far */
    uint32_t *ticket;         /* blocks started so far */
    int32_t splits;           /* blocks that share the query heads of a kv head */
    float *dk_part, *dv_part; /* splits > 1: [splits][tokens of all batch items][kv_heads][head_dim] */
};

struct flash2_tiles flash2_forward_tiles(int head_dim);
/* roomy: a block can have FLASH2_ROOMY bytes of shared memory. It changes the key tile alone, not the workspace. */
enum { FLASH2_ROOMY = 208 * 1024 };
struct flash2_tiles flash2_backward_tiles(int head_dim, bool roomy);

/* The launchers: shape and pointers were checked. order.tiles and units are set, the section by them. */
enum status flash2_launch_forward(int head_dim, enum dtype dtype, const struct flash2_call *call,
                                  struct dev_queue *queue);
enum status flash2_launch_backward(int head_dim, enum dtype dtype, const struct flash2_call *call,
                                   struct dev_queue *queue);
/* count entries to device memory, through the arguments of launches: nothing of the host's is read later. */
enum status flash2_launch_entries(const struct flash2_entry *entries, int count, struct flash2_entry *out,
                                  struct dev_queue *queue);

enum status flash2_shared_most(struct dev_queue *queue, int *out_bytes);
/* Lets a kernel use this much shared memory per block; STATUS_UNSUPPORTED where the GPU has less (99 KiB on 8.6 and 8.9). */
enum status flash2_shared_memory(const void *kernel, int bytes, const char *pass, int head_dim,
                                 struct dev_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
