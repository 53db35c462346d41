/* tuner/pool.h -- the samples that prices are made of, and resampled medians of them.
 *
 * Every time in an answer is a sum of coefficient x median(sample). Intervals come from resampling the samples
 * together: draw i takes the same iterations of every sample of that length, so samples that were measured interleaved
 * are resampled as pairs, and a sample that two plans share moves both the same way and cancels in their ratio. Blocks
 * of consecutive iterations are drawn, as in results/stats.c.
 *
 *     TRY(pool_add(&pool, key, &sample));
 *     int i = pool_find(&pool, key);   // pool.medians[i], pool.draws[i][draw]
 *     pool_free(&pool);
 */
#ifndef SPTUNE_TUNER_POOL_H
#define SPTUNE_TUNER_POOL_H

#include "results/sample.h"

enum { POOL_DRAWS = 400, POOL_ERRORS = 8 };

/* Zero-initialise. */
struct pool {
    struct sample *rows;         /* owned */
    char **keys;                 /* what each was measured for: the key of its part */
    double (*draws)[POOL_DRAWS]; /* resampled medians, microseconds */
    double *medians;
    int n;
    size_t cap_rows, cap_keys, cap_draws, cap_medians;
    /* Standard normal draws, one row per kind of systematic error; there once a sample is. The same in every pool. */
    double (*errors)[POOL_DRAWS];
};

void pool_free(struct pool *pool);
/* Takes a copy. A row with the same key is replaced, unless only the old one is ok. Rows that are not ok are kept, to
 * say why. */
enum status pool_add(struct pool *pool, const char *key, const struct sample *sample);
/* A row that says why this was not measured. */
enum status pool_refuse(struct pool *pool, const char *key, enum rule rule, const char *why);
int pool_find(const struct pool *pool, const char *key); /* index of an ok row, -1 */
const struct sample *pool_row(const struct pool *pool, int index);
const struct sample *pool_tried(const struct pool *pool, const char *key); /* a row of any outcome, NULL: none */

#endif
