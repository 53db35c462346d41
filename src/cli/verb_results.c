/* cli/verb_results.c -- `sptune results list|show|export|predict|forget`: what was measured and kept. */
#include "base/log.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/results_predict.h"
#include "cli/samples.h"
#include "cli/session.h"
#include "results/export.h"

#include <stdlib.h>
#include <string.h>

static const struct opt options[] = {
    {"store", 0, OPT_VALUE, "FILE", "the result store [SPTUNE_STORE, else the user's data directory]"},
    {"export", 0, OPT_MANY, "FORMAT=FILE", "also write the samples; `list` names the formats; repeatable"},
    {0},
};

/* A command line may hold any bytes. */
static json_t *run_to_json(struct store_run *run)
{
    text_clean(run->command);
    return json_pack("{s:I s:s s:s s:s s:s s:s s:i s:i s:i s:b}", "run", (json_int_t)run->id, "name", run->name,
                     "started", run->started, "verb", run->verb, "machine", run->machine, "command", run->command,
                     "samples", run->samples, "failed", run->failed, "waived", run->waived, "finished", run->finished);
}

/* What came after "sptune VERB ", whole or cut with dots. */
static void arguments_of(const struct store_run *run, char *cell, size_t size)
{
    char verb[32];
    text_print(verb, sizeof verb, "sptune %s", run->verb);
    const char *text = strncmp(run->command, verb, strlen(verb)) == 0 ? run->command + strlen(verb) : run->command;
    text += strspn(text, " ");
    if (!text_print(cell, size, "%s", text))
        memcpy(cell + size - 4, "...", 4);
    text_clean(cell);
}

static enum status list_table(const struct store_run *runs, int n)
{
    static const struct export_column columns[] = {{"run", true},    {"started", false}, {"verb", false},
                                                   {"state", false}, {"rows", true},     {"failed", true},
                                                   {"waived", true}, {"name", false},    {"arguments", false}};
    enum { COLUMNS = sizeof columns / sizeof columns[0], CELL = 128 };
    char(*text)[COLUMNS][CELL] = calloc((size_t)n + 1, sizeof *text);
    const char **cells = calloc((size_t)n * COLUMNS + 1, sizeof *cells);
    enum status status = text != NULL && cells != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for %d runs", n);
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        const struct store_run *r = &runs[i];
        text_print(text[i][0], CELL, "%lld", (long long)r->id);
        text_print(text[i][1], CELL, "%s", r->started);
        text_print(text[i][2], CELL, "%s", r->verb);
        text_print(text[i][3], CELL, "%s", r->finished ? "done" : "ended");
        text_print(text[i][4], CELL, "%d", r->samples);
        text_print(text[i][5], CELL, "%d", r->failed);
        text_print(text[i][6], CELL, "%d", r->waived);
        text_print(text[i][7], CELL, "%s", r->name);
        arguments_of(r, text[i][8], CELL);
        for (int c = 0; c < COLUMNS; c++)
            cells[i * COLUMNS + c] = text[i][c];
    }
    char *out = NULL;
    if (status == STATUS_OK)
        status = export_grid(columns, COLUMNS, cells, n, &out);
    if (status == STATUS_OK)
        status = cli_print(out);
    free(out);
    free(cells);
    free(text);
    return status;
}

static enum status list(struct cli *cli, struct store *store)
{
    struct store_run *runs = NULL;
    int n = 0;
    TRY(store_runs(store, &runs, &n));
    enum status status;
    if (cli->json) {
        struct json_envelope envelope = cli_envelope(cli);
        json_t *document = json_document("runs", &envelope), *all = json_array();
        for (int i = 0; i < n; i++)
            json_array_append_new(all, run_to_json(&runs[i]));
        if (document != NULL)
            json_object_set_new(document, "runs", all);
        status = cli_print_json(cli, document);
    } else {
        status = list_table(runs, n);
    }
    for (int i = 0; i < n; i++)
        store_run_free(&runs[i]);
    free(runs);
    return status;
}

static enum status show(struct cli *cli, struct store *store, const char *ref, bool export_only)
{
    struct store_run run;
    TRY(store_resolve(store, ref, &run));
    struct samples samples = {0};
    char title[96];
    text_print(title, sizeof title, "run %lld, %s", (long long)run.id, run.started);
    enum status status = samples_of_run(store, run.id, &samples);
    if (status == STATUS_OK && samples.n == 0)
        status = HINT(FAIL(STATUS_NODATA, "run %lld has no samples", (long long)run.id),
                      "`sptune results list` shows the runs");
    else if (status == STATUS_OK)
        status = export_only && !cli->json ? samples_export(cli, &samples, title) : samples_show(cli, &samples, title);
    samples_free(&samples);
    store_run_free(&run);
    return status;
}

/* A run that has not ended was killed, or is being measured now: then its next sample would have nowhere to go. The lock keeps
 * it from being resumed until it is released. */
static enum status hold_ended(const struct store_run *run, int *lock)
{
    if (run->finished)
        return STATUS_OK;
    enum status status = session_lock(0, lock);
    if (status != STATUS_BUSY)
        return status;
    return HINT(FAIL(STATUS_BUSY, "run %lld has not ended, and another sptune is measuring on this machine",
                     (long long)run->id),
                "wait for it: a run that was killed can be forgotten then");
}

static enum status forget(struct cli *cli, struct store *store, const char *ref)
{
    struct store_run run;
    TRY(store_resolve(store, ref, &run));
    int lock = -1;
    enum status status = hold_ended(&run, &lock);
    if (status == STATUS_OK)
        status = store_forget(store, run.id);
    session_unlock(lock);
    if (status == STATUS_OK && cli->json) {
        struct json_envelope envelope = cli_envelope(cli);
        json_t *document = json_document("forgotten", &envelope);
        if (document != NULL)
            json_object_set_new(document, "run", run_to_json(&run));
        status = cli_print_json(cli, document);
    } else if (status == STATUS_OK) {
        log_info("forgot run %lld with %d samples", (long long)run.id, run.samples);
    }
    store_run_free(&run);
    return status;
}

enum what { LIST, SHOW, EXPORT, PREDICT, FORGET, WHATS };
static const char *const whats[] = {"list", "show", "export", "predict", "forget"};

static enum status read_what(const struct cli *cli, enum what *out)
{
    const char *word = cli->opts.args[0];
    int which = 0;
    while (which < WHATS && strcmp(whats[which], word) != 0)
        which++;
    if (which == WHATS)
        return opt_unknown("results", word, whats, WHATS);
    if (which == LIST && cli->opts.nargs > 1)
        return HINT(FAIL(STATUS_USAGE, "unexpected argument '%.60s'", cli->opts.args[1]),
                    "`sptune results show %.60s` shows a run", cli->opts.args[1]);
    if (which == FORGET && cli->opts.nargs < 2)
        return HINT(FAIL(STATUS_USAGE, "results forget needs a run"), "name it: sptune results forget 12");
    if (which == EXPORT && !opt_given(&cli->opts, "export"))
        return HINT(FAIL(STATUS_USAGE, "results export needs --export FORMAT=FILE"),
                    "sptune results export @last --export csv=out.csv");
    if ((which == LIST || which == FORGET) && opt_given(&cli->opts, "export"))
        return HINT(FAIL(STATUS_USAGE, "results %s has no --export", word),
                    "sptune results export @last --export csv=out.csv");
    for (const struct opt *o = results_predict_options; which != PREDICT && o->name != NULL; o++)
        if (opt_given(&cli->opts, o->name))
            return HINT(FAIL(STATUS_USAGE, "results %s has no --%s", word, o->name),
                        "sptune results predict @last --ranks 8");
    *out = (enum what)which;
    return STATUS_OK;
}

/* Forgetting writes, but makes no store: the one to forget from must be there. */
static enum status open_store(struct cli *cli, enum what what, struct store **out)
{
    char path[512];
    TRY(store_path(opt_value(&cli->opts, "store"), path, sizeof path));
    TRY(store_open(path, STORE_READ, out));
    if (what != FORGET)
        return STATUS_OK;
    store_close(*out);
    return store_open(path, STORE_WRITE, out);
}

static enum status run(struct cli *cli)
{
    enum what what = LIST;
    bool listed = false;
    struct store *store = NULL;
    const char *word = cli->opts.args[0], *ref = cli->opts.nargs > 1 ? cli->opts.args[1] : "@last";
    if (strcmp(word, whats[EXPORT]) == 0 || strcmp(word, whats[SHOW]) == 0 || strcmp(word, whats[PREDICT]) == 0)
        TRY(samples_check_exports(cli, &listed));
    if (listed)
        return STATUS_OK;
    TRY(read_what(cli, &what));
    if (what == PREDICT)
        return results_predict(cli, ref);
    TRY(open_store(cli, what, &store));
    enum status status = what == LIST     ? list(cli, store)
                         : what == FORGET ? forget(cli, store, ref)
                                          : show(cli, store, ref, what == EXPORT);
    store_close(store);
    return status;
}

static const struct opt *const tables[] = {options, results_predict_options, NULL};

const struct verb verb_results = {
    .name = "results",
    .usage = "list | show [REF] | export [REF] --export F=FILE | predict [REF|FILE.jsonl|...,...] --ranks N | forget REF",
    .about = "what was measured and kept",
    .help = "Every sample is kept as it is measured. REF is a run's number or name, @last (the default) or @last~1. "
            "Reading never creates a store. `predict` scales rows of exchange, attention and layer, a run's or those of "
            "files FILE.jsonl that `bench --jsonl` wrote, or of both (a.jsonl,@last), to more ranks: what a larger machine "
            "would take, before there is one.",
    .tables = tables,
    .min_args = 1,
    .max_args = 2,
    .run = run,
};
