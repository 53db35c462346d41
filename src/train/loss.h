/* train/loss.h -- from token losses of ranks and micro-steps to the loss of a step, and the factor of each token's gradient. Arithmetic alone.
 *
 * tokens:  sum of all token losses / max(labels that count, 1), both over all ranks (sp and dp) and all micro-steps of the step.
 *          Equal to the unsharded run for every split.
 * group:   what HuggingFace Trainer's recipe for sequence parallelism gives: each micro-step of each group is a mean of its own over the
 *          labels of its P ranks (0 when there is none), and the step is the mean of those means. A token of a row with few labels weighs
 *          more, so the loss depends on the split.
 *
 * Ranks hold sums, never means: means of unequal numbers of labels must not be averaged, and a mean of none is NaN, which times 0
 * stays NaN. A rank without labels adds nothing and joins every collective like the others.
 */
#ifndef SPTUNE_TRAIN_LOSS_H
#define SPTUNE_TRAIN_LOSS_H

#include "base/dtype.h"
#include "base/status.h"

#include <stdint.h>

enum loss_norm { LOSS_TOKENS, LOSS_GROUP };
const char *loss_norm_name(enum loss_norm norm); /* "tokens" */
enum status loss_norm_parse(const char *text, const char *option, enum loss_norm *out);

/* Token losses of some tokens: of a rank, of a group, of a step. */
struct loss_part {
    double sum;
    int64_t valid; /* labels that count */
};
/* From a mean, as other programs report it. */
struct loss_part loss_from_mean(double mean, int64_t valid);
void loss_add(struct loss_part *to, const struct loss_part *part);

/* parts[groups][micros], each the sum over the ranks of a group. Nothing that counts is loss 0 and a warning. */
double loss_combine(enum loss_norm norm, int groups, int micros, const struct loss_part *parts);

struct loss_share {
    int groups, micros;  /* dp groups; micro-steps of a step */
    int64_t step_valid;  /* labels that count in the whole step (norm tokens) */
    int64_t part_valid;  /* and in this micro-step of this group (norm group) */
    int averaged;        /* ranks over which gradients are averaged afterwards: W, as many wrappers do; 1: they are summed */
};
/* What the gradient of each token loss is multiplied by, so that reducing over all W ranks and adding over micro-steps gives the
 * gradient of loss_combine. It is the number of ranks that hold tokens that undoes an average, never that of dp groups. */
double loss_scale(enum loss_norm norm, const struct loss_share *share);
/* The power of two by which gradients are computed too large, so that fp16 holds them: those of logits by themselves are about 1 / step_valid,
 * and below 6e-8 there is nothing in fp16. With it they are about 1. 1 in other types. Gradients are divided by it where they are used. */
double loss_lift(enum dtype dtype, double step_valid);

#endif
