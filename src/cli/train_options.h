/* cli/train_options.h -- what `train` was asked, read from its options. */
#ifndef SPTUNE_CLI_TRAIN_OPTIONS_H
#define SPTUNE_CLI_TRAIN_OPTIONS_H

#include "cli/cli.h"
#include "cli/ranks.h"
#include "cli/train_plan.h"
#include "train/run.h"

extern const struct opt train_options[];

/* Everything that does not depend on the number of ranks, and what --plan says. */
enum status train_options_read(struct cli *cli, struct train_plan *planned, struct run_options *out);
/* What --peak says that one rank's device could do, FLOP per second; 0: it was not given. */
enum status train_options_peak(const struct cli *cli, double *flops);
/* The plan on `ranks` ranks: sizes that were not given, exchange and attention of the device. ranks_most: train_sizes_check. */
enum status train_options_plan(struct cli *cli, const struct train_plan *planned, int ranks, int64_t ranks_most,
                               enum dev_kind device, struct run_options *out);
/* On rank 0, where the ranks are: what only they can tell (which exchange works). */
enum status train_options_finish(struct ranks *ranks, const struct train_plan *planned, struct run_options *options);
/* Mode "train" of the serve loop: spin_rate_ranks, then run_train, on every rank. */
enum status train_serve(struct bench_env *env, const void *data, size_t bytes);

#endif
