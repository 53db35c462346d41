/* model/name.h -- what a model is called: its directory, file or hub id, safe to print. */
#ifndef SPTUNE_MODEL_NAME_H
#define SPTUNE_MODEL_NAME_H

#include "model/model.h"

void name_set(struct model *model, const char *name);
/* A config.json is called by its directory, or by the hub id when that is a snapshot in a cache; any other file by its
 * own name without ".json". */
void name_from_path(struct model *model, const char *path);

#endif
