/* train/decoder.h -- a decoder of the Llama family, forward and backward, on this rank's tokens of one micro-batch.
 *
 *   x_0 = embedding[ids]   x_{l+1} = block_l(x_l)   logits = norm(x_L) head^T   loss = sum over labels of cross-entropy
 *
 * Rows are the B * S/(P T) tokens of the plan's shard (train/data.h), in its order. Checkpointing full keeps x_l alone and runs each layer
 * again in backward; offload keeps them in host memory (train/stash.h); none keeps what blocks and attention need, an exec per layer.
 * Logits are made of a tile of rows at a time.
 * Gradients go into the params of the same job, unit by unit, each reduced once it is complete. Collective over the job.
 */
#ifndef SPTUNE_TRAIN_DECODER_H
#define SPTUNE_TRAIN_DECODER_H

#include "sp/plan.h"
#include "sp/problem.h"
#include "train/params.h"

struct decoder;

/* Host memory, [rows]; labels NN_IGNORE where nothing counts; positions within the document. */
struct decoder_batch {
    const int32_t *ids, *labels, *positions;
};

/* Layers that have buffers of attention at the same time. */
int decoder_sets(const struct plan *plan, int layers);
/* All is borrowed. */
enum status decoder_create(const struct layout *layout, struct params *params, const struct plan *plan,
                           const struct groups *groups, struct dev *dev, struct decoder **out);
/* What a run of such a problem takes on this rank: of the device, and of the host where rows are offloaded. Nothing is taken. */
struct decoder_need {
    int64_t between; /* rows between layers */
    int64_t kept;    /* what layers keep for their backward, attention's buffers with it */
    int64_t mlp;     /* and what a layer works with */
    int64_t logits;
    int64_t rest;
    int64_t host;
};
enum status decoder_need(const struct layout *layout, const struct plan *plan, const struct problem *problem,
                         const struct groups *groups, struct dev *dev, struct decoder_need *out);
void decoder_destroy(struct decoder *decoder);
/* The problem may differ from call to call: with another length what depends on it is made again, with other documents the calls of attention
 * alone. *loss: the sum of this rank's token losses. With backward, gradients of scale * loss are added. */
enum status decoder_run(struct decoder *decoder, const struct problem *problem, const struct decoder_batch *batch,
                        float scale, bool backward, struct dev_queue *queue, double *loss);
/* After a run without backward (before any: STATUS_USAGE): the logits of one of this rank's rows, [vocab] in host memory; row < 0: another rank's, nothing is
 * written. Collective. */
enum status decoder_logits(struct decoder *decoder, int64_t row, struct dev_queue *queue, float *out);
/* After such a run: the first of x_0 to x_L (0: the embedding, l: what layer l - 1 gives) that is not finite on this rank; -1: all are. */
enum status decoder_not_finite(struct decoder *decoder, struct dev_queue *queue, int *out);
/* From now on every layer is waited for, and its exchanges are timed. */
void decoder_time(struct decoder *decoder);
double decoder_exposed_us(struct decoder *decoder); /* since it was last asked */
int64_t decoder_bytes(const struct decoder *decoder);
int64_t decoder_host_bytes(const struct decoder *decoder);

#endif
