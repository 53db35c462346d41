/* tuner/search.c -- estimate, measure what could win, choose; a finished answer is held at every moment. */
#include "tuner/search_state.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/units.h"
#include "tuner/flips.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Shares of what is left of the budget. */
static const double coarse_share = 0.25, detail_share = 0.85;

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
            log_info("estimate: sp %d %s%s%s: %.3g tokens/s per device, %s%s", row->plan.sp,
                     row->plan.method != PLAN_METHOD_ULYSSES ? plan_method_name(row->plan.method) : "",
                     row->plan.method != PLAN_METHOD_ULYSSES ? " " : "", row->attention_class,
                     row->tokens_per_s_per_device, units_format_bytes((double)row->memory.peak_bytes, peak),
                     i == chosen ? "  <-" : "");
    }
}

/* How many layers an effort times at most, and how much slower than the best an estimate may be to be worth it: beyond
 * the interval of their ratio, in which what both estimates get wrong alike has cancelled. */
static const struct {
    int layers;
    double margin;
} efforts[] = {[REQUEST_ESTIMATE] = {0, 1},
               [REQUEST_QUICK] = {4, 1.15},
               [REQUEST_NORMAL] = {8, 1.3},
               [REQUEST_FULL] = {32, INFINITY}};

static bool same_layer(const struct plan *a, const struct plan *b)
{
    return a->sp == b->sp && a->method == b->method && a->micro_batch == b->micro_batch && a->chunks == b->chunks &&
           strcmp(a->exchange, b->exchange) == 0 && strcmp(a->attention, b->attention) == 0;
}

/* Chunks change nothing but what overlaps, which no estimate sees: they are tried on the best plan, once its layer was timed whole. */
static bool chunks_now(const struct search *search, const struct plan *plan, int chosen)
{
    const struct recommend_candidate *best = &search->candidates.rows[chosen];
    struct plan other = *plan;
    other.chunks = best->plan.chunks;
    return search->level == PARTS_LAYER && best->timed && same_layer(&other, &best->plan);
}

/* May this row still win? Not timed yet, not refused, and near enough to the best. A plan that does not fit is timed
 * only when it is the answer all the same. */
static bool could_win(const struct search *search, int i, int chosen)
{
    const struct recommend_candidate *row = &search->candidates.rows[i];
    if (!row->priced || row->timed || (row->fit == WORK_DOES_NOT_FIT && i != chosen))
        return false;
    if (row->plan.chunks > 1)
        return i == chosen || chunks_now(search, &row->plan, chosen);
    return i == chosen || candidates_ratio(search->request, &search->candidates, i, chosen, &search->pool).lo <=
                              efforts[search->request->effort].margin;
}

/* Marks what could win, most promising first, with every row that has the same layer. */
static int mark(const struct search *search, int chosen, bool *which)
{
    const struct candidates *c = &search->candidates;
    int n = 0;
    memset(which, 0, (size_t)c->n);
    for (; n < efforts[search->request->effort].layers; n++) {
        int best = -1;
        for (int i = 0; i < c->n; i++)
            if (!which[i] && (best < 0 || c->rows[i].loses_by < c->rows[best].loses_by) && could_win(search, i, chosen))
                best = i;
        if (best < 0)
            break;
        for (int i = 0; i < c->n; i++)
            if (c->rows[i].priced && (c->rows[i].fit < WORK_DOES_NOT_FIT || i == best) &&
                same_layer(&c->rows[i].plan, &c->rows[best].plan))
                which[i] = true;
    }
    return n;
}

static enum status price(struct search *search, struct recommendation *out)
{
    TRY(candidates_price(search->request, &search->candidates, &search->pool, search->level, &search->scale));
    choose(search, out);
    return STATUS_OK;
}

/* How many of the marked rows are timed, and how many there are. */
static int timed_of(const struct search *search, const bool *which, int *all)
{
    int timed = 0;
    *all = 0;
    for (int i = 0; i < search->candidates.n; i++) {
        *all += which[i];
        timed += which[i] && search->candidates.rows[i].timed;
    }
    return timed;
}

/* A replay may have another budget or effort than the run had: it takes the scale at which the store has most of the
 * marked rows, the decided one first, then from the most detailed down. */
static enum status replay_detail(struct search *search, const bool *which, struct recommendation *out)
{
    enum parts_level level = PARTS_LAYER, best_level = search->level;
    struct parts_scale scale = {0}, best_scale = search->scale;
    int all, most = timed_of(search, which, &all);
    for (bool more = true; more && most < all; more = search_scale_next(search->request, &level, &scale)) {
        if (scale.heads_timed > 1) /* how many heads were timed is not part of a stored key */
            continue;
        search->level = level;
        search->scale = scale;
        TRY(search_detail(search, search->request, &search->candidates, which));
        TRY(price(search, out));
        int timed = timed_of(search, which, &all);
        if (timed <= most)
            continue;
        most = timed;
        best_level = level;
        best_scale = scale;
    }
    search->level = best_level;
    search->scale = best_scale;
    return price(search, out);
}

/* Rounds, because what was timed may move the best so far behind a plan that was only estimated. */
static enum status measure_best(struct search *search, struct recommendation *out)
{
    bool *which = NULL, fits = true;
    TRY(mem_alloc((size_t)search->candidates.n, "marks of candidates", (void **)&which));
    search_phase(search, detail_share, 0);
    enum status status = STATUS_OK;
    for (int round = 0; round < 3 && status == STATUS_OK && fits && mark(search, out->chosen, which) > 0; round++) {
        if (round == 0)
            status = search_scale(search, which, &fits);
        if (status == STATUS_OK && fits)
            status = search_detail(search, search->request, &search->candidates, which);
        if (status == STATUS_OK && fits)
            status = price(search, out);
        if (status == STATUS_OK && fits && round == 0 && search->session->env == NULL)
            status = replay_detail(search, which, out);
    }
    free(which);
    return status;
}

/* Rows in the order of the document: chosen, then by cost, refused ones last. */
static int by_rank(const void *a, const void *b)
{
    const struct recommend_candidate *x = a, *y = b;
    char tx[PLAN_TEXT], ty[PLAN_TEXT];
    bool cx = verdict_ok(&x->lost) && x->priced, cy = verdict_ok(&y->lost) && y->priced;
    if (cx != cy)
        return cx ? -1 : 1;
    if (x->priced != y->priced)
        return x->priced ? -1 : 1;
    if (x->priced && x->loses_by != y->loses_by)
        return x->loses_by < y->loses_by ? -1 : 1;
    if (x->plan.sp != y->plan.sp)
        return x->plan.sp < y->plan.sp ? -1 : 1;
    return strcmp(plan_text(&x->plan, tx), plan_text(&y->plan, ty));
}

/* Known of one machine's devices: a job of more hosts takes them in their own order, and says so. */
static void place_ranks(struct request *request, struct plan *plan)
{
    const struct topo *topo = request->topo;
    int order[PLAN_ORDER_MAX];
    if (request->dev != DEV_CUDA || plan->sp == 1 || request->world < topo->ngpus)
        return;
    if (request->world > topo->ngpus || request->world > PLAN_ORDER_MAX ||
        topo_rank_order(topo, request->world, plan->sp, order) != STATUS_OK) {
        char from[64];
        text_print(from, sizeof from, "links of %d GPUs are known here", topo->ngpus);
        request_assume(request, "rank_order", "devices' own", from);
        return;
    }
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
    out->chosen = 0;
    place_ranks(&out->request, &out->candidates[0].plan);
    out->measured = search->measured;
    out->checked = search->checked;
    out->check_total = search->check_total;
    out->check_remembered = search->check_remembered;
    if (search->rough == RULE_TAINTED)
        request_assume(&out->request, "samples", "disturbed", search_disturber(search->request->dev));
    else if (search->rough == RULE_BUDGET)
        request_assume(&out->request, "samples", "few", "the estimates' share of the budget ended");
}

/* What to replay instead. Rows of a busy machine were good for a rough estimate when they were taken, and are not kept. */
static const char *replay_hint(enum rule lost)
{
    return lost == RULE_TAINTED ? "its rows are tainted: tune again on a quieter machine"
                                : "replay a store that `tune` wrote for this model and dtype";
}

/* Time helps where it was missing, and where others took it; what is refused stays so. */
static const char *measure_hint(enum rule lost)
{
    bool late = lost == RULE_BUDGET || lost == RULE_TAINTED || lost == RULE_NOT_MEASURED;
    return late ? "-v says why each sample is missing; a quieter machine or a longer --budget helps"
                : "-v says why each sample is missing";
}

/* Every candidate was admissible and none got a time: the first reason says why. */
static enum status nothing_priced(const struct search *search)
{
    struct verdict lost = VERDICT_YES;
    for (int i = 0; i < search->candidates.n && verdict_ok(&lost); i++)
        if (verdict_ok(&search->candidates.rows[i].verdict))
            lost = search->candidates.rows[i].lost;
    if (interrupt_pending())
        return interrupt_status();
    if (search->request->ranks == 1 && search->request->world > 1)
        return HINT(FAIL(STATUS_NODATA, "no candidate has a time: %s", lost.why), "measure with --ranks 2 or more");
    return HINT(FAIL(STATUS_NODATA, "no candidate has a time: %s", lost.why), "%s",
                search->request->replay ? replay_hint(lost.rule) : measure_hint(lost.rule));
}

static enum status run(struct search *search, struct recommendation *out)
{
    const struct request *request = search->request;
    TRY(candidates_build(request, &search->candidates));
    if (!candidates_any_legal(&search->candidates))
        return candidates_refused(request, &search->candidates);
    TRY(search_check(search, &search->candidates));
    search_phase(search, request->effort == REQUEST_ESTIMATE ? 1 : coarse_share, COARSE_FLOOR_US);
    TRY(search_coarse(search, request, &search->candidates, true));
    TRY(price(search, out));
    if (out->chosen < 0)
        return nothing_priced(search);
    say_estimate(search, out->chosen);
    if (request->effort != REQUEST_ESTIMATE)
        TRY(measure_best(search, out));
    TRY(flips_find(search, out));
    return native_find(search, out);
}

enum status search_refuse(const struct request *request)
{
    struct candidates candidates = {0};
    enum status status = candidates_build(request, &candidates);
    if (status == STATUS_OK && !candidates_any_legal(&candidates))
        status = candidates_refused(request, &candidates);
    candidates_free(&candidates);
    return status;
}

static enum status open_search(const struct request *request, struct bench_session *session, struct search *out)
{
    *out = (struct search){.request = request,
                           .session = session,
                           .deadline_ns = clock_deadline(request->budget_us),
                           .room_bytes = INFINITY};
    int64_t available = 0, on_device = 0, total = 0;
    if (session->env == NULL)
        return STATUS_OK;
    TRY(mem_available(
        &available)); /* also where devices have memory of their own: the host makes and reads what is in it */
    if (request->dev != DEV_CPU) {
        TRY(dev_memory(session->env->dev, &on_device, &total));
        int64_t all = on_device * request->ranks; /* GPUs of one kind, each a rank's alone */
        available = all < available ? all : available;
    }
    out->room_bytes = (double)available * request->use_memory;
    return STATUS_OK;
}

static enum status does_not_fit(const struct recommendation *out)
{
    char fill[96];
    const struct recommend_candidate *nearest = &out->candidates[out->chosen];
    candidates_fill(&out->request, nearest, fill, sizeof fill);
    return HINT(FAIL(STATUS_NOFIT, "no plan fits; the nearest, sp %d, takes %s", nearest->plan.sp, fill), "%s",
                out->fits_if);
}

/* The most that a rank's layer holds, over the sizes that are searched. */
static int64_t layer_bytes(const struct request *request)
{
    int64_t most = 0;
    for (int sp = 2; sp <= request->ranks && sp <= request->world; sp++) {
        struct problem problem = request->problem;
        struct plan plan = request->space.base;
        struct verdict verdict = model_sp_heads(problem.heads, problem.kv_heads, sp, request->world);
        if (!verdict_ok(&verdict))
            continue;
        plan.sp = sp;
        problem.batch = 1;
        for (int i = 0; i < request->nmicro; i++)
            problem.batch = request->micro_batch[i] > problem.batch ? request->micro_batch[i] : problem.batch;
        int64_t bytes = work_exec_bytes(&problem, &plan);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* What is searched only where the ranks at hand, and what memory they can share, allow it: exchange direct, chunks. */
static void settle_ranks(const struct bench_session *session, struct request *request)
{
    if (session->env == NULL || request->ranks == 1)
        return;
    struct verdict verdict =
        bench_exchange_verdict(session->env, request->dev == DEV_CPU ? "direct" : "push", layer_bytes(request), 1);
    if (!verdict_ok(&verdict))
        request_without_direct(request, verdict.why);
    if (dev_can_overlap(session->env->dev))
        request_with_overlap(request);
}

enum status search_run(const struct request *request, struct bench_session *session, struct recommendation *out)
{
    int64_t start = clock_ns();
    struct search *search = NULL;
    *out = (struct recommendation){.request = *request, .chosen = -1, .native_best = -1};
    TRY(mem_alloc(sizeof *search, "a search", (void **)&search));
    settle_ranks(session, &out->request);
    request = &out->request;
    enum status status = open_search(request, session, search);
    if (status == STATUS_OK)
        status = run(search, out);
    out->interrupted = interrupt_pending() != 0;
    out->budget_ended = clock_passed(search->deadline_ns);
    out->wall_s = (double)(clock_ns() - start) * 1e-9;
    out->budget_s = (double)request->budget_us * 1e-6;
    if (status == STATUS_OK)
        hand_over(search, out);
    candidates_free(&search->candidates);
    pool_free(&search->pool);
    sample_free(&search->replayed);
    free(search);
    return status == STATUS_OK && out->verdict == WORK_DOES_NOT_FIT ? does_not_fit(out) : status;
}
