/* cli/place.h -- can it be written there? Better known before minutes of measuring than after. */
#ifndef SPTUNE_CLI_PLACE_H
#define SPTUNE_CLI_PLACE_H

#include "base/status.h"

/* STATUS_USAGE naming the option when it cannot. A file's directory must be there; a directory is made later, with its
 * parents. */
enum status place_check_file(const char *path, const char *option);
enum status place_check_dir(const char *path, const char *option);

#endif
