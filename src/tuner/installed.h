/* tuner/installed.h -- attention as it was timed where the user's own packages are installed: rows of sptune.samples/1
 * that scripts/peers/attention.py wrote, by the target's class.
 *
 * A class that has rows is priced from them alone; no kernel of ours stands in for it. A row counts for a plan when
 * class, direction, dtype, head sizes, mask and the heads of one rank are the plan's. Only length and batch are scaled,
 * by FLOPs, from the nearest length that was timed, at most INSTALLED_FACTOR times away.
 *
 *     struct installed installed = {0};
 *     TRY(installed_read(files, n, target, &installed));
 *     struct verdict verdict = installed_find(&installed, &ask, &found);   // found.row's median times found.times
 *     installed_free(&installed);
 */
#ifndef SPTUNE_TUNER_INSTALLED_H
#define SPTUNE_TUNER_INSTALLED_H

#include "results/sample.h"
#include "sp/target.h"
#include "tuner/recommend.h"

enum { INSTALLED_FACTOR = 4 };

struct installed_row {
    struct sample sample; /* owned */
    char file[96];        /* that it came from */
    char device[64];      /* "cuda NVIDIA H200", "cpu", "" where the row does not tell */
    char torch[32];
    bool usable; /* timed and verified */
};
/* Zero-initialise. */
struct installed {
    struct installed_row *rows; /* owned; attention of classes of the target, of any outcome */
    int n;
    size_t cap;
};

/* Of all files. STATUS_USAGE: one cannot be read, is no sptune.samples/1 or has no attention, has a class that the
 * target does not have, or nothing in them was timed. Rows of sdpa's single backends (sdpa-flash ...) are passed over:
 * nobody can ask a runtime for them. */
enum status installed_read(const char *const *files, int n, const struct target *target, struct installed *out);
void installed_free(struct installed *installed);
/* Has it rows of this class? `installed` may be NULL. */
bool installed_has(const struct installed *installed, const char *class);
/* For the list of what is assumed: which files; which kernel, software and machine. */
void installed_about(const struct installed *installed, const char *class, const char *machine, char value[64],
                     char from[224]);

/* One attention of one rank, in one direction. */
struct installed_ask {
    const char *class, *machine;   /* machine: fingerprint of the one that is measured */
    enum dev_kind dev;             /* what is measured */
    const struct problem *problem; /* of the micro-batch, unsplit; its window, or 0 */
    int sp;
    bool backward;
};
struct installed_found {
    const struct sample *row; /* borrowed */
    double times;             /* FLOPs asked for over those of the row */
    enum recommend_source source;
    bool length, batch, elsewhere; /* what differs: another length, another batch, another machine */
};
/* RULE_NOT_MEASURED with the reason when no row will do. */
struct verdict installed_find(const struct installed *installed, const struct installed_ask *ask,
                              struct installed_found *out);

#endif
