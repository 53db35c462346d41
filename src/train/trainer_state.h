/* train/trainer_state.h -- what a training run holds; for trainer*.c. */
#ifndef SPTUNE_TRAIN_TRAINER_STATE_H
#define SPTUNE_TRAIN_TRAINER_STATE_H

#include "train/decoder.h"
#include "train/trainer.h"

struct trainer {
    struct trainer_options options;
    struct comm *world;
    struct dev *dev;
    struct dev_queue *queue;
    struct groups groups;
    struct layout layout;
    struct params *params;
    struct decoder *decoder;
    struct data *data;
    struct data_batch *batch; /* [accumulate] of the step */
    int64_t first;
    int64_t done; /* steps behind the weights as they are */
};

void trainer_problem(const struct trainer_options *options, const struct data_batch *batch, int world,
                     struct problem *out);
/* What rank `rank` of a group under the plan reads of a micro-step. */
enum status trainer_read(struct data *data, const struct plan *plan, int64_t step, int64_t micro, int group, int rank,
                         struct data_batch *out);
/* What the token losses of one micro-step of one group count in the loss of the step; gradients are summed over ranks. */
double trainer_share(const struct trainer *trainer, double step_valid, int64_t part_valid);
/* What is wrong with the step, or the evaluation, that was just run, by rank and layer: STATUS_CHECK. Collective. mine: this rank's part of the
 * loss. */
enum status trainer_loss_not_finite(struct trainer *trainer, bool evaluation, double loss, double mine);
enum status trainer_grads_not_finite(struct trainer *trainer);
/* Loss and summed gradients of a step; nothing is updated. */
enum status trainer_gradients(struct trainer *trainer, int64_t step, double *loss, double *norm);

#endif
