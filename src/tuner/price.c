/* tuner/price.c -- evaluate a price and the ratio of two, draw by draw. */
#include "tuner/price.h"

#include <math.h>
#include <string.h>

/* The source of a step is the weakest of those that together make this share of it: what is left is too little to
 * decide anything, and its uncertainty is in the interval all the same. */
static const double source_share = 0.05;

enum status price_add(struct price *price, const struct price_term *term)
{
    if (price->n == PRICE_TERMS)
        return FAIL(STATUS_USAGE, "a step of more than %d terms", PRICE_TERMS);
    price->term[price->n++] = *term;
    return STATUS_OK;
}

/* A draw of the systematic error of one kind of scaling: the same for every plan that scales the same thing. */
static double slack_factor(const struct price_term *term, const struct pool *pool, int draw)
{
    if (term->slack <= 0)
        return 1;
    double factor = 1 + term->slack / 1.96 * pool->errors[term->slack_kind][draw];
    return factor > 0.05 ? factor : 0.05;
}

static double draw_step(const struct price *price, const struct pool *pool, int draw)
{
    double sum = 0;
    for (int i = 0; i < price->n; i++) {
        const struct price_term *t = &price->term[i];
        sum += t->times * pool->draws[t->sample][draw] * slack_factor(t, pool, draw);
    }
    return sum;
}

static double term_us(const struct price_term *term, const struct pool *pool)
{
    return term->times * pool->medians[term->sample];
}

void price_parts(const struct price *price, const struct pool *pool, double out[PRICE_PARTS])
{
    memset(out, 0, PRICE_PARTS * sizeof *out);
    for (int i = 0; i < price->n; i++)
        out[price->term[i].part] += term_us(&price->term[i], pool);
}

static enum recommend_source source_of(const struct price *price, const struct pool *pool, double total)
{
    double by[RECOMMEND_ASSUMED + 1] = {0}, weaker = 0;
    for (int i = 0; i < price->n; i++)
        by[price->term[i].source] += term_us(&price->term[i], pool);
    int source = RECOMMEND_ASSUMED;
    for (; source > RECOMMEND_MEASURED; source--) {
        weaker += by[source];
        if (weaker >= source_share * total && by[source] > 0)
            break;
    }
    return (enum recommend_source)source;
}

void price_time(const struct price *price, const struct pool *pool, struct recommend_time *out)
{
    double parts[PRICE_PARTS], draws[POOL_DRAWS], total = 0;
    *out = (struct recommend_time){.source = RECOMMEND_MEASURED};
    price_parts(price, pool, parts);
    for (int i = 0; i < PRICE_PARTS; i++)
        total += parts[i];
    for (int d = 0; d < POOL_DRAWS; d++)
        draws[d] = draw_step(price, pool, d);
    out->source = source_of(price, pool, total);
    out->step_us = total;
    out->lo_us = fmin(total, stats_quantile(draws, POOL_DRAWS, 0.025));
    out->hi_us = fmax(total, stats_quantile(draws, POOL_DRAWS, 0.975));
    out->exchange_in = parts[PRICE_EXCHANGE_IN];
    out->attention = parts[PRICE_ATTENTION];
    out->exchange_out = parts[PRICE_EXCHANGE_OUT];
    out->exposed =
        out->exchange_in + out->exchange_out; /* what hides behind attention is not in the phases of a layer */
    out->gemm = parts[PRICE_GEMM];
    out->zero = parts[PRICE_ZERO];
    out->optimizer = parts[PRICE_OPTIMIZER];
    out->logits = parts[PRICE_LOGITS];
    out->elementwise = parts[PRICE_ELEMENTWISE];
    memcpy(out->composed_of, price->composed_of, sizeof out->composed_of);
}

struct stats_interval price_ratio(const struct price *a, const struct price *b, const struct pool *pool)
{
    double ratios[POOL_DRAWS];
    for (int d = 0; d < POOL_DRAWS; d++)
        ratios[d] = draw_step(a, pool, d) / draw_step(b, pool, d);
    return (struct stats_interval){stats_quantile(ratios, POOL_DRAWS, 0.025),
                                   stats_quantile(ratios, POOL_DRAWS, 0.975)};
}
