/* tuner/choose.c -- the choice: best objective among what fits; ties go to the smaller, better-joined, simpler plan. */
#include "tuner/candidates.h"

#include "base/text.h"
#include "base/units.h"

#include <stdlib.h>

static bool usable(const struct recommend_candidate *row)
{
    return verdict_ok(&row->verdict) && row->priced;
}

/* Time per token per device, or per step: smaller is better. */
static double cost(const struct request *request, const struct recommend_candidate *row)
{
    return request->objective == REQUEST_STEP_TIME ? row->time.step_us : 1e6 / row->tokens_per_s_per_device;
}

/* Interval of cost(a) / cost(b): the ratio of step times, corrected for unequal tokens per step. */
static struct stats_interval cost_ratio(const struct request *request, const struct candidates *c, int a, int b,
                                        const struct pool *pool)
{
    struct stats_interval ratio = price_ratio(&c->prices[a], &c->prices[b], pool);
    double median = c->rows[a].time.step_us / c->rows[b].time.step_us;
    double scale = cost(request, &c->rows[a]) / cost(request, &c->rows[b]) / median;
    return (struct stats_interval){ratio.lo * scale, ratio.hi * scale};
}

static int best_of(const struct request *request, const struct candidates *c, enum work_fit worst)
{
    int best = -1;
    for (int i = 0; i < c->n; i++)
        if (usable(&c->rows[i]) && c->rows[i].fit <= worst &&
            (best < 0 || cost(request, &c->rows[i]) < cost(request, &c->rows[best])))
            best = i;
    return best;
}

static int smallest_of(const struct candidates *c)
{
    int best = -1;
    for (int i = 0; i < c->n; i++)
        if (usable(&c->rows[i]) && (best < 0 || c->rows[i].memory.peak_bytes < c->rows[best].memory.peak_bytes))
            best = i;
    return best;
}

/* Link class inside the groups of this plan on the machine at hand. */
static int link_of(const struct request *request, const struct plan *plan)
{
    const struct topo *topo = request->topo;
    int n = topo->ngpus, link = TOPO_LINK_SELF;
    if (request->dev != DEV_CUDA || n == 0 || plan->sp < 2 || n % plan->sp != 0)
        return link;
    int *order = calloc((size_t)n, sizeof *order);
    if (order != NULL && topo_rank_order(topo, n, plan->sp, order) == STATUS_OK)
        link = topo_group_link(topo, order, n, plan->sp);
    free(order);
    return link;
}

/* Of two plans of equal time: is a the one to take? */
static bool simpler(const struct request *request, const struct recommend_candidate *a, const struct recommend_candidate *b)
{
    if (a->plan.sp != b->plan.sp)
        return a->plan.sp < b->plan.sp;
    int la = link_of(request, &a->plan), lb = link_of(request, &b->plan);
    if (la != lb)
        return la < lb;
    if (a->plan.chunks != b->plan.chunks)
        return a->plan.chunks < b->plan.chunks;
    return a->memory.peak_bytes < b->memory.peak_bytes;
}

static int break_ties(const struct request *request, struct candidates *c, int best, const struct pool *pool)
{
    int chosen = best;
    for (int i = 0; i < c->n; i++) {
        struct recommend_candidate *row = &c->rows[i];
        row->tied = false;
        if (i == best || !usable(row) || row->fit != c->rows[best].fit)
            continue;
        struct stats_interval ratio = cost_ratio(request, c, i, best, pool);
        row->tied = ratio.lo <= 1;
        if (row->tied && simpler(request, row, &c->rows[chosen]))
            chosen = i;
    }
    c->rows[best].tied = chosen != best;
    c->rows[chosen].tied = false;
    return chosen;
}

static struct verdict why_lost(const struct request *request, const struct recommend_candidate *row,
                               const struct recommend_candidate *chosen, enum work_fit verdict)
{
    char peak[UNITS_BUF], limit[UNITS_BUF];
    units_format_bytes((double)row->memory.peak_bytes, peak);
    units_format_bytes((double)request->device_memory_bytes, limit);
    if (row->fit == WORK_DOES_NOT_FIT)
        return verdict_no(RULE_MEMORY, "%s of %s at %s", peak, limit, row->memory.peak_at);
    if (row->fit == WORK_MEASURE_FIRST && verdict == WORK_FITS)
        return verdict_no(RULE_MEASURE_FIRST, "%s of %s is above 80 %%: a run must show that it fits", peak, limit);
    if (row->tied)
        return verdict_no(RULE_TIED, "as fast within the interval; sp %d is the simpler plan", chosen->plan.sp);
    return verdict_no(RULE_SLOWER, "%.1f %% slower than sp %d", 100 * row->loses_by, chosen->plan.sp);
}

int candidates_choose(const struct request *request, struct candidates *candidates, const struct pool *pool,
                      enum work_fit *out_verdict)
{
    int best = -1;
    enum work_fit verdict = WORK_FITS;
    for (; verdict < WORK_DOES_NOT_FIT && best < 0; verdict++)
        best = best_of(request, candidates, verdict);
    verdict = best < 0 ? WORK_DOES_NOT_FIT : candidates->rows[best].fit;
    if (best < 0)
        best = smallest_of(candidates);
    *out_verdict = verdict;
    if (best < 0)
        return -1;
    int chosen = verdict == WORK_DOES_NOT_FIT ? best : break_ties(request, candidates, best, pool);
    for (int i = 0; i < candidates->n; i++) {
        struct recommend_candidate *row = &candidates->rows[i];
        if (!usable(row)) {
            if (verdict_ok(&row->verdict))
                row->verdict = verdict_no(RULE_NOT_MEASURED, "its exchange between %d ranks cannot be timed or scaled from here",
                                          row->plan.sp);
            row->lost = row->verdict;
            continue;
        }
        row->loses_by = cost(request, row) / cost(request, &candidates->rows[chosen]) - 1;
        row->lost = i == chosen ? VERDICT_YES : why_lost(request, row, &candidates->rows[chosen], verdict);
    }
    return chosen;
}
