/* train/groups.h -- the groups of ranks that a plan cuts a job into, and sums over them.
 *
 * Rank = ((replicate * dp_shard + shard) * sp + s) * tp + t: the sp * tp that share a sequence are consecutive ranks, so is a shard group.
 * The tensor-parallel group, which cuts layers (sp/block.h), consecutive ranks too, is those of one s, or one sp group under split_gather; each
 * has another tensor-parallel shard. What is done shard by shard is done by the ranks with the same one: an sp group with tp, and what shares
 * out a layer.
 *
 *     sp 2, tp 2, dp_shard 2      rank   0 1 2 3 4 5 6 7
 *                                 cut    a a b b c c d d
 *                                 sp     a b a b c d c d
 *                                 layers a b a b a b a b      (shard: all)
 */
#ifndef SPTUNE_TRAIN_GROUPS_H
#define SPTUNE_TRAIN_GROUPS_H

#include "comm/comm.h"
#include "sp/plan.h"

struct groups {
    struct comm *world;                  /* borrowed */
    struct comm *sp, *shard, *replicate; /* owned; shard: what ZeRO shares a copy of the parameters among */
    struct comm *layers; /* the same for layers: ranks with the same tensor-parallel shards; else it is `shard` */
    struct comm *cut;    /* the tensor-parallel group: under split_gather it is `sp`; NULL: there is none */
    struct dev *dev;
    void *room; /* device memory of sums */
};

/* Collective. The sizes' product is the world's size. */
enum status groups_create(struct comm *world, const struct plan *plan, struct dev *dev, struct groups *out);
void groups_destroy(struct groups *groups); /* of a zeroed one nothing */
/* A group of this rank alone. Collective. */
enum status groups_create_alone(struct comm *world, struct dev *dev, struct groups *out);

/* comm_agree among the ranks that share a sequence. Where other groups are not told of a failure by comm_agree of all, comm_give_up has to. */
enum status groups_agree(const struct groups *groups, enum status mine, const char *doing);
/* comm_agree of all ranks, after work of each that grows with the model: waits for GROUPS_PATIENCE_US. */
enum status groups_await(const struct groups *groups, enum status mine, const char *doing);

/* values[n] become their sums over `comm`, in rank order: the same bits everywhere. room: of the device, groups_sum_room doubles. Done on
 * return. */
size_t groups_sum_room(const struct comm *comm, int n);
enum status groups_sum_over(struct comm *comm, double *values, int n, double *room, struct dev_queue *queue);
enum { GROUPS_SUM_MAX = 8 };
/* The same over the world. */
enum status groups_sum(const struct groups *groups, double *values, int n, struct dev_queue *queue);

/* How long an operation of any of these groups may wait from now on; returns what that was. For when one rank works and others wait. */
#define GROUPS_PATIENCE_US (INT64_C(1800) * 1000 * 1000)
int64_t groups_deadline(struct groups *groups, int64_t after_us);

#endif
