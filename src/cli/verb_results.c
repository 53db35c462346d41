/* cli/verb_results.c -- `sptune results list|show|export|forget`: what was measured and kept. */
#include "base/log.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/samples.h"
#include "results/export.h"

#include <stdlib.h>
#include <string.h>

static const struct opt options[] = {
    {"store", 0, OPT_VALUE, "FILE", "the result store [SPTUNE_STORE, else the user's data directory]"},
    {"export", 0, OPT_MANY, "FORMAT=FILE", "also write the samples; `list` names the formats; repeatable"},
    {0},
};

static json_t *run_to_json(const struct store_run *run)
{
    return json_pack("{s:I s:s s:s s:s s:s s:s s:i s:i s:i s:b}", "run", (json_int_t)run->id, "name", run->name, "started",
                     run->started, "verb", run->verb, "machine", run->machine, "command", run->command, "samples", run->samples,
                     "failed", run->failed, "waived", run->waived, "finished", run->finished);
}

static enum status list_table(const struct store_run *runs, int n)
{
    static const struct export_column columns[] = {{"run", true}, {"started", false}, {"verb", false}, {"rows", true},
                                                   {"failed", true}, {"waived", true}, {"name", false}, {"command", false}};
    enum { COLUMNS = sizeof columns / sizeof columns[0] };
    char(*text)[COLUMNS][64] = calloc((size_t)n + 1, sizeof *text);
    const char **cells = calloc((size_t)n * COLUMNS + 1, sizeof *cells);
    enum status status = text != NULL && cells != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for %d runs", n);
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        const struct store_run *r = &runs[i];
        text_print(text[i][0], 64, "%lld", (long long)r->id);
        text_print(text[i][1], 64, "%s", r->started);
        text_print(text[i][2], 64, "%s%s", r->verb, r->finished ? "" : " (unfinished)");
        text_print(text[i][3], 64, "%d", r->samples);
        text_print(text[i][4], 64, "%d", r->failed);
        text_print(text[i][5], 64, "%d", r->waived);
        text_print(text[i][6], 64, "%s", r->name);
        text_print(text[i][7], 64, "%s", r->command);
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

static enum status show(struct cli *cli, struct store *store, const char *ref)
{
    struct store_run run;
    TRY(store_resolve(store, ref, &run));
    struct samples samples = {0};
    char title[96];
    text_print(title, sizeof title, "run %lld, %s", (long long)run.id, run.started);
    enum status status = samples_of_run(store, run.id, &samples);
    if (status == STATUS_OK)
        status = samples_show(cli, &samples, title);
    samples_free(&samples);
    store_run_free(&run);
    return status;
}

static enum status forget(struct cli *cli, struct store *store, const char *ref)
{
    struct store_run run;
    TRY(store_resolve(store, ref, &run));
    enum status status = store_forget(store, run.id);
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

static enum status run(struct cli *cli)
{
    static const char *const words[] = {"list", "show", "export", "forget"};
    const char *what = cli->opts.args[0];
    int which = 0;
    while (which < 4 && strcmp(words[which], what) != 0)
        which++;
    if (which == 4) {
        const char *near = text_nearest(what, words, 4);
        return HINT(FAIL(STATUS_USAGE, "results does not know '%.40s'", what), "%s%s%slist, show, export or forget",
                    near != NULL ? "did you mean " : "", near != NULL ? near : "", near != NULL ? "? One of: " : "");
    }
    const char *ref = cli->opts.nargs > 1 ? cli->opts.args[1] : "@last";
    if (which == 3 && cli->opts.nargs < 2)
        return HINT(FAIL(STATUS_USAGE, "results forget needs a run"), "name it: sptune results forget 12");
    if (which == 2 && !opt_given(&cli->opts, "export"))
        return HINT(FAIL(STATUS_USAGE, "results export needs --export FORMAT=FILE"), "sptune results export @last --export csv=out.csv");
    TRY(samples_check_exports(cli));
    if (cli->spoke)
        return STATUS_OK;
    char path[512];
    struct store *store = NULL;
    TRY(store_path(opt_value(&cli->opts, "store"), path, sizeof path));
    TRY(store_open(path, which == 3 ? STORE_WRITE : STORE_READ, &store));
    enum status status = which == 0 ? list(cli, store) : which == 3 ? forget(cli, store, ref) : show(cli, store, ref);
    store_close(store);
    return status;
}

static const struct opt *const tables[] = {options, NULL};

const struct verb verb_results = {
    .name = "results",
    .usage = "list | show [REF] | export [REF] --export FORMAT=FILE | forget REF",
    .about = "what was measured and kept",
    .help = "Every sample is kept as it is measured. REF is a run's number or name, @last, @last~1. Reading\n"
            "never creates a store.",
    .tables = tables,
    .min_args = 1,
    .max_args = 2,
    .run = run,
};
