/* kernels/attention_cudnn.h -- attention through cuDNN's graph API: what its files share; nobody else includes it.
 *
 * cuDNN is told a graph of plain operations on tensors (matmul, pointwise, reduction, reshape), recognises attention in it and
 * compiles one kernel for the shape: a plan. Which operations in which order it recognises is in attention_cudnn_sdpa.c. Loading is
 * lazy; plans are kept by shape for the life of the process, since a kernel of theirs may still run.
 */
#ifndef SPTUNE_KERNELS_ATTENTION_CUDNN_H
#define SPTUNE_KERNELS_ATTENTION_CUDNN_H

#include "kernels/attention.h"

#include <cudnn_backend.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDNN_FUNCTIONS(X)                                                                                             \
    X(cudnnGetVersion)                                                                                                 \
    X(cudnnGetErrorString)                                                                                             \
    X(cudnnGetLastErrorString)                                                                                         \
    X(cudnnCreate)                                                                                                     \
    X(cudnnDestroy)                                                                                                    \
    X(cudnnSetStream)                                                                                                  \
    X(cudnnBackendCreateDescriptor)                                                                                    \
    X(cudnnBackendDestroyDescriptor)                                                                                   \
    X(cudnnBackendFinalize)                                                                                            \
    X(cudnnBackendSetAttribute)                                                                                        \
    X(cudnnBackendGetAttribute)                                                                                        \
    X(cudnnBackendExecute)

struct cudnn_api {
#define CUDNN_FIELD(name) __typeof__(&name) name;
    CUDNN_FUNCTIONS(CUDNN_FIELD)
#undef CUDNN_FIELD
    int version; /* 91900 is 9.19.0 */
};

/* libcudnn.so.9, or the file SPTUNE_CUDNN names. STATUS_ABSENT, STATUS_UNSUPPORTED when too old. */
enum status cudnn_load(const struct cudnn_api **out);

/* What a plan depends on: everything of a call but its pointers and, when packed, the lengths of the documents. */
struct cudnn_key {
    int64_t batch;        /* packed: documents, rounded up; those too many are empty */
    int64_t seq_q, seq_k; /* packed: at least the longest document's */
    int64_t tokens_q, tokens_k;
    int64_t q_stride, k_stride, v_stride, o_stride;
    int64_t window;
    int32_t heads, kv_heads; /* kv_heads: those that are used; heads is a multiple */
    int32_t head_dim, head_dim_v;
    int32_t dtype, causal, device;
    float scale;
    int32_t packed, backward, ordered; /* ordered: backward whose sums have a fixed order */
};

/* Names of the tensors that a call brings memory for. */
enum cudnn_tensor {
    CUDNN_Q = 1,
    CUDNN_K,
    CUDNN_V,
    CUDNN_O,
    CUDNN_STATS,
    CUDNN_DO,
    CUDNN_DQ,
    CUDNN_DK,
    CUDNN_DV,
    CUDNN_SUM,    /* rowsum(dO * O), fp32 */
    CUDNN_DQ_SUM, /* dQ in fp32 */
    CUDNN_DK_HEADS,
    CUDNN_DV_HEADS, /* packed GQA: of every query head, storage dtype */
    CUDNN_LEN_Q,
    CUDNN_LEN_K, /* [batch] int32 */
    CUDNN_AT_Q,
    CUDNN_AT_K,
    CUDNN_AT_V,
    CUDNN_AT_O,
    CUDNN_AT_STATS, /* [batch + 1] int64 elements from the tensor's start */
    CUDNN_SCALE,
    CUDNN_NEVER,
    CUDNN_ONE,
    CUDNN_ALL_Q,
    CUDNN_ALL_K,
    CUDNN_WINDOW, /* single values, in host memory */
    CUDNN_TENSORS
};

/* A graph while it is built. The first failure sticks, and its operation is named. */
enum { CUDNN_DESCRIPTORS = 160, CUDNN_OPERATIONS = 40 };
struct cudnn_graph {
    const struct cudnn_api *api;
    cudnnBackendDescriptor_t owned[CUDNN_DESCRIPTORS]; /* released in reverse */
    cudnnBackendDescriptor_t operations[CUDNN_OPERATIONS];
    int nowned, noperations;
    int64_t next; /* name of the next inner tensor */
    cudnnStatus_t error;
    const char *failed;
    bool used[CUDNN_TENSORS]; /* does the graph have this tensor? */
};

typedef cudnnBackendDescriptor_t cudnn_node;

struct cudnn_dims {
    int64_t n[4];       /* batch, heads, rows, columns */
    int64_t strides[4]; /* elements */
};
struct cudnn_dims cudnn_dense(int64_t batch, int64_t heads, int64_t rows, int64_t columns);
struct cudnn_dims cudnn_swapped(struct cudnn_dims dims); /* rows and columns */

/* A tensor with memory; starts: its offsets of documents, NULL when there are none. */
cudnn_node cudnn_outer(struct cudnn_graph *graph, enum cudnn_tensor name, cudnnDataType_t type, struct cudnn_dims dims,
                       cudnn_node starts);
cudnn_node cudnn_value(struct cudnn_graph *graph, enum cudnn_tensor name, cudnnDataType_t type); /* one, by value */
cudnn_node cudnn_inner(struct cudnn_graph *graph, cudnnDataType_t type, struct cudnn_dims dims, cudnn_node starts);
/* y = mode(x, b), t the third operand; b and t may be NULL. type: that it computes in. axis: for GEN_INDEX, else -1. */
void cudnn_pointwise(struct cudnn_graph *graph, cudnnPointwiseMode_t mode, cudnnDataType_t type, int64_t axis,
                     cudnn_node x, cudnn_node b, cudnn_node t, cudnn_node y);
/* c = a b; rows, columns, depth: lengths that hold instead of the tensors', NULL for none. zero_padded: beyond them is 0. */
struct cudnn_lengths {
    cudnn_node rows, columns, depth;
    bool zero_padded;
};
void cudnn_matmul(struct cudnn_graph *graph, cudnn_node a, cudnn_node b, cudnn_node c, struct cudnn_lengths lengths);
void cudnn_reduce(struct cudnn_graph *graph, cudnnReduceTensorOp_t op, cudnn_node x, cudnn_node y);
void cudnn_reshape(struct cudnn_graph *graph, cudnn_node x, cudnn_node y);
cudnn_node cudnn_create(struct cudnn_graph *graph, cudnnBackendDescriptorType_t type);
void cudnn_set(struct cudnn_graph *graph, cudnn_node node, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t count, const void *values);
void cudnn_finish(struct cudnn_graph *graph, cudnn_node node, const char *what);
void cudnn_graph_free(struct cudnn_graph *graph);

/* The operations of one direction. */
void cudnn_sdpa(struct cudnn_graph *graph, const struct cudnn_key *key);

enum { CUDNN_CANDIDATES = 8 };

struct cudnn_plan {
    struct cudnn_key key;
    char why[160]; /* why there is none; "" when there is */
    struct cudnn_graph graph;
    cudnn_node candidates[CUDNN_CANDIDATES]; /* engines with their settings, best first */
    int ncandidates;
    bool recognised; /* cuDNN was asked who takes the graph */
    bool compiled; /* it was tried; then the fields below hold, unless `why` says otherwise */
    cudnn_node plan;
    int64_t workspace_bytes; /* of cuDNN itself */
    int engine;              /* cuDNN's number of the engine */
    bool unordered;          /* the engine says that its sums have no fixed order */
    /* values that the tensors by value point at */
    float scale, never, one, window;
    int32_t all_q, all_k, window_int;
    struct cudnn_plan *next;
};

/* The plan of that key on key->device. Recognised at once; compiled, which takes a second or two, when asked for: then it can run.
 * Never NULL on STATUS_OK; see `why`. */
enum status cudnn_plan_get(const struct cudnn_key *key, bool compiled, const struct cudnn_plan **out);
/* Compiles plans of n keys side by side. What fails is tried again when the plan is asked for. Meanwhile no other thread gets or runs a plan:
 * one of a process uses cuDNN. */
void cudnn_plans_compile(const struct cudnn_key *keys, int n);
/* Without a GPU: how many engines take this graph on the device that `json` describes (cuDNN's own form)? Nothing is compiled. */
enum status cudnn_plan_candidates(const struct cudnn_key *key, const char *json, int *out_engines, char why[160]);
/* memory[name]: device memory, host memory for values; NULL where the plan has no such tensor. */
enum status cudnn_plan_run(const struct cudnn_plan *plan, void *const memory[CUDNN_TENSORS], void *workspace,
                           struct dev_queue *queue);

/* Where things are in a call's workspace, bytes from its start; the same for both directions. */
struct cudnn_room {
    size_t own, stats, sum, dq_sum, dk_heads, dv_heads, dk, dv; /* dk, dv: in storage dtype when fp32 is asked for */
    size_t len_q, len_k, at_q, at_k, at_v, at_o, at_stats;
    size_t bytes;
};
struct cudnn_room cudnn_room_of(const struct cudnn_key *key, int64_t own_bytes);

/* Which key a shape has, or why cuDNN is not asked. Pure: no library, no device. */
struct verdict cudnn_key_of(const struct attention_shape *shape, bool backward, bool ordered, struct cudnn_key *out);
/* Is that key for GPUs of compute capability `major`.x? Pure, as above. */
struct verdict cudnn_key_on(const struct cudnn_key *key, int major);

#ifdef __cplusplus
}
#endif
#endif
