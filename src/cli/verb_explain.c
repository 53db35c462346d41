/* cli/verb_explain.c -- `sptune explain`: derives any number of a stored recommendation without measuring. */
#include "base/file.h"
#include "cli/cli.h"
#include "cli/explain_exchange.h"
#include "results/store.h"
#include "tuner/explain.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct opt options[] = {
    {"why-not", 0, OPT_VALUE, "sp=P", "why this candidate lost"},
    {"what-if", 0, OPT_VALUE, "KEY=VALUE", "decide again on the stored numbers: loss=fused, device-memory=141GiB ..."},
    {"store", 0, OPT_VALUE, "FILE", "the result store that REC is a run of"},
    {0},
};

/* Any JSON may come; only a recommendation is explained. */
static enum status read_file(const char *path, json_t **out)
{
    json_t *document = NULL;
    const char *schema = "";
    TRY(HINT(json_read(path, &document), "name a recommendation.json, or the directory that `tune` wrote"));
    enum status status = json_str(document, "schema", path, "", &schema);
    if (status == STATUS_OK && strcmp(schema, "sptune.recommendation/1") != 0) {
        status = schema[0] != '\0'
                     ? FAIL(STATUS_USAGE, "this is no recommendation but '%.60s'", schema)
                     : FAIL(STATUS_USAGE, "this is no recommendation: it has no \"schema\", as what sptune writes has");
        status = HINT(WHERE(status, "%s", path), "name a recommendation.json, or the directory that `tune` wrote");
    }
    if (status == STATUS_OK)
        *out = document;
    else
        json_decref(document);
    return status;
}

/* REC: a file, a directory that tune wrote, or a run of the store. */
static enum status load(struct cli *cli, const char *ref, json_t **out)
{
    struct stat info;
    char path[PATH_MAX];
    struct store *store = NULL;
    struct store_run run;
    bool there = stat(ref, &info) == 0;
    if (there && S_ISDIR(info.st_mode)) {
        text_print(path, sizeof path, "%s/recommendation.json", ref);
        return read_file(path, out);
    }
    if (there || strchr(ref, '/') != NULL || strstr(ref, ".json") != NULL)
        return read_file(ref, out);
    TRY(store_path(opt_value(&cli->opts, "store"), path, sizeof path));
    TRY(store_open(path, STORE_READ, &store));
    enum status status = store_resolve(store, ref, &run);
    if (status == STATUS_OK) {
        status = HINT(store_document(store, run.id, "recommendation", out),
                      "name a run of `tune`; `sptune results list` shows them");
        store_run_free(&run);
    }
    store_close(store);
    return status;
}

/* Options of one of the two jobs are a mistake in the other. */
static enum status refuse_foreign(struct cli *cli, const struct opt *table, const char *why)
{
    for (const struct opt *o = table; o->name != NULL; o++)
        if (opt_given(&cli->opts, o->name))
            return HINT(FAIL(STATUS_USAGE, "--%s %s", o->name, why),
                        "sptune explain REC, or sptune explain exchange --ranks 4");
    return STATUS_OK;
}

static enum status run(struct cli *cli)
{
    json_t *document = NULL;
    if (strcmp(cli->opts.args[0], "exchange") == 0) {
        TRY(refuse_foreign(cli, options, "belongs to the explanation of a recommendation"));
        return explain_exchange(cli);
    }
    TRY(refuse_foreign(cli, explain_exchange_options, "belongs to `sptune explain exchange`"));
    TRY(load(cli, cli->opts.args[0], &document));
    struct explain_options what = {
        .term = cli->opts.nargs > 1 ? cli->opts.args[1] : NULL,
        .why_not = opt_value(&cli->opts, "why-not"),
        .what_if = opt_value(&cli->opts, "what-if"),
    };
    char *text = NULL;
    enum status status = explain_run(document, &what, &text);
    if (status == STATUS_OK && cli->json) {
        struct json_envelope envelope = cli_envelope(cli);
        json_t *answer = json_document("explanation", &envelope), *body = explain_to_json(document, &what);
        if (answer != NULL && body != NULL)
            json_object_update(answer, body);
        json_decref(body);
        status = cli_print_json(cli, answer);
    } else if (status == STATUS_OK) {
        status = cli_print(text);
    }
    free(text);
    json_decref(document);
    return status;
}

static const struct opt *const tables[] = {options, explain_exchange_options, NULL};

const struct verb verb_explain = {
    .name = "explain",
    .usage =
        "REC [TERM] [--why-not sp=P] [--what-if KEY=VALUE] | exchange [--ranks N] [--heads N] [--kv-heads N] [--seq S]",
    .about = "derive any number of a recommendation, without measuring",
    .help = "REC is a recommendation.json, the directory that tune wrote, or a run of the store (@last). TERM is a "
            "memory term, a "
            "part of the step time or an assumption by name. `exchange` runs the real exchange on labelled cells and "
            "shows who holds "
            "which token and head before and after.",
    .ranks = true,
    .tables = tables,
    .min_args = 1,
    .max_args = 2,
    .run = run,
};
