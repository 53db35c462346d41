/* tuner/search.c -- estimate, measure what could win, choose; a finished answer is held at every moment. */
#include "tuner/search_state.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/text.h"
#include "base/units.h"
#include "bench/check.h"
#include "tuner/flips.h"

#include <stdlib.h>
#include <string.h>

/* Every distinct way of computing among the candidates, checked once per build and machine. */
static enum status check_first(struct search *search, struct recommendation *out)
{
    const struct candidates *c = &search->candidates;
    if (search->session->env == NULL)
        return STATUS_OK;
    for (int i = 0; i < c->n; i++) {
        const struct plan *plan = &c->rows[i].plan;
        bool seen = !verdict_ok(&c->rows[i].verdict) || plan->sp > search->request->ranks;
        for (int k = 0; k < i && !seen; k++)
            seen = verdict_ok(&c->rows[k].verdict) && c->rows[k].plan.sp == plan->sp && c->rows[k].plan.chunks == plan->chunks &&
                   strcmp(c->rows[k].plan.exchange, plan->exchange) == 0 && strcmp(c->rows[k].plan.attention, plan->attention) == 0;
        if (seen)
            continue;
        struct check_report report = {0};
        enum status status = check_before(search->session, search->request->seed, plan, &report);
        out->checked += report.passed;
        out->check_total += report.passed + report.failed;
        check_report_free(&report);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status nothing_legal(const struct search *search)
{
    char reasons[400];
    candidates_reasons(&search->candidates, reasons, sizeof reasons);
    return HINT(FAIL(STATUS_USAGE, "no plan is legal: %s", reasons),
                "change the world, the batch or the heads; `sptune model` lists the legal sizes");
}

static bool any_legal(const struct candidates *candidates)
{
    for (int i = 0; i < candidates->n; i++)
        if (verdict_ok(&candidates->rows[i].verdict))
            return true;
    return false;
}

static int choose(struct search *search, struct recommendation *out)
{
    return out->chosen = candidates_choose(search->request, &search->candidates, &search->pool, &out->verdict);
}

static void say_estimate(const struct search *search, int chosen)
{
    for (int i = 0; i < search->candidates.n; i++) {
        const struct recommend_candidate *row = &search->candidates.rows[i];
        char peak[UNITS_BUF];
        if (row->priced)
            log_info("estimate: sp %d %s: %.3g tokens/s per device, %s%s", row->plan.sp, row->attention_class,
                     row->tokens_per_s_per_device, units_format_bytes((double)row->memory.peak_bytes, peak), i == chosen ? "  <-" : "");
    }
}

/* Which candidates could still win: the ratio to the best one that fits may reach 1, memory allows it, most promising first up to the
 * effort's number. Those that do not fit are never timed. */
static int could_win(const struct search *search, int chosen, bool *which)
{
    static const int most[] = {0, 4, 8, 32};
    const struct candidates *c = &search->candidates;
    int n = 0;
    memset(which, 0, (size_t)c->n);
    for (int round = 0; round < most[search->request->effort]; round++) {
        int best = -1;
        for (int i = 0; i < c->n; i++) {
            const struct recommend_candidate *row = &c->rows[i];
            if (which[i] || !row->priced || !verdict_ok(&row->verdict) ||
                (row->fit == WORK_DOES_NOT_FIT && i != chosen))
                continue;
            struct stats_interval ratio = price_ratio(&c->prices[i], &c->prices[chosen], &search->pool);
            double scale = row->loses_by + 1 > 0 ? (row->loses_by + 1) / (row->time.step_us / c->rows[chosen].time.step_us) : 1;
            bool hopeless = i != chosen && search->request->effort < REQUEST_FULL && ratio.lo * scale > 1.25;
            if (!hopeless && (best < 0 || row->loses_by < c->rows[best].loses_by))
                best = i;
        }
        if (best < 0)
            break;
        which[best] = true;
        n++;
    }
    return n;
}

static enum status measure_best(struct search *search, struct recommendation *out)
{
    bool *which = calloc((size_t)search->candidates.n, sizeof *which);
    if (which == NULL)
        return FAIL(STATUS_NOMEM, "no memory for %d candidates", search->candidates.n);
    enum status status = STATUS_OK;
    if (could_win(search, out->chosen, which) > 0) {
        search_scale(search, which);
        status = search_detail(search, which);
    }
    free(which);
    if (status == STATUS_OK)
        status = candidates_price(search->request, &search->candidates, &search->pool, search->level, &search->scale);
    if (status == STATUS_OK)
        choose(search, out);
    return status;
}

/* Rows in the order of the document: chosen, then by cost, refused ones last. */
static int by_rank(const void *a, const void *b)
{
    const struct recommend_candidate *x = a, *y = b;
    bool cx = verdict_ok(&x->lost) && x->priced, cy = verdict_ok(&y->lost) && y->priced;
    if (cx != cy)
        return cx ? -1 : 1;
    if (x->priced != y->priced)
        return x->priced ? -1 : 1;
    if (x->priced && x->loses_by != y->loses_by)
        return x->loses_by < y->loses_by ? -1 : 1;
    return (x->plan.sp > y->plan.sp) - (x->plan.sp < y->plan.sp);
}

static void place_ranks(const struct request *request, struct plan *plan)
{
    const struct topo *topo = request->topo;
    int order[PLAN_ORDER_MAX];
    if (request->dev != DEV_CUDA || topo->ngpus != request->world || request->world > PLAN_ORDER_MAX ||
        topo_rank_order(topo, request->world, plan->sp, order) != STATUS_OK)
        return;
    bool identity = true;
    for (int i = 0; i < request->world; i++) {
        plan->order[i] = (int16_t)order[i];
        identity = identity && order[i] == i;
    }
    plan->order_n = identity ? 0 : request->world;
}

static void hand_over(struct search *search, struct recommendation *out)
{
    out->n = search->candidates.n;
    out->candidates = search->candidates.rows;
    search->candidates.rows = NULL;
    search->candidates.n = 0;
    qsort(out->candidates, (size_t)out->n, sizeof *out->candidates, by_rank);
    out->chosen = out->n > 0 && out->candidates[0].priced ? 0 : -1;
    if (out->chosen == 0)
        place_ranks(search->request, &out->candidates[0].plan);
    out->measured = search->measured;
}

static enum status run(struct search *search, struct recommendation *out)
{
    const struct request *request = search->request;
    TRY(candidates_build(request, &search->candidates));
    if (!any_legal(&search->candidates))
        return nothing_legal(search);
    TRY(check_first(search, out));
    TRY(search_coarse(search));
    TRY(candidates_price(request, &search->candidates, &search->pool, PARTS_COARSE, &search->scale));
    if (choose(search, out) < 0) {
        if (interrupt_pending())
            return interrupt_status();
        return HINT(FAIL(STATUS_NODATA, "no candidate has a time: its samples were waived, failed or are not in the store"),
                    request->replay ? "replay a store that `tune` wrote for this model and length on this machine"
                                    : "-v says why each was waived; a quieter machine or a longer --budget helps");
    }
    say_estimate(search, out->chosen);
    if (request->effort != REQUEST_ESTIMATE)
        TRY(measure_best(search, out));
    return flips_find(search, out);
}

enum status search_run(const struct request *request, struct bench_session *session, struct recommendation *out)
{
    struct search *search = calloc(1, sizeof *search);
    *out = (struct recommendation){.request = *request, .chosen = -1, .native_best = -1};
    if (search == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a search");
    int64_t start = clock_ns();
    search->request = request;
    search->session = session;
    search->deadline_ns = clock_deadline(request->budget_us);
    enum status status = run(search, out);
    out->interrupted = interrupt_pending() != 0;
    out->budget_ended = clock_passed(search->deadline_ns);
    out->wall_s = (double)(clock_ns() - start) * 1e-9;
    out->budget_s = (double)request->budget_us * 1e-6;
    if (status == STATUS_OK)
        hand_over(search, out);
    candidates_free(&search->candidates);
    pool_free(&search->pool);
    free(search);
    if (status == STATUS_OK && out->verdict == WORK_DOES_NOT_FIT)
        return HINT(FAIL(STATUS_NOFIT, "no plan fits in the memory of one device"), "%s", out->fits_if);
    return status;
}
