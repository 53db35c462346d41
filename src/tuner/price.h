/* tuner/price.h -- the time of one optimizer step as a sum of coefficient x median(sample).
 *
 * Every plan is priced from the same few samples; what two plans share cancels in the interval of their ratio. A term
 * made from a sample of another size carries the relative uncertainty of that step (docs/models.md, "Times"), and terms
 * that were scaled the same way err together.
 */
#ifndef SPTUNE_TUNER_PRICE_H
#define SPTUNE_TUNER_PRICE_H

#include "results/stats.h"
#include "tuner/pool.h"
#include "tuner/recommend.h"

enum price_part {
    PRICE_EXCHANGE_IN,
    PRICE_ATTENTION,
    PRICE_EXCHANGE_OUT,
    PRICE_GEMM,
    PRICE_ZERO,
    PRICE_OPTIMIZER,
    PRICE_LOGITS,
    PRICE_ELEMENTWISE,
    PRICE_PARTS
};
enum { PRICE_TERMS = 64 };

struct price_term {
    int sample;   /* index in the pool */
    double times; /* coefficient */
    enum price_part part;
    enum recommend_source source;
    double slack;   /* relative 95 % half-width beyond the sample's own: 0 when measured as it will run */
    int slack_kind; /* below POOL_ERRORS: terms of one kind err together: rate of attention, of products ... */
};

/* Zero-initialise. */
struct price {
    int n;
    struct price_term term[PRICE_TERMS];
    char composed_of[160];
};

enum status price_add(struct price *price, const struct price_term *term);
/* Microseconds of each part, by medians. */
void price_parts(const struct price *price, const struct pool *pool, double out[PRICE_PARTS]);
/* Median, 95 % interval and breakdown. */
void price_time(const struct price *price, const struct pool *pool, struct recommend_time *out);
/* 95 % interval of time(a) / time(b) with shared terms cancelled. */
struct stats_interval price_ratio(const struct price *a, const struct price *b, const struct pool *pool);

#endif
