/* cli/list.h -- `--exchange list` and its like: names of a table of this program are shown, and nothing else is done.
 *
 * --device limits what is listed to that kind of device; without it (auto) every kind is listed, and no driver is asked.
 */
#ifndef SPTUNE_CLI_LIST_H
#define SPTUNE_CLI_LIST_H

#include "cli/cli.h"

enum { LIST_ITEMS = 32 };

bool list_asked(const struct cli *cli, const char *option); /* was `list` given to it? */
/* *out has bit k for enum dev_kind k. */
enum status list_devices(const struct cli *cli, unsigned *out);
enum status list_exchanges(struct cli *cli);
/* cli_print_list; STATUS_ABSENT when this build has none for the devices asked for. `what`: "exchange". */
enum status list_print(struct cli *cli, const char *what, const struct cli_item *items, int n);

#endif
