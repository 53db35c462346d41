/* tuner/parts_installed.c -- attention of a plan whose class was timed as it is installed: its rows are taken, nothing is
 * timed. */
#include "tuner/parts_build.h"

#include "base/text.h"
#include "sp/work.h"

#include <string.h>

bool parts_is_installed(const struct request *request, const struct plan *plan)
{
    return installed_has(request->installed, plan->attention);
}

static struct verdict find(const struct request *request, const struct plan *plan, int64_t window, bool backward,
                           struct installed_found *out)
{
    struct problem problem = request->problem;
    problem.batch = plan->micro_batch;
    problem.window = window;
    const struct installed_ask ask = {.class = plan->attention,
                                      .machine = request->topo->fingerprint,
                                      .dev = request->dev,
                                      .problem = &problem,
                                      .sp = plan->sp,
                                      .backward = backward};
    return installed_find(request->installed, &ask, out);
}

struct verdict parts_installed_check(const struct request *request, const struct plan *plan)
{
    struct parts_kind kinds[2];
    struct installed_found found;
    struct verdict verdict = VERDICT_YES;
    int n = parts_kinds(request, kinds);
    for (int i = 0; i < 2 * n && verdict_ok(&verdict); i++)
        verdict = find(request, plan, kinds[i / 2].window, i % 2 == 1, &found);
    return verdict;
}

/* The key says which row it is, so that plans of one size share it. */
static void set_row(const struct installed_found *found, const struct plan *plan, int64_t window, bool backward,
                    struct part *part)
{
    const struct sample_key *key = &found->row->key;
    struct problem *p = &part->c.problem;
    p->batch = key->batch;
    p->seq = key->seq;
    p->heads = (int)key->heads;
    p->kv_heads = (int)key->kv_heads;
    p->head_dim = (int)key->head_dim;
    p->head_dim_v = key->head_dim_v > 0 ? (int)key->head_dim_v : 0;
    p->causal = key->causal > 0;
    p->window = window;
    p->direction = backward ? PROBLEM_BACKWARD : PROBLEM_FORWARD;
    text_print(part->c.plan.attention, sizeof part->c.plan.attention, "%s", plan->attention);
}

enum status parts_installed(const struct parts_build *build, const struct parts_kind *kind)
{
    const struct plan *plan = build->plan;
    for (int backward = 0; backward < 2; backward++) {
        struct installed_found found = {0};
        struct part part = parts_base(build, "attention", "", 1);
        struct verdict verdict = find(build->request, plan, kind->window, backward, &found);
        if (!verdict_ok(&verdict))
            return FAIL(STATUS_NODATA, "%s", verdict.why); /* candidates.c refused this plan */
        set_row(&found, plan, kind->window, backward, &part);
        part.given = found.row;
        part.possible = false;
        part.part = PRICE_ATTENTION;
        part.source = found.source;
        part.slack = found.elsewhere ? SLACK_RATE : found.length ? SLACK_LENGTH : found.batch ? SLACK_PART : 0;
        part.slack_kind = PARTS_SLACK_ATTENTION;
        part.times = found.times * kind->layers * (double)plan->accumulate * (backward ? 1 : work_forward_passes(plan));
        TRY(parts_append(build, &part));
    }
    return STATUS_OK;
}
