/* cli/verb_bench.c -- `sptune bench SUBJECT`: time one part, sweeping lists. */
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/units.h"
#include "bench/check.h"
#include "cli/ranks.h"
#include "cli/samples.h"
#include "cli/session.h"
#include "cli/sweep.h"
#include "kernels/attention.h"
#include "results/export.h"
#include "sp/exchange.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const struct opt own_options[] = {
    {"ranks", 0, OPT_VALUE, "LIST", "processes started here [the launcher's, else the GPUs, else 2]"},
    {"device", 0, OPT_VALUE, "KIND", "auto, cpu or cuda [auto]"},
    {"transport", 0, OPT_VALUE, "NAME", "shm, sysv or tcp [the best that works]"},
    {"effort", 0, OPT_VALUE, "WORD", "quick, normal or full: how narrow an interval is wanted [quick]"},
    {"samples", 0, OPT_VALUE, "N", "iterations per row at most, 10 or more [by effort]"},
    {"warmup", 0, OPT_VALUE, "N", "untimed iterations per row [by effort]"},
    {"budget", 0, OPT_VALUE, "T", "wall time for everything, checks included [60s]"},
    {"resume", 0, OPT_FLAG, NULL, "go on where the same command was ended"},
    {"jsonl", 0, OPT_FLAG, NULL, "one JSON row per line as it is measured"},
    {"export", 0, OPT_MANY, "FORMAT=FILE", "also write the samples; `list` names the formats; repeatable"},
    {"store", 0, OPT_VALUE, "FILE", "the result store [SPTUNE_STORE, else the user's data directory]"},
    {"name", 0, OPT_VALUE, "NAME", "call this run NAME in the store"},
    {0},
};

struct order {
    const char *subject;
    int64_t *ranks; /* list */
    int nranks, job; /* which of them runs now */
    int64_t *run;    /* shared by the jobs of one command: the run they append to, 0 until it is begun */
    struct bench_options options;
    int64_t deadline_ns;
};

/* The unfinished run that `--resume` goes on with: same command, but for the option itself. */
static enum status find_resumable(struct store *store, const char *command, int64_t *out)
{
    struct store_run *runs = NULL;
    int n = 0;
    *out = 0;
    TRY(store_runs(store, &runs, &n));
    for (int i = 0; i < n; i++) {
        struct text plain = {0}, other = {0};
        for (int side = 0; side < 2; side++) {
            const char *s = side == 0 ? command : runs[i].command, *cut = strstr(s, " --resume");
            text_add(side == 0 ? &plain : &other, "%.*s%s", cut != NULL ? (int)(cut - s) : (int)strlen(s), s,
                     cut != NULL ? cut + strlen(" --resume") : "");
        }
        if (*out == 0 && !runs[i].finished && strcmp(text_get(&plain), text_get(&other)) == 0)
            *out = runs[i].id;
        text_free(&plain);
        text_free(&other);
        store_run_free(&runs[i]);
    }
    free(runs);
    return STATUS_OK;
}

static enum status open_run(struct ranks *ranks, const struct order *order, struct bench_session *session)
{
    struct cli *cli = ranks->cli;
    int64_t run = *order->run;
    if (run == 0 && opt_given(&cli->opts, "resume")) {
        char path[512];
        struct store *store = NULL;
        TRY(store_path(opt_value(&cli->opts, "store"), path, sizeof path));
        if (store_open(path, STORE_READ, &store) == STATUS_OK) {
            enum status status = find_resumable(store, cli->command, &run);
            store_close(store);
            TRY(status);
        }
        if (run == 0)
            log_info("nothing to resume: no unfinished run of this command; starting over");
    }
    TRY(session_open(ranks, "bench", run, session));
    session->reuse = opt_given(&cli->opts, "resume");
    session->reuse_run = session->run;
    *order->run = session->run;
    return STATUS_OK;
}

static enum status print_row(struct cli *cli, const struct sample *sample)
{
    struct json_envelope envelope = cli_envelope(cli);
    json_t *row = export_row(sample, &envelope);
    char *line = NULL;
    struct text out = {0};
    enum status status = row != NULL ? json_format(row, false, &line) : FAIL(STATUS_NOMEM, "no memory for a row");
    if (status == STATUS_OK) {
        text_add(&out, "%s\n", line);
        status = cli_print(text_get(&out));
    }
    text_free(&out);
    free(line);
    json_decref(row);
    return status;
}

static enum status measure_cell(struct ranks *ranks, struct bench_session *session, const struct sweep *sweep, int i,
                                struct order *order)
{
    struct bench_case cases[BENCH_CASES_MAX];
    struct sample samples[BENCH_CASES_MAX];
    TRY(sweep_cell(sweep, i, cases));
    for (int v = 0; v < sweep->variants; v++) {
        const char *docs = opt_value(&ranks->cli->opts, "docs");
        if (docs != NULL)
            TRY(problem_set_docs(&cases[v].problem, docs));
    }
    struct bench_options options = order->options;
    int64_t left_us = (order->deadline_ns - clock_ns()) / 1000;
    options.budget_us = left_us > 0 ? left_us / (sweep->cells - i) : 0;
    TRY(bench_measure(session, cases, sweep->variants, &options, samples, NULL));
    enum status status = STATUS_OK;
    for (int v = 0; v < sweep->variants; v++) {
        if (status == STATUS_OK && ranks->cli->jsonl)
            status = print_row(ranks->cli, &samples[v]);
        sample_free(&samples[v]);
    }
    return status;
}

static enum status check_first(struct bench_session *session, const struct sweep *sweep, uint64_t seed)
{
    struct bench_case cases[BENCH_CASES_MAX];
    TRY(sweep_cell(sweep, 0, cases));
    for (int v = 0; v < sweep->variants; v++) {
        struct check_report report = {0};
        enum status status = check_before(session, seed, &cases[v].plan, &report);
        check_report_free(&report);
        TRY(status);
    }
    session->checked = true;
    return STATUS_OK;
}

static enum status measure(struct ranks *ranks, struct bench_session *session, struct order *order)
{
    struct cli *cli = ranks->cli;
    struct sweep sweep;
    TRY(sweep_open(cli, order->subject, (int)order->ranks[order->job], &sweep));
    enum status status = STATUS_OK;
    if (strcmp(order->subject, "exchange") == 0 || strcmp(order->subject, "attention") == 0 || strcmp(order->subject, "layer") == 0)
        status = check_first(session, &sweep, cli->seed);
    progress_begin(order->subject, sweep.cells);
    for (int i = 0; i < sweep.cells && status == STATUS_OK; i++) {
        status = interrupt_status();
        if (status == STATUS_OK)
            status = measure_cell(ranks, session, &sweep, i, order);
        progress_step(i + 1, order->subject, -1);
    }
    progress_end();
    sweep_close(&sweep);
    return status;
}

/* All rows are here: what does the command as a whole say? */
static enum status judge(const struct samples *samples)
{
    int ok = 0, failed = 0;
    const struct sample *first_failed = NULL, *first_waived = NULL;
    for (int i = 0; i < samples->n; i++) {
        const struct sample *s = &samples->rows[i];
        ok += s->outcome == SAMPLE_OK;
        failed += s->outcome == SAMPLE_FAILED;
        if (s->outcome == SAMPLE_FAILED && first_failed == NULL)
            first_failed = s;
        if (s->outcome == SAMPLE_WAIVED && first_waived == NULL)
            first_waived = s;
    }
    if (failed > 0)
        return FAIL(STATUS_CHECK, "%d of %d rows failed, first: %s", failed, samples->n, first_failed->why);
    if (ok == 0 && first_waived != NULL)
        return WHERE(FAIL(first_waived->rule == RULE_TAINTED || first_waived->rule == RULE_BUDGET ? STATUS_NODATA : STATUS_USAGE,
                          "no cell could run: %s", first_waived->why),
                     "rule %s", rule_code(first_waived->rule));
    return ok > 0 ? STATUS_OK : FAIL(STATUS_NODATA, "nothing was measured");
}

static enum status finish(struct ranks *ranks, struct bench_session *session, const struct order *order, enum status how)
{
    struct samples samples = {0};
    char title[64];
    text_print(title, sizeof title, "bench %s", order->subject);
    TRY(samples_of_run(session->store, session->run, &samples));
    enum status status = samples.n > 0 ? samples_show(ranks->cli, &samples, title) : STATUS_OK;
    if (status == STATUS_OK && how == STATUS_OK)
        status = judge(&samples);
    samples_free(&samples);
    if (how != STATUS_OK)
        return status == STATUS_OK ? WHERE(interrupt_status(), "run %lld; --resume goes on", (long long)session->run) : status;
    TRY(store_run_end(session->store, session->run));
    return status;
}

static enum status root(struct ranks *ranks, void *arg)
{
    struct order *order = arg;
    struct bench_session session;
    memcpy(ranks->cli->machine, ranks->env.machine, sizeof ranks->cli->machine);
    TRY(open_run(ranks, order, &session));
    order->options.oversubscribed = order->ranks[order->job] > ranks->env.usable_cpus;
    if (order->options.oversubscribed)
        log_warn("%lld ranks on %d usable CPUs: rows are marked oversubscribed", (long long)order->ranks[order->job],
                 ranks->env.usable_cpus);
    enum status status = measure(ranks, &session, order);
    bool interrupted = status == STATUS_INTERRUPTED || status == STATUS_TERMINATED;
    if (interrupted || (status == STATUS_OK && order->job == order->nranks - 1))
        status = finish(ranks, &session, order, status);
    session_close(&session);
    return status;
}

static enum status read_order(struct cli *cli, const struct topo *topo, struct order *out)
{
    static const char *const efforts[] = {"quick", "normal", "full"};
    int effort = 0;
    int64_t samples = 0, warmup = -1, budget_us = 60 * 1000 * 1000;
    out->subject = cli->opts.args[0];
    if (bench_subject_find(out->subject) == NULL) {
        const char *names[16];
        size_t n = 0;
        struct text all = {0};
        for (; bench_subjects[n] != NULL; n++) {
            names[n] = bench_subjects[n]->name;
            text_add(&all, " %s", names[n]);
        }
        const char *near = text_nearest(out->subject, names, n);
        enum status status = HINT(FAIL(STATUS_USAGE, "bench does not know the subject '%.40s'", out->subject),
                                  "%s%s%ssubjects:%s", near != NULL ? "did you mean " : "", near != NULL ? near : "",
                                  near != NULL ? "? " : "", text_get(&all));
        text_free(&all);
        return status;
    }
    TRY(opt_word(&cli->opts, "effort", efforts, 3, 0, &effort));
    bench_options_effort(efforts[effort], &out->options);
    TRY(opt_count(&cli->opts, "samples", 10, 1000000, out->options.samples_max, &samples));
    TRY(opt_count(&cli->opts, "warmup", 1, 1000000, out->options.warmup, &warmup));
    if (opt_given(&cli->opts, "budget"))
        TRY(units_parse_duration(opt_value(&cli->opts, "budget"), "--budget", &budget_us));
    out->options.samples_max = (int)samples;
    if (out->options.samples_min > out->options.samples_max)
        out->options.samples_min = out->options.samples_max;
    out->options.warmup = (int)warmup;
    out->deadline_ns = clock_deadline(budget_us);
    const char *ranks = opt_value(&cli->opts, "ranks");
    if (ranks != NULL)
        return units_parse_list(ranks, "--ranks", 1, 4096, &out->ranks, &out->nranks);
    out->ranks = calloc(1, sizeof *out->ranks);
    out->nranks = 1;
    return out->ranks != NULL ? ranks_count(cli, topo, out->ranks) : FAIL(STATUS_NOMEM, "no memory for a list");
}

/* `--exchange list`, `--attention list`: the tables, and nothing is measured. */
static enum status list_plugins(struct cli *cli, bool *listed)
{
    struct text out = {0};
    const char *exchange = opt_value(&cli->opts, "exchange"), *attention = opt_value(&cli->opts, "attention");
    if (exchange != NULL && strcmp(exchange, "list") == 0)
        for (int i = 0; exchanges[i] != NULL; i++)
            text_add(&out, "%-16s %s\n", exchanges[i]->name, exchanges[i]->about);
    if (attention != NULL && strcmp(attention, "list") == 0)
        for (int i = 0; attentions[i] != NULL; i++)
            text_add(&out, "%-16s on %s%s%s\n", attentions[i]->name, dev_kind_name(attentions[i]->dev),
                     attentions[i]->stands_for[0] != '\0' ? ", stands for " : "", attentions[i]->stands_for);
    *listed = out.len > 0;
    enum status status = *listed ? cli_print(text_get(&out)) : STATUS_OK;
    text_free(&out);
    return status;
}

static enum status run_jobs(struct cli *cli, const struct topo *topo, struct order *order)
{
    struct ranks_options how;
    TRY(ranks_options_read(cli, &how));
    TRY(read_order(cli, topo, order));
    for (int job = 0; job < order->nranks; job++) { /* wrong lists are refused before the first rank starts */
        struct sweep sweep;
        TRY(sweep_open(cli, order->subject, (int)order->ranks[job], &sweep));
        sweep_close(&sweep);
    }
    for (order->job = 0; order->job < order->nranks; order->job++) {
        how.n = (int)order->ranks[order->job];
        TRY(ranks_run(cli, topo, &how, root, order));
        if (cli->exit_code != 0)
            break;
    }
    return STATUS_OK;
}

static enum status run(struct cli *cli)
{
    bool listed = false;
    TRY(list_plugins(cli, &listed));
    if (listed)
        return STATUS_OK;
    TRY(samples_check_exports(cli));
    if (cli->spoke)
        return STATUS_OK;
    struct topo topo;
    struct order order = {0};
    int lock = -1;
    order.run = mmap(NULL, sizeof *order.run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (order.run == MAP_FAILED)
        return FAIL(STATUS_NOMEM, "no memory for a shared page");
    TRY(topo_open("local", &topo));
    enum status status = session_lock(60 * 1000 * 1000, &lock);
    if (status == STATUS_OK)
        status = run_jobs(cli, &topo, &order);
    session_unlock(lock);
    free(order.ranks);
    munmap(order.run, sizeof *order.run);
    topo_free(&topo);
    return status;
}

static const struct opt *const tables[] = {sweep_options, own_options, NULL};

const struct verb verb_bench = {
    .name = "bench",
    .usage = "collective|exchange|attention|gemm|layer [lists]",
    .about = "time one part: collective, exchange, attention, gemm or layer; sweeping lists",
    .help = "Lists and ranges (1k..64k*2) sweep their product. Every row is checked, measured as\n"
            "docs/measurement.md says, and kept in the store as it is measured.",
    .tables = tables,
    .min_args = 1,
    .max_args = 1,
    .run = run,
};
