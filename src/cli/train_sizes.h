/* cli/train_sizes.h -- sizes of a training job: what was asked, what remains of the ranks, and which near them can be. */
#ifndef SPTUNE_CLI_TRAIN_SIZES_H
#define SPTUNE_CLI_TRAIN_SIZES_H

#include "cli/cli.h"
#include "train/trainer.h"

/* sp, tp, dp_replicate and dp_shard: what was asked, else the plan's, else what remains of the ranks. */
enum status train_sizes_read(const struct cli *cli, int ranks, struct plan *plan);
/* Is the plan, with its exchange and kernel, one that these ranks can run, at each of the lengths? STATUS_USAGE names the nearest
 * sizes that could be, and other numbers of ranks up to ranks_most. */
enum status train_sizes_check(const struct cli *cli, int ranks, int64_t ranks_most, enum dev_kind device,
                              const struct trainer_options *options);

#endif
