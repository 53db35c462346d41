/* cli/train_sizes.c -- sizes of a training job, read and judged; of what cannot be, the nearest that can. */
#include "cli/train_sizes.h"

#include "base/log.h"
#include "base/mem.h"
#include "sp/target.h"

enum size { SP, TP, REPLICATE, SIZES };

static const char *const names[SIZES] = {"sp", "tp", "dp_replicate"};

static int *size_of(struct plan *plan, enum size size)
{
    int *const sizes[SIZES] = {&plan->sp, &plan->tp, &plan->dp_replicate};
    return sizes[size];
}

/* Ranks of one shard of it all; a file's sizes may be any. */
static enum status taken_of(const struct plan *plan, int64_t *out)
{
    TRY(mem_mul(plan->sp, plan->tp, "sp x tp", out));
    return mem_mul(*out, plan->dp_replicate, "sp x tp x dp_replicate", out);
}

enum status train_sizes_read(const struct cli *cli, int ranks, struct plan *plan)
{
    const struct opt_set *opts = &cli->opts;
    bool any = opt_given(opts, "sp") || opt_given(opts, "tp") || opt_given(opts, "dp-shard") ||
               opt_given(opts, "dp-replicate"),
         file = opt_given(opts, "plan");
    int64_t sp = file                                                  ? plan->sp
                 : !any && !opt_given(opts, "model") && ranks % 2 == 0 ? 2
                                                                       : 1,
            tp, replicate, shard, taken;
    TRY(opt_count(opts, "sp", 1, 1 << 16, sp, &sp));
    TRY(opt_count(opts, "tp", 1, 1 << 16, file ? plan->tp : 1, &tp));
    TRY(opt_count(opts, "dp-replicate", 1, 1 << 16, file ? plan->dp_replicate : 1, &replicate));
    plan->sp = (int)sp;
    plan->tp = (int)tp;
    plan->dp_replicate = (int)replicate;
    TRY(taken_of(plan, &taken));
    TRY(opt_count(opts, "dp-shard", 1, 1 << 16, taken <= ranks ? ranks / taken : 1, &shard));
    plan->dp_shard = (int)shard;
    plan->order_n = 0;
    return STATUS_OK;
}

/* Yes, or the first rule that forbids it; *about: the size that the rule is about. */
static struct verdict judge(const struct trainer_options *o, const struct plan *plan, int ranks, enum dev_kind device,
                            enum size *about)
{
    struct verdict verdict = VERDICT_YES;
    for (int i = 0; i < o->n_seqs && verdict_ok(&verdict); i++) {
        struct problem problem;
        problem_from_model(&o->model, o->seqs[i], ranks, &problem);
        problem.batch = plan->micro_batch;
        problem.dtype = o->dtype;
        *about = TP;
        verdict = plan_check_tp(&problem, plan);
        if (!verdict_ok(&verdict))
            break;
        *about = SP;
        verdict = target_advise(target_find("sptune"), &problem, plan, plan_check(&problem, plan, device));
    }
    return verdict;
}

static bool possible(const struct trainer_options *o, struct plan plan, int ranks, enum dev_kind device)
{
    enum size about;
    int64_t taken;
    if (taken_of(&plan, &taken) != STATUS_OK || ranks % taken != 0)
        return false;
    plan.dp_shard = (int)(ranks / taken);
    struct verdict verdict = judge(o, &plan, ranks, device, &about);
    return verdict_ok(&verdict);
}

/* "sp 2 and 4 would work": of one size, the others as they are and dp_shard what remains; false: none would. */
static bool name_nearest(const struct cli *cli, const struct trainer_options *o, int ranks, enum dev_kind device,
                         enum size size, struct text *out)
{
    struct plan plan = o->plan;
    int *value = size_of(&plan, size), was = *value, below = 0, above = 0;
    for (int d = 1; d <= ranks && above == 0; d++) {
        *value = d;
        if (ranks % d != 0 || d == was || !possible(o, plan, ranks, device))
            continue;
        below = d < was ? d : below;
        above = d > was ? d : above;
    }
    if (below == 0 && above == 0)
        return false;
    text_add(out, "%s %d", names[size], below > 0 ? below : above);
    if (below > 0 && above > 0)
        text_add(out, " and %d", above);
    text_add(out, "%s would work", opt_given(&cli->opts, "dp-shard") ? " without --dp-shard" : "");
    return true;
}

static enum status hint(enum status status, struct text *out)
{
    status = out->len > 0 ? HINT(status, "%s", text_get(out)) : status;
    text_free(out);
    return status;
}

/* The first size that alone can be mended, and as many ranks as the sizes share. */
static enum status refuse_product(const struct cli *cli, const struct trainer_options *o, int ranks,
                                  enum dev_kind device, int64_t taken, int64_t ranks_most)
{
    const struct plan *plan = &o->plan;
    int64_t whole = taken < ranks ? ranks / taken * taken : taken;
    struct text out = {0};
    bool found = false;
    for (enum size size = SP; size < SIZES && !found; size++)
        found = name_nearest(cli, o, ranks, device, size, &out);
    if (whole <= ranks_most && possible(o, *plan, (int)whole, device))
        text_add(&out, "%s--ranks %lld", found ? ", or " : "", (long long)whole);
    if (out.len == 0)
        text_add(&out, "their product has to be a divisor of the ranks");
    return hint(FAIL(STATUS_USAGE, "sp %d x tp %d x dp_replicate %d does not divide %d ranks", plan->sp, plan->tp,
                     plan->dp_replicate, ranks),
                &out);
}

/* dp_shard is not what the other sizes leave. */
static enum status refuse_shard(const struct plan *plan, int ranks, int64_t taken, int64_t ranks_most)
{
    int64_t all = taken * plan->dp_shard;
    struct text out = {0};
    text_add(&out, "dp_shard %lld", (long long)(ranks / taken));
    if (all <= ranks_most)
        text_add(&out, ", or --ranks %lld", (long long)all);
    return hint(FAIL(STATUS_USAGE, "sp %d x tp %d x dp_shard %d x dp_replicate %d are %lld ranks, not %d", plan->sp,
                     plan->tp, plan->dp_shard, plan->dp_replicate, (long long)all, ranks),
                &out);
}

/* Where the rule is about sizes, those that would work; else what the rule itself has. */
static enum status refuse(const struct cli *cli, const struct trainer_options *o, int ranks, enum dev_kind device,
                          enum size about, const struct verdict *verdict)
{
    const long long below = verdict->nearest[0], above = verdict->nearest[1];
    struct text out = {0};
    if (verdict->rule == RULE_HEADS_NOT_DIVISIBLE || verdict->rule == RULE_KV_RULE ||
        verdict->rule == RULE_FFN_NOT_DIVISIBLE || verdict->rule == RULE_WORLD)
        (void)name_nearest(cli, o, ranks, device, about, &out);
    else if (below > 0 && above > 0)
        text_add(&out, "%lld and %lld would work", below, above);
    else if (below > 0 || above > 0)
        text_add(&out, "%lld would work", below > 0 ? below : above);
    return hint(FAIL(STATUS_USAGE, "%s", verdict->why), &out);
}

enum status train_sizes_check(const struct cli *cli, int ranks, int64_t ranks_most, enum dev_kind device,
                              const struct trainer_options *o)
{
    const struct plan *plan = &o->plan;
    enum size about = SP;
    int64_t taken;
    TRY(taken_of(plan, &taken));
    if (ranks % taken != 0)
        return refuse_product(cli, o, ranks, device, taken, ranks_most);
    if (taken * plan->dp_shard != ranks)
        return refuse_shard(plan, ranks, taken, ranks_most);
    struct verdict verdict = judge(o, plan, ranks, device, &about);
    if (!verdict_ok(&verdict))
        return refuse(cli, o, ranks, device, about, &verdict);
    if (!opt_given(&cli->opts, "dp-shard") && !opt_given(&cli->opts, "plan") && ranks > taken)
        log_info("dp_shard %d: the ranks that sp, tp and dp_replicate leave", plan->dp_shard);
    return STATUS_OK;
}
