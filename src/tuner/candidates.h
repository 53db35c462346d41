/* tuner/candidates.h -- every plan of a request with its verdict, memory and price, and the choice among them.
 *
 *     struct candidates all;
 *     TRY(candidates_build(request, &all));                              // refused by rule, or memory
 *     TRY(candidates_price(request, &all, &pool, PARTS_COARSE, NULL));   // time, or why not
 *     int chosen = candidates_choose(request, &all, &pool, &fit);
 *     candidates_free(&all);
 */
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
bool candidates_any_legal(const struct candidates *candidates);
/* The best price that the pool has for each admissible row: at `level` and `scale` (NULL: whole), else coarse; `lost`
 * of a row without a price says why. Coarse prices are corrected, part by part, by what the rows that were timed
 * showed. */
enum status candidates_price(const struct request *request, struct candidates *candidates, const struct pool *pool,
                             enum parts_level level, const struct parts_scale *scale);
/* 95 % interval of what row a costs over what row b costs, by the request's objective. Of priced rows. */
struct stats_interval candidates_ratio(const struct request *request, const struct candidates *candidates, int a, int b,
                                       const struct pool *pool);
/* Fill loses_by, lost and tied of every row; *out_verdict says how the chosen one fits. Index of the chosen row, -1
 * when no row has a price. Ties: smaller P, then the simpler method, fewer chunks, less offload, less memory. */
int candidates_choose(const struct request *request, struct candidates *candidates, const struct pool *pool,
                      enum work_fit *out_verdict);
/* "39.2 GiB of 80 GiB at loss", of the device or of the host, whichever is fuller. */
void candidates_fill(const struct request *request, const struct recommend_candidate *row, char *buf, size_t size);
/* No row is admissible: STATUS_USAGE with the reasons and what to do about them. */
enum status candidates_refused(const struct request *request, const struct candidates *candidates);

#endif
