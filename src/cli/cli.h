/* cli/cli.h -- a verb, and what every verb is given. One file per verb, one row in verbs[] (verbs.c).
 *
 * A verb returns a status; main prints its message once, on stderr, or as sptune.error/1 under --json, and exits with
 * its code. A verb that measures runs inside ranks (ranks.h): rank 0 alone speaks.
 */
#ifndef SPTUNE_CLI_CLI_H
#define SPTUNE_CLI_CLI_H

#include "base/dev.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/status.h"
#include "cli/opt.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* In memory that this process shares with the ranks it forks: what has been said, whoever said it. */
struct cli_said {
    atomic_bool document; /* the JSON document has been printed: an error after it goes to stderr only */
    atomic_bool failure;  /* a failure has been printed */
};

struct cli {
    const struct verb *verb;
    struct opt_set opts;
    bool json, jsonl;
    bool silent; /* rank 1 or later under a launcher: rank 0 speaks for it */
    uint64_t seed;
    char *command; /* the command line, as a shell would take it */
    char started[32];
    char machine[33]; /* fingerprint, "" until known */
    struct cli_said *said;
    enum dev_kind device; /* what --device came to, once that was asked */
    bool spoke; /* rank 0 has ended the command by itself: only exit_code is left to do */
    int exit_code;
};

struct verb {
    const char *name;
    const char *usage;               /* "CONFIG [--world W] [--seq S]" */
    const char *about;               /* one line */
    const char *help;                /* paragraphs */
    const struct opt *const *tables; /* of its own options; NULL-terminated */
    int min_args, max_args;
    bool ranks; /* runs on every rank of a launcher */
    enum status (*run)(struct cli *cli);
};

extern const struct verb *const verbs[]; /* NULL-terminated, in the order of the help */
const struct verb *verb_find(const char *name);
extern const struct opt cli_common[]; /* options of every verb */

struct json_envelope cli_envelope(const struct cli *cli);
/* Print the document and count it as this command's one. Takes the reference. */
enum status cli_print_json(struct cli *cli, json_t *document);
/* Write to stdout, STATUS_IO when that fails (full disk; a closed pipe is quiet: `sptune topo | head` is no failure). */
enum status cli_print(const char *text);
/* As cli_print, where more is to be measured for the same reader: STATUS_UNREAD when he has gone. */
enum status cli_stream(const char *text);
/* A table of this program, as `--export list` and its like show it: lines, or sptune.list/1 under --json. */
struct cli_item {
    const char *name, *about;
};
enum status cli_print_list(struct cli *cli, const struct cli_item *items, int n);
/* Text for people: as it is, or as `text` of sptune.<noun>/1 under --json. */
enum status cli_print_text(struct cli *cli, const char *noun, const char *text);

#endif
