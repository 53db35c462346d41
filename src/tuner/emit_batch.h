/* tuner/emit_batch.h -- files that are rendered and not yet written: check them all, then move them all in. */
#ifndef SPTUNE_TUNER_EMIT_BATCH_H
#define SPTUNE_TUNER_EMIT_BATCH_H

#include "base/text.h"
#include "tuner/emit.h"

struct emit_staged {
    char name[64]; /* within the directory */
    char *bytes;   /* owned */
    size_t len;
    char sha256[65];
    bool executable;
};

struct emit_batch {
    int n;
    struct emit_staged file[RECOMMEND_FILES + 1]; /* and recommendation.json */
};

void emit_batch_free(struct emit_batch *batch);
/* For emitters: takes the text over, also on failure, and appends to files[]. */
enum status emit_file(struct recommendation *recommendation, const struct emit_context *context, const char *name,
                      const char *kind, bool executable, struct text *text);
/* As emit_file, without a row in files[]. */
enum status emit_batch_add(struct emit_batch *batch, const char *name, bool executable, struct text *text);
/* May every file be put there? STATUS_USAGE names the first that may not. */
enum status emit_batch_check(const struct emit_batch *batch, const char *dir, bool force);
/* Writes all beside their places, then renames in order, then removes unedited files of the earlier record. */
enum status emit_batch_write(const struct emit_batch *batch, const char *dir);

#endif
