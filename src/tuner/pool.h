/* tuner/pool.h -- the samples that prices are made of, and resampled medians of them.
 *
 * Every time in an answer is a sum of coefficient x median(sample). Intervals come from resampling the samples together: draw i uses the
 * same random order for every sample, so samples that were measured interleaved are resampled as pairs, and a sample that two plans
 * share moves both the same way and cancels in their ratio.
 */
#ifndef SPTUNE_TUNER_POOL_H
#define SPTUNE_TUNER_POOL_H

#include "results/sample.h"

enum { POOL_DRAWS = 400 };

struct pool {
    struct sample *rows; /* owned */
    char **keys;         /* what each was measured for: parts_signature of its case */
    double (*draws)[POOL_DRAWS]; /* resampled medians, microseconds */
    double *medians;
    int n;
    size_t cap_rows, cap_keys, cap_draws, cap_medians;
};

void pool_free(struct pool *pool);
/* Takes a copy; a row with the same key is replaced when the new one is ok. STATUS_OK also for rows that are not ok (they are kept, and
 * never found). */
enum status pool_add(struct pool *pool, const char *key, const struct sample *sample);
int pool_find(const struct pool *pool, const char *key);  /* index of an ok row, -1 */
bool pool_tried(const struct pool *pool, const char *key); /* a row of any outcome is there */
const struct sample *pool_row(const struct pool *pool, int index);

#endif
