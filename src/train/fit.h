/* train/fit.h -- does a training run fit into memory? Asked before minutes are spent on filling the machine with most of it.
 *
 *     TRY(fit_need(&layout, &plan, &problem, &groups, beside, saves, dev, &need));   // collective over groups->world
 *     TRY(fit_check(&need, &plan, world, dev));                               // collective over world
 */
#ifndef SPTUNE_TRAIN_FIT_H
#define SPTUNE_TRAIN_FIT_H

#include "train/decoder.h"

/* Of one rank, in bytes. */
struct fit_need {
    int64_t params; /* weights, gradients, optimizer state */
    struct decoder_need decoder;
    int64_t host; /* of parameters, beside the device's */
    int64_t saving, saving_host; /* while a checkpoint is written */
};

/* problem: the largest of the run. beside: as params_create. saves: it writes checkpoints. */
enum status fit_need(const struct layout *layout, const struct plan *plan, const struct problem *problem,
                     const struct groups *groups, bool beside, bool saves, struct dev *dev, struct fit_need *out);
int64_t fit_bytes(const struct fit_need *need); /* of the device */
/* STATUS_NOMEM names what does not fit and what would make it fit. Ranks that share a memory, a CPU host's or a GPU's, count together; world
 * NULL: this rank alone asks, and counts alone. */
enum status fit_check(const struct fit_need *need, const struct plan *plan, struct comm *world, struct dev *dev);

#endif
