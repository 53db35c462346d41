/* bench/phases.c -- phases of iterations. */
#include "bench/phases.h"

#include "base/json.h"
#include "results/stats.h"

void phases_add(struct phases *phases, const double us[PHASES])
{
    int at = phases->n++ % PHASES_KEPT;
    for (int p = 0; p < PHASES; p++)
        phases->us[p][at] = us[p];
}

enum status phases_add_last(struct phases *phases, struct comm *group, bool ran, const double us[PHASES])
{
    double worst[] = {-us[PHASES - 1], ran ? 0 : 1}, last[PHASES];
    TRY(comm_max(group, worst, 2));
    for (int p = 0; p < PHASES; p++)
        last[p] = -us[PHASES - 1] >= worst[0] ? us[p] : 0;
    TRY(comm_max(group, last, PHASES));
    if (worst[1] <= 0)
        phases_add(phases, last);
    return STATUS_OK;
}

void phases_note(const struct phases *phases, const char *const names[PHASES], const double scales[PHASES],
                 json_t *conditions)
{
    int n = phases->n < PHASES_KEPT ? phases->n : PHASES_KEPT;
    for (int p = 0; p < PHASES && n > 0; p++)
        if (names[p] != NULL)
            json_object_set_new(conditions, names[p], json_num(stats_median(phases->us[p], n) * scales[p], 6));
}
