/* sp/ring.h -- attention whose keys and values go round a ring of ranks, forward and backward.
 *
 * Each rank keeps its queries and sees, step by step, the keys and values of every rank of the ring. Forward: outputs of the steps
 * are merged by their softmax statistics in fp32. Backward: with the statistics and outputs of the whole every step gives its exact
 * share of the gradients; dq adds up here, dk and dv travel with their keys, in fp32, and are home after as many steps as there
 * are ranks, rounded before the last pass. The order of all sums is fixed.
 *
 *     passes     kv 0 | kv 1   | kv 2   | ...                      forward: what arrives while a step computes is for the next
 *     compute    own  | step 1 | step 2 | ...
 *
 *     passes     kv 0 |  dkv 0, kv 1 |  dkv 1, kv 2 | ...  | dkv   backward: a step's dk and dv are added to what arrived
 *     compute    own  |  step 1      |  step 2      | ...          meanwhile, and passed on while the next step computes
 *
 * Passes run beside where the device can do both at once. Tensors are those of sp/exec.h's head side, each token's heads contiguous:
 * [batch][local] tokens, two pieces of each row one behind the other.
 */
#ifndef SPTUNE_SP_RING_H
#define SPTUNE_SP_RING_H

#include "comm/comm.h"
#include "kernels/attention.h"
#include "sp/ring_block.h"

struct ring;

struct ring_shape {
    int64_t batch;
    struct ring_row row;          /* its documents are needed while ring_create runs: ring_documents */
    struct attention_shape heads; /* heads, groups, widths, dtype, scale and strides; lengths and masks are set per step */
    const struct attention *attention;
    bool backward;
};

/* NULL where forward or backward has no use for it. */
struct ring_tensors {
    const void *q, *k, *v;
    void *o;
    float *lse; /* [batch][heads][local] */
    const void *d_o;
    void *dq, *dk, *dv;
    void *workspace; /* ring_workspace_bytes */
};

/* Not collective: what fails, fails here alone. comm is borrowed, of shape->row.ranks ranks, at least 2. */
enum status ring_create(const struct ring_shape *shape, struct comm *comm, struct dev *dev, struct ring **out);
/* From now on rows have these documents, cu is borrowed for the call; as ring_create. What fails leaves a ring to be destroyed. */
enum status ring_documents(struct ring *ring, int docs, const int64_t *cu);
void ring_destroy(struct ring *ring);
int64_t ring_bytes(const struct ring *ring);           /* allocated */
int64_t ring_workspace_bytes(const struct ring *ring); /* that the kernel wants of its caller */

/* Collective. */
enum status ring_forward(struct ring *ring, const struct ring_tensors *tensors, struct dev_queue *queue);
enum status ring_backward(struct ring *ring, const struct ring_tensors *tensors, struct dev_queue *queue);
/* Of the last run, microseconds, after the queue was synchronised: what computed, and what was passed, summed. */
void ring_times(const struct ring *ring, double *attention_us, double *pass_us);

#endif
