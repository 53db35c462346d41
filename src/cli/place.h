/* cli/place.h -- can it be written there? Better known before minutes of measuring than after. */
#ifndef SPTUNE_CLI_PLACE_H
#define SPTUNE_CLI_PLACE_H

#include "base/status.h"

#include <stdbool.h>

/* STATUS_USAGE naming the option when it cannot. A file's directory must be there; a directory is made later, with its
 * parents. */
enum status place_check_file(const char *path, const char *option);
enum status place_check_dir(const char *path, const char *option);
/* As place_check_file, of a file whose directory is made with it. */
enum status place_check_new_file(const char *path, const char *option);

/* Do two paths name one regular file, there or to be made? Devices and pipes take what comes, one after another. */
bool place_same_file(const char *a, const char *b);

#endif
