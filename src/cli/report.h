/* cli/report.h -- how a command ends: its message once, on stderr or as sptune.error/1, and its exit code. */
#ifndef SPTUNE_CLI_REPORT_H
#define SPTUNE_CLI_REPORT_H

#include "base/log.h"
#include "cli/cli.h"

enum log_level report_log_level(const struct cli *cli);
/* Print the thread's status message unless the status is OK. Under --json the document goes to stdout unless one was
 * printed. */
void report_end(struct cli *cli, enum status status);

#endif
