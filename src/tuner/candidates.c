/* tuner/candidates.c -- build, refuse, weigh: everything about candidates but the choice (choose.c). */
#include "tuner/candidates.h"

#include "base/mem.h"
#include "base/text.h"
#include "base/units.h"

#include <stdlib.h>
#include <string.h>

struct build {
    const struct request *request;
    const struct problem *problem; /* of one micro-batch */
    struct candidates *out;
};

static struct verdict judge(const struct build *build, struct plan *plan, const struct verdict *first)
{
    const struct request *r = build->request;
    bool installed = parts_is_installed(r, plan);
    struct verdict verdict = *first;
    if (installed && first->rule == RULE_NOT_MEASURED) /* no kernel here has its name */
        verdict = plan_check_without_attention(build->problem, plan, r->dev);
    if (!verdict_ok(&verdict))
        return target_advise(r->target, build->problem, plan, verdict);
    verdict = target_check(r->target, &r->model, build->problem, plan);
    if (verdict_ok(&verdict) && r->global_batch_tokens > 0)
        verdict = work_accumulate(build->problem, plan, r->global_batch_tokens, &plan->accumulate);
    if (verdict_ok(&verdict) && installed)
        return parts_installed_check(r, plan);
    if (verdict_ok(&verdict) && target_stand_in(r->target, target_class(r->target, plan->attention), r->dev) == NULL)
        verdict = verdict_no(RULE_NOT_MEASURED, "no kernel here stands in for %s, so it has no time to compare",
                             plan->attention);
    return verdict;
}

/* How the plan fits: on its device, and all of a host's ranks on the host. */
static enum work_fit fit_of(const struct request *r, const struct work_memory *memory)
{
    enum work_fit device = work_fit(memory->peak_bytes, r->device_memory_bytes), host = WORK_FITS;
    if (r->host_memory_bytes > 0)
        host = work_fit(memory->host_bytes, r->host_memory_bytes / r->ranks_per_host);
    return host > device ? host : device;
}

static enum status visit(void *arg, const struct plan *plan, const struct verdict *verdict)
{
    struct build *build = arg;
    struct candidates *out = build->out;
    const struct request *r = build->request;
    if (plan->chunks > 1 && (plan->sp == 1 || !verdict_ok(verdict)))
        return STATUS_OK; /* nobody asked for chunks, so where they do nothing there is nothing to explain */
    if (plan->sp == 1 && r->space.nexchange > 1 && strcmp(plan->exchange, r->space.exchange[0]) != 0)
        return STATUS_OK; /* nothing is exchanged: the same plan again */
    if (plan->method != r->space.base.method && r->method_open && !verdict_ok(verdict))
        return STATUS_OK; /* nor for this method */
    TRY(mem_grow((void **)&out->rows, &out->cap_rows, (size_t)out->n + 1, sizeof *out->rows));
    TRY(mem_grow((void **)&out->prices, &out->cap_prices, (size_t)out->n + 1, sizeof *out->prices));
    struct recommend_candidate *row = &out->rows[out->n];
    *row = (struct recommend_candidate){.plan = *plan};
    out->prices[out->n++] = (struct price){0};
    const char *class = target_class(r->target, plan->attention);
    text_print(row->attention_class, sizeof row->attention_class, "%s", class != NULL ? class : plan->attention);
    row->lost = row->verdict = judge(build, &row->plan, verdict);
    if (!verdict_ok(&row->verdict)) {
        out->n -= plan->method != r->space.base.method && r->method_open;
        return STATUS_OK;
    }
    work_memory_on(&r->model, build->problem, &row->plan, r->target, r->planned, 1, &row->memory);
    row->fit = fit_of(r, &row->memory);
    return STATUS_OK;
}

enum status candidates_build(const struct request *request, struct candidates *out)
{
    *out = (struct candidates){0};
    struct problem problem = request->problem;
    struct build build = {request, &problem, out};
    enum status status = STATUS_OK;
    for (int i = 0; i < request->nmicro && status == STATUS_OK; i++) {
        problem.batch = request->micro_batch[i];
        status = plan_enumerate(&problem, &request->space, visit, &build);
    }
    if (status != STATUS_OK)
        candidates_free(out);
    return status;
}

void candidates_free(struct candidates *candidates)
{
    free(candidates->rows);
    free(candidates->prices);
    *candidates = (struct candidates){0};
}

bool candidates_any_legal(const struct candidates *candidates)
{
    for (int i = 0; i < candidates->n; i++)
        if (verdict_ok(&candidates->rows[i].verdict))
            return true;
    return false;
}

static void speed(const struct request *request, struct recommend_candidate *row)
{
    struct problem problem = request->problem;
    problem.batch = row->plan.micro_batch;
    double tokens = (double)work_step_tokens(&problem, &row->plan) * 1e6 / request->world;
    row->tokens_per_s_per_device = tokens / row->time.step_us;
    row->lo = tokens / row->time.hi_us;
    row->hi = tokens / row->time.lo_us;
}

static void describe(enum parts_level level, const struct parts_scale *scale, const struct request *request,
                     const struct plan *plan, struct price *price)
{
    bool installed = parts_is_installed(request, plan), gathers = plan->method == PLAN_METHOD_SPLIT_GATHER;
    char seq[UNITS_BUF], heads[32] = "all heads";
    if (installed) {
        text_print(price->composed_of, sizeof price->composed_of, "attention of --samples; %s",
                   level == PARTS_COARSE ? "the rest from rates of small shapes"
                                         : "exchanges, products, gathers and a copy");
        return;
    }
    if (scale->heads_timed > 0)
        text_print(heads, sizeof heads, "%d head%s a rank", scale->heads_timed, scale->heads_timed > 1 ? "s" : "");
    if (level == PARTS_COARSE)
        text_print(price->composed_of, sizeof price->composed_of, "rates of small shapes");
    else if (level == PARTS_LAYER)
        text_print(price->composed_of, sizeof price->composed_of,
                   "%s forward and backward, products, gathers and a copy, each timed",
                   gathers ? "attention" : "layer");
    else
        text_print(price->composed_of, sizeof price->composed_of,
                   "%s; attention of %s at %s tokens; products, gathers and a copy",
                   gathers               ? "gathers and sums of rows"
                   : plan_ring(plan) > 1 ? "sends of a ring"
                                         : "exchanges",
                   heads, units_format_count(scale->seq_timed > 0 ? scale->seq_timed : request->problem.seq, seq));
}

/* Why a row has no price, in the words of the sample that is missing. */
static struct verdict not_priced(const struct request *request, const struct recommend_candidate *row,
                                 const struct part *missing, const struct pool *pool)
{
    char name[96];
    parts_name(missing, name, sizeof name);
    if (!missing->possible)
        return verdict_no(RULE_NOT_MEASURED, "sp %d: none of its exchanges can be timed or scaled from %d rank%s here",
                          row->plan.sp, request->ranks, request->ranks > 1 ? "s" : "");
    const struct sample *tried = pool_tried(pool, missing->key);
    if (tried == NULL)
        return verdict_no(RULE_NOT_MEASURED, "%s was not timed", name);
    return verdict_no(tried->rule != RULE_OK ? tried->rule : RULE_NOT_MEASURED, "%s: %.120s", name, tried->why);
}

/* Part by part: what timed rows took over what their coarse prices said. Attention as it is installed has no coarse price:
 * it neither teaches nor learns. */
struct correction {
    double timed[PRICE_PARTS], coarse[PRICE_PARTS];
};

static void learn(const struct price *timed, const struct price *coarse, const struct pool *pool, bool installed,
                  struct correction *out)
{
    double t[PRICE_PARTS], c[PRICE_PARTS];
    price_parts(timed, pool, t);
    price_parts(coarse, pool, c);
    for (int i = 0; i < PRICE_PARTS; i++) {
        if (installed && i == PRICE_ATTENTION)
            continue;
        out->timed[i] += t[i];
        out->coarse[i] += c[i];
    }
}

static void correct(const struct correction *correction, bool installed, struct price *price)
{
    for (int i = 0; i < price->n; i++) {
        enum price_part part = price->term[i].part;
        if (installed && part == PRICE_ATTENTION)
            continue;
        if (correction->timed[part] > 0 && correction->coarse[part] > 0)
            price->term[i].times *= correction->timed[part] / correction->coarse[part];
    }
    if (correction->timed[PRICE_ATTENTION] > 0 && !installed)
        text_print(price->composed_of, sizeof price->composed_of,
                   "rates of small shapes, corrected by the plans that were timed");
}

struct pricing {
    const struct request *request;
    struct candidates *candidates;
    const struct pool *pool;
    struct parts parts;
    struct correction correction;
};

static enum status price_at(struct pricing *pricing, int i, enum parts_level level, const struct parts_scale *scale,
                            struct price *out, const struct part **missing)
{
    parts_clear(&pricing->parts);
    TRY(parts_list(pricing->request, &pricing->candidates->rows[i].plan, level, scale, &pricing->parts));
    TRY(parts_price(&pricing->parts, pricing->pool, out, missing));
    describe(level, scale, pricing->request, &pricing->candidates->rows[i].plan, out);
    return STATUS_OK;
}

static enum status price_row(struct pricing *pricing, int i, enum parts_level level, const struct parts_scale *scale)
{
    struct recommend_candidate *row = &pricing->candidates->rows[i];
    struct price coarse, timed;
    const struct part *missing;
    row->priced = row->timed = false;
    row->untimed = VERDICT_YES;
    TRY(price_at(pricing, i, PARTS_COARSE, scale, &coarse, &missing));
    bool have_coarse = missing == NULL;
    row->lost = have_coarse ? VERDICT_YES : not_priced(pricing->request, row, missing, pricing->pool);
    if (level != PARTS_COARSE) {
        TRY(price_at(pricing, i, level, scale, &timed, &missing));
        row->timed = missing == NULL;
        if (!row->timed && pool_tried(pricing->pool, missing->key) != NULL)
            row->untimed = not_priced(pricing->request, row, missing, pricing->pool);
    }
    row->priced = have_coarse || row->timed;
    if (row->timed)
        row->lost = VERDICT_YES;
    if (row->timed && have_coarse)
        learn(&timed, &coarse, pricing->pool, parts_is_installed(pricing->request, &row->plan), &pricing->correction);
    if (row->priced)
        pricing->candidates->prices[i] = row->timed ? timed : coarse;
    return STATUS_OK;
}

enum status candidates_price(const struct request *request, struct candidates *candidates, const struct pool *pool,
                             enum parts_level level, const struct parts_scale *scale)
{
    static const struct parts_scale whole = {0};
    struct pricing pricing = {.request = request, .candidates = candidates, .pool = pool};
    enum status status = STATUS_OK;
    for (int i = 0; i < candidates->n && status == STATUS_OK; i++)
        if (verdict_ok(&candidates->rows[i].verdict))
            status = price_row(&pricing, i, level, scale != NULL ? scale : &whole);
    parts_free(&pricing.parts);
    TRY(status);
    for (int i = 0; i < candidates->n; i++) {
        struct recommend_candidate *row = &candidates->rows[i];
        if (!row->priced)
            continue;
        if (!row->timed)
            correct(&pricing.correction, parts_is_installed(request, &row->plan), &candidates->prices[i]);
        price_time(&candidates->prices[i], pool, &row->time);
        speed(request, row);
    }
    return STATUS_OK;
}
