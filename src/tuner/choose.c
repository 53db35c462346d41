/* tuner/choose.c -- the choice: best objective among what fits; ties go to the smaller, simpler plan. */
#include "tuner/candidates.h"

#include "base/text.h"
#include "base/units.h"

static bool usable(const struct recommend_candidate *row)
{
    return verdict_ok(&row->verdict) && row->priced;
}

/* Time per token per device, or per step: smaller is better. */
static double cost(const struct request *request, const struct recommend_candidate *row)
{
    return request->objective == REQUEST_STEP_TIME ? row->time.step_us : 1e6 / row->tokens_per_s_per_device;
}

struct stats_interval candidates_ratio(const struct request *request, const struct candidates *c, int a, int b,
                                       const struct pool *pool)
{
    struct stats_interval ratio = price_ratio(&c->prices[a], &c->prices[b], pool);
    double steps = c->rows[a].time.step_us / c->rows[b].time.step_us; /* of unequal tokens, when that is what counts */
    double scale = cost(request, &c->rows[a]) / cost(request, &c->rows[b]) / steps;
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

/* How full the fuller of device and host would be. */
static double fullness(const struct request *request, const struct recommend_candidate *row)
{
    double device = (double)row->memory.peak_bytes / (double)request->device_memory_bytes;
    double host = request->host_memory_bytes > 0
                      ? (double)row->memory.host_bytes * request->ranks_per_host / (double)request->host_memory_bytes
                      : 0;
    return device > host ? device : host;
}

static int nearest_to_fit(const struct request *request, const struct candidates *c)
{
    int best = -1;
    for (int i = 0; i < c->n; i++)
        if (usable(&c->rows[i]) && (best < 0 || fullness(request, &c->rows[i]) < fullness(request, &c->rows[best])))
            best = i;
    return best;
}

/* Nothing but memory tells which of these is simpler. */
static bool same_shape(const struct recommend_candidate *a, const struct recommend_candidate *b)
{
    return a->plan.sp == b->plan.sp && a->plan.method == b->plan.method && a->plan.chunks == b->plan.chunks &&
           a->plan.offload == b->plan.offload;
}

/* Of two plans of equal time: is a the one to take? A smaller group is never worse joined than one that contains it,
 * and groups of one size are placed alike (topo_rank_order), so islands need no rule of their own. */
static bool simpler(const struct recommend_candidate *a, const struct recommend_candidate *b)
{
    if (a->plan.sp != b->plan.sp)
        return a->plan.sp < b->plan.sp;
    if (a->plan.method != b->plan.method)
        return a->plan.method < b->plan.method;
    if (a->plan.chunks != b->plan.chunks)
        return a->plan.chunks < b->plan.chunks;
    if (a->plan.offload != b->plan.offload)
        return a->plan.offload < b->plan.offload;
    return a->memory.peak_bytes < b->memory.peak_bytes;
}

/* A row that was only estimated never takes the place of one that was timed: its interval is wide because little is
 * known. */
static int break_ties(const struct request *request, struct candidates *c, int best, const struct pool *pool)
{
    int chosen = best;
    for (int i = 0; i < c->n; i++) {
        struct recommend_candidate *row = &c->rows[i];
        if (i == best || !usable(row) || row->fit != c->rows[best].fit || row->timed < c->rows[best].timed)
            continue;
        struct stats_interval ratio = candidates_ratio(request, c, i, best, pool);
        row->tied = ratio.lo <= 1 && ratio.hi >= 1;
        if (row->tied && simpler(row, &c->rows[chosen]))
            chosen = i;
    }
    /* What is no slower than the chosen one without being tied with the best lost by the same rule. */
    for (int i = 0; i < c->n; i++)
        if (usable(&c->rows[i]) && c->rows[i].fit == c->rows[best].fit &&
            cost(request, &c->rows[i]) <= cost(request, &c->rows[chosen]))
            c->rows[i].tied = true;
    c->rows[chosen].tied = false;
    return chosen;
}

void candidates_fill(const struct request *request, const struct recommend_candidate *row, char *buf, size_t size)
{
    char used[UNITS_BUF], limit[UNITS_BUF];
    double device = (double)row->memory.peak_bytes / (double)request->device_memory_bytes;
    if (fullness(request, row) > device)
        text_print(buf, size, "%s of %s of host memory",
                   units_format_bytes((double)row->memory.host_bytes * request->ranks_per_host, used),
                   units_format_bytes((double)request->host_memory_bytes, limit));
    else
        text_print(buf, size, "%s of %s at %s", units_format_bytes((double)row->memory.peak_bytes, used),
                   units_format_bytes((double)request->device_memory_bytes, limit), row->memory.peak_at);
}

/* What tells this plan from the chosen one, shortly: "sp 2", or where sp is the same what differs first. */
static void differs_text(const struct recommend_candidate *row, const struct recommend_candidate *from, char *buf,
                         size_t size)
{
    const struct plan *p = &row->plan, *q = &from->plan;
    bool class = strcmp(row->attention_class, from->attention_class) != 0;
    bool exchange = q->sp > 1 && strcmp(p->exchange, q->exchange) != 0;
    if (p->sp != q->sp)
        text_print(buf, size, "sp %d", q->sp);
    else if (p->method != q->method)
        text_print(buf, size, "%s", plan_method_name(q->method));
    else if (p->micro_batch != q->micro_batch)
        text_print(buf, size, "micro-batch %lld", (long long)q->micro_batch);
    else if (p->zero_stage != q->zero_stage)
        text_print(buf, size, "zero %d", q->zero_stage);
    else if (p->checkpointing != q->checkpointing)
        text_print(buf, size, "checkpointing %s", plan_checkpointing_name(q->checkpointing));
    else if (p->offload != q->offload)
        text_print(buf, size, "offload %s", plan_offload_name(q->offload));
    else if (p->loss != q->loss)
        text_print(buf, size, "loss %s", plan_loss_name(q->loss));
    else if (p->chunks != q->chunks)
        text_print(buf, size, "%d chunk%s", q->chunks, q->chunks == 1 ? "" : "s");
    else
        text_print(buf, size, "%s%s%s", exchange ? q->exchange : "", exchange && class ? ", " : "",
                   class || !exchange ? from->attention_class : "");
}

static struct verdict why_lost(const struct request *request, const struct recommend_candidate *row,
                               const struct recommend_candidate *chosen, enum work_fit verdict)
{
    char fill[96], other[80];
    candidates_fill(request, row, fill, sizeof fill);
    differs_text(row, chosen, other, sizeof other);
    if (row->fit == WORK_DOES_NOT_FIT)
        return verdict_no(RULE_MEMORY, "%s: does not fit", fill);
    if (row->fit == WORK_MEASURE_FIRST && verdict == WORK_FITS)
        return verdict_no(RULE_MEASURE_FIRST, "%s is above 80 %%: a run must show that it fits", fill);
    if (row->tied)
        return verdict_no(RULE_TIED, "%s %s, and their times do not differ for certain", other,
                          same_shape(row, chosen) ? "takes less memory" : "is the simpler plan");
    char percent[32];
    int decimals = row->loses_hi - row->loses_lo < 0.02; /* a decimal where the interval is that narrow */
    if (100 * row->loses_by < (decimals ? 0.05 : 0.5))
        text_print(percent, sizeof percent, "less than %s %%", decimals ? "0.1" : "1");
    else
        text_print(percent, sizeof percent, "%.*f %%", decimals, 100 * row->loses_by);
    return verdict_no(RULE_SLOWER, "%s slower than %s%s", percent, other, row->timed ? "" : ", by estimate");
}

int candidates_choose(const struct request *request, struct candidates *candidates, const struct pool *pool,
                      enum work_fit *out_verdict)
{
    int best = -1;
    for (int fit = WORK_FITS; fit < WORK_DOES_NOT_FIT && best < 0; fit++)
        best = best_of(request, candidates, (enum work_fit)fit);
    if (best < 0)
        best = nearest_to_fit(request, candidates);
    if (best < 0)
        return -1;
    enum work_fit verdict = candidates->rows[best].fit;
    for (int i = 0; i < candidates->n; i++)
        candidates->rows[i].tied = false;
    int chosen = verdict == WORK_DOES_NOT_FIT ? best : break_ties(request, candidates, best, pool);
    for (int i = 0; i < candidates->n; i++) {
        struct recommend_candidate *row = &candidates->rows[i];
        if (!usable(row))
            continue;
        struct stats_interval ratio = candidates_ratio(request, candidates, i, chosen, pool);
        row->loses_by = cost(request, row) / cost(request, &candidates->rows[chosen]) - 1;
        row->loses_lo = ratio.lo - 1;
        row->loses_hi = ratio.hi - 1;
        row->lost = i == chosen ? VERDICT_YES : why_lost(request, row, &candidates->rows[chosen], verdict);
    }
    *out_verdict = verdict;
    return chosen;
}
