/* tuner/pool.c -- samples by key, with resampled medians. */
#include "tuner/pool.h"

#include "base/mem.h"
#include "base/rng.h"
#include "base/text.h"
#include "results/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Streams of random numbers: 0 .. POOL_DRAWS-1 resample, the others are errors. Not the run's seed: the same samples
 * always give the same intervals. */
enum { SEED = 1, ERROR_STREAM = 1 << 16 };

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
    free(pool->errors);
    *pool = (struct pool){0};
}

static enum status errors_fill(struct pool *pool)
{
    if (pool->errors != NULL)
        return STATUS_OK;
    pool->errors = malloc(POOL_ERRORS * sizeof *pool->errors);
    if (pool->errors == NULL)
        return FAIL(STATUS_NOMEM, "no memory for %d errors", POOL_ERRORS);
    for (int kind = 0; kind < POOL_ERRORS; kind++) {
        struct rng rng;
        rng_seed(&rng, SEED, (uint64_t)ERROR_STREAM + (uint64_t)kind);
        for (int d = 0; d < POOL_DRAWS; d++)
            pool->errors[kind][d] = rng_normal(&rng);
    }
    return STATUS_OK;
}

/* The stream depends on the draw alone: equal lengths are resampled with equal indices. */
static enum status resample(const struct sample *sample, double draws[POOL_DRAWS])
{
    int n = sample->n, block = (int)lround(cbrt(n));
    double *x = calloc((size_t)n, sizeof *x);
    if (x == NULL)
        return FAIL(STATUS_NOMEM, "no memory to resample %d times", n);
    for (int d = 0; d < POOL_DRAWS; d++) {
        struct rng rng;
        rng_seed(&rng, SEED, (uint64_t)d);
        for (int i = 0; i < n;) {
            int start = (int)rng_below(&rng, n);
            for (int k = 0; k < block && i < n; k++)
                x[i++] = sample->times_us[(start + k) % n];
        }
        draws[d] = stats_median(x, n);
    }
    free(x);
    return STATUS_OK;
}

static enum status fill(struct pool *pool, int i, const struct sample *sample)
{
    TRY(errors_fill(pool));
    pool->medians[i] = sample->n > 0 ? stats_median(sample->times_us, sample->n) : 0;
    if (sample->n > 0)
        TRY(resample(sample, pool->draws[i]));
    return sample_copy(sample, &pool->rows[i]);
}

static int index_of(const struct pool *pool, const char *key)
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

static enum status replace(struct pool *pool, int i, const struct sample *sample)
{
    if (sample->outcome != SAMPLE_OK && pool->rows[i].outcome == SAMPLE_OK)
        return STATUS_OK;
    struct sample old = pool->rows[i];
    TRY(fill(pool, i, sample));
    sample_free(&old);
    return STATUS_OK;
}

enum status pool_add(struct pool *pool, const char *key, const struct sample *sample)
{
    int i = index_of(pool, key);
    if (i >= 0)
        return replace(pool, i, sample);
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

enum status pool_refuse(struct pool *pool, const char *key, enum rule rule, const char *why)
{
    struct sample sample;
    sample_init(&sample);
    sample.outcome = SAMPLE_WAIVED;
    sample.rule = rule;
    text_print(sample.why, sizeof sample.why, "%s", why);
    enum status status = pool_add(pool, key, &sample);
    sample_free(&sample);
    return status;
}

const struct sample *pool_tried(const struct pool *pool, const char *key)
{
    int i = index_of(pool, key);
    return i >= 0 ? &pool->rows[i] : NULL;
}

int pool_find(const struct pool *pool, const char *key)
{
    int i = index_of(pool, key);
    bool ok = i >= 0 && pool->rows[i].outcome == SAMPLE_OK && pool->rows[i].n > 0;
    return ok && isfinite(pool->medians[i]) && pool->medians[i] > 0 ? i : -1; /* a damaged store may hold anything */
}

const struct sample *pool_row(const struct pool *pool, int index)
{
    return &pool->rows[index];
}
