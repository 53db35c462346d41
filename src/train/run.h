/* train/run.h -- a training run from its first step to its last: what every rank of the job calls with the same bytes.
 *
 * Rank 0 has a sink, which is told of each step and may end the run before the next one; the others have none.
 */
#ifndef SPTUNE_TRAIN_RUN_H
#define SPTUNE_TRAIN_RUN_H

#include "sp/work.h"
#include "train/trainer.h"

struct run_options {
    struct trainer_options trainer;
    bool verify;        /* compare with the unsharded run, and nothing else */
    int64_t eval_every; /* steps; 0: never */
    int64_t eval_steps;
    bool trains;    /* false: no step, but the sample */
    int64_t sample; /* tokens drawn from the model in the end; 0: none */
    double temperature;
    int64_t save_every; /* steps; the last is saved too; 0: only that one, where the trainer has a directory */
};

struct run_sink {
    void *arg;
    enum status (*begin)(void *arg, struct trainer *trainer, int64_t steps);
    enum status (*step)(void *arg, const struct trainer_report *report,
                        const double *eval); /* eval: NULL when there was none */
    /* tokens[prompt + n]: what was given, and what the model made of it. */
    enum status (*sample)(void *arg, const int32_t *tokens, int64_t prompt, int64_t n);
    bool (*stop)(void *arg);
};

struct run_result {
    struct trainer_verdict verdict; /* of verify */
    char worst_name[64];            /* of its worst tensor */
    struct trainer_report last;
    int64_t steps;             /* done */
    int64_t data_tokens;       /* of the file */
    int64_t bytes, host_bytes; /* of parameters, states and activations, the largest of any rank: trainer_bytes */
    int64_t peak_bytes; /* measured, the largest of any rank: in use on its GPU after steps with the most tokens; on CPUs mem_resident then, host_bytes left out */
    struct work_memory predicted; /* of the longest rows */
};

enum status run_train(const struct run_options *options, struct comm *world, struct dev *dev,
                      const struct run_sink *sink, struct run_result *out);

#endif
