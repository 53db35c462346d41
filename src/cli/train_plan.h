/* cli/train_plan.h -- `train --plan FILE`: what a recommendation says of a run, and what of it the run has otherwise. */
#ifndef SPTUNE_CLI_TRAIN_PLAN_H
#define SPTUNE_CLI_TRAIN_PLAN_H

#include "train/trainer.h"

struct train_plan {
    const char *file; /* borrowed; NULL: there is none, and nothing below counts */
    struct plan plan;
    int64_t ranks;   /* of the job: the product of its sizes */
    char model[128]; /* "": the file names none */
    int64_t params;  /* of that model */
    int64_t seq;     /* 0: the file has no problem */
    enum dtype dtype;
    bool packed;
};

enum status train_plan_read(const char *file, struct train_plan *out);
/* The model that the file names, where no --model does. */
enum status train_plan_model(const struct train_plan *planned, struct model *out);
/* One line of what this run has and the file has not, where there is any. */
void train_plan_compare(const struct train_plan *planned, const struct trainer_options *run);

#endif
