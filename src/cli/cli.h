/* cli/cli.h -- a verb, and what every verb is given. One file per verb, one row in verbs[] (verbs.c).
 *
 * A verb returns a status; main prints its message once, on stderr, or as sptune.error/1 under --json, and exits with its code. A verb
 * that measures runs inside ranks (ranks.h): rank 0 alone speaks.
 */
#ifndef SPTUNE_CLI_CLI_H
#define SPTUNE_CLI_CLI_H

#include "base/json.h"
#include "base/progress.h"
#include "base/status.h"
#include "cli/opt.h"

#include <stdbool.h>
#include <stdint.h>

struct cli {
    const struct verb *verb;
    struct opt_set opts;
    bool json, jsonl;
    uint64_t seed;
    char *command;      /* the command line as typed */
    char started[32];
    char machine[33];   /* fingerprint, "" until known */
    bool printed;       /* the JSON document has been printed: an error after it goes to stderr only */
    bool spoke;         /* rank 0 has ended the command by itself: only exit_code is left to do */
    int exit_code;
};

struct verb {
    const char *name;
    const char *usage; /* "CONFIG [--world W] [--seq S]" */
    const char *about; /* one line */
    const char *help;  /* paragraphs */
    const struct opt *const *tables; /* of its own options; NULL-terminated */
    int min_args, max_args;
    enum status (*run)(struct cli *cli);
};

extern const struct verb *const verbs[]; /* NULL-terminated, in the order of the help */
const struct verb *verb_find(const char *name);
extern const struct opt cli_common[]; /* options of every verb */

struct json_envelope cli_envelope(const struct cli *cli);
/* Print the document and count it as this command's one. Takes the reference. */
enum status cli_print_json(struct cli *cli, json_t *document);
/* Write to stdout, STATUS_IO when that fails (full disk, closed pipe is quiet). */
enum status cli_print(const char *text);

#endif
