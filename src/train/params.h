/* train/params.h -- parameters, gradients and optimizer state, shared by the ranks of a job as ZeRO does.
 *
 * Every rank has data of its own tokens, so gradients are sums over all ranks. The shard group (train/groups.h), dp_shard * sp * tp
 * consecutive ranks, holds one copy of what a stage shards, the same shard on the ranks of a replicate group:
 *
 *   stage   weights      gradients                             fp32 weights, m, v
 *   0       whole        whole, summed over the job            whole
 *   1       whole        whole, summed into shards at the step sharded
 *   2       whole        sharded, after each unit's backward   sharded
 *   3       sharded, a unit gathered while it is used          sharded
 *
 * A unit (train/layout.h) is padded to a multiple of the group. Sums are fp32, in rank order on the CPU: within the shard group, then over
 * the replicate group.
 *
 * Under tensor parallelism (tp, method split_gather) a rank's layers are its tensor-parallel shards, and their group is the ranks of the shard
 * group with the same ones. What these have in common with the tensor-parallel group, norms and replicated KV heads, is summed over that first.
 * Embedding, final norm and head are whole and shared as ever.
 *
 * Beside the caller's queue, where the device has two at once, the next unit's weights are gathered while this one computes and the last
 * one's gradients are reduced; else both take their turn on the caller's.
 *
 * Offloaded, the optimizer's states are in host memory, fp32 weights with them where the storage type is narrower (else they are the weights),
 * and pass through the device at the step (train/stream.h).
 *
 *     TRY(params_weights(params, unit, queue, &weights));  TRY(params_prefetch(params, next, queue));   ... uses of weights
 *     TRY(params_grads(params, unit, queue, &grads));      ...  TRY(params_reduce(params, unit, queue));   // complete for this micro-step
 *     TRY(params_step(params, &adamw, clip, queue, &norm));
 */
#ifndef SPTUNE_TRAIN_PARAMS_H
#define SPTUNE_TRAIN_PARAMS_H

#include "comm/comm.h"
#include "kernels/nn.h"
#include "train/groups.h"
#include "train/layout.h"

struct params;

/* Collective; layout and groups are borrowed. Weights are 0 until params_init, or until masters were written and params_refresh. beside:
 * stages 2 and 3 of several ranks get a queue and a connection of their own, and one more layer of gradients; STATUS_USAGE where the device
 * cannot overlap (dev_can_overlap) or groups->world is not the whole job, which is to be so on all ranks or none. */
enum status params_create(const struct layout *layout, int zero_stage, bool offload, const struct groups *groups,
                          bool beside, struct dev *dev, struct params **out);
/* What such a params takes on this rank, of the device and of the host; nothing is taken. Collective as well. */
enum status params_need(const struct layout *layout, int zero_stage, bool offload, const struct groups *groups,
                        bool beside, struct dev *dev, int64_t *out_bytes, int64_t *out_host_bytes);
void params_destroy(struct params *params);
/* From a normal distribution of standard deviation 0.02 by seed and tensor alone, however the params is shared out; norms 1, biases 0. */
enum status params_init(struct params *params, uint64_t seed, struct dev_queue *queue);

/* The unit's weights of the storage dtype, whole; gathered first where sharded: collective then. They stay until the layer after the
 * next is asked for, those of the first and the last unit until the step. */
enum status params_weights(struct params *params, int unit, struct dev_queue *queue, const void **out);
/* They will be asked for next: begins to gather them. In the place of the weights two layers away,
 * of which no use is put on the queue any more. */
enum status params_prefetch(struct params *params, int unit, struct dev_queue *queue);
/* The unit's gradients, fp32, to be added to; zero at the start of a step. Once reduced they are gone. */
enum status params_grads(struct params *params, int unit, struct dev_queue *queue, float **out);
enum status params_reduce(struct params *params, int unit, struct dev_queue *queue);
/* Collective: sums what is not summed yet, clips to `clip` (0: not) on the global norm, updates, gathers weights of stages 1 and 2, and
 * makes gradients 0. norm: of the gradients times adamw->grad_scale, before clipping. A norm that is not finite changes nothing: STATUS_CHECK. */
enum status params_step(struct params *params, const struct nn_adamw *adamw, double clip, struct dev_queue *queue,
                        double *norm);
/* Is what this rank has of the unit's summed gradients finite? After a step that was refused. */
enum status params_finite(struct params *params, int unit, struct dev_queue *queue, bool *out);
/* Only sums and their norm, for verification: afterwards params_shard has this rank's part. */
enum status params_finish_grads(struct params *params, struct dev_queue *queue, double *norm);

/* Elements that each of `ranks` has of a unit, padding included. */
int64_t params_per(const struct layout *layout, int unit, int ranks);
/* Of each unit this rank holds elements [first, first + n), the rest belongs to others of the group. Padding included. */
struct params_shard {
    int64_t first, n;
    struct comm *group; /* NULL: all is here */
    float *master, *m, *v, *grads;
    bool offloaded; /* masters and moments may be in memory that collectives do not take */
};
struct params_shard params_shard(const struct params *params, int unit);
/* What this rank has of a tensor: elements [*from, *from + n) of its piece, at *at of the shard. Returns n; 0: others have it. */
int64_t params_part(const struct params *params, const struct layout_tensor *tensor, int64_t *from, int64_t *at);
/* Weights of the storage dtype are made again from the fp32 ones after those were written (a checkpoint). Collective. */
enum status params_refresh(struct params *params, struct dev_queue *queue);
int64_t params_bytes(const struct params *params); /* of the device */
int64_t params_host_bytes(const struct params *params);

#endif
