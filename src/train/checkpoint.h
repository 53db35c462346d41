/* train/checkpoint.h -- parameters and optimizer state on disk.
 *
 *   DIR/step-N/model.safetensors       HuggingFace's names, fp32
 *              config.json             what transformers needs to load it
 *              optimizer.safetensors   m.NAME and v.NAME, fp32
 *              train.json              sptune.checkpoint/1: step, seed, plan
 *
 * A directory is written under another name and renamed once it is whole, so what is called step-N is complete. Any split reads what any
 * split wrote: every rank reads its shards.
 */
#ifndef SPTUNE_TRAIN_CHECKPOINT_H
#define SPTUNE_TRAIN_CHECKPOINT_H

#include "train/params.h"

/* What a save takes of this rank's device and host, beside all that a step has: pieces of units; on rank 0 the largest unit. */
void checkpoint_need(const struct layout *layout, int zero_stage, bool offload, const struct groups *groups,
                     int64_t *out_bytes, int64_t *out_host_bytes);
/* Collective over the job. step: how many were done. */
enum status checkpoint_save(const char *dir, int64_t step, const struct layout *layout, struct params *params,
                            struct groups *groups, const struct plan *plan, uint64_t seed, struct dev *dev,
                            struct dev_queue *queue);
/* The last whole one: its directory and step; *step < 0: there is none. */
enum status checkpoint_last(const char *dir, char *out, size_t size, int64_t *step);
/* What its train.json says. STATUS_USAGE: it cannot be read, or is of another step than the directory's name. */
enum status checkpoint_seed(const char *dir, int64_t step, uint64_t *out);
/* Weights, from a checkpoint or any HuggingFace one of the same shapes; with `state` the optimizer's too. */
enum status checkpoint_load(const char *dir, bool state, const struct layout *layout, struct params *params,
                            struct dev_queue *queue);

#endif
