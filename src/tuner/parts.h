/* tuner/parts.h -- which samples the price of a plan is made of, at three levels of detail, and its price from the pool.
 *
 * PARTS_COARSE   a few small samples that all plans share: an estimate within tens of percent, in seconds.
 * PARTS_SPLIT    exchange whole at the real length, attention of a head group (and of a shorter length when even that is too long),
 *                products at the real rows: for layers too long for the budget, and for groups of more ranks than are here.
 * PARTS_LAYER    the layer itself, forward and backward, as one sample each.
 */
#ifndef SPTUNE_TUNER_PARTS_H
#define SPTUNE_TUNER_PARTS_H

#include "bench/bench.h"
#include "tuner/price.h"
#include "tuner/request.h"

enum parts_level { PARTS_COARSE, PARTS_SPLIT, PARTS_LAYER };

/* How much of a layer one timed iteration may take. */
struct parts_scale {
    int heads_timed;     /* q heads per rank in an attention sample, 0: all */
    int64_t seq_timed;   /* tokens of an attention sample, 0: all */
};

struct part {
    struct bench_case c;
    double times;            /* how often a step pays this sample */
    enum price_part part;
    bool split_layer;        /* a layer sample: divided over exchange in, attention, exchange out by its phases */
    enum recommend_source source;
    double slack;
    int slack_kind;
};
enum { PARTS_MAX = 24 };

/* Every sample that this plan's step is made of at this level; STATUS_USAGE only for sizes beyond what an index holds. */
enum status parts_list(const struct request *request, const struct plan *plan, enum parts_level level,
                       const struct parts_scale *scale, struct part out[PARTS_MAX], int *n);
/* Everything that tells one timed case from another, as text; the pool's key. */
enum { PARTS_SIGNATURE = 400 };
char *parts_signature(const struct bench_case *c, char buf[PARTS_SIGNATURE]);
/* Price from the pool; *complete false (and an unusable price) when a sample is missing or not ok. */
enum status parts_price(const struct part *parts, int n, const struct pool *pool, struct price *out, bool *complete);

#endif
