/* fuzz/fuzz_lists.c -- what stands on a command line: numbers with units, lists and ranges, packed documents, separators, plans, and
 * whole lines of `bench` options up to the cells they make.
 *
 * The first byte chooses; for a whole line each further line of the input is one word of it.
 */
#include "fuzz/fuzz.h"

#include "base/units.h"
#include "cli/sweep.h"
#include "sp/plan.h"
#include "sp/problem.h"
#include "train/data.h"

#include <sys/mman.h>
#include <unistd.h>

enum { WORDS_MAX = 48, CELLS_LOOKED_AT = 64 };

/* Parse first, then look: arguments of one call have no order. */
#define PARSES(call, in_range)                                                                                         \
    do {                                                                                                               \
        enum status parsed = (call);                                                                                   \
        if (parsed == STATUS_OK)                                                                                       \
            FUZZ_MUST(in_range);                                                                                       \
        else                                                                                                           \
            fuzz_refused(parsed, STATUS_USAGE, STATUS_NOMEM);                                                          \
    } while (0)

static void parse_numbers(const char *text)
{
    int64_t n = 0;
    double d = 0;
    PARSES(units_parse_count(text, "--n", 1, 1000, &n), n >= 1 && n <= 1000);
    PARSES(units_parse_count(text, "--n", 0, INT64_MAX, &n), n >= 0);
    PARSES(units_parse_memory(text, "--memory", &n), n >= 0);
    PARSES(units_parse_duration(text, "--budget", &n), n >= 0);
    PARSES(units_parse_double(text, "--x", -5, 5, &d), d >= -5 && d <= 5);
    PARSES(units_parse_percent(text, "--share", &d), d >= 0 && d <= 1);
}

static void parse_list(const char *text)
{
    int64_t *list = NULL;
    int n = 0;
    PARSES(units_parse_list(text, "--seq", 1, 1 << 30, &list, &n), list != NULL && n >= 1 && n <= UNITS_LIST_MAX);
    for (int i = 0; i < n; i++)
        FUZZ_MUST(list[i] >= 1 && list[i] <= 1 << 30);
    free(list);
}

static void check_docs(const struct problem *problem)
{
    int64_t sum = 0;
    for (int i = 0; i < problem->docs; i++) {
        FUZZ_MUST(problem->doc_len[i] >= 0);
        sum += problem->doc_len[i];
    }
    FUZZ_MUST(problem->docs == 0 || sum == problem->seq);
}

/* A file of lengths, in memory. */
static void parse_docs_file(const uint8_t *data, size_t size)
{
    char path[64];
    struct problem problem = {.batch = 1, .seq = 4096, .heads = 4, .kv_heads = 2, .head_dim = 8, .world = 2};
    int fd = memfd_create("lengths", MFD_CLOEXEC);
    FUZZ_MUST(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    PARSES(problem_set_docs(&problem, path), problem.docs >= 0);
    check_docs(&problem);
    close(fd);
}

/* As `train --plan` takes it out of a recommendation: it means the same when it is written again, and can be judged. */
static void parse_plan(const char *text)
{
    const struct problem problem = {
        .batch = 1, .seq = 4096, .heads = 4, .kv_heads = 2, .head_dim = 8, .direction = PROBLEM_BOTH, .world = 2};
    struct plan plan, again;
    char first[PLAN_TEXT], second[PLAN_TEXT];
    enum status status = plan_parse(text, &plan);
    if (status != STATUS_OK) {
        fuzz_refused(status, STATUS_USAGE, STATUS_NOMEM);
        return;
    }
    FUZZ_MUST(plan_parse(plan_text(&plan, first), &again) == STATUS_OK);
    FUZZ_MUST(strcmp(plan_text(&again, second), first) == 0);
    struct verdict verdict = plan_check(&problem, &plan, DEV_CPU);
    FUZZ_MUST(verdict_ok(&verdict) || verdict.why[0] != '\0');
}

static void parse_separator(const char *text, enum data_form form)
{
    struct data_separator separator = {0};
    PARSES(data_separator_parse(text, "--separator", form, &separator),
           separator.n >= 1 && separator.n <= DATA_SEPARATOR_MAX);
    for (int i = 0; i < separator.n; i++)
        FUZZ_MUST(separator.token[i] >= 0 && (form != DATA_BYTES || separator.token[i] < 256));
}

static void make_cells(struct cli *cli, const char *subject)
{
    struct sweep sweep;
    struct bench_case cases[BENCH_CASES_MAX];
    char label[96];
    enum status status = sweep_open(cli, subject, 2, &sweep);
    if (status != STATUS_OK) {
        fuzz_refused(status, STATUS_USAGE, STATUS_NOMEM);
        return;
    }
    FUZZ_MUST(sweep.cells >= 1 && sweep.variants >= 1 && sweep.variants <= BENCH_CASES_MAX);
    for (int i = 0; i < sweep.cells && i < CELLS_LOOKED_AT; i++) {
        status = sweep_cell(&sweep, i, cases);
        if (status != STATUS_OK)
            fuzz_refused(status, STATUS_USAGE, STATUS_NOMEM);
        for (int v = 0; status == STATUS_OK && v < sweep.variants; v++) {
            check_docs(&cases[v].problem);
            (void)problem_check(&cases[v].problem);
        }
        FUZZ_MUST(sweep_label(&sweep, i, label) == label);
    }
    sweep_close(&sweep);
}

/* A file that --docs names is somebody's: not read here. */
static bool names_a_file(const struct cli *cli)
{
    const char *docs = opt_value(&cli->opts, "docs");
    return docs != NULL && strcmp(docs, "none") != 0 && strncmp(docs, "fixed:", 6) != 0;
}

static void parse_line(const uint8_t *data, size_t size)
{
    static const struct opt *const tables[] = {sweep_options, NULL};
    char *argv[WORDS_MAX + 2], name[] = "bench";
    int argc = 0;
    argv[argc++] = name;
    while (size > 0 && argc <= WORDS_MAX)
        argv[argc++] = fuzz_line(&data, &size);
    argv[argc] = NULL;
    struct cli *cli = calloc(1, sizeof *cli);
    FUZZ_MUST(cli != NULL);
    char *given[WORDS_MAX + 2]; /* parsing sorts argv */
    memcpy(given, argv, sizeof given);
    enum status status = opt_parse(argc, argv, tables, &cli->opts);
    if (status != STATUS_OK)
        fuzz_refused(status, STATUS_USAGE, STATUS_NOMEM);
    if (status == STATUS_OK && !names_a_file(cli) && cli->opts.nargs > 0 &&
        bench_subject_find(cli->opts.args[0]) != NULL)
        make_cells(cli, cli->opts.args[0]);
    free(cli);
    for (int i = 1; i < argc; i++)
        free(given[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_quiet();
    if (size == 0)
        return 0;
    char *text = fuzz_text(data + 1, size - 1);
    switch (data[0]) {
    case 'l':
        parse_list(text);
        break;
    case 'd':
        parse_docs_file(data + 1, size - 1);
        break;
    case 'b':
        parse_line(data + 1, size - 1);
        break;
    case 'p':
        parse_plan(text);
        break;
    case 's':
        parse_separator(text, DATA_BYTES);
        parse_separator(text, DATA_U32);
        break;
    default:
        parse_numbers(text);
        break;
    }
    free(text);
    return 0;
}
