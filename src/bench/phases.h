/* bench/phases.h -- how long the phases of an iteration took on this rank: kept per iteration, told as medians in a row's conditions. */
#ifndef SPTUNE_BENCH_PHASES_H
#define SPTUNE_BENCH_PHASES_H

#include <jansson.h>

enum { PHASES = 4, PHASES_KEPT = 4096 /* iterations, the last ones */ };

struct phases {
    int n; /* iterations so far */
    double us[PHASES][PHASES_KEPT];
};

void phases_add(struct phases *phases, const double us[PHASES]);
/* Nothing before the first iteration. names end in _us, NULL: there is no such phase; each median times its scale. */
void phases_note(const struct phases *phases, const char *const names[PHASES], const double scales[PHASES],
                 json_t *conditions);

#endif
