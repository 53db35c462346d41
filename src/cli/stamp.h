/* cli/stamp.h -- where a file came from: command, version, date, machine and seed, inside the file. */
#ifndef SPTUNE_CLI_STAMP_H
#define SPTUNE_CLI_STAMP_H

#include "cli/cli.h"

/* A <metadata> element before the end of an SVG document; what is no SVG stays as it is. *bytes is replaced. */
enum status stamp_svg(const struct cli *cli, char **bytes, size_t *len);

#endif
