/* sp/exec.h -- a plan bound to buffers: one attention layer under sequence parallelism, forward and backward.
 *
 * Collective over the sp group, with tp over the sp ranks with the same part of the layer. Owns its buffers; the caller fills and reads
 * the sequence side through exec_tensors. Destroyed after use. Forward: for each chunk, exchange q (and k, v on the first chunk that needs them) in, attention, exchange o out. Backward:
 * do in, attention backward, dq out; dk and dv out once complete. Softmax statistics are kept from forward.
 *
 * Under method ring nothing is exchanged: keys and values go round the group while it computes (sp/ring.h). Under ulysses+ring the ranks
 * that share a place of the ring exchange, and the attention between is a ring's. Which tokens a rank has: exec_tensors. Under split_gather
 * nothing moves at all: rows were gathered before (sp/block.h), and what is called the sequence side is this rank's heads of all tokens. So it
 * is with tp, but that the sp ranks with these heads share the tokens by their method.
 *
 *     TRY(exec_create(&problem, &plan, group, dev, &exec));
 *     const struct exec_tensors *t = exec_tensors(exec);   // fill t->q, t->k, t->v, t->d_o
 *     TRY(exec_forward(exec, queue)); TRY(exec_backward(exec, queue));
 */
#ifndef SPTUNE_SP_EXEC_H
#define SPTUNE_SP_EXEC_H

#include "comm/comm.h"
#include "sp/exchange.h"
#include "sp/plan.h"
#include "sp/problem.h"
#include "sp/shard.h"

struct exec;

/* Sequence side of this rank, contiguous: q, o, d_o, dq [B][S/P][heads][D]; k, v, dk, dv [B][S/P][kv_heads][D]. Of split_gather
 * [B][S] instead, and heads / P and its kv heads; with tp T heads / T and its kv heads. */
struct exec_tensors {
    int64_t seq_local, seq; /* padded */
    struct shard shard;     /* which tokens of each row these are */
    void *q, *k, *v, *o, *d_o, *dq, *dk, *dv;
    size_t q_bytes, k_bytes, v_bytes, o_bytes;
};

/* Device time of the last run, microseconds, this rank; 0 for parts that did not run. exposed: what of the run was not attention.
 * With several chunks, where the device can compute and exchange at once, the parts overlap and add up to more than the run. Read
 * after the queue was synchronised. What a ring passes on counts as exchange in. */
struct exec_times {
    double exchange_in_us, attention_us, exchange_out_us, exposed_us;
};

/* A plan that plan_check forbids is STATUS_UNSUPPORTED with its reason. When one rank fails all do. */
enum status exec_create(const struct problem *problem, const struct plan *plan, struct comm *group, struct dev *dev,
                        struct exec **out);
/* From now on for a problem with other documents in the same rows (problem_alike). Buffers and exchanges stay; the kernel's workspace is that of
 * the largest problem so far. Nothing may be under way. Not collective: what fails, fails here alone, and the exec is good for nothing but
 * exec_destroy then. A backward needs another forward. */
enum status exec_documents(struct exec *exec, const struct problem *problem);
void exec_destroy(struct exec *exec);
const struct exec_tensors *exec_tensors(const struct exec *exec);
enum status exec_forward(struct exec *exec, struct dev_queue *queue); /* on the CPU complete when it returns */
enum status exec_backward(struct exec *exec, struct dev_queue *queue); /* after a forward, of a problem with backward */
/* The parts alone, of PROBLEM_FORWARD or PROBLEM_BACKWARD: all chunks in (EXCHANGE_TO_HEADS) or out without attention, and the reverse. A ring
 * passes on during attention. */
enum status exec_exchange(struct exec *exec, enum problem_direction way, enum exchange_direction to,
                          struct dev_queue *queue);
enum status exec_attention(struct exec *exec, enum problem_direction way, struct dev_queue *queue);
const struct exec_times *exec_times(struct exec *exec);
/* The head side, for checks of the middle layout: q, k, v after exchange in, o before exchange out. Where nothing is exchanged they are the
 * sequence side. */
struct exec_middle { /* each [B][tokens of shard][local heads][D], contiguous */
    const void *q, *k, *v, *o;
    int heads, kv_heads;       /* local */
    int head_first, kv_first;  /* index of local head 0, among those of the ranks that cut a layer as this one does */
    struct shard shard;        /* all tokens, or those of a place of the ring */
};
struct exec_middle exec_middle(const struct exec *exec);
const char *exec_in_use(const struct exec *exec); /* what carries data of its exchange, or of its group where it has none */
/* Bytes this exec allocated, staging of its exchange included, for the memory model's tests. */
int64_t exec_bytes(const struct exec *exec);

#endif
