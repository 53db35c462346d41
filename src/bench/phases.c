/* bench/phases.c -- phases of iterations, on this rank. */
#include "bench/phases.h"

#include "base/json.h"
#include "results/stats.h"

void phases_add(struct phases *phases, const double us[PHASES])
{
    int at = phases->n++ % PHASES_KEPT;
    for (int p = 0; p < PHASES; p++)
        phases->us[p][at] = us[p];
}

void phases_note(const struct phases *phases, const char *const names[PHASES], const double scales[PHASES],
                 json_t *conditions)
{
    int n = phases->n < PHASES_KEPT ? phases->n : PHASES_KEPT;
    for (int p = 0; p < PHASES && n > 0; p++)
        if (names[p] != NULL)
            json_object_set_new(conditions, names[p], json_num(stats_median(phases->us[p], n) * scales[p], 6));
}
