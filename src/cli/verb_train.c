/* cli/verb_train.c -- `sptune train`: a real training run under a plan, or the proof that its gradients are those of the whole. */
#include "base/interrupt.h"
#include "bench/spin.h"
#include "cli/cli.h"
#include "cli/place.h"
#include "cli/ranks.h"
#include "cli/train_options.h"
#include "cli/train_screen.h"
#include "train/checkpoint.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct asked {
    struct train_plan planned;
    struct run_options options;
    double peak_flops;
};

static json_t *terms_json(const struct work_memory *memory)
{
    json_t *terms = json_array();
    for (int i = 0; i < memory->n; i++) {
        const struct work_term *t = &memory->term[i];
        json_array_append_new(terms, json_pack("{s:s s:I s:b s:b}", "name", t->name, "bytes", (json_int_t)t->bytes,
                                               "host", t->host, "live_at_peak", t->live_at_peak));
    }
    return terms;
}

/* Of a run that trained: rates per second and rank. */
static void add_rates(json_t *document, const struct train_screen *screen, const struct run_result *result)
{
    double flops, mfu;
    train_screen_rate(screen, &flops, &mfu);
    json_object_set_new(document, "tflops", json_real(flops * 1e-12));
    json_object_set_new(document, "mfu", mfu < 0 ? json_null() : json_real(mfu));
    if (screen->options->trainer.timed)
        json_object_set_new(document, "exposed_us", json_real(result->last.exposed_us));
}

/* What a step reads. */
static void add_data(json_t *document, const struct train_screen *screen, const struct run_result *result)
{
    const struct trainer_options *o = &screen->options->trainer;
    char name[TRAINER_PATH];
    json_t *data = json_object(), *seqs = json_array();
    text_print(name, sizeof name, "%s", o->data[0] != '\0' ? o->data : TRAINER_SOURCES);
    text_clean(name);
    json_object_set_new(data, "name", json_string(name));
    json_object_set_new(data, "form", json_string(data_form_name(o->form)));
    json_object_set_new(data, "tokens", json_integer(result->data_tokens));
    json_object_set_new(document, "data", data);
    for (int i = 0; i < o->n_seqs; i++)
        json_array_append_new(seqs, json_integer(o->seqs[i]));
    json_object_set_new(document, "seq", seqs);
    json_object_set_new(
        document, "rows_per_step",
        json_integer(o->plan.micro_batch * o->plan.accumulate * (screen->ranks / plan_sequence_ranks(&o->plan))));
}

/* What is known in the end: of all of --json but its rows, and the last row of --jsonl. */
static void add_result(json_t *document, const struct train_screen *screen, const struct run_options *options,
                       const struct run_result *result)
{
    const struct trainer_options *o = &options->trainer;
    char plan[PLAN_TEXT];
    json_object_set_new(document, "model", json_string(o->model.name));
    json_object_set_new(document, "params", json_integer(o->model.params));
    json_object_set_new(document, "plan", json_string(plan_text(&o->plan, plan)));
    add_data(document, screen, result);
    json_object_set_new(document, "memory_bytes", json_integer(result->bytes));
    json_object_set_new(document, "host_memory_bytes", json_integer(result->host_bytes));
    json_object_set_new(document, "peak_bytes", json_integer(result->peak_bytes));
    json_object_set_new(document, "predicted_peak_bytes", json_integer(result->predicted.peak_bytes));
    json_object_set_new(document, "predicted_host_bytes", json_integer(result->predicted.host_bytes));
    json_object_set_new(document, "predicted_terms", terms_json(&result->predicted));
    if (options->verify)
        json_object_set_new(document, "verify",
                            json_pack("{s:f s:f s:f s:f s:f s:i s:f}", "loss", result->verdict.loss, "whole_loss",
                                      result->verdict.whole_loss, "loss_error", result->verdict.loss_error,
                                      "loss_error_allowed", result->verdict.loss_allowed, "grad_error",
                                      result->verdict.worst, "tensors", result->verdict.tensors, "grad_error_allowed",
                                      result->verdict.allowed));
    else
        add_rates(document, screen, result);
}

static json_t *to_json(const struct train_screen *screen, const struct run_options *options,
                       const struct run_result *result)
{
    struct json_envelope envelope = cli_envelope(screen->cli);
    json_t *document = json_document("train", &envelope);
    if (document == NULL)
        return NULL;
    add_result(document, screen, options, result);
    if (!options->verify)
        json_object_set(document, "steps", screen->rows);
    if (screen->sample != NULL)
        json_object_set(document, "sample", screen->sample);
    return document;
}

static json_t *to_row(const struct train_screen *screen, const struct run_options *options,
                      const struct run_result *result)
{
    json_t *run = json_object();
    add_result(run, screen, options, result);
    return json_pack("{s:o}", "run", run);
}

static enum status judge(const struct run_result *result)
{
    const struct trainer_verdict *v = &result->verdict;
    if (v->loss_error <= v->loss_allowed && v->worst <= v->allowed)
        return STATUS_OK;
    return FAIL(
        STATUS_CHECK,
        "the sharded run is not the whole one: loss off by %.2e of at most %.0e, the gradient of %s by %.2e of at "
        "most %.0e",
        v->loss_error, v->loss_allowed, result->worst_name, v->worst, v->allowed);
}

static enum status print_verdict(const struct run_options *options, const struct run_result *result)
{
    const struct trainer_verdict *v = &result->verdict;
    char plan[PLAN_TEXT];
    struct text out = {0};
    train_screen_line(&out, "plan  ", 6, "%s", plan_text(&options->trainer.plan, plan));
    text_add(&out, "loss  %.6f, whole on one rank %.6f: relative error %.2e\n", v->loss, v->whole_loss, v->loss_error);
    train_screen_line(&out, "", 2,
                      "gradients of %d tensors: largest relative error %.2e (%s), of their norm %.2e; at most %.0e",
                      v->tensors, v->worst, result->worst_name, v->norm_error, v->allowed);
    enum status status = text_status(&out);
    if (status == STATUS_OK)
        status = cli_print(text_get(&out));
    text_free(&out);
    return status;
}

static enum status report(struct train_screen *screen, const struct run_result *result)
{
    const struct run_options *options = screen->options;
    if (screen->cli->json)
        TRY(cli_print_json(screen->cli, to_json(screen, options, result)));
    else if (screen->cli->jsonl)
        TRY(train_screen_row(to_row(screen, options, result)));
    else if (options->verify)
        TRY(print_verdict(options, result));
    else
        TRY(train_screen_end(screen, result));
    return options->verify ? judge(result) : interrupt_status();
}

/* An interrupt is still one when the curve of what was done is drawn. */
static enum status draw(const struct train_screen *screen, const char *path, enum status status)
{
    TRY(train_plot(screen, path));
    return status == STATUS_OK ? status : interrupt_status();
}

/* Rank 0 writes: nobody else has to see the directory. A run that takes no step only reads it. */
static enum status check_save(const struct run_options *options)
{
    const struct trainer_options *o = &options->trainer;
    char last[PATH_MAX];
    int64_t step;
    if (o->save[0] == '\0')
        return STATUS_OK;
    if (options->trains)
        TRY(place_check_dir(o->save, "--save"));
    TRY(checkpoint_last(o->save, last, sizeof last, &step));
    return o->resume || step < 0 ? STATUS_OK
                                 : HINT(FAIL(STATUS_USAGE, "--save %s holds checkpoints of a run, step %lld the last",
                                             o->save, (long long)step),
                                        "--resume, or another folder");
}

static enum status train(struct ranks *ranks, struct run_options *options, struct train_screen *screen)
{
    const char *plot = opt_value(&ranks->cli->opts, "plot");
    struct run_sink sink;
    struct run_result result;
    TRY(check_save(options));
    TRY(train_screen_open(screen, &sink));
    TRY(ranks_tell(ranks, "train", options, sizeof *options));
    TRY(spin_rate_ranks(ranks->env.world, ranks->env.dev, &screen->fma_flops));
    TRY(run_train(options, ranks->env.world, ranks->env.dev, &sink, &result));
    progress_end();
    enum status status = report(screen, &result);
    return plot != NULL && !options->verify && result.steps > 0 && (status == STATUS_OK || interrupt_pending() != 0)
               ? draw(screen, plot, status)
               : status;
}

static enum status root(struct ranks *ranks, void *arg)
{
    struct asked *asked = arg;
    struct train_screen screen = {.cli = ranks->cli,
                                  .options = &asked->options,
                                  .ranks = comm_size(ranks->env.world),
                                  .dev = dev_kind_of(ranks->env.dev),
                                  .peak_flops = asked->peak_flops};
    enum status status = train_options_finish(ranks, &asked->planned, &asked->options);
    if (status == STATUS_OK)
        status = train(ranks, &asked->options, &screen);
    train_screen_close(&screen);
    return status;
}

enum status train_serve(struct bench_env *env, const void *data, size_t bytes)
{
    struct run_options options;
    struct run_result result;
    double rate;
    if (bytes != sizeof options)
        return FAIL(STATUS_PEER, "rank 0 sent options of %zu bytes; %zu were expected", bytes, sizeof options);
    memcpy(&options, data, sizeof options);
    enum status status = spin_rate_ranks(env->world, env->dev, &rate);
    if (status == STATUS_OK)
        status = run_train(&options, env->world, env->dev, NULL, &result);
    /* What all ranks know of, rank 0 says, and ends the job; one that ended it here would take the words from rank 0, which is perhaps not so
     * far yet. Any other failure has ended it (comm_give_up). */
    return status != STATUS_OK && status_last()->agreed ? STATUS_OK : status;
}

static enum status run(struct cli *cli)
{
    struct topo topo;
    struct ranks_options how;
    struct asked *asked = calloc(1, sizeof *asked);
    if (asked == NULL)
        return FAIL(STATUS_NOMEM, "no memory for options");
    enum status status = ranks_options_read(cli, &how);
    if (status == STATUS_OK)
        status = train_options_read(cli, &asked->planned, &asked->options);
    if (status == STATUS_OK)
        status = train_options_peak(cli, &asked->peak_flops);
    if (status == STATUS_OK)
        status = topo_open("local", &topo);
    if (status == STATUS_OK) {
        int64_t n = 0;
        status = ranks_count(cli, &topo, asked->planned.ranks, &n);
        how.n = (int)n;
        how.answers = asked->options.verify ? "this row" : "this step";
        if (status == STATUS_OK)
            status =
                train_options_plan(cli, &asked->planned, how.n, ranks_most(&topo, &how), how.kind, &asked->options);
        if (status == STATUS_OK)
            status = ranks_run(cli, &topo, &how, root, asked);
        topo_free(&topo);
    }
    free(asked);
    return status;
}

static const struct opt *const tables[] = {train_options, NULL};

const struct verb verb_train = {
    .name = "train",
    .usage = "[--model CONFIG] [--data FILE] [--method NAME] [--sp P --tp T --dp-shard D --dp-replicate R] [--zero N] "
             "[--steps N] [--verify]",
    .about = "a real training run under a plan; --verify: are its gradients those of the unsharded run",
    .help = "Trains a decoder of the Llama family on any file as bytes, or on token files, with a sequence split "
            "by Ulysses, ring attention, both, or split_gather, layers cut by tensor parallelism, and ZeRO. Without "
            "options: a small model on this "
            "project's own sources, two ranks, sp 2. Sizes that are not given: "
            "what remains of "
            "the ranks goes to dp_shard. --verify runs the first step's rows sharded and whole and compares loss and "
            "every gradient; exit 1 "
            "beyond rounding.",
    .ranks = true,
    .tables = tables,
    .run = run,
};
