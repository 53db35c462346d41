/* cli/results_predict.h -- `sptune results predict`: what measured rows would take among more ranks. */
#ifndef SPTUNE_CLI_RESULTS_PREDICT_H
#define SPTUNE_CLI_RESULTS_PREDICT_H

#include "cli/cli.h"

extern const struct opt results_predict_options[];
/* ref: FILE,... that `bench --jsonl` wrote, or a run of the store. STATUS_NODATA when nothing can be predicted. */
enum status results_predict(struct cli *cli, const char *ref);

#endif
