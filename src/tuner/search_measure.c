/* tuner/search_measure.c -- what is timed, in which order, within a phase of the search.
 *
 * Products and collectives come first: they are short, and without them nothing has a price. Cases that compete
 * (attention, exchange, layer) are then interleaved in one call. What one call holds in memory stays within the share
 * of free memory that measuring may take.
 */
#include "tuner/search_state.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/units.h"
#include "bench/check.h"

#include <stdlib.h>
#include <string.h>

void search_phase(struct search *search, double share, int64_t floor_us)
{
    int64_t now = clock_ns(), left = search->deadline_ns > now ? search->deadline_ns - now : 0;
    double phase = share * (double)left, floor_ns = (double)floor_us * 1000;
    search->phase_ns = now + (int64_t)(phase > floor_ns ? phase : floor_ns);
}

static int64_t left_us(const struct search *search)
{
    int64_t left = (search->phase_ns - clock_ns()) / 1000;
    return left > 0 ? left : 0;
}

/* What is timed for a plan: groups of its size, or of the size that stands in for it. */
static struct plan timed_plan(const struct request *request, const struct plan *plan)
{
    struct plan timed = *plan;
    timed.sp = parts_sp_here(request, plan);
    timed.dp_shard = request->ranks / timed.sp;
    timed.dp_replicate = 1;
    return timed;
}

static enum status check_one(struct search *search, const struct plan *plan)
{
    struct check_report report = {0};
    enum status status = check_before(search->session, search->request->seed, plan, &report);
    search->checked += report.passed + report.remembered;
    search->check_total += report.passed + report.remembered + report.failed;
    search->check_remembered += report.remembered;
    check_report_free(&report);
    if (status != STATUS_INTERRUPTED && status != STATUS_TERMINATED)
        return status;
    status_clear(); /* nothing more is timed; what there is answers */
    return STATUS_OK;
}

enum status search_check(struct search *search, const struct candidates *c)
{
    struct plan *seen = NULL; /* few: sizes x exchanges x kernels */
    size_t cap = 0;
    int n = 0;
    enum status status = STATUS_OK;
    for (int i = 0; i < c->n && search->session->env != NULL && status == STATUS_OK && !interrupt_pending(); i++) {
        if (!verdict_ok(&c->rows[i].verdict))
            continue;
        struct plan plan = timed_plan(search->request, &c->rows[i].plan);
        bool again = false;
        for (int k = 0; k < n && !again; k++)
            again = plan_same_way(&seen[k], &plan);
        if (again)
            continue;
        status = mem_grow((void **)&seen, &cap, (size_t)n + 1, sizeof *seen);
        if (status == STATUS_OK) {
            seen[n++] = plan;
            status = check_one(search, &plan);
        }
    }
    free(seen);
    return status;
}

static void options_for(const struct search *search, bool coarse, struct bench_options *out)
{
    static const char *const efforts[] = {"quick", "quick", "normal", "full"};
    bench_options_effort(coarse ? "quick" : efforts[search->request->effort], out);
    if (coarse) { /* a rate within some percent is all that an estimate can use */
        out->samples_max = 20;
        out->ci_target = 0.1;
    }
    out->oversubscribed = search->request->oversubscribe;
}

/* Times of two builds, thread counts or machines compare them, not the plans. It is for the user to say which store to take; that the
 * samples differ is said once. */
static enum status say_mixed(struct search *search, const struct sample *sample)
{
    struct sample *first = &search->replayed;
    char *how = NULL;
    if (search->mixed)
        return STATUS_OK;
    if (first->machine[0] == '\0' && first->versions == NULL) {
        text_print(first->machine, sizeof first->machine, "%s", sample->machine);
        first->versions = sample->versions != NULL ? strdup(sample->versions) : NULL;
        return sample->versions == NULL || first->versions != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for versions");
    }
    TRY(store_differences(first->versions, sample->versions, &how));
    bool software = how != NULL && how[0] != '\0', machine = strcmp(first->machine, sample->machine) != 0;
    search->mixed = software || machine;
    if (search->mixed)
        log_warn("the replayed samples were not all measured alike: %s%s%s", machine ? "on several machines" : "",
                 machine && software ? ", " : "", software ? how : "");
    free(how);
    return STATUS_OK;
}

/* A replay looks each case up alone: what was never measured leaves a gap, not a failure. */
static enum status replay_one(struct search *search, const struct part *part, const struct bench_options *options)
{
    struct sample sample;
    enum status status = bench_measure(search->session, &part->c, 1, options, &sample, NULL);
    if (status == STATUS_NODATA) {
        status_clear();
        return STATUS_OK;
    }
    TRY(status);
    status = sample.outcome == SAMPLE_OK ? say_mixed(search, &sample) : STATUS_OK;
    if (status == STATUS_OK)
        status = pool_add(&search->pool, part->key, &sample);
    sample_free(&sample);
    return status;
}

static enum status call_with(struct search *search, const struct part *const *parts, int n,
                             const struct bench_options *options, struct bench_case *cases)
{
    struct sample samples[BENCH_CASES_MAX];
    int measured = 0;
    for (int i = 0; i < n; i++)
        cases[i] = parts[i]->c;
    TRY(bench_measure(search->session, cases, n, options, samples, &measured));
    search->measured += measured;
    enum status status = STATUS_OK;
    for (int i = 0; i < n; i++) {
        char name[96];
        if (samples[i].outcome == SAMPLE_FAILED)
            log_warn("%s failed: %s", parts_name(parts[i], name, sizeof name), samples[i].why);
        else if (samples[i].outcome != SAMPLE_OK)
            log_verbose("%s: %s", parts_name(parts[i], name, sizeof name), samples[i].why);
        if (status == STATUS_OK)
            status = pool_add(&search->pool, parts[i]->key, &samples[i]);
        sample_free(&samples[i]);
    }
    return status;
}

static enum status call(struct search *search, const struct part *const *parts, int n,
                        const struct bench_options *options)
{
    struct bench_case *cases = NULL;
    TRY(mem_alloc((size_t)n * sizeof *cases, "cases", (void **)&cases));
    enum status status = call_with(search, parts, n, options, cases);
    free(cases);
    return status;
}

/* Kinds of calls, in order; the share of the phase that each may take of what is left; whether a few samples are
 * enough. */
static const struct group {
    const char *subjects[4];
    double share;
    bool few;
} groups[] = {
    {{"link", "collective"}, 0.25, true},
    {{"gemm"}, 0.35, true},
    {{"attention", "exchange", "layer"}, 0.95, false},
};
enum { GROUPS = sizeof groups / sizeof groups[0] };

static bool in_group(const struct part *part, const struct group *group)
{
    for (int i = 0; i < 4 && group->subjects[i] != NULL; i++)
        if (strcmp(group->subjects[i], part->c.subject) == 0)
            return true;
    return false;
}

/* Too large for this machine: said, and not tried. */
static enum status refuse_large(struct search *search, const struct part *part, bool *refused)
{
    char need[UNITS_BUF], room[UNITS_BUF], why[160];
    double bytes = search_case_bytes(search->request, part);
    *refused = bytes > search->room_bytes;
    if (!*refused)
        return STATUS_OK;
    text_print(why, sizeof why, "timing it takes %s, --use-memory allows %s", units_format_bytes(bytes, need),
               units_format_bytes(search->room_bytes, room));
    return pool_refuse(&search->pool, part->key, RULE_MEMORY, why);
}

/* The next parts of this group that are to be timed and fit in memory together; they count as done. */
static enum status next_call(struct search *search, const struct parts *parts, const struct group *group, bool *done,
                             const struct part *out[BENCH_CASES_MAX], int *n)
{
    double bytes = 0;
    *n = 0;
    for (int i = 0; i < parts->n && *n < BENCH_CASES_MAX; i++) {
        const struct part *part = &parts->item[i];
        bool refused = false;
        if (done[i] || !part->possible || !in_group(part, group))
            continue;
        TRY(refuse_large(search, part, &refused));
        double need = search_case_bytes(search->request, part);
        if (!refused && *n > 0 && bytes + need > search->room_bytes)
            continue;
        done[i] = true;
        if (refused)
            continue;
        out[(*n)++] = part;
        bytes += need;
    }
    return STATUS_OK;
}

static enum status measure_group(struct search *search, const struct parts *parts, const struct group *group,
                                 bool *done, const struct bench_options *general)
{
    const struct part *next[BENCH_CASES_MAX];
    struct bench_options options = *general;
    int n;
    if (group->few && options.samples_max > 3 * options.samples_min)
        options.samples_max = 3 * options.samples_min;
    for (;;) {
        options.budget_us = (int64_t)(group->share * (double)left_us(search));
        if (interrupt_pending() || options.budget_us == 0)
            return STATUS_OK; /* what is held so far is the answer */
        TRY(next_call(search, parts, group, done, next, &n));
        if (n == 0)
            return STATUS_OK;
        TRY(call(search, next, n, &options));
    }
}

static enum status measure_groups(struct search *search, const struct parts *parts, bool *done,
                                  const struct bench_options *options)
{
    for (int g = 0; g < GROUPS; g++)
        TRY(measure_group(search, parts, &groups[g], done, options));
    return STATUS_OK;
}

const char *search_disturber(enum dev_kind dev)
{
    return dev == DEV_CPU ? "other work on these CPUs" : "other work on these GPUs, or heat,";
}

enum rule search_rough(const struct pool *pool, const struct parts *parts, bool *done)
{
    enum rule worst = RULE_OK;
    for (int i = 0; i < parts->n; i++) {
        const struct sample *tried = pool_tried(pool, parts->item[i].key);
        enum rule rule = tried == NULL ? RULE_BUDGET : tried->outcome == SAMPLE_WAIVED ? tried->rule : RULE_OK;
        bool missing = parts->item[i].possible && (rule == RULE_TAINTED || rule == RULE_BUDGET);
        done[i] = !missing;
        if (missing && worst != RULE_TAINTED)
            worst = rule;
    }
    return worst;
}

static void say_rough(const struct search *search, enum rule why)
{
    if (search->rough == why || search->rough == RULE_TAINTED)
        return;
    if (why == RULE_TAINTED)
        log_warn("%s slows what is timed: estimates are taken all the same, and are rough",
                 search_disturber(search->request->dev));
    else
        log_warn("estimates had their share of the budget before all was timed: they are of a few samples, and rough");
}

static enum status any_price(struct search *search, bool *out)
{
    *out = false;
    TRY(candidates_price(search->request, &search->candidates, &search->pool, search->level, &search->scale));
    for (int i = 0; i < search->candidates.n; i++)
        *out = *out || search->candidates.rows[i].priced;
    return STATUS_OK;
}

/* A busy machine, or one whose checks took the time, gets a rough estimate rather than none: in a part of the time that is left, and what
 * had none then in all of it, unless only time was short and there is an answer by now. What is measured so is not kept for later. */
static enum status measure_rough(struct search *search, const struct parts *parts, bool *done,
                                 const struct bench_options *general)
{
    static const double shares[] = {0.3, 1};
    struct store *store = search->session->store;
    enum status status = STATUS_OK;
    for (int i = 0; i < 2 && status == STATUS_OK; i++) {
        struct bench_options options = *general;
        enum rule why = search_rough(&search->pool, parts, done);
        if (why == RULE_OK || interrupt_pending())
            break;
        say_rough(search, why);
        search->rough = search->rough == RULE_TAINTED ? RULE_TAINTED : why;
        bool some = false; /* then the rest of the time is for detail */
        if (i > 0 && why == RULE_BUDGET && search->request->effort != REQUEST_ESTIMATE)
            TRY(any_price(search, &some));
        search_phase(search, some ? shares[0] : shares[i], COARSE_FLOOR_US);
        if (why == RULE_TAINTED)
            options.repeats = -1;
        options.warmup = 1;
        options.samples_min = 3;
        options.samples_max = 10;
        search->session->store = NULL;
        status = measure_groups(search, parts, done, &options);
        search->session->store = store;
    }
    return status;
}

static enum status replay(struct search *search, const struct parts *parts, const struct bench_options *options)
{
    for (int i = 0; i < parts->n; i++)
        if (parts->item[i].possible && pool_tried(&search->pool, parts->item[i].key) == NULL)
            TRY(replay_one(search, &parts->item[i], options));
    return STATUS_OK;
}

/* Samples that came with the request. */
static enum status take_given(struct search *search, const struct parts *parts)
{
    for (int i = 0; i < parts->n; i++)
        if (parts->item[i].given != NULL && pool_tried(&search->pool, parts->item[i].key) == NULL)
            TRY(pool_add(&search->pool, parts->item[i].key, parts->item[i].given));
    return STATUS_OK;
}

/* roughly: what got no sample gets a few all the same. */
static enum status measure(struct search *search, const struct parts *parts, bool coarse, bool roughly)
{
    struct bench_options options;
    bool *done = NULL;
    TRY(take_given(search, parts));
    options_for(search, coarse, &options);
    if (search->session->env == NULL)
        return replay(search, parts, &options);
    TRY(mem_alloc((size_t)parts->n, "marks of parts", (void **)&done));
    for (int i = 0; i < parts->n; i++)
        done[i] = pool_tried(&search->pool, parts->item[i].key) != NULL;
    enum status status = measure_groups(search, parts, done, &options);
    if (status == STATUS_OK && roughly)
        status = measure_rough(search, parts, done, &options);
    free(done);
    return status;
}

/* The parts of all candidates that are marked, each once. */
static enum status collect(const struct request *request, const struct candidates *candidates, enum parts_level level,
                           const struct parts_scale *scale, const bool *which, struct parts *out)
{
    struct parts one = {0};
    enum status status = STATUS_OK;
    for (int i = 0; i < candidates->n && status == STATUS_OK; i++) {
        if (!verdict_ok(&candidates->rows[i].verdict) || (which != NULL && !which[i]))
            continue;
        parts_clear(&one);
        status = parts_list(request, &candidates->rows[i].plan, level, scale, &one);
        for (int p = 0; p < one.n && status == STATUS_OK; p++)
            if (!parts_has(out, one.item[p].key))
                status = parts_add(out, &one.item[p]);
    }
    parts_free(&one);
    return status;
}

enum status search_coarse(struct search *search, const struct request *request, const struct candidates *candidates,
                          bool roughly)
{
    struct parts parts = {0};
    enum status status = collect(request, candidates, PARTS_COARSE, &search->scale, NULL, &parts);
    if (status == STATUS_OK)
        status = measure(search, &parts, true, roughly);
    parts_free(&parts);
    return status;
}

enum status search_detail(struct search *search, const struct request *request, const struct candidates *candidates,
                          const bool *which)
{
    struct parts parts = {0};
    enum status status = collect(request, candidates, search->level, &search->scale, which, &parts);
    if (status == STATUS_OK)
        status = measure(search, &parts, false, false);
    parts_free(&parts);
    return status;
}
