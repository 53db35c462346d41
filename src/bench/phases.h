/* bench/phases.h -- how long the phases of an iteration took: kept per iteration, told as medians in a row's conditions. */
#ifndef SPTUNE_BENCH_PHASES_H
#define SPTUNE_BENCH_PHASES_H

#include "comm/comm.h"

#include <jansson.h>
#include <stdbool.h>

enum { PHASES = 4, PHASES_KEPT = 4096 /* iterations, the last ones */ };

struct phases {
    int n; /* iterations so far */
    double us[PHASES][PHASES_KEPT];
};

/* Those of a layer (struct exec_times), in the order of all its rows. */
#define PHASES_OF(t)                                                                                                   \
    ((const double[PHASES]){(t)->exchange_in_us, (t)->attention_us, (t)->exchange_out_us, (t)->exposed_us})

void phases_add(struct phases *phases, const double us[PHASES]); /* of this rank */
/* Those of the rank of the group whose last phase was the shortest, the exposed exchange: it came last, so the others waited for its
 * attention there as well, which is no exchange. Collective; an iteration that failed on one rank (!ran) is not kept. */
enum status phases_add_last(struct phases *phases, struct comm *group, bool ran, const double us[PHASES]);
/* Nothing before the first iteration. names end in _us, NULL: there is no such phase; each median times its scale. */
void phases_note(const struct phases *phases, const char *const names[PHASES], const double scales[PHASES],
                 json_t *conditions);

#endif
