/* tuner/parts.h -- which samples the price of a plan is made of, at three levels of detail, and its price from the
 * pool.
 *
 * PARTS_COARSE   a few small samples that all plans share: an estimate within tens of percent, in seconds.
 * PARTS_SPLIT    exchange and attention apart, at the real length or, where that is too long for the budget, some heads
 * of it, then a shorter length; products at the real rows. Also for groups of more ranks than are here. PARTS_LAYER the
 * layer itself, forward and backward, as one sample each. A plan whose groups are not here is split all the same.
 *
 *     struct parts parts = {0};
 *     TRY(parts_list(request, &plan, PARTS_SPLIT, &scale, &parts));
 *     ... measure each parts.item[i].c, pool_add(&pool, parts.item[i].key, &sample) ...
 *     TRY(parts_price(&parts, &pool, &price, &missing));
 *     parts_free(&parts);
 */
#ifndef SPTUNE_TUNER_PARTS_H
#define SPTUNE_TUNER_PARTS_H

#include "bench/bench.h"
#include "tuner/installed.h"
#include "tuner/price.h"
#include "tuner/request.h"

enum parts_level { PARTS_COARSE, PARTS_SPLIT, PARTS_LAYER };

/* How much one timed iteration of PARTS_SPLIT may do. */
struct parts_scale {
    int heads_timed;      /* q heads per rank in an attention sample, 0: all */
    int64_t seq_timed;    /* tokens of an attention sample, 0: all */
    int64_t seq_exchange; /* tokens of an exchange sample, 0: all */
};

enum { PARTS_KEY = 400 };
struct part {
    struct bench_case c;
    char key[PARTS_KEY]; /* everything that tells this sample from another */
    double times;        /* how often a step pays this sample */
    enum price_part part;
    bool split_layer; /* a layer sample: divided over exchange in, attention, exchange out by its phases */
    bool possible;    /* false: cannot be timed on the ranks that are here, nor scaled from what can */
    const struct sample *given; /* not timed: this is its sample (borrowed from the request), NULL: none */
    enum recommend_source source;
    double slack;
    int slack_kind;
    double flops, bytes; /* attention and exchange of one iteration, on one rank: how long it will take */
};
/* Zero-initialise. */
struct parts {
    struct part *item; /* owned */
    int n;
    size_t cap;
};
void parts_free(struct parts *parts);
void parts_clear(struct parts *parts); /* keeps the memory */
bool parts_has(const struct parts *parts, const char *key);
enum status parts_add(struct parts *parts, const struct part *part);

/* The largest group that is here and can split these heads, if the plan's method does: the plan's own when it is one. 1: no group at
 * all. */
int parts_sp_here(const struct request *request, const struct plan *plan);
/* Is the attention of this plan one that was timed as it is installed? */
bool parts_is_installed(const struct request *request, const struct plan *plan);
/* Of such a plan: is there a row for each of its attentions? RULE_NOT_MEASURED with the reason when not. */
struct verdict parts_installed_check(const struct request *request, const struct plan *plan);
/* Append every sample that this plan's step is made of at this level. */
enum status parts_list(const struct request *request, const struct plan *plan, enum parts_level level,
                       const struct parts_scale *scale, struct parts *out);
/* Price from the pool. *missing (may be NULL): the first part without a usable sample, NULL when the price is complete;
 * a price with a missing part is of no use. */
enum status parts_price(const struct parts *parts, const struct pool *pool, struct price *out,
                        const struct part **missing);
/* Phases of a layer sample, from its conditions: shares of exchange in, attention, exchange out. */
void parts_layer_shares(const struct sample *sample, double share[3]);
/* In words, for a person: "exchange in, forward, sp 2". */
char *parts_name(const struct part *part, char *buf, size_t size);

#endif
