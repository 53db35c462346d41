/* tuner/pool.c -- samples by key, with resampled medians. */
#include "tuner/pool.h"

#include "base/mem.h"
#include "base/rng.h"
#include "results/stats.h"

#include <stdlib.h>
#include <string.h>

void pool_free(struct pool *pool)
{
    for (int i = 0; i < pool->n; i++) {
        sample_free(&pool->rows[i]);
        free(pool->keys[i]);
    }
    free(pool->rows);
    free(pool->keys);
    free(pool->draws);
    free(pool->medians);
    *pool = (struct pool){0};
}

/* The stream depends on the draw alone: equal lengths are resampled with equal indices. */
static enum status resample(const struct sample *sample, double draws[POOL_DRAWS])
{
    double *x = calloc((size_t)sample->n, sizeof *x);
    if (x == NULL)
        return FAIL(STATUS_NOMEM, "no memory to resample %d times", sample->n);
    for (int d = 0; d < POOL_DRAWS; d++) {
        struct rng rng;
        rng_seed(&rng, 1, (uint64_t)d);
        for (int i = 0; i < sample->n; i++)
            x[i] = sample->times_us[rng_below(&rng, sample->n)];
        draws[d] = stats_median(x, sample->n);
    }
    free(x);
    return STATUS_OK;
}

static enum status fill(struct pool *pool, int i, const struct sample *sample)
{
    TRY(sample_copy(sample, &pool->rows[i]));
    pool->medians[i] = sample->n > 0 ? stats_median(sample->times_us, sample->n) : 0;
    return sample->n > 0 ? resample(sample, pool->draws[i]) : STATUS_OK;
}

static int find(const struct pool *pool, const char *key)
{
    for (int i = 0; i < pool->n; i++)
        if (strcmp(pool->keys[i], key) == 0)
            return i;
    return -1;
}

static enum status grow(struct pool *pool)
{
    size_t need = (size_t)pool->n + 1;
    TRY(mem_grow((void **)&pool->rows, &pool->cap_rows, need, sizeof *pool->rows));
    TRY(mem_grow((void **)&pool->keys, &pool->cap_keys, need, sizeof *pool->keys));
    TRY(mem_grow((void **)&pool->draws, &pool->cap_draws, need, sizeof *pool->draws));
    return mem_grow((void **)&pool->medians, &pool->cap_medians, need, sizeof *pool->medians);
}

enum status pool_add(struct pool *pool, const char *key, const struct sample *sample)
{
    int i = find(pool, key);
    if (i >= 0) {
        if (sample->outcome != SAMPLE_OK && pool->rows[i].outcome == SAMPLE_OK)
            return STATUS_OK;
        sample_free(&pool->rows[i]);
        return fill(pool, i, sample);
    }
    TRY(grow(pool));
    char *copy = strdup(key);
    if (copy == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a key");
    enum status status = fill(pool, pool->n, sample);
    if (status != STATUS_OK) {
        free(copy);
        return status;
    }
    pool->keys[pool->n++] = copy;
    return STATUS_OK;
}

bool pool_tried(const struct pool *pool, const char *key)
{
    return find(pool, key) >= 0;
}

int pool_find(const struct pool *pool, const char *key)
{
    int i = find(pool, key);
    return i >= 0 && pool->rows[i].outcome == SAMPLE_OK && pool->rows[i].n > 0 ? i : -1;
}

const struct sample *pool_row(const struct pool *pool, int index)
{
    return &pool->rows[index];
}
