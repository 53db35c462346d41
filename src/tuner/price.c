/* tuner/price.c -- evaluate a price and the ratio of two, draw by draw. */
#include "tuner/price.h"

#include "base/rng.h"

#include <string.h>

/* A term below this share of the step does not name the source of the whole: its own is in the interval. */
static const double source_share = 0.05;

enum status price_add(struct price *price, const struct price_term *term)
{
    if (price->n == PRICE_TERMS)
        return FAIL(STATUS_USAGE, "a step of more than %d terms", PRICE_TERMS);
    price->term[price->n++] = *term;
    return STATUS_OK;
}

/* Draw `draw` of the systematic error of one kind of scaling: the same for every plan that scales the same thing. */
static double slack_factor(const struct price_term *term, int draw)
{
    if (term->slack <= 0)
        return 1;
    struct rng rng;
    rng_seed(&rng, 1000u + (uint64_t)term->slack_kind, (uint64_t)draw);
    double factor = 1 + term->slack / 1.96 * rng_normal(&rng); /* slack is a 95 % half-width */
    return factor > 0.05 ? factor : 0.05;
}

static double draw_step(const struct price *price, const struct pool *pool, int draw)
{
    double sum = 0;
    for (int i = 0; i < price->n; i++)
        sum += price->term[i].times * pool->draws[price->term[i].sample][draw] * slack_factor(&price->term[i], draw);
    return sum;
}

void price_time(const struct price *price, const struct pool *pool, struct recommend_time *out)
{
    double parts[PRICE_PARTS] = {0}, draws[POOL_DRAWS], total = 0;
    *out = (struct recommend_time){.source = RECOMMEND_MEASURED};
    for (int i = 0; i < price->n; i++) {
        double us = price->term[i].times * pool->medians[price->term[i].sample];
        parts[price->term[i].part] += us;
        total += us;
    }
    for (int i = 0; i < price->n; i++) {
        const struct price_term *t = &price->term[i];
        if (t->times * pool->medians[t->sample] >= source_share * total && t->source > out->source)
            out->source = t->source;
    }
    for (int d = 0; d < POOL_DRAWS; d++)
        draws[d] = draw_step(price, pool, d);
    out->step_us = total;
    out->lo_us = stats_quantile(draws, POOL_DRAWS, 0.025);
    out->hi_us = stats_quantile(draws, POOL_DRAWS, 0.975);
    out->exchange_in = parts[PRICE_EXCHANGE_IN];
    out->attention = parts[PRICE_ATTENTION];
    out->exchange_out = parts[PRICE_EXCHANGE_OUT];
    out->exposed = out->exchange_in + out->exchange_out; /* nothing overlaps on what is priced today */
    out->gemm = parts[PRICE_GEMM];
    out->zero = parts[PRICE_ZERO];
    out->optimizer = parts[PRICE_OPTIMIZER];
    out->logits = parts[PRICE_LOGITS];
    memcpy(out->composed_of, price->composed_of, sizeof out->composed_of);
}

struct stats_interval price_ratio(const struct price *a, const struct price *b, const struct pool *pool)
{
    double ratios[POOL_DRAWS];
    for (int d = 0; d < POOL_DRAWS; d++)
        ratios[d] = draw_step(a, pool, d) / draw_step(b, pool, d);
    return (struct stats_interval){stats_quantile(ratios, POOL_DRAWS, 0.025), stats_quantile(ratios, POOL_DRAWS, 0.975)};
}
