/* model/hub.h -- a model id in the local cache of the HuggingFace hub; nothing is downloaded.
 *
 *   <cache>/models--<org>--<name>/refs/main                    the revision, one line
 *   <cache>/models--<org>--<name>/snapshots/<revision>/config.json
 */
#ifndef SPTUNE_MODEL_HUB_H
#define SPTUNE_MODEL_HUB_H

#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>

/* "org/name" or "name", as the hub allows them; a path of any other form is not an id. */
bool hub_is_id(const char *text);
/* Sets `path` to the config.json of `id` if a cache has it; else leaves it empty and adds to `tried` where it looked.
 * A repository that is there but holds no config.json is STATUS_USAGE. */
enum status hub_find(const char *id, struct text *path, struct text *tried);

#endif
