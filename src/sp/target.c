/* sp/target.c -- the table of targets, and the rules that follow from a target's fields. */
#include "sp/target.h"

#include "base/text.h"
#include "kernels/attention.h"

#include <string.h>

extern const struct target target_accelerate;
extern const struct target target_sptune;

const struct target *const targets[] = {
    &target_accelerate,
    &target_sptune,
    NULL,
};

const struct target *target_find(const char *name)
{
    for (int i = 0; name != NULL && targets[i] != NULL; i++)
        if (strcmp(targets[i]->name, name) == 0)
            return targets[i];
    return NULL;
}

static const char *class_find(const struct target *target, const char *name)
{
    for (int i = 0; target->classes[i] != NULL; i++)
        if (strcmp(target->classes[i], name) == 0)
            return target->classes[i];
    return NULL;
}

bool target_class_exists(const char *name)
{
    for (int i = 0; targets[i] != NULL; i++)
        if (class_find(targets[i], name) != NULL)
            return true;
    return false;
}

const char *target_class(const struct target *target, const char *attention)
{
    const char *class = class_find(target, attention);
    const struct attention *kernel = attention_find(attention);
    if (class == NULL && kernel != NULL)
        class = class_find(target, kernel->stands_for);
    return class;
}

const char *target_stand_in(const struct target *target, const char *attention_class, enum dev_kind dev)
{
    if (class_find(target, attention_class) == NULL)
        return NULL;
    for (int i = 0; attentions[i] != NULL; i++)
        if (attentions[i]->dev == dev && (strcmp(attentions[i]->name, attention_class) == 0 ||
                                          strcmp(attentions[i]->stands_for, attention_class) == 0))
            return attentions[i]->name;
    return NULL;
}

struct verdict target_check(const struct target *target, const struct model *model, const struct problem *problem,
                            const struct plan *plan)
{
    if ((unsigned)plan->method >= PLAN_METHOD_COUNT || !(target->methods & (1u << plan->method)))
        return verdict_no(RULE_TARGET_CANNOT, "%s does not execute method %s", target->name,
                          plan_method_name(plan->method));
    if (plan->zero_stage < target->zero_min || plan->zero_stage > target->zero_max) {
        struct verdict no = verdict_no(RULE_TARGET_CANNOT, "%s runs zero stages %d to %d, not %d", target->name,
                                       target->zero_min, target->zero_max, plan->zero_stage);
        no.nearest[0] = plan->zero_stage > target->zero_max ? target->zero_max : 0;
        no.nearest[1] = plan->zero_stage < target->zero_min ? target->zero_min : 0;
        return no;
    }
    if (plan->chunks > 1 && !target->overlap)
        return verdict_no(RULE_TARGET_CANNOT, "%s exchanges all heads at once: %d chunks are not executed",
                          target->name, plan->chunks);
    if (plan->mlp == PLAN_MLP_TILED && !target->tiled_mlp)
        return verdict_no(RULE_TARGET_CANNOT, "%s has no tiled MLP", target->name);
    const char *class = target_class(target, plan->attention);
    if (class == NULL)
        return verdict_no(RULE_TARGET_CANNOT, "attention %s stands for nothing that %s can be told", plan->attention,
                          target->name);
    if (problem->docs > 0 && strcmp(class, "sdpa") == 0 && !target->packed_sdpa)
        return verdict_no(RULE_TARGET_CANNOT, "sdpa of %s attends across packed documents; flash_attention_2 does not",
                          target->name);
    return target->check(model, problem, plan);
}

struct verdict target_advise(const struct target *target, const struct problem *problem, const struct plan *plan,
                             struct verdict no)
{
    size_t said = strlen(no.why);
    bool tp_fits = plan->tp > 0 && problem->heads % plan->tp == 0;
    if (no.rule == RULE_HEADS_NOT_DIVISIBLE && plan->method == PLAN_METHOD_ULYSSES && tp_fits &&
        plan->sp > problem->heads / plan->tp && target->methods & 1u << PLAN_METHOD_RING)
        text_print(no.why + said, sizeof no.why - said, "; method ring splits no heads");
    return no;
}
