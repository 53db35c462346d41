/* cli/verb_explain.c -- `sptune explain`: derives any number of a stored recommendation without measuring. */
#include "base/file.h"
#include "cli/cli.h"
#include "results/store.h"
#include "tuner/explain.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct opt options[] = {
    {"why-not", 0, OPT_VALUE, "sp=P", "why this candidate lost"},
    {"what-if", 0, OPT_VALUE, "KEY=VALUE", "decide again on the stored numbers: loss=fused, device-memory=141GiB ..."},
    {"store", 0, OPT_VALUE, "FILE", "the result store that REC is a run of"},
    {0},
};

/* REC: a file, a directory that tune wrote, or a run of the store. */
static enum status load(struct cli *cli, const char *ref, json_t **out)
{
    struct stat info;
    if (stat(ref, &info) == 0 && S_ISDIR(info.st_mode)) {
        char path[512];
        text_print(path, sizeof path, "%s/recommendation.json", ref);
        return HINT(json_read(path, out), "name a directory that `tune` wrote");
    }
    if (stat(ref, &info) == 0 || strchr(ref, '/') != NULL || strstr(ref, ".json") != NULL)
        return json_read(ref, out);
    char path[512];
    struct store *store = NULL;
    struct store_run run;
    TRY(store_path(opt_value(&cli->opts, "store"), path, sizeof path));
    TRY(store_open(path, STORE_READ, &store));
    enum status status = store_resolve(store, ref, &run);
    if (status == STATUS_OK) {
        status = HINT(store_document(store, run.id, "recommendation", out), "name a run of `tune`; `sptune results list` shows them");
        store_run_free(&run);
    }
    store_close(store);
    return status;
}

static enum status run(struct cli *cli)
{
    json_t *document = NULL;
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

static const struct opt *const tables[] = {options, NULL};

const struct verb verb_explain = {
    .name = "explain",
    .usage = "REC [TERM] [--why-not sp=P] [--what-if KEY=VALUE]",
    .about = "derive any number of a recommendation, without measuring",
    .help = "REC is a recommendation.json, the directory that tune wrote, or a run of the store (@last). TERM is a memory term, a "
            "part of the step time or an assumption by name.",
    .tables = tables,
    .min_args = 1,
    .max_args = 2,
    .run = run,
};
