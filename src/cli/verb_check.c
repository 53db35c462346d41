/* cli/verb_check.c -- `sptune check`: correctness of everything that can run here. */
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"
#include "base/units.h"
#include "bench/check.h"
#include "cli/cli.h"
#include "cli/ranks.h"
#include "results/export.h"

#include <stdlib.h>
#include <string.h>

static const struct opt options[] = {
    {"area", 0, OPT_VALUE, "LIST", "areas to check, such as exchange,plan [all]"},
    {"rows", 0, OPT_VALUE, "TEXT", "only rows with this in them, such as 'sp=2 push' [all]"},
    {"ranks", 0, OPT_VALUE, "N", "processes started here [the launcher's, else the GPUs, else 2]"},
    {"device", 0, OPT_VALUE, "KIND", "auto, cpu or cuda [auto]"},
    {"oversubscribe", 0, OPT_FLAG, NULL, "ranks may share a GPU: results hold, times mean nothing [one rank a GPU]"},
    {"threads", 0, OPT_VALUE, "N", "CPU threads of each rank's kernels [its share of the CPUs]"},
    {"transport", 0, OPT_VALUE, "NAME",
     "a transport (ucx, nccl), or a part of UCX: shm, sysv or tcp [the best that works]"},
    {0},
};

struct asked {
    unsigned areas;
    const char *rows;
};

static const char *outcome_name(enum check_outcome outcome)
{
    return outcome == CHECK_PASSED ? "passed" : outcome == CHECK_FAILED ? "FAILED" : "waived";
}

static json_t *to_json(const struct check_report *report, int ranks, bool oversubscribed,
                       const struct json_envelope *envelope)
{
    json_t *document = json_document("check", envelope), *rows = json_array();
    for (int i = 0; i < report->nrows; i++) {
        const struct check_row *r = &report->rows[i];
        json_array_append_new(rows, json_pack("{s:s s:s s:s s:s s:s s:i}", "area", r->area, "what", r->what, "outcome",
                                              r->outcome == CHECK_FAILED ? "failed" : outcome_name(r->outcome), "rule",
                                              rule_code(r->rule), "why", r->why, "cases", r->cases));
    }
    if (document != NULL) {
        json_object_set_new(document, "ranks", json_integer(ranks));
        json_object_set_new(document, "oversubscribed", json_boolean(oversubscribed));
        json_object_set_new(document, "rows", rows);
        json_object_set_new(document, "cases", json_integer(report->cases));
        json_object_set_new(document, "passed", json_integer(report->passed));
        json_object_set_new(document, "failed", json_integer(report->failed));
        json_object_set_new(document, "waived", json_integer(report->waived));
    }
    return document;
}

static enum status print(const struct check_report *report, int64_t ranks, bool oversubscribed)
{
    enum { WHAT = 19, WHY = 8 };
    struct text out = {0};
    char cases[UNITS_BUF];
    for (int i = 0; i < report->nrows; i++) {
        const struct check_row *r = &report->rows[i];
        struct text what = {0};
        text_add(&what, r->outcome == CHECK_PASSED ? "%s (%d)" : "%s", r->what, r->cases);
        text_add(&out, "%-7s %-10s ", outcome_name(r->outcome), r->area);
        opt_wrap(&out, text_get(&what), WHAT, WHAT);
        text_free(&what);
        if (r->outcome == CHECK_PASSED)
            continue;
        text_add(&out, "%*s", WHY, "");
        opt_wrap(&out, r->why, WHY, WHY);
    }
    text_add(&out, "%lld ranks%s: %s problems in %d rows: %d passed, %d failed, %d waived%s\n", (long long)ranks,
             oversubscribed ? " (oversubscribed)" : "", units_format_count(report->cases, cases), report->nrows,
             report->passed, report->failed, report->waived, report->waived > 0 ? ": unsupported" : "");
    enum status status = text_status(&out);
    if (status == STATUS_OK)
        status = cli_print(text_get(&out));
    text_free(&out);
    return status;
}

static enum status some_row(const struct check_report *report, const char *rows)
{
    if (report->nrows > 0 || rows[0] == '\0')
        return STATUS_OK;
    return HINT(FAIL(STATUS_USAGE, "no row that is checked here has '%s' in it", rows),
                "`sptune check` without --rows shows them all");
}

static enum status verdict(const struct check_report *report)
{
    for (int i = 0; i < report->nrows; i++)
        if (report->rows[i].outcome == CHECK_FAILED)
            return HINT(FAIL(STATUS_CHECK, "%d of %d checks failed, first: %s: %s", report->failed, report->nrows,
                             report->rows[i].what, report->rows[i].why),
                        "do not trust timings of this build on this machine");
    return report->passed > 0 ? STATUS_OK : FAIL(STATUS_NODATA, "nothing could be checked");
}

static void begins(const char *area, const char *what, int rows)
{
    char label[256];
    text_print(label, sizeof label, "%s %s", area, what);
    progress_at(rows, label);
}

static enum status root(struct ranks *ranks, void *arg)
{
    const struct asked *asked = arg;
    struct cli *cli = ranks->cli;
    struct check_order order;
    struct check_report report = {.begins = begins};
    int n = comm_size(ranks->env.world);
    bool oversubscribed = ranks->shared || n > ranks->env.usable_cpus;
    memset(&order, 0, sizeof order); /* it is broadcast as bytes */
    order.seed = cli->seed;
    order.areas = asked->areas;
    text_print(order.rows, sizeof order.rows, "%s", asked->rows);
    if (n > ranks->env.usable_cpus)
        log_warn("%d ranks on %d usable CPUs: oversubscribed, correct but slow", n, ranks->env.usable_cpus);
    TRY(ranks_tell(ranks, "check", &order, sizeof order));
    progress_begin("check", 0);
    enum status status = check_run(&ranks->env, &order, &report);
    progress_end();
    if (status == STATUS_OK)
        status = some_row(&report, order.rows);
    struct json_envelope envelope = cli_envelope(cli);
    if (status == STATUS_OK)
        status = cli->json ? cli_print_json(cli, to_json(&report, n, oversubscribed, &envelope))
                           : print(&report, n, oversubscribed);
    if (status == STATUS_OK)
        status = verdict(&report);
    check_report_free(&report);
    return status;
}

static enum status rows_asked(const struct cli *cli, const char **out)
{
    enum { MOST = sizeof(((struct check_order *)NULL)->rows) - 1 };
    const char *rows = opt_value(&cli->opts, "rows");
    if (rows != NULL && (rows[0] == '\0' || strlen(rows) > MOST))
        return FAIL(STATUS_USAGE, "--rows '%.80s': right would be 1 to %d characters of a row", rows, (int)MOST);
    *out = rows != NULL ? rows : "";
    return STATUS_OK;
}

static enum status areas_asked(const struct cli *cli, unsigned *out)
{
    enum { MOST = 16 };
    const char *names[MOST];
    int n = 0;
    for (; checks[n] != NULL && n < MOST; n++)
        names[n] = checks[n]->area;
    return opt_words(&cli->opts, "area", names, n, out);
}

static enum status run(struct cli *cli)
{
    int64_t n = 0;
    struct asked asked = {.rows = ""};
    struct topo topo;
    struct ranks_options how;
    TRY(areas_asked(cli, &asked.areas));
    TRY(rows_asked(cli, &asked.rows));
    TRY(ranks_options_read(cli, &how));
    TRY(topo_open("local", &topo));
    enum status status = ranks_count(cli, &topo, 0, &n);
    how.n = (int)n;
    if (status == STATUS_OK)
        status = ranks_run(cli, &topo, &how, root, &asked);
    topo_free(&topo);
    return status;
}

static const struct opt *const tables[] = {options, NULL};

const struct verb verb_check = {
    .name = "check",
    .usage = "[--area LIST] [--rows TEXT] [--ranks N] [--device KIND] [--transport NAME]",
    .about = "correctness of every kernel, transport, exchange and plan",
    .help = "Runs every kernel, transport, exchange and enumerable plan on small problems against a double precision "
            "reference; "
            "says what it covered and what was waived and why. Exit 1 when one fails.",
    .ranks = true,
    .tables = tables,
    .run = run,
};
