/* bench/transformer.h -- a transformer block (sp/block.h) under a plan with data of its own, and the same block on one rank.
 *
 * Weights and rows are functions of where they belong (bench/data.h), so that every rank of any split makes its own part. What a rank
 * computes under a plan is compared with what one rank alone computes of all of it: outputs and gradients of rows row by row, gradients of
 * weights added up over the ranks. Llama's block: no biases, no norms of q and k; hidden and ffn are the problem's.
 *
 *     TRY(truth_open(env, &order, &truth));                       // whole, here; its memory is free again but for what is compared
 *     TRY(transformer_open(env, &group, &order, queue, &t));
 *     TRY(transformer_forward(t, queue)); ...
 *     TRY(truth_compare(env, truth, t, &ok, why));
 */
#ifndef SPTUNE_BENCH_TRANSFORMER_H
#define SPTUNE_BENCH_TRANSFORMER_H

#include "bench/bench.h"
#include "bench/group.h"
#include "sp/exec.h"

struct transformer_order {
    const struct problem *problem; /* backward when its direction has that */
    const struct plan *plan;
    uint64_t seed;
    int64_t batch_first; /* of the data: batch items before this group's */
    int rank;            /* in the sp group */
};
/* Can a block be made of it? The plan itself is plan_check's. */
struct verdict transformer_verdict(const struct problem *problem);

struct transformer;
/* Collective over the job: the group is one of those it is cut into. Filled, complete on return. */
enum status transformer_open(struct bench_env *env, const struct group *group, const struct transformer_order *order,
                             struct dev_queue *queue, struct transformer **out);
void transformer_close(struct transformer *t); /* accepts NULL */
enum status transformer_forward(struct transformer *t, struct dev_queue *queue);
/* After a forward. What backward overwrites, made new: gradients of weights zero, that of the outputs what it was. */
enum status transformer_prepare(struct transformer *t, struct dev_queue *queue);
enum status transformer_backward(struct transformer *t, struct dev_queue *queue);
/* NaN where forward writes its outputs. */
enum status transformer_poison(struct transformer *t, struct dev_queue *queue);
struct exec *transformer_exec(struct transformer *t); /* borrowed */
int64_t transformer_bytes(const struct transformer *t);

/* What this rank's part of the block must hold, from the block that this rank computes alone. */
struct truth;
/* Collective over the job. STATUS_NOMEM where one rank has no memory for the whole. */
enum status truth_open(struct bench_env *env, const struct transformer_order *order, struct truth **out);
void truth_close(struct truth *truth); /* accepts NULL */
/* Collective over the job. Forward's outputs when the problem is forward's, else the gradients. */
enum status truth_compare(struct bench_env *env, const struct truth *truth, struct transformer *t, bool *ok,
                          char why[256]);

#endif
