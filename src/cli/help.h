/* cli/help.h -- every help text; each verb's options come from its own table. */
#ifndef SPTUNE_CLI_HELP_H
#define SPTUNE_CLI_HELP_H

#include "cli/cli.h"

enum status help_short(struct cli *cli); /* bare `sptune` */
enum status help_all(struct cli *cli);   /* every verb and topic */
enum status help_version(struct cli *cli);
enum status help_verb(struct cli *cli, const struct verb *verb);

#endif
