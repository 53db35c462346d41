/* tuner/candidates.h -- every plan of a request with its verdict, memory and price, and the choice among them. */
#ifndef SPTUNE_TUNER_CANDIDATES_H
#define SPTUNE_TUNER_CANDIDATES_H

#include "tuner/parts.h"
#include "tuner/price.h"
#include "tuner/recommend.h"

struct candidates {
    struct recommend_candidate *rows; /* owned */
    struct price *prices;             /* owned; of rows that are priced */
    int n;
    size_t cap_rows, cap_prices;
};

/* Enumerate, refuse by rule, take accumulation from the global batch, compute memory. Nothing is priced yet. */
enum status candidates_build(const struct request *request, struct candidates *out);
void candidates_free(struct candidates *candidates);
/* Best price the pool has for each admissible row: at `level` and `scale`, else coarse, else none (rule not_measured). */
enum status candidates_price(const struct request *request, struct candidates *candidates, const struct pool *pool,
                             enum parts_level level, const struct parts_scale *scale);
/* Fill loses_by, lost and tied of every row; *out_verdict says how the chosen one fits. index of the chosen row, -1 when no row has a price. Ties: smaller P, then
 * the better-joined group, then fewer chunks. */
int candidates_choose(const struct request *request, struct candidates *candidates, const struct pool *pool,
                      enum work_fit *out_verdict);
/* The first reasons why nothing is admissible, for a message. */
void candidates_reasons(const struct candidates *candidates, char *buf, size_t size);

#endif
