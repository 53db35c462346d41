/* model/shipped.h -- configurations compiled in, so that a name works wherever the program was moved to. */
#ifndef SPTUNE_MODEL_SHIPPED_H
#define SPTUNE_MODEL_SHIPPED_H

/* The config.json text of a shipped name (any case), NULL when there is none. */
const char *shipped_find(const char *name);

#endif
