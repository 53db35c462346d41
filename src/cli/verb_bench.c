/* cli/verb_bench.c -- `sptune bench SUBJECT`: time one part, sweeping lists. */
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/units.h"
#include "bench/check.h"
#include "cli/list.h"
#include "cli/ranks.h"
#include "cli/samples.h"
#include "cli/session.h"
#include "cli/worklist.h"
#include "kernels/attention.h"
#include "results/export.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const struct opt own_options[] = {
    {"ranks", 0, OPT_VALUE, "LIST", "processes started here [the launcher's, else the GPUs, else 2]"},
    {"device", 0, OPT_VALUE, "KIND", "auto, cpu or cuda [auto]"},
    {"threads", 0, OPT_VALUE, "N", "CPU threads of each rank's kernels [its share of the CPUs]"},
    {"transport", 0, OPT_VALUE, "NAME",
     "a transport (ucx, nccl), or a part of UCX: shm, sysv or tcp [the best that works]"},
    {"effort", 0, OPT_VALUE, "WORD", "quick, normal or full: how narrow an interval is wanted [quick]"},
    {"samples", 0, OPT_VALUE, "N", "iterations per row at most, 10 or more [by effort]"},
    {"warmup", 0, OPT_VALUE, "N", "untimed iterations per row [by effort]"},
    {"budget", 0, OPT_VALUE, "T", "wall time for everything, checks included [60s]"},
    {"resume", 0, OPT_FLAG, NULL, "go on where the same command was ended, or its budget"},
    {"jsonl", 0, OPT_FLAG, NULL, "one JSON row per line as it is measured"},
    {"export", 0, OPT_MANY, "FORMAT=FILE", "also write the samples; `list` names the formats; repeatable"},
    {"store", 0, OPT_VALUE, "FILE", "the result store [SPTUNE_STORE, else the user's data directory]"},
    {"name", 0, OPT_VALUE, "NAME", "call this run NAME in the store"},
    {0},
};

/* Shared by the jobs of one command, which run in different processes. */
struct progress_page {
    int64_t run;         /* the one that all append to, 0 until it is begun */
    int64_t deadline_ns; /* 0 until the first job measures: waiting for another sptune does not count */
};

struct order {
    const char *subject;
    const struct suite *suite; /* NULL: the subject's own lists */
    int64_t *ranks;  /* list */
    int nranks, job; /* which of them runs now */
    int left;        /* cells of the job that are still to be measured */
    struct progress_page *page;
    struct bench_options options;
    int64_t budget_us;
};

static enum status open_run(struct ranks *ranks, const struct order *order, struct bench_session *session)
{
    struct cli *cli = ranks->cli;
    bool resume = opt_given(&cli->opts, "resume");
    if (order->page->run == 0 && resume) {
        TRY(session_resumable(cli, &order->page->run));
        if (order->page->run == 0)
            log_info("nothing to resume: no unfinished run of this command; starting over");
    }
    TRY(session_open(ranks, "bench", order->page->run, session));
    session->reuse = resume;
    session->reuse_run = session->run;
    if (order->page->deadline_ns == 0)
        order->page->deadline_ns = clock_deadline(order->budget_us);
    if (order->page->run == session->run)
        return STATUS_OK;
    order->page->run = session->run;
    enum status status = session_remember(cli, session);
    if (status != STATUS_OK)
        session_close(session);
    return status;
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
        status = cli_stream(text_get(&out));
    }
    text_free(&out);
    free(line);
    json_decref(row);
    return status;
}

/* Cells that are not yet measured, which is all of them without --resume. */
static enum status count_left(const struct bench_session *session, const struct worklist *work, struct order *order)
{
    struct bench_case cases[BENCH_CASES_MAX];
    order->left = 0;
    for (int w = 0; w < work->n; w++)
        for (int i = 0; i < work->sweeps[w].cells; i++) {
            int missing = 0;
            TRY(sweep_cell(&work->sweeps[w], i, cases));
            TRY(bench_missing(session, cases, work->sweeps[w].variants, &order->options, &missing));
            order->left += missing > 0;
        }
    return STATUS_OK;
}

/* Cell i of the sweep. What is left of the budget is shared by the cells that are still to be measured. */
static enum status measure_cell(struct ranks *ranks, struct bench_session *session, const struct sweep *sweep, int i,
                                struct order *order)
{
    struct bench_case cases[BENCH_CASES_MAX];
    struct sample samples[BENCH_CASES_MAX];
    int missing = 0;
    TRY(sweep_cell(sweep, i, cases));
    TRY(bench_missing(session, cases, sweep->variants, &order->options, &missing));
    struct bench_options options = order->options;
    int64_t left_us = (order->page->deadline_ns - clock_ns()) / 1000;
    options.budget_us = left_us > 0 && missing > 0 ? left_us / order->left-- : 0;
    TRY(bench_measure(session, cases, sweep->variants, &options, samples, NULL));
    enum status status = STATUS_OK;
    for (int v = 0; v < sweep->variants; v++) {
        bool cut_short =
            interrupt_pending() && samples[v].outcome == SAMPLE_WAIVED && samples[v].rule == RULE_BUDGET; /* not kept */
        if (status == STATUS_OK && ranks->cli->jsonl && !cut_short)
            status = print_row(ranks->cli, &samples[v]);
        sample_free(&samples[v]);
    }
    return status;
}

/* Every distinct way of computing among the legal cells is checked once, before anything is timed. */
enum { WAYS_MAX = 256 };
struct ways {
    struct plan plans[WAYS_MAX];
    int n;
};

static void add_way(struct ways *ways, const struct bench_case *c, const struct bench_env *env)
{
    struct verdict verdict = bench_subject_of(c)->check(c, env);
    for (int i = 0; i < ways->n; i++)
        if (plan_same_way(&ways->plans[i], &c->plan))
            return;
    if (verdict_ok(&verdict) && ways->n < WAYS_MAX)
        ways->plans[ways->n++] = c->plan;
}

static bool computes(const char *subject)
{
    static const char *const with_plans[] = {"exchange", "attention", "layer"};
    for (int i = 0; i < 3; i++)
        if (strcmp(with_plans[i], subject) == 0)
            return true;
    return false; /* copies, collectives and products are verified as they are timed */
}

static enum status find_ways(const struct bench_session *session, const struct worklist *work, struct ways *ways)
{
    struct bench_case cases[BENCH_CASES_MAX];
    for (int w = 0; w < work->n; w++) {
        const struct sweep *sweep = &work->sweeps[w];
        for (int i = 0; i < sweep->cells && computes(sweep->base.subject); i++) {
            TRY(sweep_cell(sweep, i, cases));
            for (int v = 0; v < sweep->variants; v++)
                add_way(ways, &cases[v], session->env);
        }
    }
    return STATUS_OK;
}

static enum status check_first(struct bench_session *session, const struct worklist *work, uint64_t seed)
{
    struct ways *ways = calloc(1, sizeof *ways);
    if (ways == NULL)
        return FAIL(STATUS_NOMEM, "no memory for what is to be checked");
    enum status status = find_ways(session, work, ways);
    for (int i = 0; i < ways->n && status == STATUS_OK; i++) {
        struct check_report report = {0};
        status = check_before(session, seed, &ways->plans[i], &report);
        check_report_free(&report);
    }
    session->checked = status == STATUS_OK && ways->n > 0;
    free(ways);
    return status;
}

/* done: cells of the sweeps before this one. */
static enum status measure_sweep(struct ranks *ranks, struct bench_session *session, const struct sweep *sweep,
                                 int done, struct order *order)
{
    for (int i = 0; i < sweep->cells; i++) {
        char cell[96], label[128];
        text_print(label, sizeof label, "%s%s%s", order->suite != NULL ? sweep->base.subject : "",
                   order->suite != NULL ? " " : "", sweep_label(sweep, i, cell));
        if (done + i > 0)
            progress_step(done + i, label, -1);
        TRY(interrupt_status());
        TRY(measure_cell(ranks, session, sweep, i, order));
    }
    return STATUS_OK;
}

static enum status measure(struct ranks *ranks, struct bench_session *session, struct order *order)
{
    struct cli *cli = ranks->cli;
    struct worklist work;
    int done = 0;
    TRY(worklist_open(cli, order->subject, order->suite, (int)order->ranks[order->job], &work));
    enum status status = check_first(session, &work, cli->seed);
    if (status == STATUS_OK)
        status = count_left(session, &work, order);
    progress_begin(order->suite != NULL ? order->suite->name : order->subject, work.cells);
    for (int w = 0; w < work.n && status == STATUS_OK; w++) {
        status = measure_sweep(ranks, session, &work.sweeps[w], done, order);
        done += work.sweeps[w].cells;
    }
    progress_end();
    worklist_close(&work);
    return status == STATUS_OK ? interrupt_status() : status;
}

/* Rows that the budget ended before it was their turn, or before they had their samples. */
static int left_out(const struct samples *samples, const struct bench_options *options)
{
    int n = 0;
    for (int i = 0; i < samples->n; i++) {
        const struct sample *s = &samples->rows[i];
        n += s->outcome == SAMPLE_WAIVED ? s->rule == RULE_BUDGET
                                         : s->outcome == SAMPLE_OK && s->n < options->samples_min;
    }
    return n;
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
        return HINT(
            FAIL(first_waived->rule == RULE_TAINTED || first_waived->rule == RULE_BUDGET ? STATUS_NODATA : STATUS_USAGE,
                 "no cell could run: %s", first_waived->why),
            "rule %s; every row says why it was waived", rule_code(first_waived->rule));
    return ok > 0 ? STATUS_OK : FAIL(STATUS_NODATA, "nothing was measured");
}

static enum status finish(struct ranks *ranks, struct bench_session *session, const struct order *order,
                          enum status how)
{
    struct samples samples = {0};
    char title[64];
    text_print(title, sizeof title, "bench %s%s%s", order->subject, order->suite != NULL ? " " : "",
               order->suite != NULL ? order->suite->name : "");
    if (how != STATUS_OK && how != STATUS_UNREAD)
        log_warn("interrupted: these are the rows measured so far; the same command with --resume goes on");
    TRY(samples_of_run(session->store, session->run, &samples));
    enum status status = samples.n > 0 ? samples_show(ranks->cli, &samples, title) : STATUS_OK;
    if (status == STATUS_OK && how == STATUS_OK)
        status = judge(&samples);
    int left = left_out(&samples, &order->options);
    if (how == STATUS_OK && left > 0)
        log_info("the budget ended before %d of %d rows had their samples: the same command with --resume goes on",
                 left, samples.n);
    samples_free(&samples);
    if (how == STATUS_UNREAD)
        return status == STATUS_OK ? how : status;
    if (how != STATUS_OK)
        return status == STATUS_OK ? interrupt_status() : status;
    if (left == 0)
        TRY(store_run_end(session->store, session->run));
    return status;
}

static enum status root(struct ranks *ranks, void *arg)
{
    struct order *order = arg;
    struct bench_session session;
    TRY(open_run(ranks, order, &session));
    order->options.oversubscribed = order->ranks[order->job] > ranks->env.usable_cpus;
    if (order->options.oversubscribed)
        log_warn("%lld ranks on %d usable CPUs: rows are marked oversubscribed", (long long)order->ranks[order->job],
                 ranks->env.usable_cpus);
    enum status status = measure(ranks, &session, order);
    bool stopped = status == STATUS_INTERRUPTED || status == STATUS_TERMINATED || status == STATUS_UNREAD;
    if (stopped || (status == STATUS_OK && order->job == order->nranks - 1))
        status = finish(ranks, &session, order, status);
    session_close(&session);
    return status;
}

static enum status read_order(struct cli *cli, const struct topo *topo, struct order *out)
{
    static const char *const efforts[] = {"quick", "normal", "full"};
    int effort = 0;
    int64_t samples = 0, warmup = -1;
    TRY(worklist_subject(cli, &out->subject, &out->suite));
    TRY(opt_word(&cli->opts, "effort", efforts, 3, 0, &effort));
    bench_options_effort(efforts[effort], &out->options);
    TRY(opt_count(&cli->opts, "samples", 10, 1000000, out->options.samples_max, &samples));
    TRY(opt_count(&cli->opts, "warmup", 1, 1000000, out->options.warmup, &warmup));
    TRY(opt_duration(&cli->opts, "budget", INT64_C(60) * 1000 * 1000, &out->budget_us));
    out->options.samples_max = (int)samples;
    if (out->options.samples_min > out->options.samples_max)
        out->options.samples_min = out->options.samples_max;
    out->options.warmup = (int)warmup;
    return ranks_list(cli, topo, &out->ranks, &out->nranks);
}

static enum status list_kernels(struct cli *cli)
{
    struct cli_item items[LIST_ITEMS];
    char about[LIST_ITEMS][64];
    unsigned devices = 0;
    int n = 0;
    TRY(list_devices(cli, &devices));
    for (int i = 0; attentions[i] != NULL && n < LIST_ITEMS; i++) {
        const struct attention *kernel = attentions[i];
        if ((devices & 1u << kernel->dev) == 0)
            continue;
        text_print(about[n], sizeof about[n], "on %s%s%s", dev_kind_name(kernel->dev),
                   kernel->stands_for[0] != '\0' ? ", stands for " : "", kernel->stands_for);
        items[n] = (struct cli_item){kernel->name, about[n]};
        n++;
    }
    return list_print(cli, "attention kernel", items, n);
}

/* `--exchange list`, `--attention list`, `--suite list`: the tables, and nothing is measured. */
static enum status list_plugins(struct cli *cli, bool *listed)
{
    *listed = true;
    if (list_asked(cli, "suite"))
        return worklist_print_suites(cli);
    if (list_asked(cli, "exchange"))
        return list_exchanges(cli);
    if (list_asked(cli, "attention"))
        return list_kernels(cli);
    *listed = false;
    return STATUS_OK;
}

/* Wrong lists are refused before the first rank starts. *legal: some cell may run; `judged`: by rules alone, else that is
 * not known before a device is open. */
static enum status read_lists(struct cli *cli, const struct order *order, bool judged, bool *legal)
{
    *legal = !judged;
    for (int job = 0; job < order->nranks; job++) {
        struct worklist work;
        TRY(worklist_open(cli, order->subject, order->suite, (int)order->ranks[job], &work));
        enum status status = STATUS_OK;
        for (int w = 0; w < work.n && status == STATUS_OK && !*legal; w++)
            status = sweep_legal(&work.sweeps[w], legal);
        worklist_close(&work);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status run_jobs(struct cli *cli, const struct topo *topo, struct order *order)
{
    struct ranks_options how;
    bool legal = true;
    TRY(ranks_options_read(cli, &how));
    TRY(read_order(cli, topo, order));
    TRY(read_lists(cli, order, how.kind == DEV_CPU, &legal));
    how.stores = true;
    how.lock_us = legal ? order->budget_us : -1; /* rows that are all waived disturb nobody, and wait for nobody */
    how.answers = "this measurement";
    how.kept = "measured rows are kept, the same command with --resume goes on";
    for (order->job = 0; order->job < order->nranks && cli->exit_code == 0; order->job++) {
        how.n = (int)order->ranks[order->job];
        TRY(order->job > 0 ? interrupt_status() : STATUS_OK);
        TRY(ranks_run(cli, topo, &how, root, order));
    }
    return STATUS_OK;
}

static enum status run(struct cli *cli)
{
    bool listed = false;
    struct topo topo;
    struct order order = {0};
    TRY(list_plugins(cli, &listed));
    if (!listed)
        TRY(samples_check_exports(cli, &listed));
    if (listed)
        return STATUS_OK;
    order.page = mmap(NULL, sizeof *order.page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (order.page == MAP_FAILED)
        return FAIL(STATUS_NOMEM, "no memory for a shared page");
    enum status status = topo_open("local", &topo);
    if (status == STATUS_OK) {
        status = run_jobs(cli, &topo, &order);
        topo_free(&topo);
    }
    free(order.ranks);
    munmap(order.page, sizeof *order.page);
    return status;
}

static const struct opt *const tables[] = {sweep_options, worklist_options, own_options, NULL};

const struct verb verb_bench = {
    .name = "bench",
    .usage = "link|collective|exchange|attention|gemm|layer [lists], or suite [NAME]",
    .about = "time one part: link, collective, exchange, attention, gemm or layer; sweeping lists; or a suite",
    .help = "Lists and ranges (1k..64k*2) sweep their product. Every row is checked, measured as docs/measurement.md "
            "says, and kept in the store as it is measured. A suite is a named list of rows, the same in every run, so "
            "that runs compare row by row.",
    .ranks = true,
    .tables = tables,
    .min_args = 0, /* of a list */
    .max_args = 2,
    .run = run,
};
