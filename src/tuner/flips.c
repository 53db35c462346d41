/* tuner/flips.c -- single changes that would give another answer, and what our own harness would reach. */
#include "tuner/flips.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/text.h"
#include "base/units.h"

#include <stdlib.h>
#include <string.h>

struct change {
    const char *text;
    bool (*open)(const struct request *request); /* did the user leave it to the target? */
    void (*apply)(struct request *request);
};

#define OPEN(name, field)                                                                \
    static bool name(const struct request *r)                                            \
    {                                                                                    \
        return r->space.field == 0;                                                      \
    }
OPEN(loss_open, nloss)
OPEN(checkpointing_open, ncheckpointing)
OPEN(offload_open, noffload)

static void loss_fused(struct request *r)
{
    r->space.nloss = 1;
    r->space.loss[0] = PLAN_LOSS_FUSED;
}

static void loss_tiled(struct request *r)
{
    r->space.nloss = 1;
    r->space.loss[0] = PLAN_LOSS_TILED;
}

static void checkpointing_none(struct request *r)
{
    r->space.ncheckpointing = 1;
    r->space.checkpointing[0] = PLAN_CHECKPOINTING_NONE;
}

static void checkpointing_offload(struct request *r)
{
    r->space.ncheckpointing = 1;
    r->space.checkpointing[0] = PLAN_CHECKPOINTING_OFFLOAD;
}

static void offload_optimizer(struct request *r)
{
    r->space.noffload = 1;
    r->space.offload[0] = PLAN_OFFLOAD_OPTIMIZER;
}

static const struct change changes[] = {
    {"--loss fused", loss_open, loss_fused},
    {"--loss tiled", loss_open, loss_tiled},
    {"--checkpointing none", checkpointing_open, checkpointing_none},
    {"--checkpointing offload", checkpointing_open, checkpointing_offload},
    {"--offload optimizer", offload_open, offload_optimizer},
};

/* Decide again under a changed request, from the samples at hand. Not *found when nothing has a price. */
static enum status decide(struct search *search, const struct request *request, struct recommend_candidate *out, enum work_fit *verdict,
                          bool *found)
{
    struct candidates candidates;
    *found = false;
    TRY(candidates_build(request, &candidates));
    enum status status = candidates_price(request, &candidates, &search->pool, search->level, &search->scale);
    int chosen = status == STATUS_OK ? candidates_choose(request, &candidates, &search->pool, verdict) : -1;
    if (chosen >= 0) {
        *out = candidates.rows[chosen];
        *found = true;
    }
    candidates_free(&candidates);
    return status;
}

/* A flip is another sp, a plan that fits where none did, or at least this much more speed. */
static const double gain_worth_saying = 0.02;

static enum status try_change(struct search *search, const struct change *change, struct recommendation *out)
{
    const struct recommend_candidate *now = &search->candidates.rows[out->chosen];
    struct request *request = malloc(sizeof *request);
    struct recommend_candidate then;
    enum work_fit verdict;
    bool found = false;
    if (request == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a request");
    *request = *search->request;
    change->apply(request);
    enum status status = decide(search, request, &then, &verdict, &found);
    free(request);
    TRY(status);
    if (!found || verdict > out->verdict)
        return STATUS_OK;
    double gain = then.tokens_per_s_per_device / now->tokens_per_s_per_device - 1;
    bool other = then.plan.sp != now->plan.sp, better_fit = verdict < out->verdict;
    if ((!other && !better_fit && gain < gain_worth_saying) || (!better_fit && gain <= 0) || out->nflips == RECOMMEND_FLIPS)
        return STATUS_OK;
    struct recommend_flip *flip = &out->flips[out->nflips++];
    *flip = (struct recommend_flip){.then_plan = then.plan, .gain = gain, .peak_bytes = then.memory.peak_bytes};
    text_print(flip->condition, sizeof flip->condition, "%s", change->text);
    if (verdict != WORK_DOES_NOT_FIT && out->verdict == WORK_DOES_NOT_FIT && out->fits_if[0] == '\0')
        text_print(out->fits_if, sizeof out->fits_if, "%s makes sp %d fit", change->text, then.plan.sp);
    return STATUS_OK;
}

static void say_what_fits(const struct search *search, struct recommendation *out)
{
    const struct recommend_candidate *now = &search->candidates.rows[out->chosen];
    char size[UNITS_BUF];
    if (out->verdict == WORK_DOES_NOT_FIT && out->fits_if[0] == '\0')
        text_print(out->fits_if, sizeof out->fits_if, "devices of %s or more would fit sp %d; so may more processes or a shorter --seq",
                   units_format_bytes((double)now->memory.peak_bytes / 0.8, size), now->plan.sp);
}

/* The one measurement that would say more. */
static void say_next(const struct search *search, struct recommendation *out)
{
    const struct recommend_candidate *now = &search->candidates.rows[out->chosen];
    int tied = 0;
    for (int i = 0; i < search->candidates.n; i++)
        tied += search->candidates.rows[i].tied;
    size_t size = sizeof out->next_measurement;
    if (out->verdict == WORK_MEASURE_FIRST)
        text_print(out->next_measurement, size, "one training step at sp %d: it must show that the memory suffices", now->plan.sp);
    else if (!now->timed)
        text_print(out->next_measurement, size, "the same with --effort quick: this is an estimate from small shapes");
    else if (tied > 0 && search->request->effort < REQUEST_FULL)
        text_print(out->next_measurement, size, "the same with --effort full: %d plan%s within the interval", tied, tied == 1 ? " is" : "s are");
    else if (search->request->world > search->request->ranks)
        text_print(out->next_measurement, size, "the same on all %d processes: %d were here", search->request->world, search->request->ranks);
}

/* What our own harness would reach with these sizes: its exchange may differ from what the target runs. */
static enum status find_native(struct search *search, struct recommendation *out)
{
    const struct target *own = target_find("sptune");
    if (own == NULL || search->request->target == own)
        return STATUS_OK;
    struct request *request = malloc(sizeof *request);
    if (request == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a request");
    *request = *search->request;
    bool stands_in = false;
    request->target = own;
    request->space.base = own->defaults;
    text_print(request->space.base.exchange, PLAN_NAME, "%s", own->exchange(request->dev, &stands_in));
    request->space.nexchange = request->space.nattention = request->space.noffload = request->space.ncheckpointing = 0;
    request->space.nsp = 1;
    request->space.sp[0] = search->candidates.rows[out->chosen].plan.sp;
    struct candidates candidates;
    enum work_fit verdict = WORK_DOES_NOT_FIT;
    enum status status = candidates_build(request, &candidates);
    if (status == STATUS_OK && !interrupt_pending() && !clock_passed(search->deadline_ns)) {
        struct candidates held = search->candidates;
        const struct request *asked = search->request;
        bool *all = calloc((size_t)candidates.n + 1, sizeof *all);
        for (int i = 0; all != NULL && i < candidates.n; i++)
            all[i] = true;
        search->candidates = candidates;
        search->request = request;
        status = all == NULL ? FAIL(STATUS_NOMEM, "no memory for the native plan")
                 : out->chosen >= 0 && held.rows[out->chosen].timed ? search_detail(search, all) : search_coarse(search);
        search->candidates = held;
        search->request = asked;
        free(all);
    }
    if (status == STATUS_OK)
        status = candidates_price(request, &candidates, &search->pool, search->level, &search->scale);
    int best = status == STATUS_OK ? candidates_choose(request, &candidates, &search->pool, &verdict) : -1;
    if (best >= 0 && verdict != WORK_DOES_NOT_FIT) {
        out->native = candidates.rows[best];
        out->native_best = best;
    }
    candidates_free(&candidates);
    free(request);
    return status;
}

enum status flips_find(struct search *search, struct recommendation *out)
{
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
        if (changes[i].open(search->request))
            TRY(try_change(search, &changes[i], out));
    say_what_fits(search, out);
    say_next(search, out);
    return find_native(search, out);
}
