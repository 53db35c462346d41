/* train/trainer.h -- a training run: data, decoder, parameters and optimizer under a plan; collective over the job.
 *
 * Loss: train/loss.h. Where no label of a step is valid the loss and the gradient are 0 and the step says so.
 *
 *     TRY(trainer_create(&options, world, dev, &trainer));
 *     for (int64_t step = trainer_first(trainer); step < trainer_steps(trainer); step++)
 *         TRY(trainer_step(trainer, step, &report));
 *     trainer_destroy(trainer);
 */
#ifndef SPTUNE_TRAIN_TRAINER_H
#define SPTUNE_TRAIN_TRAINER_H

#include "comm/comm.h"
#include "model/model.h"
#include "sp/plan.h"
#include "sp/problem.h"
#include "train/data.h"
#include "train/loss.h"

enum { TRAINER_PATH = 1024, TRAINER_SEQS = 16 };
#define TRAINER_SOURCES "this project's sources" /* the data where no file is named */

/* A plain value: every rank is given the same bytes. */
struct trainer_options {
    struct model model;
    struct plan plan;
    enum dtype dtype;
    char data[TRAINER_PATH]; /* "": TRAINER_SOURCES */
    enum data_form form;
    struct data_separator separator;
    int64_t seqs[TRAINER_SEQS];
    int n_seqs;
    int64_t steps; /* 0: what the data give */
    int64_t epochs;
    double lr, min_lr; /* cosine from the one to the other after a linear warm-up */
    int64_t warmup;    /* steps; < 0: a tenth of those there are */
    double clip;       /* of the global norm; 0: none */
    double beta1, beta2, eps, decay;
    enum loss_norm norm;
    bool timed; /* exchanges, which waits after each layer */
    uint64_t seed;
    char from[TRAINER_PATH]; /* initial weights: safetensors, or a directory of them; "": drawn by the seed */
    char save[TRAINER_PATH]; /* directory of checkpoints; "": none */
    bool resume;             /* from the last checkpoint there, if there is one */
};

struct trainer_report {
    int64_t step; /* from 0 */
    double loss, grad_norm, lr, seconds;
    double exposed_us;     /* of exchanges that nothing hid, this rank's; 0 unless timed */
    int64_t tokens, valid; /* of the step, over the job: padding not counted; labels that count */
};

/* The largest problem of a run among `world` ranks: the longest rows of a micro-batch, not packed. */
void trainer_longest(const struct trainer_options *options, int world, struct problem *out);

/* What of a plan this trainer does not do, "" when it does all. */
const char *trainer_cannot(const struct plan *plan);

struct trainer;
enum status trainer_create(const struct trainer_options *options, struct comm *world, struct dev *dev,
                           struct trainer **out);
void trainer_destroy(struct trainer *trainer);
int64_t trainer_steps(const struct trainer *trainer);
int64_t trainer_data_tokens(const struct trainer *trainer);
int64_t trainer_data_steps(const struct trainer *trainer); /* that the data have, in all epochs */
int64_t trainer_first(const struct trainer *trainer);      /* where a resumed run goes on, else 0 */
/* A checkpoint of the state before `step`, in options.save. Collective; what was there stays until it is whole. */
enum status trainer_save(struct trainer *trainer, int64_t step);
double trainer_lr(const struct trainer_options *options, int64_t steps, int64_t step);
enum status trainer_step(struct trainer *trainer, int64_t step, struct trainer_report *out);
/* The loss of a step's rows, without gradients. */
enum status trainer_evaluate(struct trainer *trainer, int64_t step, double *loss);
/* Of parameters, states and activations on this rank: device memory, and the host memory that plans with offload take beside it. */
int64_t trainer_bytes(const struct trainer *trainer);
int64_t trainer_host_bytes(const struct trainer *trainer);

/* n tokens that the model goes on with after the first *prompt tokens of the data, drawn at `temperature` (0: the likeliest) by the seed;
 * *drawn are fewer where rank 0 is interrupted. *out: [*prompt + n], owned by the caller, the same on every rank. */
enum status trainer_sample(struct trainer *trainer, int64_t n, double temperature, int64_t *prompt, int64_t *drawn,
                           int32_t **out);

/* How far the run under its plan is from the same rows on one rank: of the loss, and of each tensor's gradient |g - whole| / |whole|
 * (of one below a millionth of the norm of all gradients: within 1.2e-7 of that), where the type is narrower than fp32 against the whole run in
 * fp32. Both start from the seed's weights, or from `from`. */
struct trainer_verdict {
    double loss, whole_loss, loss_error, loss_allowed;
    double worst; /* over tensors, against what is allowed */
    double
        allowed; /* of that tensor: 1e-5 in fp32; else twice the error of the whole run in the type, and a rounding */
    int worst_tensor;  /* trainer_tensor_name */
    double norm_error; /* of the global norm */
    int tensors;
};
const char *trainer_tensor_name(const struct trainer *trainer, int tensor);
/* Gradients are spent by it: only trainer_destroy comes after. */
enum status trainer_verify(struct trainer *trainer, struct trainer_verdict *out);

#endif
