/* train/whole.h -- a unit's tensors whole again on the host of one rank, from ZeRO's shards and tensor-parallel ones: for files and comparisons.
 *
 *     TRY(whole_create(&layout, params, &groups, dev, comm_rank(groups.world) == 0, &whole));
 *     TRY(whole_gather(whole, unit, params_shard(params, unit).master, queue));      // all of rank 0's shard group
 *     whole_read(whole, tensor, 0, n, out);                                          // where it was kept
 *     whole_destroy(whole);
 */
#ifndef SPTUNE_TRAIN_WHOLE_H
#define SPTUNE_TRAIN_WHOLE_H

#include "train/params.h"

#include <stdbool.h>

struct whole;

/* Pieces of at most 16 MiB on the device, and where it keeps the largest unit on the host; all is borrowed. Not collective. */
enum status whole_create(const struct layout *layout, struct params *params, const struct groups *groups,
                         struct dev *dev, bool keeps, struct whole **out);
void whole_destroy(struct whole *whole);
/* What it takes, of parameters that are shared out or offloaded as said. */
void whole_need(const struct layout *layout, bool sharded, bool offloaded, const struct groups *groups, bool keeps,
                int64_t *out_bytes, int64_t *out_host_bytes);
/* part: this rank's shard of the unit, as params_shard has it. Collective over a shard group. */
enum status whole_gather(struct whole *whole, int unit, const float *part, struct dev_queue *queue);
/* Elements [first, first + count) of a whole tensor of the unit that was gathered last. */
void whole_read(const struct whole *whole, const struct layout_tensor *tensor, int64_t first, int64_t count,
                float *out);

#endif
