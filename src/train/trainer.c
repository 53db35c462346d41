/* train/trainer.c -- the steps of a training run. */
#include "train/trainer.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "sp/shard.h"
#include "train/checkpoint.h"
#include "train/corpus.h"
#include "train/fit.h"
#include "train/trainer_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- life ---- */

/* The sources compiled in, as a file without a name. */
static enum status corpus_open(int *out_fd, char path[TRAINER_PATH])
{
    size_t bytes = (size_t)(train_corpus_end - train_corpus);
    int fd = memfd_create("sptune sources", MFD_CLOEXEC);
    for (size_t at = 0; fd >= 0 && at < bytes;) {
        ssize_t n = write(fd, train_corpus + at, bytes - at);
        if (n <= 0) {
            close(fd);
            fd = -1;
        }
        at += n > 0 ? (size_t)n : 0;
    }
    if (fd < 0)
        return FAIL(STATUS_IO, "no memory for %s", TRAINER_SOURCES);
    text_print(path, TRAINER_PATH, "/proc/self/fd/%d", fd);
    *out_fd = fd;
    return STATUS_OK;
}

static enum status data_prepare(struct trainer *t)
{
    const struct trainer_options *o = &t->options;
    char path[TRAINER_PATH];
    int fd = -1;
    text_print(path, sizeof path, "%s", o->data);
    if (path[0] == '\0')
        TRY(corpus_open(&fd, path));
    struct data_options how = {.path = path,
                               .name = o->data[0] == '\0' ? TRAINER_SOURCES : NULL,
                               .form = o->form,
                               .vocab = o->model.vocab,
                               .seqs = o->seqs,
                               .n_seqs = o->n_seqs,
                               .pad_to = shard_multiple(&o->plan),
                               .separator = o->separator,
                               .micro_batch = (int)o->plan.micro_batch,
                               .accumulate = (int)o->plan.accumulate,
                               .groups = comm_size(t->world) / plan_sequence_ranks(&o->plan),
                               .epochs = o->epochs,
                               .seed = o->seed};
    enum status status = data_open(&how, &t->data);
    if (fd >= 0)
        close(fd);
    TRY(status);
    return mem_alloc((size_t)o->plan.accumulate * sizeof *t->batch, "batches", (void **)&t->batch);
}

/* A stale copy on one host would be other rows for a part of a sequence. */
static enum status data_alike(const struct trainer *t)
{
    enum { EXACT = 52 }; /* bits of a double */
    const bool named = t->options.data[0] != '\0';
    const char *name = named ? t->options.data : TRAINER_SOURCES;
    const char *right = named ? "the same file on all hosts" : "the same build on all hosts";
    uint64_t hash = 0;
    TRY(comm_agree(t->world, data_sample(t->data, &hash), "read the data"));
    const double tokens = (double)data_tokens(t->data), sample = (double)(hash >> (64 - EXACT));
    double most[4] = {tokens, -tokens, sample, -sample};
    TRY(comm_max(t->world, most, 4));
    if (most[0] != -most[1])
        return status_agreed(
            HINT(FAIL(STATUS_USAGE, "%s: %.0f tokens for one rank, %.0f for another", name, most[0], -most[1]), "%s",
                 right));
    if (most[2] != -most[3])
        return status_agreed(
            HINT(FAIL(STATUS_USAGE, "%s: other bytes for one rank than for another", name), "%s", right));
    return STATUS_OK;
}

/* Before anything is taken or trained. Rank 0 alone hears an interrupt: the others learn of it after a round. */
static enum status tokens_fit(const struct trainer *t)
{
    int rank = comm_rank(t->world), ranks = comm_size(t->world), rounds = data_check_rounds(t->data, ranks);
    if (rounds > 1)
        log_info("reading all of %s for a token beyond the vocabulary", t->options.data);
    for (int round = 0; round < rounds; round++)
        TRY(comm_agree(t->world, data_check(t->data, round * ranks + rank, rounds * ranks), "read the data"));
    return STATUS_OK;
}

static enum status load_checkpoint(struct trainer *t, const char *dir, int64_t step)
{
    uint64_t seed;
    TRY(checkpoint_seed(dir, step, &seed));
    if (seed != t->options.seed)
        log_warn("%s was trained with --seed %llu, this run goes on with --seed %llu: rows come in another order", dir,
                 (unsigned long long)seed, (unsigned long long)t->options.seed);
    return checkpoint_load(dir, true, &t->layout, t->params, t->queue);
}

/* The last checkpoint, initial weights from elsewhere, or drawn ones; their gathers may be under way on return. */
static enum status weights_begin(struct trainer *t)
{
    const struct trainer_options *o = &t->options;
    char dir[TRAINER_PATH + 64];
    int64_t step = -1;
    enum status status = STATUS_OK;
    if (o->resume)
        status = checkpoint_last(o->save, dir, sizeof dir, &step);
    TRY(comm_agree(t->world, status, "look for a checkpoint"));
    double last[2] = {(double)step, -(double)step};
    TRY(comm_max(t->world, last, 2));
    if (last[0] != -last[1])
        return status_agreed(
            HINT(FAIL(STATUS_USAGE, "%s: the last checkpoint is step %.0f for one rank, %.0f for another", o->save,
                      last[0], -last[1]),
                 "a directory that all hosts share; -1 is none"));
    if (o->resume && step < 0)
        log_info("--resume: no checkpoint in %s, this run begins anew", o->save);
    t->first = t->done = step > 0 ? step : 0;
    if (step < 0 && o->from[0] == '\0')
        return params_init(t->params, o->seed, t->queue);
    status =
        step >= 0 ? load_checkpoint(t, dir, step) : checkpoint_load(o->from, false, &t->layout, t->params, t->queue);
    TRY(groups_await(&t->groups, status, "read weights"));
    return params_refresh(t->params, t->queue);
}

/* What comes next waits for other ranks no longer than usual: not behind gathers of a whole model. */
static enum status weights_make(struct trainer *t)
{
    TRY(weights_begin(t));
    return dev_sync(t->queue, INT64_MAX);
}

/* May ZeRO's collectives run beside? On the CPU they would take the CPUs that compute, and UCX has one thread at a time. */
static bool overlaps(const struct comm *world, const struct dev *dev)
{
    return dev_kind_of(dev) != DEV_CPU && dev_can_overlap(dev) && comm_size(world) == boot_size(comm_boot(world));
}

static enum status fits(const struct trainer *t)
{
    const struct trainer_options *o = &t->options;
    struct problem problem;
    struct fit_need need;
    trainer_longest(o, comm_size(t->world), &problem);
    TRY(fit_need(&t->layout, &o->plan, &problem, &t->groups, overlaps(t->world, t->dev), o->save[0] != '\0', t->dev,
                 &need));
    return fit_check(&need, &o->plan, t->world, t->dev);
}

enum status trainer_create(const struct trainer_options *options, struct comm *world, struct dev *dev,
                           struct trainer **out)
{
    struct trainer *t = NULL;
    enum status status;
    if (options->separator.n > 0 && options->plan.micro_batch > 1)
        return status_agreed(
            HINT(FAIL(STATUS_USAGE,
                      "packed rows differ in their documents; %lld of them cannot go through attention together",
                      (long long)options->plan.micro_batch),
                 "--micro-batch 1 with more --accumulate"));
    TRY(comm_alloc(world, sizeof *t, "a training run", "prepare training", (void **)&t));
    t->options = *options;
    t->world = world;
    t->dev = dev;
    TRY_OUT(comm_agree(world, dev_queue_create(dev, &t->queue), "prepare training"));
    int ways = plan_ways(&options->plan);
    TRY_OUT(comm_agree(world,
                       layout_create_cut(&options->model, options->dtype, ways, comm_rank(world) % ways, &t->layout),
                       "read the model"));
    TRY_OUT(comm_agree(world, data_prepare(t), "open the data"));
    TRY_OUT(data_alike(t));
    TRY_OUT(tokens_fit(t));
    TRY_OUT(groups_create(world, &options->plan, dev, &t->groups));
    TRY_OUT(fits(t));
    TRY_OUT(params_create(&t->layout, options->plan.zero_stage, options->plan.offload == PLAN_OFFLOAD_OPTIMIZER,
                          &t->groups, overlaps(world, dev), dev, &t->params));
    TRY_OUT(weights_make(t));
    TRY_OUT(decoder_create(&t->layout, t->params, &options->plan, &t->groups, dev, &t->decoder));
    if (options->timed)
        decoder_time(t->decoder);
    *out = t;
    return STATUS_OK;
out:
    status = comm_give_up(world, status);
    trainer_destroy(t);
    return status;
}

void trainer_destroy(struct trainer *t)
{
    if (t == NULL)
        return;
    decoder_destroy(t->decoder);
    params_destroy(t->params);
    groups_destroy(&t->groups);
    for (int64_t m = 0; t->batch != NULL && m < t->options.plan.accumulate; m++)
        data_batch_free(&t->batch[m]);
    free(t->batch);
    data_close(t->data);
    layout_free(&t->layout);
    dev_queue_destroy(t->queue);
    free(t);
}

const char *trainer_cannot(const struct plan *plan)
{
    if (plan->offload == PLAN_OFFLOAD_PARAMS)
        return "this trainer keeps weights on the device";
    return plan->loss == PLAN_LOSS_FUSED ? "this trainer has no fused loss" : "";
}

int64_t trainer_first(const struct trainer *t)
{
    return t->first;
}

enum status trainer_save(struct trainer *t, int64_t step)
{
    return checkpoint_save(t->options.save, step, &t->layout, t->params, &t->groups, &t->options.plan, t->options.seed,
                           t->dev, t->queue);
}

int64_t trainer_data_tokens(const struct trainer *t)
{
    return data_tokens(t->data);
}

int64_t trainer_data_steps(const struct trainer *t)
{
    return data_steps(t->data);
}

int64_t trainer_steps(const struct trainer *t)
{
    int64_t all = data_steps(t->data);
    return t->options.steps > 0 && t->options.steps < all ? t->options.steps : all;
}

const char *trainer_tensor_name(const struct trainer *t, int tensor)
{
    return t->layout.tensor[tensor].name;
}

int64_t trainer_bytes(const struct trainer *t)
{
    return params_bytes(t->params) + decoder_bytes(t->decoder);
}

int64_t trainer_host_bytes(const struct trainer *t)
{
    return params_host_bytes(t->params) + decoder_host_bytes(t->decoder);
}

double trainer_lr(const struct trainer_options *o, int64_t steps, int64_t step)
{
    const double pi = 3.14159265358979323846;
    int64_t warmup = o->warmup < 0 ? steps / 10 : o->warmup;
    if (step < warmup)
        return o->lr * (double)(step + 1) / (double)warmup;
    double share = steps > warmup ? (double)(step - warmup) / (double)(steps - warmup) : 0;
    return o->min_lr + 0.5 * (o->lr - o->min_lr) * (1 + cos(pi * share));
}

/* ---- a step ---- */

void trainer_problem(const struct trainer_options *o, const struct data_batch *batch, int world, struct problem *out)
{
    problem_from_model(&o->model, batch->seq, world, out);
    out->batch = batch->rows;
    out->dtype = o->dtype;
    out->docs = batch->doc_len != NULL ? batch->docs[0] : 0;
    for (int d = 0; d < out->docs; d++)
        out->doc_len[d] = batch->doc_len[d];
}

void trainer_longest(const struct trainer_options *o, int world, struct problem *out)
{
    struct data_batch longest = {.rows = (int)o->plan.micro_batch};
    for (int i = 0; i < o->n_seqs; i++)
        longest.seq = o->seqs[i] > longest.seq ? o->seqs[i] : longest.seq;
    trainer_problem(o, &longest, world, out);
    out->docs = o->separator.n > 0; /* one as long as the row stands for any: kernels ask for the same memory */
    out->doc_len[0] = out->docs > 0 ? longest.seq : 0;
}

enum status trainer_read(struct data *data, const struct plan *plan, int64_t step, int64_t micro, int group, int rank,
                         struct data_batch *out)
{
    struct shard shard;
    shard_of(plan, data_padded(data, step), rank, &shard);
    return data_read(data, step, (int)micro, group, &shard, out);
}

/* Batches of the step; *valid and *tokens over the job. */
static enum status read_step(struct trainer *t, int64_t step, double *valid, double *tokens)
{
    const struct plan *plan = &t->options.plan;
    int rank = comm_rank(t->world), ranks = plan_sequence_ranks(plan);
    enum status status = STATUS_OK;
    double sums[2] = {0};
    for (int64_t m = 0; m < plan->accumulate && status == STATUS_OK; m++) {
        status = trainer_read(t->data, plan, step, m, data_group(rank, ranks), data_index(rank, ranks), &t->batch[m]);
        if (status == STATUS_OK && data_index(rank, ranks) == 0) {
            sums[0] += (double)t->batch[m].valid;
            sums[1] += (double)(t->batch[m].seq * t->batch[m].rows);
        }
    }
    TRY(comm_agree(t->world, status, "read its rows"));
    TRY(groups_sum(&t->groups, sums, 2, t->queue));
    *valid = sums[0];
    *tokens = sums[1];
    return STATUS_OK;
}

double trainer_share(const struct trainer *t, double step_valid, int64_t part_valid)
{
    struct loss_share share = {.groups = comm_size(t->world) / plan_sequence_ranks(&t->options.plan),
                               .micros = (int)t->options.plan.accumulate,
                               .step_valid = (int64_t)step_valid,
                               .part_valid = part_valid,
                               .averaged = 1};
    return loss_scale(t->options.norm, &share);
}

static enum status run_step(struct trainer *t, double valid, bool backward, double *loss)
{
    double sum = 0, lift = loss_lift(t->options.dtype, valid);
    for (int64_t m = 0; m < t->options.plan.accumulate; m++) {
        const struct data_batch *b = &t->batch[m];
        struct decoder_batch batch = {b->ids, b->labels, b->positions};
        struct problem problem;
        double here = 0, share = trainer_share(t, valid, b->valid);
        trainer_problem(&t->options, b, comm_size(t->world), &problem);
        TRY(decoder_run(t->decoder, &problem, &batch, (float)(share * lift), backward, t->queue, &here));
        sum += share * here;
    }
    double mine = sum;
    TRY(groups_sum(&t->groups, &sum, 1, t->queue));
    *loss = sum;
    return isfinite(sum) ? STATUS_OK : trainer_loss_not_finite(t, !backward, sum, mine);
}

enum status trainer_gradients(struct trainer *t, int64_t step, double *loss, double *norm)
{
    double valid, tokens;
    TRY(read_step(t, step, &valid, &tokens));
    TRY(run_step(t, valid, true, loss));
    TRY(params_finish_grads(t->params, t->queue, norm));
    *norm /= loss_lift(t->options.dtype, valid);
    return isfinite(*norm) ? STATUS_OK : trainer_grads_not_finite(t);
}

enum status trainer_step(struct trainer *t, int64_t step, struct trainer_report *out)
{
    const struct trainer_options *o = &t->options;
    int64_t begin = clock_ns();
    double valid, tokens;
    struct trainer_report report = {.step = step, .lr = trainer_lr(o, trainer_steps(t), step)};
    struct nn_adamw adamw = {.lr = (float)report.lr,
                             .beta1 = (float)o->beta1,
                             .beta2 = (float)o->beta2,
                             .eps = (float)o->eps,
                             .decay = (float)o->decay,
                             .step = step + 1};
    TRY(read_step(t, step, &valid, &tokens));
    adamw.grad_scale = (float)(1 / loss_lift(o->dtype, valid));
    (void)decoder_exposed_us(t->decoder); /* of an evaluation */
    TRY(run_step(t, valid, true, &report.loss));
    enum status status = params_step(t->params, &adamw, o->clip, t->queue, &report.grad_norm);
    if (status == STATUS_CHECK)
        return trainer_grads_not_finite(t);
    TRY(status);
    TRY(dev_sync(t->queue, INT64_MAX));
    t->done = step + 1;
    report.exposed_us = decoder_exposed_us(t->decoder);
    report.valid = (int64_t)valid;
    report.tokens = (int64_t)tokens;
    report.seconds = (double)(clock_ns() - begin) * 1e-9;
    *out = report;
    return STATUS_OK;
}

enum status trainer_evaluate(struct trainer *t, int64_t step, double *loss)
{
    double valid, tokens;
    TRY(read_step(t, step, &valid, &tokens));
    return run_step(t, valid, false, loss);
}
