/* sp/plan_enumerate.c -- every plan of a space, with its verdict: nested loops over what is searched.
 *
 * An sp that no plan can use is visited once, so that it can be explained, and not once per combination of everything
 * else.
 */
#include "sp/plan_check.h"

#include <stdio.h>

/* No int has more than 1600. */
enum { DIVISORS_MAX = 2048 };

static int divisors(int n, int out[DIVISORS_MAX])
{
    int low = 0, high = 0, tail[DIVISORS_MAX];
    for (int64_t d = 1; d * d <= n; d++) {
        if (n % d != 0)
            continue;
        out[low++] = (int)d;
        if (d != n / d)
            tail[high++] = (int)(n / d);
    }
    while (high > 0)
        out[low++] = tail[--high];
    return low;
}

/* The choices below sp, each with at least one value. */
struct walk {
    const struct problem *problem;
    const struct plan_space *space;
    plan_visit visit;
    void *arg;
    bool once; /* this sp is illegal whatever the rest is */
    bool seen; /* and was visited */
};

static enum status visit_one(struct walk *walk, const struct plan *plan)
{
    if (walk->once && walk->seen)
        return STATUS_OK;
    walk->seen = true;
    struct verdict verdict = plan_check(walk->problem, plan, walk->space->dev);
    return walk->visit(walk->arg, plan, &verdict);
}

/* What moves data is given by the method, in one piece. */
static bool has_no_choice(const struct plan *plan)
{
    return plan_method_exchange(plan->method) != NULL;
}

static enum status visit_chunks(struct walk *walk, struct plan plan)
{
    const struct plan_space *space = walk->space;
    int n = has_no_choice(&plan) ? 0 : space->nchunks;
    for (int i = 0; i < (n > 0 ? n : 1); i++) {
        if (n > 0)
            plan.chunks = space->chunks[i];
        TRY(visit_one(walk, &plan));
    }
    return STATUS_OK;
}

static enum status visit_parts(struct walk *walk, struct plan plan)
{
    const struct plan_space *space = walk->space;
    int n = has_no_choice(&plan) ? 0 : space->nexchange;
    for (int e = 0; e < (n > 0 ? n : 1); e++) {
        if (n > 0)
            snprintf(plan.exchange, sizeof plan.exchange, "%s", space->exchange[e]);
        for (int a = 0; a < (space->nattention > 0 ? space->nattention : 1); a++) {
            if (space->nattention > 0)
                snprintf(plan.attention, sizeof plan.attention, "%s", space->attention[a]);
            TRY(visit_chunks(walk, plan));
        }
    }
    return STATUS_OK;
}

static enum status visit_savers(struct walk *walk, struct plan plan)
{
    const struct plan_space *space = walk->space;
    for (int c = 0; c < (space->ncheckpointing > 0 ? space->ncheckpointing : 1); c++) {
        if (space->ncheckpointing > 0)
            plan.checkpointing = space->checkpointing[c];
        for (int o = 0; o < (space->noffload > 0 ? space->noffload : 1); o++) {
            if (space->noffload > 0)
                plan.offload = space->offload[o];
            for (int l = 0; l < (space->nloss > 0 ? space->nloss : 1); l++) {
                if (space->nloss > 0)
                    plan.loss = space->loss[l];
                TRY(visit_parts(walk, plan));
            }
        }
    }
    return STATUS_OK;
}

static enum status visit_method(struct walk *walk, int sp, enum plan_method method)
{
    const struct plan_space *space = walk->space;
    struct plan plan = space->base;
    plan.sp = sp;
    plan.method = method;
    if (has_no_choice(&plan) && space->nmethod > 0)
        snprintf(plan.exchange, sizeof plan.exchange, "%s", plan_method_exchange(method));
    struct verdict verdict = sp >= 1 ? plan_check_sp(walk->problem, &plan) : verdict_no(RULE_WORLD, "sp %d", sp);
    walk->once = !verdict_ok(&verdict);
    walk->seen = false;
    /* The canonical sizes: only the product dp_shard x dp_replicate matters, so one of each product is searched. */
    plan.dp_replicate = 1;
    plan.dp_shard = sp >= 1 && walk->problem->world >= sp ? walk->problem->world / sp : 1;
    plan.micro_batch = walk->problem->batch;
    for (int z = 0; z < (space->nzero > 0 ? space->nzero : 1); z++) {
        if (space->nzero > 0)
            plan.zero_stage = space->zero[z];
        TRY(visit_savers(walk, plan));
    }
    return STATUS_OK;
}

/* One rank moves nothing, by whatever method. */
static enum status visit_sp(struct walk *walk, int sp)
{
    const struct plan_space *space = walk->space;
    if (space->nmethod == 0)
        return visit_method(walk, sp, space->base.method);
    if (sp == 1)
        return visit_method(walk, sp, PLAN_METHOD_ULYSSES);
    for (int m = 0; m < space->nmethod; m++)
        TRY(visit_method(walk, sp, space->method[m]));
    return STATUS_OK;
}

enum status plan_enumerate(const struct problem *problem, const struct plan_space *space, plan_visit visit, void *arg)
{
    struct walk walk = {.problem = problem, .space = space, .visit = visit, .arg = arg};
    int all[DIVISORS_MAX] = {0};
    const int *sp = space->sp;
    int n = space->nsp;
    TRY(problem_check(problem));
    if (n == 0) {
        n = divisors(problem->world, all);
        sp = all;
    }
    for (int i = 0; i < n; i++)
        TRY(visit_sp(&walk, sp[i]));
    return STATUS_OK;
}
