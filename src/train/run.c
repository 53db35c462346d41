/* train/run.c -- the loop. */
#include "train/run.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "sp/target.h"

#include <stdlib.h>

static bool evaluates(const struct run_options *o, int64_t step)
{
    return o->eval_every > 0 && (step + 1) % o->eval_every == 0;
}

static bool saves(const struct run_options *o)
{
    return o->trainer.save[0] != '\0';
}

/* Rank 0 decides for all. */
static enum status stops(struct comm *world, const struct run_sink *sink, bool *out)
{
    double stop = sink != NULL && sink->stop != NULL && sink->stop(sink->arg) ? 1 : 0;
    TRY(comm_max(world, &stop, 1));
    *out = stop > 0;
    return STATUS_OK;
}

/* Rows that training does not see: those after its last step. */
static enum status evaluate(struct trainer *trainer, const struct run_options *o, int64_t first, double *loss)
{
    double sum = 0;
    for (int64_t s = 0; s < o->eval_steps; s++) {
        double one;
        TRY(trainer_evaluate(trainer, first + s, &one));
        sum += one;
    }
    *loss = sum / (double)o->eval_steps;
    return STATUS_OK;
}

/* Evaluation rows must exist, and preferably lie outside the training rows. */
static enum status check_eval(const struct trainer *trainer, const struct run_options *o)
{
    int64_t steps = trainer_steps(trainer), all = trainer_data_steps(trainer), epoch = all / o->trainer.epochs;
    if (o->eval_every == 0 || !o->trains)
        return STATUS_OK;
    if (steps + o->eval_steps > all)
        return status_agreed(
            HINT(FAIL(STATUS_USAGE, "--eval-every: %lld steps, and rows of %lld more, are not in data of %lld steps",
                      (long long)steps, (long long)o->eval_steps, (long long)all),
                 "--steps %lld, more --epochs, or a larger file",
                 (long long)(all > o->eval_steps ? all - o->eval_steps : 1)));
    if (steps + o->eval_steps > epoch)
        log_warn("an epoch has %lld steps: rows of the evaluation are trained on, too", (long long)epoch);
    return STATUS_OK;
}

static enum status sample(struct trainer *trainer, const struct run_options *o, struct comm *world,
                          const struct run_sink *sink)
{
    int32_t *tokens;
    int64_t prompt, drawn;
    TRY(trainer_sample(trainer, o->sample, o->temperature, &prompt, &drawn, &tokens));
    enum status status = sink != NULL ? sink->sample(sink->arg, tokens, prompt, drawn) : STATUS_OK;
    free(tokens);
    return comm_agree(world, status, "report a sample");
}

/* In use on this rank's GPU, by all processes; on CPUs what this process has. Libraries' memory included; the most of all times it was asked. */
static enum status look(const struct trainer *trainer, struct comm *world, struct dev *dev, struct run_result *result)
{
    int64_t free_bytes, total, bytes = 0;
    enum status status = STATUS_OK;
    if (dev_kind_of(dev) == DEV_CPU) /* the host's part of the plan lies in the same memory */
        bytes = mem_resident() - trainer_host_bytes(trainer);
    else if ((status = dev_memory(dev, &free_bytes, &total)) == STATUS_OK)
        bytes = total - free_bytes;
    TRY(comm_agree(world, status, "read memory"));
    result->peak_bytes = bytes > result->peak_bytes ? bytes : result->peak_bytes;
    return STATUS_OK;
}

static void predict(const struct trainer_options *o, int world, struct dev *dev, struct run_result *result)
{
    struct problem problem;
    trainer_longest(o, world, &problem);
    work_memory_on(&o->model, &problem, &o->plan, target_find("sptune"), dev_kind_of(dev), dev_threads(dev),
                   &result->predicted);
}

static enum status step_all(struct trainer *trainer, const struct run_options *o, struct comm *world, struct dev *dev,
                            const struct run_sink *sink, struct run_result *result)
{
    int64_t steps = o->trains ? trainer_steps(trainer) : 0, saved = -1, most = 0;
    TRY(check_eval(trainer, o));
    if (steps > 0 && steps < o->trainer.steps)
        log_info("the data end after %lld steps (--epochs %lld), of %lld that were asked for", (long long)steps,
                 (long long)o->trainer.epochs, (long long)o->trainer.steps);
    if (steps > 0 && trainer_first(trainer) >= steps)
        log_info("--resume: %lld steps are done, of %lld that were asked for; no step is left",
                 (long long)trainer_first(trainer), (long long)steps);
    TRY(comm_agree(world, sink != NULL ? sink->begin(sink->arg, trainer, steps) : STATUS_OK, "begin to report"));
    bool stop = false;
    for (int64_t step = trainer_first(trainer); step < steps; step++) {
        double eval;
        TRY(stops(world, sink, &stop));
        if (stop)
            break;
        TRY(trainer_step(trainer, step, &result->last));
        if (result->last.tokens > most) { /* of rows that are shorter other buffers are mapped */
            most = result->last.tokens;
            TRY(look(trainer, world, dev, result));
        }
        if (evaluates(o, step))
            TRY(evaluate(trainer, o, steps, &eval));
        result->steps++;
        enum status status =
            sink != NULL ? sink->step(sink->arg, &result->last, evaluates(o, step) ? &eval : NULL) : STATUS_OK;
        TRY(comm_agree(world, status, "report a step"));
        if (o->save_every > 0 && (step + 1) % o->save_every == 0 && step + 1 < steps) {
            TRY(trainer_save(trainer, step + 1));
            saved = step;
        }
    }
    if (result->steps > 0 && result->last.tokens == most)
        TRY(look(trainer, world, dev, result));
    if (saves(o) && result->steps > 0 && saved != result->last.step)
        TRY(trainer_save(trainer, result->last.step + 1));
    result->bytes = trainer_bytes(trainer); /* of steps: a sample has fewer tokens */
    return o->sample > 0 && !stop ? sample(trainer, o, world, sink) : STATUS_OK;
}

enum status run_train(const struct run_options *options, struct comm *world, struct dev *dev,
                      const struct run_sink *sink, struct run_result *out)
{
    struct trainer *trainer = NULL;
    struct run_result result = {0};
    mem_resident_restart();
    TRY(trainer_create(&options->trainer, world, dev, &trainer));
    enum status status = options->verify ? trainer_verify(trainer, &result.verdict)
                                         : step_all(trainer, options, world, dev, sink, &result);
    if (status == STATUS_OK && result.steps == 0)
        status = look(trainer, world, dev, &result);
    double bytes[] = {(double)(result.bytes > 0 ? result.bytes : trainer_bytes(trainer)),
                      (double)trainer_host_bytes(trainer), (double)result.peak_bytes};
    text_print(result.worst_name, sizeof result.worst_name, "%s",
               trainer_tensor_name(trainer, result.verdict.worst_tensor));
    if (status == STATUS_OK)
        status = comm_max(world, bytes, 3);
    result.bytes = (int64_t)bytes[0];
    result.host_bytes = (int64_t)bytes[1];
    result.peak_bytes = (int64_t)bytes[2];
    result.data_tokens = trainer_data_tokens(trainer);
    predict(&options->trainer, comm_size(world), dev, &result);
    status = comm_give_up(world, status);
    trainer_destroy(trainer);
    *out = result;
    return status;
}
