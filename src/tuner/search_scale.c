/* tuner/search_scale.c -- how much of a layer the budget lets us time.
 *
 *   whole layer  >  exchange and attention apart  >  half the heads, a quarter ... one head  >  half the length, a
 * quarter ...
 *
 * What an iteration takes is predicted from the coarse samples: FLOPs and bytes at their rates.
 */
#include "tuner/search_state.h"

#include "sp/work.h"

#include <string.h>

enum { SEQ_LEAST = 1024 };

/* Of the budget, for the iterations of what competes; the rest goes to checks, estimates, products, and to making and
 * verifying data. */
static const double iterations_share = 0.45;

/* Tokens whose q, k and v fill the send buffer of a rank of two with this many bytes: beyond them an exchange's time is
 * linear, and to make and to verify the data takes longer than to move them. */
static int64_t exchange_tokens(const struct request *r)
{
    const int64_t most = r->dev == DEV_CPU ? (int64_t)64 << 20 : (int64_t)1 << 30;
    const struct problem *p = &r->problem;
    int64_t lanes = (int64_t)(p->heads + p->kv_heads) * p->head_dim + (int64_t)p->kv_heads * problem_dim_v(p);
    int64_t tokens = 2 * most / (lanes * dtype_bytes(p->dtype)) / 1024 * 1024;
    return tokens > 1024 ? tokens : 1024;
}

bool search_scale_next(const struct request *request, enum parts_level *level, struct parts_scale *scale)
{
    int heads = request->problem.heads, group = heads / request->problem.kv_heads;
    if (*level != PARTS_SPLIT) {
        *level = PARTS_SPLIT;
        *scale = (struct parts_scale){.seq_exchange = exchange_tokens(request)};
        return true;
    }
    int timed = scale->heads_timed > 0 ? scale->heads_timed : heads;
    if (timed > 1) {
        timed /= 2;
        scale->heads_timed = timed > group ? timed / group * group : timed;
        return true;
    }
    int64_t seq = scale->seq_timed > 0 ? scale->seq_timed : request->problem.seq;
    if (seq <= SEQ_LEAST)
        return false;
    scale->heads_timed = 1;
    scale->seq_timed = (seq + 1) / 2;
    return true;
}

double search_case_bytes(const struct request *request, const struct part *part)
{
    const struct bench_case *c = &part->c;
    double ranks = request->ranks;
    if (strcmp(c->subject, "gemm") == 0)
        return ranks * 8.0 * ((double)c->m * (double)c->k + (double)c->k * (double)c->n + (double)c->m * (double)c->n);
    if (strcmp(c->subject, "collective") == 0 || strcmp(c->subject, "link") == 0)
        return ranks * 4.0 * (double)c->bytes;
    double heads = c->heads_timed > 0 ? (double)c->heads_timed * c->plan.sp / c->problem.heads : 1;
    return ranks * heads * (double)work_exec_bytes(&c->problem, &c->plan);
}

/* Rates of the coarse samples of the marked candidates. */
struct rates {
    double attention_us, flops, exchange_us, bytes;
};

static enum status rates_of(const struct search *search, const bool *which, struct parts *parts, struct rates *out)
{
    *out = (struct rates){0};
    for (int i = 0; i < search->candidates.n; i++) {
        if (!which[i])
            continue;
        parts_clear(parts);
        TRY(parts_list(search->request, &search->candidates.rows[i].plan, PARTS_COARSE, &search->scale, parts));
        for (int p = 0; p < parts->n; p++) {
            const struct part *part = &parts->item[p];
            int at = pool_find(&search->pool, part->key);
            double us = at >= 0 ? search->pool.medians[at] : 0;
            double timed =
                part->c.heads_timed > 0 ? (double)part->c.heads_timed * part->c.plan.sp / part->c.problem.heads : 1;
            out->attention_us +=
                part->flops > 0 ? us * timed : 0; /* the sample is scaled to all heads, the FLOPs are not */
            out->flops += us > 0 ? part->flops : 0;
            out->exchange_us += part->bytes > 0 ? us : 0;
            out->bytes += us > 0 ? part->bytes : 0;
        }
    }
    return STATUS_OK;
}

/* Of a row, with its warm-ups. */
static int samples_of(const struct request *request)
{
    static const char *const efforts[] = {"quick", "quick", "normal", "full"};
    struct bench_options options;
    bench_options_effort(efforts[request->effort], &options);
    return options.samples_min + options.warmup;
}

/* One iteration of each distinct case of the marked candidates, and the largest of them in memory. */
static enum status cost_of(const struct search *search, const bool *which, enum parts_level level,
                           const struct parts_scale *scale, const struct rates *rates, double *us, double *bytes)
{
    struct parts all = {0}, one = {0};
    enum status status = STATUS_OK;
    *us = *bytes = 0;
    for (int i = 0; i < search->candidates.n && status == STATUS_OK; i++) {
        parts_clear(&one);
        if (which[i])
            status = parts_list(search->request, &search->candidates.rows[i].plan, level, scale, &one);
        for (int p = 0; p < one.n && status == STATUS_OK; p++) {
            const struct part *part = &one.item[p];
            if (!part->possible || parts_has(&all, part->key))
                continue;
            double need = search_case_bytes(search->request, part);
            double computes = rates->flops > 0 ? part->flops * rates->attention_us / rates->flops : 0;
            double moves = rates->bytes > 0 ? part->bytes * rates->exchange_us / rates->bytes : 0;
            bool loaded = computes > 0 && search->request->dev != DEV_CPU;
            int samples = samples_of(search->request);
            *us += loaded ? bench_loaded_us(computes + moves, samples) / samples : computes + moves;
            *bytes = need > *bytes ? need : *bytes;
            status = parts_add(&all, part);
        }
    }
    parts_free(&one);
    parts_free(&all);
    return status;
}

static double room_us(const struct request *request)
{
    return iterations_share * (double)request->budget_us / samples_of(request);
}

/* A layer is timed whole for all of them or for none, so that they are compared alike; with attention as it is installed
 * none can be. */
static bool all_here(const struct search *search, const bool *which)
{
    for (int i = 0; i < search->candidates.n; i++)
        if (which[i] && (search->request->ranks % search->candidates.rows[i].plan.sp != 0 ||
                         parts_is_installed(search->request, &search->candidates.rows[i].plan)))
            return false;
    return true;
}

enum status search_scale(struct search *search, const bool *which, bool *fits)
{
    struct parts parts = {0};
    struct rates rates;
    enum parts_level level = PARTS_LAYER;
    struct parts_scale scale = {0};
    enum status status = rates_of(search, which, &parts, &rates);
    bool more = all_here(search, which) || search_scale_next(search->request, &level, &scale);
    parts_free(&parts);
    for (*fits = false; status == STATUS_OK && more && !*fits;
         more = *fits || search_scale_next(search->request, &level, &scale)) {
        double us = 0, bytes = 0;
        status = cost_of(search, which, level, &scale, &rates, &us, &bytes);
        *fits = us <= room_us(search->request) && bytes <= search->room_bytes;
    }
    if (*fits) {
        search->level = level;
        search->scale = scale;
    }
    return status;
}
