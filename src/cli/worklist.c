/* cli/worklist.c -- from a command line, or a suite's lines, to sweeps. */
#include "cli/worklist.h"

#include <stdlib.h>
#include <string.h>

static const char suite_word[] = "suite";

const struct opt worklist_options[] = {
    {"suite", 0, OPT_VALUE, "NAME", "bench suite: which; `list` shows them and what is in each [ci]"},
    {0},
};

static enum status find_suite(const char *name, const struct suite **out)
{
    const char *names[16];
    size_t n = 0;
    for (; n < 16 && suites[n] != NULL; n++)
        names[n] = suites[n]->name;
    *out = suite_find(name);
    return *out != NULL ? STATUS_OK : opt_unknown("bench suite", name, names, n);
}

static enum status find_subject(const char *name, const char **out)
{
    const char *names[16];
    size_t n = 0;
    for (; n < 15 && bench_subjects[n] != NULL; n++)
        names[n] = bench_subjects[n]->name;
    names[n++] = suite_word;
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) {
            *out = names[i];
            return STATUS_OK;
        }
    return opt_unknown("bench SUBJECT", name, names, n);
}

enum status worklist_subject(const struct cli *cli, const char **subject, const struct suite **suite)
{
    const struct opt_set *opts = &cli->opts;
    const char *option = opt_value(opts, suite_word), *second = opts->nargs > 1 ? opts->args[1] : NULL;
    *suite = NULL;
    if (opts->nargs < 1)
        return HINT(FAIL(STATUS_USAGE, "sptune bench needs an argument"), "usage: sptune bench %s", cli->verb->usage);
    TRY(find_subject(opts->args[0], subject));
    bool of_suite = strcmp(*subject, suite_word) == 0;
    if (!of_suite && second != NULL)
        return HINT(FAIL(STATUS_USAGE, "unexpected argument '%.60s'", second),
                    "lists are options: `sptune help bench`");
    if (!of_suite && option != NULL)
        return HINT(FAIL(STATUS_USAGE, "bench %s has no --suite", *subject), "sptune bench suite %.40s", option);
    if (!of_suite)
        return STATUS_OK;
    if (option != NULL && second != NULL && strcmp(option, second) != 0)
        return HINT(FAIL(STATUS_USAGE, "suite '%.40s' and --suite %.40s contradict each other", second, option),
                    "name one");
    return find_suite(second != NULL ? second : option != NULL ? option : "ci", suite);
}

/* A suite's rows are always the same. */
static enum status refuse_lists(const struct cli *cli, const struct suite *suite)
{
    for (const struct opt *o = sweep_options; o->name != NULL; o++)
        if (opt_given(&cli->opts, o->name))
            return HINT(FAIL(STATUS_USAGE, "bench suite %s has no --%s: its lists are fixed", suite->name, o->name),
                        "`sptune bench suite --suite list` shows them as commands, which take other lists");
    return STATUS_OK;
}

/* The line as the command it stands for. *words holds what the options borrow. */
static enum status parse_line(const struct suite_line *line, char **words, struct opt_set *out)
{
    static const struct opt *const tables[] = {sweep_options, NULL};
    char *argv[2 * OPT_MANY_MAX + 2];
    int argc = 0;
    *words = NULL;
    char *text = strdup(line->lists);
    if (text == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a line of a suite");
    *words = text;
    argv[argc++] = (char *)(uintptr_t)line->subject; /* getopt takes it unwritten */
    for (char *rest = text, *word; argc <= 2 * OPT_MANY_MAX && (word = strsep(&rest, " ")) != NULL;)
        argv[argc++] = word;
    argv[argc] = NULL;
    return opt_parse(argc, argv, tables, out);
}

static bool is_for(const struct suite_line *line, enum dev_kind device)
{
    return line->ranks == SUITE_ALL || (line->ranks == SUITE_GPUS) == (device == DEV_CUDA);
}

static enum status open_line(struct cli *cli, const struct suite_line *line, int ranks, struct worklist *out)
{
    struct cli as = *cli;
    TRY(parse_line(line, &out->words[out->n], &as.opts));
    TRY(sweep_open(&as, line->subject, ranks, &out->sweeps[out->n]));
    out->cells += out->sweeps[out->n].cells;
    return STATUS_OK;
}

enum status worklist_open(struct cli *cli, const char *subject, const struct suite *suite, int ranks,
                          struct worklist *out)
{
    enum status status = STATUS_OK;
    memset(out, 0, sizeof *out);
    if (suite == NULL) {
        TRY(sweep_open(cli, subject, ranks, &out->sweeps[0]));
        out->n = 1;
        out->cells = out->sweeps[0].cells;
        return STATUS_OK;
    }
    TRY(refuse_lists(cli, suite));
    for (const struct suite_line *line = suite->lines; line->subject != NULL && status == STATUS_OK; line++) {
        if (!is_for(line, cli->device))
            continue;
        status = WHERE(open_line(cli, line, ranks, out), "suite %s: %s %s", suite->name, line->subject, line->lists);
        out->n++;
    }
    if (status != STATUS_OK)
        worklist_close(out);
    return status;
}

void worklist_close(struct worklist *work)
{
    for (int i = 0; i < work->n; i++) {
        sweep_close(&work->sweeps[i]);
        free(work->words[i]);
    }
    memset(work, 0, sizeof *work);
}

enum status worklist_print_suites(struct cli *cli)
{
    enum { ITEMS = 64 };
    static const char *const on[] = {[SUITE_ALL] = "", [SUITE_CPUS] = " on CPUs", [SUITE_GPUS] = " on GPUs"};
    struct cli_item items[ITEMS];
    char names[ITEMS][32];
    int n = 0;
    for (int i = 0; suites[i] != NULL; i++) {
        if (n < ITEMS)
            items[n++] = (struct cli_item){suites[i]->name, suites[i]->about};
        for (const struct suite_line *line = suites[i]->lines; line->subject != NULL && n < ITEMS; line++, n++) {
            text_print(names[n], sizeof names[n], "%s %s%s", suites[i]->name, line->subject, on[line->ranks]);
            items[n] = (struct cli_item){names[n], line->lists};
        }
    }
    return cli_print_list(cli, items, n);
}
