/* tuner/emit.h -- files for a runtime, written from a recommendation. One file per target, one row in emits[].
 *
 * All files are rendered before the first is written, then renamed into `dir` one after another, recommendation.json
 * last. A file that was edited since we wrote it (its SHA-256 differs from the one in the recommendation.json beside
 * it), or that we have no record of, is not replaced without force: STATUS_USAGE naming it, and nothing is touched.
 * Unedited files of an earlier answer that this one does not have are removed: the directory holds one recommendation.
 */
#ifndef SPTUNE_TUNER_EMIT_H
#define SPTUNE_TUNER_EMIT_H

#include "tuner/recommend.h"

struct emit_batch; /* rendered files, emit_batch.h */

struct emit_context {
    const char *dir;
    bool force;
    struct json_envelope envelope;
    const char *command;      /* for the provenance comment of each file */
    struct emit_batch *batch; /* where run puts its files; emit_all sets it */
};

struct emit {
    const char *name; /* "accelerate" */
    const char *about;
    enum status (*run)(struct recommendation *recommendation,
                       const struct emit_context *context); /* appends to files[] */
    const char *main_file;                                  /* next is for answers that have it */
    /* The command that uses the files, run in their directory. */
    const char *(*next)(const struct recommendation *recommendation);
};
extern const struct emit *const emits[]; /* NULL-terminated */
const struct emit *emit_find(const char *name);
/* The emitters of these names, then recommendation.json itself. Nothing is left half-written when one fails. */
enum status emit_all(struct recommendation *recommendation, const char *const *names, int n,
                     const struct emit_context *context);
/* The command the user runs next, "" when no file asks for one: "cd sptune-out && ./launch.sh". */
void emit_next(const struct recommendation *recommendation, const char *dir, char *buf, size_t size);

#endif
