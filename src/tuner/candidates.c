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
    if (!verdict_ok(first))
        return *first;
    struct verdict verdict = target_check(r->target, &r->model, build->problem, plan);
    if (verdict_ok(&verdict) && r->global_batch_tokens > 0)
        verdict = work_accumulate(build->problem, plan, r->global_batch_tokens, &plan->accumulate);
    if (verdict_ok(&verdict) && target_stand_in(r->target, target_class(r->target, plan->attention), r->dev) == NULL)
        verdict = verdict_no(RULE_NOT_MEASURED, "no kernel here stands in for %s, so it has no time to compare", plan->attention);
    return verdict;
}

static enum status visit(void *arg, const struct plan *plan, const struct verdict *verdict)
{
    struct build *build = arg;
    struct candidates *out = build->out;
    const struct request *r = build->request;
    TRY(mem_grow((void **)&out->rows, &out->cap_rows, (size_t)out->n + 1, sizeof *out->rows));
    TRY(mem_grow((void **)&out->prices, &out->cap_prices, (size_t)out->n + 1, sizeof *out->prices));
    struct recommend_candidate *row = &out->rows[out->n];
    *row = (struct recommend_candidate){.plan = *plan};
    out->prices[out->n++] = (struct price){0};
    const char *class = target_class(r->target, plan->attention);
    text_print(row->attention_class, sizeof row->attention_class, "%s", class != NULL ? class : plan->attention);
    row->verdict = judge(build, &row->plan, verdict);
    if (!verdict_ok(&row->verdict))
        return STATUS_OK;
    work_memory(&r->model, build->problem, &row->plan, r->target, &row->memory);
    row->fit = work_fit(row->memory.peak_bytes, r->device_memory_bytes);
    if (r->host_memory_bytes > 0) {
        enum work_fit host = work_fit(row->memory.host_bytes * r->ranks_per_host, r->host_memory_bytes);
        row->fit = host > row->fit ? host : row->fit;
    }
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

static void speed(const struct request *request, struct recommend_candidate *row)
{
    struct problem problem = request->problem;
    problem.batch = row->plan.micro_batch;
    double tokens = (double)work_step_tokens(&problem, &row->plan) * 1e6 / request->world;
    row->tokens_per_s_per_device = tokens / row->time.step_us;
    row->lo = tokens / row->time.hi_us;
    row->hi = tokens / row->time.lo_us;
}

static void describe(enum parts_level level, const struct parts_scale *scale, const struct request *request, struct price *price)
{
    char seq[UNITS_BUF];
    if (level == PARTS_COARSE)
        text_print(price->composed_of, sizeof price->composed_of, "rates of small shapes");
    else if (level == PARTS_LAYER)
        text_print(price->composed_of, sizeof price->composed_of,
                   "layer forward and backward, products, gathers and a copy, each timed");
    else
        text_print(price->composed_of, sizeof price->composed_of,
                   "exchanges; attention of %d heads per rank at %s tokens; products, gathers and a copy", scale->heads_timed,
                   units_format_count(scale->seq_timed > 0 ? scale->seq_timed : request->problem.seq, seq));
}

static enum status price_row(const struct request *request, struct candidates *candidates, int i, const struct pool *pool,
                             enum parts_level level, const struct parts_scale *scale)
{
    struct recommend_candidate *row = &candidates->rows[i];
    struct price *price = &candidates->prices[i];
    struct part parts[PARTS_MAX];
    const enum parts_level levels[] = {level, PARTS_COARSE};
    row->priced = false;
    for (int l = 0; l < 2 && !row->priced; l++) {
        int n = 0;
        TRY(parts_list(request, &row->plan, levels[l], scale, parts, &n));
        TRY(parts_price(parts, n, pool, price, &row->priced));
        if (row->priced) {
            describe(levels[l], scale, request, price);
            row->timed = levels[l] != PARTS_COARSE;
        }
    }
    if (row->priced) {
        price_time(price, pool, &row->time);
        speed(request, row);
    }
    return STATUS_OK;
}

enum status candidates_price(const struct request *request, struct candidates *candidates, const struct pool *pool,
                             enum parts_level level, const struct parts_scale *scale)
{
    for (int i = 0; i < candidates->n; i++)
        if (verdict_ok(&candidates->rows[i].verdict))
            TRY(price_row(request, candidates, i, pool, level, scale));
    return STATUS_OK;
}

void candidates_reasons(const struct candidates *candidates, char *buf, size_t size)
{
    struct text all = {0};
    for (int i = 0; i < candidates->n && all.len + 100 < size; i++)
        if (!verdict_ok(&candidates->rows[i].verdict))
            text_add(&all, "%ssp %d: %s", all.len > 0 ? "; " : "", candidates->rows[i].plan.sp, candidates->rows[i].verdict.why);
    text_print(buf, size, "%s", text_get(&all));
    text_free(&all);
}
