/* cli/main.c -- the way from argv to an exit code. */
#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/help.h"
#include "cli/report.h"
#include "comm/launch.h"
#include "kernels/gemm.h"
#include "tuner/emit_quote.h"

#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static enum status unknown_verb(const char *word)
{
    const char *names[16];
    size_t n = 0;
    struct text all = {0};
    for (; verbs[n] != NULL; n++) {
        names[n] = verbs[n]->name;
        text_add(&all, "%s%s", n > 0 ? " " : "", names[n]);
    }
    const char *near = word[0] != '-' ? text_nearest(word, names, n) : NULL;
    enum status status = word[0] == '-' ? FAIL(STATUS_USAGE, "option %.40s stands before the verb", word)
                                        : FAIL(STATUS_USAGE, "unknown verb '%.40s'", word);
    status = near != NULL ? HINT(status, "did you mean %s? Verbs: %s", near, text_get(&all))
                          : HINT(status, "sptune VERB [options], with one of the verbs: %s", text_get(&all));
    text_free(&all);
    return status;
}

/* What a shell would have to be given for this command. */
static char *join(int argc, char **argv)
{
    struct text line = {0};
    text_add(&line, "sptune");
    for (int i = 1; i < argc; i++) {
        text_add(&line, " ");
        quote_shell(&line, argv[i]);
    }
    return line.failed ? NULL : line.s;
}

/* Ranks that a launcher started have the same command line; each would say the same. */
static bool follows(const struct verb *verb)
{
    struct launch launch;
    bool found = false,
         follower = verb->ranks && launch_detect(&launch, &found) == STATUS_OK && found && launch.rank > 0;
    status_clear(); /* a wrong environment is said by the verb */
    return follower;
}

static enum status prepare(struct cli *cli, int argc, char **argv)
{
    const struct opt *tables[8];
    int ntables = 0;
    while (cli->verb->tables[ntables] != NULL) {
        tables[ntables] = cli->verb->tables[ntables];
        ntables++;
    }
    tables[ntables] = cli_common;
    tables[ntables + 1] = NULL;
    static const char *const modes[] = {"auto", "plain", "none"};
    cli->silent = follows(cli->verb);
    TRY(opt_parse(argc, argv, tables, &cli->opts));
    cli->json = opt_given(&cli->opts, "json");
    cli->jsonl = opt_given(&cli->opts, "jsonl");
    if (cli->json && cli->jsonl)
        return HINT(FAIL(STATUS_USAGE, "--json and --jsonl contradict each other"),
                    "one document, or one row per line: give one");
    int64_t seed = 1;
    int mode = PROGRESS_AUTO;
    TRY(opt_count(&cli->opts, "seed", 0, INT64_MAX, 1, &seed));
    TRY(opt_word(&cli->opts, "progress", modes, 3, PROGRESS_AUTO, &mode));
    cli->seed = (uint64_t)seed;
    log_setup(report_log_level(cli), !cli->silent);
    bool quiet = cli->silent || opt_given(&cli->opts, "quiet");
    progress_setup(quiet ? PROGRESS_NONE : (enum progress_mode)mode);
    return STATUS_OK;
}

static enum status check_args(const struct cli *cli)
{
    const struct verb *verb = cli->verb;
    if (cli->opts.nargs > verb->max_args)
        return HINT(FAIL(STATUS_USAGE, "unexpected argument '%.60s'", cli->opts.args[verb->max_args]),
                    "usage: sptune %s %s", verb->name, verb->usage);
    if (cli->opts.nargs < verb->min_args)
        return HINT(FAIL(STATUS_USAGE, "sptune %s needs an argument", verb->name), "usage: sptune %s %s", verb->name,
                    verb->usage);
    return STATUS_OK;
}

static enum status run(struct cli *cli, int argc, char **argv)
{
    const char *word = argc < 2 ? "" : argv[1];
    if (argc < 2)
        return help_short(cli);
    if (strcmp(word, "--version") == 0 || strcmp(word, "version") == 0)
        return help_version(cli);
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return help_all(cli);
    cli->verb = verb_find(word);
    if (cli->verb == NULL)
        return unknown_verb(word);
    TRY(prepare(cli, argc - 1, argv + 1));
    if (opt_given(&cli->opts, "help"))
        return help_verb(cli, cli->verb);
    TRY(check_args(cli));
    return cli->verb->run(cli);
}

/* `sptune ... >&-`: the next file or socket would become stdout, and be printed into. Reading only, so that printing
 * still fails. */
static void keep_standard_descriptors(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDONLY)) >= 0 && fd <= STDERR_FILENO)
        continue;
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    keep_standard_descriptors();
    setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file at its limit is an error of that write, as a full disk is */
    static struct cli_said alone;
    void *shared = mmap(NULL, sizeof(struct cli_said), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct cli cli = {.seed = 1, .command = join(argc, argv), .said = shared != MAP_FAILED ? shared : &alone};
    clock_iso(cli.started);
    /* Before options are parsed a wrong one must already be answered in the form that was asked for. */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        cli.json = cli.json || strcmp(argv[i], "--json") == 0;
    const bool room = gemm_room() == STATUS_OK;
    enum status status = room ? run(&cli, argc, argv) : status_last()->code;
    if (status != STATUS_OK && !cli.spoke)
        report_end(&cli, status);
    free(cli.command);
    if (!room)
        _exit(status_exit_code(status));
    return cli.spoke ? cli.exit_code : status_exit_code(status);
}
