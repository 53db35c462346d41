/* cli/results_predict.c -- rows in, the same rows of more ranks out. */
#include "cli/results_predict.h"

#include "base/log.h"
#include "base/units.h"
#include "cli/samples.h"
#include "comm/launch.h"
#include "tuner/predict.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct opt results_predict_options[] = {
    {"ranks", 0, OPT_VALUE, "N", "results predict: ranks of the machine that is asked about"},
    {"sp", 0, OPT_VALUE, "LIST", "results predict: ranks per sequence [all ranks]"},
    {0},
};

static bool is_file(const char *word)
{
    return strstr(word, ".jsonl") != NULL;
}

static enum status rows_of_run(struct cli *cli, const char *ref, struct samples *out)
{
    struct store *store = NULL;
    struct store_run run;
    char path[512];
    TRY(store_path(opt_value(&cli->opts, "store"), path, sizeof path));
    TRY(store_open(path, STORE_READ, &store));
    enum status status = store_resolve(store, ref, &run);
    if (status == STATUS_OK) {
        status = samples_of_run(store, run.id, out);
        store_run_free(&run);
    }
    store_close(store);
    return status;
}

/* A file whose name does not say that it holds rows is most likely why there is no such run. */
static enum status load_run(struct cli *cli, const char *ref, struct samples *out)
{
    enum status status = rows_of_run(cli, ref, out);
    return access(ref, F_OK) == 0 ? HINT(status, "the file %s must be called %s.jsonl to be read as rows", ref, ref)
                                  : status;
}

/* A run, or files and runs in a row. */
static enum status load_rows(struct cli *cli, const char *ref, struct samples *out)
{
    const char *words[OPT_ARGS_MAX];
    char *storage = NULL;
    int n = 0;
    if (!is_file(ref)) /* a run's name may have a comma */
        return load_run(cli, ref, out);
    TRY(opt_split(ref, &storage, words, OPT_ARGS_MAX, &n));
    enum status status = STATUS_OK;
    for (int i = 0; i < n && status == STATUS_OK; i++)
        status = is_file(words[i]) ? samples_read_lines(words[i], out) : load_run(cli, words[i], out);
    free(storage);
    return status;
}

/* Rows that this command made are no ground for others. */
static enum status check_measured(const struct samples *rows)
{
    for (int i = 0; i < rows->n; i++)
        if (rows->rows[i].conditions == NULL || strstr(rows->rows[i].conditions, "\"predicted_from\"") == NULL)
            return STATUS_OK;
    return rows->n == 0
               ? STATUS_OK
               : HINT(FAIL(STATUS_NODATA, "no row could be predicted: all of these are predictions themselves"),
                      "give the rows that they were predicted from");
}

static enum status predict_rows(const struct samples *rows, int ranks, const int64_t *sp, int nsp, struct samples *out)
{
    for (int k = 0; k < nsp * rows->n; k++) {
        struct sample sample;
        int i = k % rows->n;
        if (!predict_asks(rows->rows, i))
            continue;
        TRY(predict_row(rows->rows, rows->n, i, ranks, (int)sp[k / rows->n], &sample));
        enum status status = samples_add(out, &sample);
        sample_free(&sample);
        TRY(status);
    }
    return STATUS_OK;
}

static bool any_predicted(const struct samples *rows)
{
    for (int i = 0; i < rows->n; i++)
        if (rows->rows[i].outcome == SAMPLE_OK)
            return true;
    return false;
}

/* All rows waived is an answer of no use. */
static enum status judge(const struct samples *rows)
{
    if (any_predicted(rows))
        return STATUS_OK;
    return rows->n > 0 ? FAIL(STATUS_NODATA, "no row could be predicted: %s", rows->rows[0].why)
                       : HINT(FAIL(STATUS_NODATA, "there are no rows to predict from"), "`sptune bench` makes them");
}

enum status results_predict(struct cli *cli, const char *ref)
{
    struct samples rows = {0}, predicted = {0};
    int64_t ranks = 0, *sp = NULL;
    char all[24];
    int nsp = 0;
    const char *list = opt_value(&cli->opts, "sp");
    TRY(opt_count(&cli->opts, "ranks", 1, LAUNCH_RANKS_MAX, 0, &ranks));
    if (ranks == 0)
        return HINT(FAIL(STATUS_USAGE, "results predict needs --ranks"),
                    "sptune results predict @last --ranks 8 --sp 4,8");
    text_print(all, sizeof all, "%lld", (long long)ranks);
    TRY(units_parse_list(list != NULL ? list : all, "--sp", 1, LAUNCH_RANKS_MAX, &sp, &nsp));
    nsp = opt_drop_repeats(sp, nsp);
    enum status status = load_rows(cli, ref, &rows);
    if (status == STATUS_OK)
        status = check_measured(&rows);
    if (status == STATUS_OK)
        status = predict_rows(&rows, (int)ranks, sp, nsp, &predicted);
    if (status == STATUS_OK && any_predicted(&predicted))
        log_warn("these rows are predicted, not measured: docs/models.md says how, and how far off they may be");
    if (status == STATUS_OK && predicted.n > 0)
        status = samples_show(cli, &predicted, "predicted");
    if (status == STATUS_OK)
        status = judge(&predicted);
    samples_free(&predicted);
    samples_free(&rows);
    free(sp);
    return status;
}
