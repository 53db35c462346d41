/* tuner/flips.c -- single changes that would give another answer. */
#include "tuner/flips.h"

#include "base/mem.h"
#include "base/text.h"
#include "base/units.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct change {
    const char *text;
    bool (*open)(const struct request *request); /* did the user leave it to the target? */
    void (*apply)(struct request *request);
};

#define OPEN(name, field)                                                                                              \
    static bool name(const struct request *r)                                                                          \
    {                                                                                                                  \
        return r->space.field == 0;                                                                                    \
    }
OPEN(loss_open, nloss)
OPEN(checkpointing_open, ncheckpointing)
OPEN(offload_open, noffload)
OPEN(zero_open, nzero)

#define APPLY(name, count, list, value)                                                                                \
    static void name(struct request *r)                                                                                \
    {                                                                                                                  \
        r->space.count = 1;                                                                                            \
        r->space.list[0] = value;                                                                                      \
    }
APPLY(loss_fused, nloss, loss, PLAN_LOSS_FUSED)
APPLY(loss_tiled, nloss, loss, PLAN_LOSS_TILED)
APPLY(checkpointing_none, ncheckpointing, checkpointing, PLAN_CHECKPOINTING_NONE)
APPLY(checkpointing_offload, ncheckpointing, checkpointing, PLAN_CHECKPOINTING_OFFLOAD)
APPLY(offload_optimizer, noffload, offload, PLAN_OFFLOAD_OPTIMIZER)
APPLY(offload_params, noffload, offload, PLAN_OFFLOAD_PARAMS)
APPLY(zero_two, nzero, zero, 2)
APPLY(zero_three, nzero, zero, 3)

static const struct change changes[] = {
    {"--loss fused", loss_open, loss_fused},
    {"--loss tiled", loss_open, loss_tiled},
    {"--checkpointing none", checkpointing_open, checkpointing_none},
    {"--checkpointing offload", checkpointing_open, checkpointing_offload},
    {"--offload optimizer", offload_open, offload_optimizer},
    {"--offload params", offload_open, offload_params},
    {"--zero 2", zero_open, zero_two},
    {"--zero 3", zero_open, zero_three},
};

/* A flip is another sp, a plan that fits where none did, or at least this much more speed. */
static const double gain_worth_saying = 0.02;

/* The answer under a changed request. */
struct decision {
    struct recommend_candidate then;
    enum work_fit fit;
    double gain; /* speed then over speed now, minus 1 */
    bool found;
};

static double speed_of(const struct request *request, const struct recommend_candidate *row)
{
    return request->objective == REQUEST_STEP_TIME ? 1 / row->time.step_us : row->tokens_per_s_per_device;
}

/* Decide again, from the samples at hand. Not found when nothing has a price. */
static enum status decide(const struct search *search, const struct request *request,
                          const struct recommend_candidate *now, struct decision *out)
{
    struct candidates candidates;
    out->found = false;
    TRY(candidates_build(request, &candidates));
    enum status status = candidates_price(request, &candidates, &search->pool, search->level, &search->scale);
    int chosen = status == STATUS_OK ? candidates_choose(request, &candidates, &search->pool, &out->fit) : -1;
    if (chosen >= 0) {
        out->then = candidates.rows[chosen];
        out->gain = speed_of(request, &out->then) / speed_of(request, now) - 1;
        out->found = true;
    }
    candidates_free(&candidates);
    return status;
}

static bool worth_saying(const struct recommendation *out, const struct recommend_candidate *now,
                         const struct decision *then)
{
    bool other = then->then.plan.sp != now->plan.sp, better_fit = then->fit < out->verdict;
    if (!then->found || then->fit > out->verdict || then->fit == WORK_DOES_NOT_FIT || out->nflips == RECOMMEND_FLIPS)
        return false;
    return better_fit || then->gain >= gain_worth_saying || (other && then->gain > 0);
}

static enum status try_change(const struct search *search, const struct change *change, struct request *request,
                              struct recommendation *out)
{
    const struct recommend_candidate *now = &search->candidates.rows[out->chosen];
    struct decision then;
    *request = *search->request;
    change->apply(request);
    TRY(decide(search, request, now, &then));
    if (!worth_saying(out, now, &then))
        return STATUS_OK;
    struct recommend_flip *flip = &out->flips[out->nflips++];
    *flip = (struct recommend_flip){.then_plan = then.then.plan,
                                    .gain = then.gain,
                                    .peak_bytes = then.then.memory.peak_bytes,
                                    .fit = then.fit,
                                    .source = then.then.time.source};
    text_print(flip->condition, sizeof flip->condition, "%s", change->text);
    text_print(flip->attention_class, sizeof flip->attention_class, "%s", then.then.attention_class);
    if (out->verdict == WORK_DOES_NOT_FIT && out->fits_if[0] == '\0')
        text_print(out->fits_if, sizeof out->fits_if, "%s makes sp %d fit", change->text, then.then.plan.sp);
    return STATUS_OK;
}

/* The smallest whole GiB in which this fits. */
static int64_t room_for(int64_t bytes)
{
    double gib = ceil((double)bytes / 0.8 / 1073741824.0);
    return gib < 1 ? 1 : (int64_t)gib;
}

/* The fastest of those that only the memory of a device keeps from being the answer; NULL: none. */
static const struct recommend_candidate *kept_out(const struct search *search, const struct recommendation *out)
{
    const struct candidates *c = &search->candidates;
    const struct recommend_candidate *best = NULL;
    for (int i = 0; i < c->n; i++) {
        const struct recommend_candidate *row = &c->rows[i];
        bool device = work_fit(row->memory.peak_bytes, search->request->device_memory_bytes) == row->fit;
        if (row->priced && device && row->fit > out->verdict && row->loses_by < 0 &&
            (best == NULL || row->loses_by < best->loses_by))
            best = row;
    }
    return best;
}

static void more_memory(const struct search *search, struct recommendation *out)
{
    const struct recommend_candidate *best = kept_out(search, out);
    if (best == NULL || out->nflips == RECOMMEND_FLIPS || out->verdict == WORK_DOES_NOT_FIT)
        return;
    double gain = 1 / (1 + best->loses_by) - 1;
    if (gain < gain_worth_saying)
        return;
    struct recommend_flip *flip = &out->flips[out->nflips++];
    *flip = (struct recommend_flip){.then_plan = best->plan,
                                    .gain = gain,
                                    .peak_bytes = best->memory.peak_bytes,
                                    .fit = WORK_FITS,
                                    .source = best->time.source};
    text_print(flip->condition, sizeof flip->condition, "--device-memory %lldGiB",
               (long long)room_for(best->memory.peak_bytes));
    text_print(flip->attention_class, sizeof flip->attention_class, "%s", best->attention_class);
}

static void say_what_fits(const struct search *search, struct recommendation *out)
{
    const struct request *r = search->request;
    const struct recommend_candidate *now = &search->candidates.rows[out->chosen];
    char size[UNITS_BUF];
    if (out->verdict != WORK_DOES_NOT_FIT || out->fits_if[0] != '\0')
        return;
    if (work_fit(now->memory.peak_bytes, r->device_memory_bytes) != WORK_DOES_NOT_FIT)
        text_print(out->fits_if, sizeof out->fits_if, "hosts with %s would fit sp %d; so may less --offload",
                   units_format_bytes((double)now->memory.host_bytes * r->ranks_per_host / 0.8, size), now->plan.sp);
    else
        text_print(out->fits_if, sizeof out->fits_if,
                   "devices of %lld GiB would fit sp %d; so may more processes or a shorter --seq",
                   (long long)room_for(now->memory.peak_bytes), now->plan.sp);
}

/* By the same again, however long, it will have no time either. */
static bool cannot_be_timed(const struct recommend_candidate *row)
{
    return !verdict_ok(&row->untimed) && row->untimed.rule != RULE_BUDGET && row->untimed.rule != RULE_TAINTED;
}

/* The one measurement that would say more. */
static void say_next(const struct search *search, struct recommendation *out)
{
    const struct request *r = search->request;
    const struct recommend_candidate *now = &search->candidates.rows[out->chosen];
    size_t size = sizeof out->next_measurement;
    int tied = 0;
    for (int i = 0; i < search->candidates.n; i++)
        tied += search->candidates.rows[i].tied;
    if (out->verdict == WORK_DOES_NOT_FIT)
        return;
    if (out->verdict == WORK_MEASURE_FIRST)
        text_print(out->next_measurement, size, "one training step at sp %d: it must show that the memory suffices",
                   now->plan.sp);
    else if (cannot_be_timed(now))
        text_print(out->next_measurement, size, "nothing that can be timed here: %s", now->untimed.why);
    else if (search->rough == RULE_TAINTED || now->untimed.rule == RULE_TAINTED)
        text_print(out->next_measurement, size, "the same on a quieter machine: %s slowed what was timed",
                   search_disturber(r->dev));
    else if (search->rough == RULE_BUDGET && !now->timed && r->effort != REQUEST_ESTIMATE)
        text_print(out->next_measurement, size, "the same with a longer --budget: estimates are of a few samples");
    else if (!now->timed && r->replay)
        text_print(out->next_measurement, size, "the same without --replay: this is an estimate from small shapes");
    else if (!now->timed && r->effort == REQUEST_ESTIMATE)
        text_print(out->next_measurement, size, "the same with --effort quick: this is an estimate from small shapes");
    else if (!now->timed)
        text_print(out->next_measurement, size,
                   "the same with a longer --budget: this is an estimate from small shapes");
    else if (now->time.source == RECOMMEND_PUBLISHED)
        text_print(out->next_measurement, size, "scripts/peers/attention.py on this machine: --samples is of another");
    else if (tied > 0 && r->effort < REQUEST_FULL)
        text_print(out->next_measurement, size, "the same with --effort full: %d plan%s within the interval", tied,
                   tied == 1 ? " is" : "s are");
    else if (r->world > r->ranks)
        text_print(out->next_measurement, size, "the same on all %d processes: here %s %d", r->world,
                   r->ranks == 1 ? "was" : "were", r->ranks);
}

static int by_worth(const void *a, const void *b)
{
    const struct recommend_flip *x = a, *y = b;
    if (x->fit != y->fit)
        return x->fit < y->fit ? -1 : 1;
    return (x->gain < y->gain) - (x->gain > y->gain);
}

enum status flips_find(struct search *search, struct recommendation *out)
{
    struct request *request = NULL;
    enum status status = STATUS_OK;
    TRY(mem_alloc(sizeof *request, "a request", (void **)&request));
    for (size_t i = 0; i < sizeof changes / sizeof changes[0] && status == STATUS_OK; i++)
        if (changes[i].open(search->request))
            status = try_change(search, &changes[i], request, out);
    free(request);
    TRY(status);
    more_memory(search, out);
    qsort(out->flips, (size_t)out->nflips, sizeof out->flips[0], by_worth);
    say_what_fits(search, out);
    say_next(search, out);
    return STATUS_OK;
}
