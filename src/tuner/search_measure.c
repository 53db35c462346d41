/* tuner/search_measure.c -- what is timed, in which order, within the budget.
 *
 * Cases that compete (attention, exchange, layer) are interleaved in one call; products and copies follow in calls of their own. What one
 * call holds in memory stays within the share of free memory that measuring may take.
 */
#include "tuner/search_state.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/mem.h"
#include "sp/work.h"

#include <math.h>
#include <string.h>

static int64_t left_us(const struct search *search)
{
    int64_t left = (search->deadline_ns - clock_ns()) / 1000;
    return left > 0 ? left : 0;
}

static void options_for(const struct search *search, double share, struct bench_options *out)
{
    static const char *const efforts[] = {"quick", "quick", "normal", "full"};
    bench_options_effort(efforts[search->request->effort], out);
    out->budget_us = (int64_t)(share * (double)left_us(search));
    out->oversubscribed = search->request->oversubscribe;
}

/* A replay looks each case up alone: what was never measured leaves a gap, not a failure. */
static enum status replay_one(struct search *search, const struct bench_case *c, const char *signature)
{
    struct sample sample;
    struct bench_options options;
    options_for(search, 1, &options);
    enum status status = bench_measure(search->session, c, 1, &options, &sample, NULL);
    if (status == STATUS_NODATA) {
        status_clear();
        return STATUS_OK;
    }
    TRY(status);
    status = pool_add(&search->pool, signature, &sample);
    sample_free(&sample);
    return status;
}

static enum status measure_call(struct search *search, const struct bench_case *cases, int n, double share)
{
    char signature[PARTS_SIGNATURE];
    if (search->session->env == NULL) {
        for (int i = 0; i < n; i++)
            TRY(replay_one(search, &cases[i], parts_signature(&cases[i], signature)));
        return STATUS_OK;
    }
    struct sample samples[BENCH_CASES_MAX];
    struct bench_options options;
    int measured = 0;
    options_for(search, share, &options);
    TRY(bench_measure(search->session, cases, n, &options, samples, &measured));
    search->measured += measured;
    enum status status = STATUS_OK;
    for (int i = 0; i < n; i++) {
        if (samples[i].outcome != SAMPLE_OK)
            log_verbose("%s %s sp=%d: %s", cases[i].subject, cases[i].op, cases[i].plan.sp, samples[i].why);
        if (status == STATUS_OK)
            status = pool_add(&search->pool, parts_signature(&cases[i], signature), &samples[i]);
        sample_free(&samples[i]);
    }
    return status;
}

/* Bytes that a case holds on this host while it is timed. */
static double case_bytes(const struct search *search, const struct bench_case *c)
{
    double ranks = search->request->ranks;
    if (strcmp(c->subject, "gemm") == 0)
        return ranks * 8.0 * ((double)c->m * (double)c->k + (double)c->k * (double)c->n + (double)c->m * (double)c->n);
    if (strcmp(c->subject, "collective") == 0)
        return ranks * 4.0 * (double)c->bytes;
    return ranks * (double)work_exec_bytes(&c->problem, &c->plan);
}

static bool same_call(const struct bench_case *a, const struct bench_case *b)
{
    bool product_a = strcmp(a->subject, "gemm") == 0, product_b = strcmp(b->subject, "gemm") == 0;
    bool copy_a = strcmp(a->subject, "collective") == 0, copy_b = strcmp(b->subject, "collective") == 0;
    return product_a == product_b && copy_a == copy_b;
}

enum status search_measure(struct search *search, const struct part *parts, int n, double share)
{
    static struct bench_case cases[BENCH_CASES_MAX]; /* large values; one search runs at a time */
    char signature[PARTS_SIGNATURE];
    int64_t available = INT64_MAX;
    bool done[512] = {false};
    if (search->session->env != NULL)
        TRY(mem_available(&available));
    double room = (double)available * search->request->use_memory;
    for (int first = 0; first < n && first < 512; first++) {
        if (done[first] || pool_tried(&search->pool, parts_signature(&parts[first].c, signature)))
            continue;
        int count = 0;
        double bytes = 0;
        for (int i = first; i < n && i < 512 && count < BENCH_CASES_MAX; i++) {
            bool twice = false;
            char other[PARTS_SIGNATURE];
            parts_signature(&parts[i].c, signature);
            for (int k = 0; k < count; k++)
                twice = twice || strcmp(parts_signature(&cases[k], other), signature) == 0;
            double need = case_bytes(search, &parts[i].c);
            if (done[i] || twice || !same_call(&parts[first].c, &parts[i].c) || pool_tried(&search->pool, signature) ||
                (count > 0 && bytes + need > room))
                continue;
            cases[count++] = parts[i].c;
            bytes += need;
            done[i] = true;
        }
        if (interrupt_pending())
            return STATUS_OK; /* what is held so far is the answer */
        TRY(measure_call(search, cases, count, share));
    }
    return STATUS_OK;
}

static enum status collect(struct search *search, enum parts_level level, const bool *which, struct part *all, int max, int *n)
{
    *n = 0;
    for (int i = 0; i < search->candidates.n; i++) {
        struct part parts[PARTS_MAX];
        int count = 0;
        if (!verdict_ok(&search->candidates.rows[i].verdict) || (which != NULL && !which[i]))
            continue;
        TRY(parts_list(search->request, &search->candidates.rows[i].plan, level, &search->scale, parts, &count));
        for (int p = 0; p < count && *n < max; p++) {
            bool twice = false;
            char a[PARTS_SIGNATURE], b[PARTS_SIGNATURE];
            parts_signature(&parts[p].c, a);
            for (int k = 0; k < *n && !twice; k++)
                twice = strcmp(parts_signature(&all[k].c, b), a) == 0;
            if (!twice)
                all[(*n)++] = parts[p];
        }
    }
    return STATUS_OK;
}

enum { COLLECT_MAX = 400 };
static struct part collected[COLLECT_MAX];

enum status search_coarse(struct search *search)
{
    int n = 0;
    TRY(collect(search, PARTS_COARSE, NULL, collected, COLLECT_MAX, &n));
    return search_measure(search, collected, n, 0.3);
}

enum status search_detail(struct search *search, const bool *which)
{
    int n = 0;
    TRY(collect(search, search->level, which, collected, COLLECT_MAX, &n));
    return search_measure(search, collected, n, 0.6);
}

/* Microseconds of one forward and backward of one attention layer with exchanges, from the coarse price. */
static double layer_us(const struct search *search, int i)
{
    const struct recommend_candidate *row = &search->candidates.rows[i];
    double passes = work_forward_passes(&row->plan), all = row->time.attention + row->time.exchange_in + row->time.exchange_out;
    /* forward : backward is 1 : 2.5; a step pays passes * 1 + 2.5 of it */
    return all / (double)row->plan.accumulate / search->request->model.layers * 3.5 / (passes + 2.5);
}

void search_scale(struct search *search, const bool *which)
{
    const struct request *r = search->request;
    struct bench_options options;
    options_for(search, 1, &options);
    double iterations = options.samples_min + options.warmup;
    double room_us = 0.45 * (double)r->budget_us / iterations, layers_us = 0, per_head_us = 0;
    int fewest = r->problem.heads;
    for (int i = 0; i < search->candidates.n; i++) {
        const struct recommend_candidate *row = &search->candidates.rows[i];
        if (!which[i] || !row->priced)
            continue;
        int local = r->problem.heads / row->plan.sp;
        double us = layer_us(search, i);
        layers_us += us;
        per_head_us += us / local;
        fewest = local < fewest ? local : fewest;
    }
    search->scale = (struct parts_scale){0};
    search->level = PARTS_LAYER;
    bool groups_here = true;
    for (int i = 0; i < search->candidates.n; i++)
        groups_here = groups_here && (!which[i] || r->ranks % search->candidates.rows[i].plan.sp == 0);
    if (layers_us <= room_us && groups_here)
        return;
    search->level = PARTS_SPLIT;
    double heads = room_us / per_head_us;
    if (heads >= fewest)
        return; /* every head, in parts */
    search->scale.heads_timed = heads >= 1 ? (int)heads : 1;
    if (heads >= 1)
        return;
    int64_t seq = r->problem.seq; /* one head is still too long: time grows with seq^2 */
    double us = per_head_us;
    for (; us > room_us && seq > 1024; us /= 4)
        seq = (seq + 1) / 2;
    search->scale.seq_timed = seq < r->problem.seq ? seq : 0;
}
