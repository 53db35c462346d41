/* train/fit.c -- what a run takes, held against what is free. */
#include "train/fit.h"

#include "base/mem.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/units.h"
#include "train/checkpoint.h"

#include <stdlib.h>
#include <string.h>

enum status fit_need(const struct layout *layout, const struct plan *plan, const struct problem *problem,
                     const struct groups *groups, bool beside, bool saves, struct dev *dev, struct fit_need *out)
{
    struct fit_need need = {0};
    bool offload = plan->offload == PLAN_OFFLOAD_OPTIMIZER;
    TRY(params_need(layout, plan->zero_stage, offload, groups, beside, dev, &need.params, &need.host));
    if (saves)
        checkpoint_need(layout, plan->zero_stage, offload, groups, &need.saving, &need.saving_host);
    TRY(comm_agree(groups->world, decoder_need(layout, plan, problem, groups, dev, &need.decoder),
                   "count activations"));
    *out = need;
    return STATUS_OK;
}

int64_t fit_bytes(const struct fit_need *need)
{
    const struct decoder_need *d = &need->decoder;
    return need->params + need->saving + d->between + d->kept + d->mlp + d->logits + d->rest;
}

/* Where the device's memory and the host's are one. */
static struct fit_need as_one(const struct fit_need *need)
{
    struct fit_need one = *need;
    one.params += need->host;
    one.decoder.between += need->decoder.host;
    one.saving += need->saving_host;
    one.host = one.decoder.host = one.saving_host = 0;
    return one;
}

/* Which device's memory that is, as mem_where says it of the host's; 0: of no other rank's. */
static int64_t where_dev(const struct dev *dev)
{
    uint64_t machine = (uint64_t)mem_machine(), where = machine;
    for (const char *c = dev_place(dev); *c != '\0'; c++)
        where = rng_hash(where, (unsigned char)*c);
    return where == machine || machine == 0 ? 0 : (int64_t)(where & ((UINT64_C(1) << 53) - 1));
}

/* How many ranks have this memory, and what they need of it together. */
static enum status together(struct comm *world, int64_t where, int64_t mine, int *ranks, int64_t *bytes)
{
    int size = comm_size(world), rank = comm_rank(world);
    double *all = NULL; /* [size] where, [size] bytes: a maximum takes each from the rank that has it */
    TRY(comm_alloc(world, (size_t)(2 * size) * sizeof *all, "shares of memory", "ask for memory", (void **)&all));
    all[rank] = (double)where;
    all[size + rank] = (double)mine;
    enum status status = comm_max(world, all, 2 * size);
    *ranks = 1;
    *bytes = mine;
    for (int r = 0; r < size && status == STATUS_OK; r++)
        if (r != rank && where != 0 && (int64_t)all[r] == where) {
            *bytes += (int64_t)all[size + r];
            ++*ranks;
        }
    free(all);
    return status;
}

/* A part of the need: what it is, and the option that makes it smaller, "" where there is none or it was taken. */
struct part {
    const char *what;
    int64_t bytes;
    const char *option;
};

/* The largest of what is computed with, and the options that take something off it: of what is an eighth of it all at least. */
static enum status refuse_activations(const struct fit_need *need, const struct plan *plan, bool cpu, const char *where,
                                      const char *have, const char *more)
{
    const struct decoder_need *d = &need->decoder;
    bool kept = plan->checkpointing == PLAN_CHECKPOINTING_NONE;
    bool moves = !cpu && plan->checkpointing == PLAN_CHECKPOINTING_FULL;
    const struct part parts[] = {
        {"buffers that layers keep for backward", d->kept, kept ? "--checkpointing full, " : ""},
        {"rows between layers", d->between, moves ? "--checkpointing offload, " : ""},
        {"buffers of a layer", d->mlp, plan->mlp == PLAN_MLP_PLAIN ? "--mlp tiled, " : ""},
        {"units of a checkpoint", need->saving, ""},
        {"logits", d->logits, plan->loss == PLAN_LOSS_PLAIN ? "--loss tiled, " : ""},
    };
    const struct part *most = parts;
    char options[128] = "", size[UNITS_BUF], others[UNITS_BUF];
    int64_t all = fit_bytes(need);
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        most = parts[p].bytes > most->bytes ? &parts[p] : most;
        size_t at = strlen(options);
        if (8 * parts[p].bytes >= all)
            text_print(options + at, sizeof options - at, "%s", parts[p].option);
    }
    return HINT(FAIL(STATUS_NOMEM, "%s need %s beside %s of all else on %s, %s are free", most->what,
                     units_format_bytes((double)most->bytes, size),
                     units_format_bytes((double)(all - most->bytes), others), where, have),
                "%sa shorter --seq, or %s", options, more);
}

static enum status refuse(const struct fit_need *need, const struct plan *plan, bool cpu, int ranks, int64_t free_bytes)
{
    char size[UNITS_BUF], have[UNITS_BUF], where[64] = "this rank";
    const char *apart = cpu ? "ranks on more hosts" : ranks > 1 ? "ranks on more GPUs" : NULL;
    if (ranks > 1)
        text_print(where, sizeof where, "each of the %d ranks of this %s", ranks, cpu ? "host" : "GPU");
    units_format_bytes((double)free_bytes, have);
    if (ranks * need->params <= free_bytes)
        return refuse_activations(need, plan, cpu, where, have, apart != NULL ? apart : "more ranks to a sequence");
    return HINT(FAIL(STATUS_NOMEM, "weights, gradients and optimizer state need %s on %s, %s are free",
                     units_format_bytes((double)need->params, size), where, have),
                "%s%s%s, or a smaller model", plan->zero_stage < 3 ? "--zero 3, " : "",
                !cpu && plan->offload == PLAN_OFFLOAD_NONE ? "--offload optimizer, " : "",
                apart != NULL ? apart : "more ranks");
}

/* bytes: of the device by the ranks that have it; host_bytes: beside them, of the host by its ranks. */
static enum status judge(const struct fit_need *need, const struct plan *plan, struct dev *dev, int ranks,
                         int64_t bytes, int64_t host_bytes)
{
    int64_t free_bytes, total_bytes;
    TRY(dev_memory(dev, &free_bytes, &total_bytes));
    if (bytes > free_bytes)
        return refuse(need, plan, dev_kind_of(dev) == DEV_CPU, ranks, free_bytes);
    return host_bytes > 0 ? mem_enough((size_t)host_bytes, "what the ranks of this host offload and save") : STATUS_OK;
}

enum status fit_check(const struct fit_need *given, const struct plan *plan, struct comm *world, struct dev *dev)
{
    bool cpu = dev_kind_of(dev) == DEV_CPU;
    struct fit_need need = cpu ? as_one(given) : *given;
    int64_t bytes = fit_bytes(&need), host_bytes = need.host + need.decoder.host + need.saving_host;
    int ranks = 1, host_ranks;
    if (world == NULL)
        return judge(&need, plan, dev, ranks, bytes, host_bytes);
    TRY(together(world, cpu ? mem_where() : where_dev(dev), bytes, &ranks, &bytes));
    if (!cpu)
        TRY(together(world, mem_where(), host_bytes, &host_ranks, &host_bytes));
    return comm_agree(world, judge(&need, plan, dev, ranks, bytes, host_bytes), "take memory");
}
