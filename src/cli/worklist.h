/* cli/worklist.h -- the cells that one `bench` command measures: those of one subject's lists, or of every line of a suite, in order. */
#ifndef SPTUNE_CLI_WORKLIST_H
#define SPTUNE_CLI_WORKLIST_H

#include "bench/suite.h"
#include "cli/sweep.h"

struct worklist {
    int n;     /* sweeps */
    int cells; /* of all of them */
    struct sweep sweeps[SUITE_LINES_MAX];
    char *words[SUITE_LINES_MAX]; /* of a suite's lines; sweeps borrow from them */
};

/* The subject and, for a suite, its name that the command line asks for; *suite NULL: no suite. */
enum status worklist_subject(const struct cli *cli, const char **subject, const struct suite **suite);
/* For so many ranks. A suite takes no lists of the command line. */
enum status worklist_open(struct cli *cli, const char *subject, const struct suite *suite, int ranks,
                          struct worklist *out);
void worklist_close(struct worklist *work);
/* `--suite list`: the suites, and the commands that their lines are. */
enum status worklist_print_suites(struct cli *cli);

extern const struct opt worklist_options[];

#endif
