/* model/rule_sp.c -- which sp sizes may split a model's heads, and which KV heads a rank then holds.
 *
 * A legal size divides the query heads, so the only candidates are the divisors of `heads`: at most 2*sqrt(heads) tries
 * find the nearest ones, whatever sizes a user asks about.
 */
#include "model/model.h"

static bool kv_fits(int kv_heads, int sp)
{
    return kv_heads % sp == 0 || sp % kv_heads == 0;
}

static bool legal(int heads, int kv_heads, int sp, int world)
{
    return heads % sp == 0 && kv_fits(kv_heads, sp) && (world == 0 || world % sp == 0);
}

static void consider(int heads, int kv_heads, int candidate, int sp, int world, int64_t nearest[2])
{
    if (!legal(heads, kv_heads, candidate, world))
        return;
    if (candidate < sp && candidate > nearest[0])
        nearest[0] = candidate;
    if (candidate > sp && (nearest[1] == 0 || candidate < nearest[1]))
        nearest[1] = candidate;
}

static void find_nearest(int heads, int kv_heads, int sp, int world, int64_t nearest[2])
{
    nearest[0] = nearest[1] = 0;
    for (int d = 1; d <= heads / d; d++) {
        if (heads % d != 0)
            continue;
        consider(heads, kv_heads, d, sp, world, nearest);
        consider(heads, kv_heads, heads / d, sp, world, nearest);
    }
}

/* The first rule that forbids sp, in the order in which a reader can act on it: the model, then the machine. */
static struct verdict judge(int heads, int kv_heads, int sp, int world)
{
    if (sp < 1)
        return verdict_no(RULE_HEADS_NOT_DIVISIBLE, "sp_size %d is not positive", sp);
    if (world < 0)
        return verdict_no(RULE_WORLD, "%d is not a number of processes", world);
    if (sp > heads)
        return verdict_no(RULE_HEADS_NOT_DIVISIBLE, "%d query heads are fewer than %d ranks", heads, sp);
    if (heads % sp != 0)
        return verdict_no(RULE_HEADS_NOT_DIVISIBLE, "%d query heads over %d ranks leave %d over", heads, sp,
                          heads % sp);
    if (!kv_fits(kv_heads, sp))
        return verdict_no(RULE_KV_RULE, "%d KV heads and %d ranks: neither number divides the other", kv_heads, sp);
    if (world > 0 && sp > world)
        return verdict_no(RULE_WORLD, "%d ranks are more than the %d processes there are", sp, world);
    if (world > 0 && world % sp != 0)
        return verdict_no(RULE_WORLD, "%d processes in groups of %d leave %d over", world, sp, world % sp);
    return VERDICT_YES;
}

struct verdict model_sp_heads(int heads, int kv_heads, int sp, int world)
{
    if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0)
        return verdict_no(RULE_HEADS_NOT_DIVISIBLE, "%d query heads and %d KV heads are not a whole ratio", heads,
                          kv_heads);
    struct verdict verdict = judge(heads, kv_heads, sp, world);
    if (!verdict_ok(&verdict) && world >= 0)
        find_nearest(heads, kv_heads, sp, world, verdict.nearest);
    return verdict;
}

struct verdict model_sp(const struct model *model, int sp, int world)
{
    return model_sp_heads(model->heads, model->kv_heads, sp, world);
}

int model_kv_local(int kv_heads, int sp)
{
    return kv_heads > sp ? kv_heads / sp : 1;
}

int model_kv_copies(int kv_heads, int sp)
{
    return sp > kv_heads ? sp / kv_heads : 1;
}

int model_kv_first(int kv_heads, int sp, int rank)
{
    return (int)((int64_t)rank * kv_heads / sp);
}
