/* cli/help.h -- every help text; each verb's options come from its own table. */
#ifndef SPTUNE_CLI_HELP_H
#define SPTUNE_CLI_HELP_H

#include "cli/cli.h"

enum status help_short(void);   /* bare `sptune` */
enum status help_all(void);     /* every verb and topic */
enum status help_version(void);
enum status help_verb(const struct verb *verb);

#endif
