/* cli/verb_train.c -- `sptune train`: a real training run under a plan, or the proof that its gradients are those of the whole. */
#include "base/interrupt.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/ranks.h"
#include "cli/train_options.h"
#include "train/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct screen {
    struct cli *cli;
    const struct run_options *options;
    struct trainer *trainer;
    int64_t steps, tokens;
    double seconds, first_loss;
    json_t *rows; /* --json: of the document */
    int ranks;
};

static json_t *step_json(const struct trainer_report *r, const double *eval)
{
    double rate = r->seconds > 0 ? (double)r->tokens / r->seconds : 0;
    json_t *row = json_pack("{s:I s:f s:f s:f s:I s:I s:f s:f}", "step", (json_int_t)r->step + 1, "loss", r->loss,
                            "grad_norm", r->grad_norm, "lr", r->lr, "tokens", (json_int_t)r->tokens, "valid",
                            (json_int_t)r->valid, "step_us", r->seconds * 1e6, "tokens_per_s", rate);
    if (row != NULL && eval != NULL)
        json_object_set_new(row, "eval_loss", json_real(*eval));
    return row;
}

static enum status begin(void *arg, struct trainer *trainer, int64_t steps)
{
    struct screen *screen = arg;
    const struct trainer_options *o = &screen->options->trainer;
    char plan[PLAN_TEXT], params[UNITS_BUF];
    screen->trainer = trainer;
    screen->steps = steps;
    if (screen->cli->json || screen->cli->jsonl)
        return STATUS_OK;
    struct text out = {0};
    text_add(&out, "%s  %s parameters, %s\nplan  %s\n", o->model.name, units_format_count(o->model.params, params),
             dtype_name(o->dtype), plan_text(&o->plan, plan));
    text_add(&out, "%6s  %8s  %9s  %8s  %10s\n", "step", "loss", "grad norm", "lr", "tokens/s");
    enum status status = text_status(&out);
    if (status == STATUS_OK)
        status = cli_print(text_get(&out));
    text_free(&out);
    return status;
}

/* The first ten, then about forty more, and the last. */
static bool shown(const struct screen *screen, int64_t step)
{
    int64_t every = screen->steps / 40 > 1 ? screen->steps / 40 : 1;
    return step < 10 || step % every == every - 1 || step + 1 == screen->steps;
}

static enum status print_step(const struct trainer_report *r, const double *eval)
{
    struct text out = {0};
    text_add(&out, "%6lld  %8.4f  %9.3g  %8.2e  %10.0f", (long long)r->step + 1, r->loss, r->grad_norm, r->lr,
             r->seconds > 0 ? (double)r->tokens / r->seconds : 0);
    if (eval != NULL)
        text_add(&out, "  eval %.4f", *eval);
    text_add(&out, "%s\n", r->valid == 0 ? "  no label is valid: nothing was learnt" : "");
    enum status status = text_status(&out);
    if (status == STATUS_OK)
        status = cli_stream(text_get(&out));
    text_free(&out);
    return status;
}

static enum status on_step(void *arg, const struct trainer_report *r, const double *eval)
{
    struct screen *screen = arg;
    if (screen->tokens == 0)
        screen->first_loss = r->loss;
    screen->tokens += r->tokens;
    screen->seconds += r->seconds;
    if (r->valid == 0)
        log_warn("step %lld: no label of any rank is valid; its loss and gradient are 0", (long long)r->step + 1);
    if (screen->cli->json) {
        json_array_append_new(screen->rows, step_json(r, eval));
        return STATUS_OK;
    }
    if (!screen->cli->jsonl)
        return shown(screen, r->step) || eval != NULL ? print_step(r, eval) : STATUS_OK;
    json_t *row = step_json(r, eval);
    char *line = row != NULL ? json_dumps(row, JSON_COMPACT) : NULL;
    struct text out = {0};
    json_decref(row);
    if (line == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a row");
    text_add(&out, "%s\n", line);
    free(line);
    enum status status = text_status(&out);
    if (status == STATUS_OK)
        status = cli_stream(text_get(&out));
    text_free(&out);
    return status;
}

static bool stop(void *arg)
{
    (void)arg;
    return interrupt_pending() != 0;
}

static enum status print_end(const struct screen *screen, const struct run_result *result)
{
    char memory[UNITS_BUF];
    struct text out = {0};
    text_add(&out, "%lld of %lld steps, %.0f tokens/s per rank, %s on the largest rank, loss %.4f -> %.4f\n",
             (long long)result->steps, (long long)screen->steps,
             screen->seconds > 0 ? (double)screen->tokens / screen->seconds / screen->ranks : 0,
             units_format_bytes((double)result->bytes, memory), screen->first_loss, result->last.loss);
    enum status status = text_status(&out);
    if (status == STATUS_OK)
        status = cli_print(text_get(&out));
    text_free(&out);
    return status;
}

static json_t *to_json(const struct screen *screen, const struct run_options *options, const struct run_result *result)
{
    const struct trainer_options *o = &options->trainer;
    struct json_envelope envelope = cli_envelope(screen->cli);
    json_t *document = json_document("train", &envelope);
    char plan[PLAN_TEXT];
    if (document == NULL)
        return NULL;
    json_object_set_new(document, "model", json_string(o->model.name));
    json_object_set_new(document, "params", json_integer(o->model.params));
    json_object_set_new(document, "plan", json_string(plan_text(&o->plan, plan)));
    json_object_set_new(document, "memory_bytes", json_integer(result->bytes));
    if (options->verify)
        json_object_set_new(document, "verify",
                            json_pack("{s:f s:f s:f s:f s:i s:f}", "loss", result->verdict.loss, "whole_loss",
                                      result->verdict.whole_loss, "loss_error", result->verdict.loss_error,
                                      "grad_error", result->verdict.worst, "tensors", result->verdict.tensors,
                                      "grad_error_allowed", result->verdict.allowed));
    else
        json_object_set(document, "steps", screen->rows);
    return document;
}

static enum status judge(const struct run_result *result)
{
    const struct trainer_verdict *v = &result->verdict;
    if (v->loss_error <= v->loss_allowed && v->worst <= v->allowed)
        return STATUS_OK;
    return FAIL(STATUS_CHECK,
                "the sharded run is not the whole one: loss off by %.2e, the gradient of %s by %.2e; at most %.0e",
                v->loss_error, result->worst_name, v->worst, v->allowed);
}

static enum status print_verdict(const struct run_options *options, const struct run_result *result)
{
    const struct trainer_verdict *v = &result->verdict;
    char plan[PLAN_TEXT];
    struct text out = {0};
    text_add(&out, "plan  %s\nloss  %.6f, whole on one rank %.6f: relative error %.2e\n",
             plan_text(&options->trainer.plan, plan), v->loss, v->whole_loss, v->loss_error);
    text_add(&out, "gradients of %d tensors: largest relative error %.2e (%s), of their norm %.2e; at most %.0e\n",
             v->tensors, v->worst, result->worst_name, v->norm_error, v->allowed);
    enum status status = text_status(&out);
    if (status == STATUS_OK)
        status = cli_print(text_get(&out));
    text_free(&out);
    return status;
}

static enum status report(struct screen *screen, const struct run_result *result)
{
    const struct run_options *options = screen->options;
    if (screen->cli->json)
        TRY(cli_print_json(screen->cli, to_json(screen, options, result)));
    else if (options->verify)
        TRY(print_verdict(options, result));
    else if (!screen->cli->jsonl)
        TRY(print_end(screen, result));
    return options->verify ? judge(result) : interrupt_status();
}

static enum status root(struct ranks *ranks, void *arg)
{
    struct run_options *options = arg;
    struct screen screen = {
        .cli = ranks->cli, .options = options, .rows = json_array(), .ranks = comm_size(ranks->env.world)};
    struct run_sink sink = {&screen, begin, on_step, stop};
    struct run_result result;
    TRY(train_options_finish(ranks, options));
    TRY(ranks_tell(ranks, "train", options, sizeof *options));
    enum status status = run_train(options, ranks->env.world, ranks->env.dev, &sink, &result);
    if (status == STATUS_OK)
        status = report(&screen, &result);
    json_decref(screen.rows);
    return status;
}

enum status train_serve(struct bench_env *env, const void *data, size_t bytes)
{
    struct run_options options;
    struct run_result result;
    if (bytes != sizeof options)
        return FAIL(STATUS_PEER, "rank 0 sent options of %zu bytes; %zu were expected", bytes, sizeof options);
    memcpy(&options, data, sizeof options);
    return run_train(&options, env->world, env->dev, NULL, &result);
}

static enum status run(struct cli *cli)
{
    struct topo topo;
    struct ranks_options how;
    struct run_options *options = calloc(1, sizeof *options);
    if (options == NULL)
        return FAIL(STATUS_NOMEM, "no memory for options");
    enum status status = ranks_options_read(cli, &how);
    if (status == STATUS_OK)
        status = train_options_read(cli, options);
    if (status == STATUS_OK)
        status = topo_open("local", &topo);
    if (status == STATUS_OK) {
        int64_t n = 0;
        status = ranks_count(cli, &topo, &n);
        how.n = (int)n;
        how.answers = true;
        if (status == STATUS_OK)
            status = train_options_plan(cli, (int)n, how.kind, options);
        if (status == STATUS_OK)
            status = ranks_run(cli, &topo, &how, root, options);
        topo_free(&topo);
    }
    free(options);
    return status;
}

static const struct opt *const tables[] = {train_options, NULL};

const struct verb verb_train = {
    .name = "train",
    .usage = "[--model CONFIG] [--data FILE] [--sp P --dp-shard D --dp-replicate R] [--zero N] [--steps N] [--verify]",
    .about = "a real training run under a plan; --verify: are its gradients those of the unsharded run",
    .help = "Trains a decoder of the Llama family on any file as bytes, or on token files, with Ulysses sequence "
            "parallelism and ZeRO. "
            "Without options: a small model on this project's own sources, two ranks, sp 2. Sizes that are not given: "
            "what remains of "
            "the ranks goes to dp_shard. --verify runs the first step's rows sharded and whole and compares loss and "
            "every gradient; exit 1 "
            "beyond rounding.",
    .ranks = true,
    .tables = tables,
    .run = run,
};
