/* tuner/refuse.c -- what to say when no plan is admissible: the reasons, each once, and what would make one so. */
#include "tuner/candidates.h"

#include "base/text.h"
#include "base/units.h"

#include <string.h>

static bool said_before(const struct candidates *c, int i)
{
    for (int k = 0; k < i; k++)
        if (strcmp(c->rows[k].verdict.why, c->rows[i].verdict.why) == 0)
            return true;
    return false;
}

static void reasons(const struct candidates *c, char *buf, size_t size)
{
    struct text all = {0};
    for (int i = 0; i < c->n; i++) {
        const char *why = c->rows[i].verdict.why;
        if (said_before(c, i))
            continue;
        if (all.len + strlen(why) + 2 > size - 8) {
            text_add(&all, "; ...");
            break;
        }
        text_add(&all, "%s%s", all.len > 0 ? "; " : "", why);
    }
    text_print(buf, size, "%s", text_get(&all));
    text_free(&all);
}

static const struct recommend_candidate *first_with(const struct candidates *c, enum rule rule)
{
    for (int i = 0; i < c->n; i++)
        if (c->rows[i].verdict.rule == rule)
            return &c->rows[i];
    return NULL;
}

static bool all_with(const struct candidates *c, enum rule rule)
{
    for (int i = 0; i < c->n; i++)
        if (c->rows[i].verdict.rule != rule)
            return false;
    return true;
}

/* Classes of the target that have a kernel here, as a list. */
static void classes_here(const struct request *request, char *buf, size_t size)
{
    struct text all = {0};
    for (int i = 0; request->target->classes[i] != NULL; i++)
        if (target_stand_in(request->target, request->target->classes[i], request->dev) != NULL)
            text_add(&all, "%s%s", all.len > 0 ? "," : "", request->target->classes[i]);
    text_print(buf, size, "%s", text_get(&all));
    text_free(&all);
}

/* The smallest batch that some plan takes. */
static int64_t smallest_batch(const struct candidates *c)
{
    int64_t smallest = 0;
    for (int i = 0; i < c->n; i++) {
        const struct verdict *v = &c->rows[i].verdict;
        if (v->rule != RULE_GLOBAL_BATCH)
            continue;
        int64_t near = v->nearest[0] > 0 ? v->nearest[0] : v->nearest[1];
        smallest = near > 0 && (smallest == 0 || near < smallest) ? near : smallest;
    }
    return smallest;
}

enum status candidates_refused(const struct request *request, const struct candidates *candidates)
{
    char why[400], here[128], batch[UNITS_BUF];
    reasons(candidates, why, sizeof why);
    classes_here(request, here, sizeof here);
    enum status status = FAIL(STATUS_USAGE, "no plan is legal: %s", why);
    const struct recommend_candidate *cannot = first_with(candidates, RULE_TARGET_CANNOT);
    int64_t near = smallest_batch(candidates);
    if (request->problem.docs > 0 && cannot != NULL && !request->target->packed_sdpa)
        return HINT(status, "--target sptune runs packed documents with the kernel that is here; or leave --docs out");
    if (near > 0)
        return HINT(status, "--global-batch %lldtok would work (%s tokens); so may another --micro-batch or --world",
                    (long long)near, units_format_count(near, batch));
    if (cannot != NULL)
        return HINT(status, "leave to %s what it decides itself, or choose another --target", request->target->name);
    if (first_with(candidates, RULE_NOT_MEASURED) != NULL && request->installed != NULL)
        return HINT(status, "scripts/peers/attention.py makes rows of one rank's heads; or leave --samples out");
    if (all_with(candidates, RULE_NOT_MEASURED) && here[0] != '\0')
        return HINT(status, "--attention %s has a kernel here", here);
    if (all_with(candidates, RULE_NOT_MEASURED))
        return HINT(status, "no class of %s has a kernel on this device; --target list names others",
                    request->target->name);
    return HINT(status, "change --sp, --world, --seq or the heads; `sptune model` lists the legal sizes");
}
