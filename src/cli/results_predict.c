/* cli/results_predict.c -- rows in, the same rows of more ranks out. */
#include "cli/results_predict.h"

#include "base/log.h"
#include "base/units.h"
#include "cli/samples.h"
#include "comm/launch.h"
#include "tuner/predict.h"

#include <stdlib.h>
#include <string.h>

const struct opt results_predict_options[] = {
    {"ranks", 0, OPT_VALUE, "N", "results predict: ranks of the machine that is asked about"},
    {"sp", 0, OPT_VALUE, "LIST", "results predict: ranks per sequence [all ranks]"},
    {0},
};

/* FILE,... of rows, or a run of the store. */
static enum status load_rows(struct cli *cli, const char *ref, struct samples *out)
{
    const char *files[OPT_ARGS_MAX];
    char *storage = NULL, path[512];
    int n = 0;
    if (strstr(ref, ".jsonl") == NULL) {
        struct store *store = NULL;
        struct store_run run;
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
    TRY(opt_split(ref, &storage, files, OPT_ARGS_MAX, &n));
    enum status status = STATUS_OK;
    for (int i = 0; i < n && status == STATUS_OK; i++)
        status = samples_read_lines(files[i], out);
    free(storage);
    return status;
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

/* All rows waived is an answer of no use. */
static enum status judge(const struct samples *rows)
{
    for (int i = 0; i < rows->n; i++)
        if (rows->rows[i].outcome == SAMPLE_OK)
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
        status = predict_rows(&rows, (int)ranks, sp, nsp, &predicted);
    if (status == STATUS_OK && predicted.n > 0) {
        log_warn("these rows are predicted, not measured: docs/models.md says how, and how far off they may be");
        status = samples_show(cli, &predicted, "predicted");
    }
    if (status == STATUS_OK)
        status = judge(&predicted);
    samples_free(&predicted);
    samples_free(&rows);
    free(sp);
    return status;
}
