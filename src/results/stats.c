/* results/stats.c -- quantiles, bootstrap intervals, bandwidths.
 *
 * A resample draws whole blocks of consecutive samples, wrapping around at the end, because iterations that follow each
 * other share the state of the machine. The interval is the percentile interval of the resampled statistic, taken a little
 * further out when there are few samples (see tail).
 */
#include "results/stats.h"
#include "base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { RESAMPLES_MIN = 400, RESAMPLES_MAX = 2000, DRAWS = 2000 * 1000 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile_sorted(const double *sorted, int n, double q)
{
    double at = q * (n - 1);
    int below = (int)floor(at);
    if (below >= n - 1)
        return sorted[n - 1];
    double part = at - below;
    return part > 0 ? sorted[below] + part * (sorted[below + 1] - sorted[below]) : sorted[below];
}

static double *sorted_copy(const double *x, int n)
{
    double *copy = malloc((size_t)n * sizeof *copy);
    if (copy) {
        memcpy(copy, x, (size_t)n * sizeof *copy);
        qsort(copy, (size_t)n, sizeof *copy, by_value);
    }
    return copy;
}

double stats_quantile(const double *x, int n, double q)
{
    double *sorted = n > 0 && q >= 0 && q <= 1 ? sorted_copy(x, n) : NULL;
    if (!sorted)
        return NAN;
    double value = quantile_sorted(sorted, n, q);
    free(sorted);
    return value;
}

double stats_median(const double *x, int n)
{
    return stats_quantile(x, n, 0.5);
}

/* Samples prepared for resampling: each sample's place in sorted order, so that the median of a resample is found by counting
 * places instead of sorting again. */
struct pool {
    int n, block;
    double *sorted;
    int *place; /* place[i]: index of x[i] in sorted */
    int *count; /* of the current resample, by place */
};

struct placed {
    double value;
    int index;
};

static int by_placed(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    int order = (x->value > y->value) - (x->value < y->value);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

static void pool_free(struct pool *pool)
{
    free(pool->sorted);
    free(pool->place);
    free(pool->count);
}

static bool pool_make(const double *x, int n, struct pool *pool)
{
    *pool = (struct pool){.n = n, .block = (int)lround(cbrt(n))};
    struct placed *placed = malloc((size_t)n * sizeof *placed);
    pool->sorted = malloc((size_t)n * sizeof *pool->sorted);
    pool->place = malloc((size_t)n * sizeof *pool->place);
    pool->count = malloc((size_t)n * sizeof *pool->count);
    bool made = placed && pool->sorted && pool->place && pool->count;
    if (made) {
        for (int i = 0; i < n; i++)
            placed[i] = (struct placed){x[i], i};
        qsort(placed, (size_t)n, sizeof *placed, by_placed);
        for (int i = 0; i < n; i++) {
            pool->sorted[i] = placed[i].value;
            pool->place[placed[i].index] = i;
        }
    } else {
        pool_free(pool);
    }
    free(placed);
    return made;
}

static void pool_clear(struct pool *pool)
{
    memset(pool->count, 0, (size_t)pool->n * sizeof *pool->count);
}

static void pool_take(struct pool *pool, int start, int length)
{
    for (int i = 0; i < length; i++) {
        int at = start + i;
        pool->count[pool->place[at < pool->n ? at : at - pool->n]]++;
    }
}

static double pool_median(const struct pool *pool)
{
    int lower = (pool->n - 1) / 2, upper = pool->n / 2, seen = 0, at = 0;
    while ((seen += pool->count[at]) <= lower)
        at++;
    double low = pool->sorted[at];
    while (seen <= upper)
        seen += pool->count[++at];
    return low + (pool->sorted[at] - low) / 2;
}

/* One resample of each pool; with `together` both take the same iterations. */
static void resample(struct pool *a, struct pool *b, bool together, struct rng *rng)
{
    pool_clear(a);
    if (b)
        pool_clear(b);
    for (int taken = 0; taken < a->n; taken += a->block) {
        int start = (int)rng_below(rng, a->n);
        int length = a->n - taken < a->block ? a->n - taken : a->block;
        pool_take(a, start, length);
        if (b && together)
            pool_take(b, start, length);
    }
    if (!b || together)
        return;
    for (int taken = 0; taken < b->n; taken += b->block)
        pool_take(b, (int)rng_below(rng, b->n), b->n - taken < b->block ? b->n - taken : b->block);
}

static int resample_count(int n)
{
    int count = DRAWS / n;
    return count < RESAMPLES_MIN ? RESAMPLES_MIN : count > RESAMPLES_MAX ? RESAMPLES_MAX : count;
}

/* The share left out at each end. A percentile interval of few samples is too narrow: resampling m blocks understates the
 * spread by sqrt((m-1)/m), and the normal's 1.96 should be Student's t. So the plain 0.025 becomes Phi(-t * sqrt(m/(m-1)))
 * (the expanded percentile interval, Hesterberg 2015, section 5.3). tests/results/test_stats.c measures the coverage. */
static double tail(int n, int block)
{
    const double z = 1.959963984540054;
    double blocks = (double)n / block, v = n - 1;
    double t = z + z * (z * z + 1) / (4 * v) + z * (5 * pow(z, 4) + 16 * z * z + 3) / (96 * v * v); /* Cornish-Fisher */
    return blocks > 1 ? erfc(t * sqrt(blocks / (blocks - 1)) / sqrt(2)) / 2 : 0;
}

static struct stats_interval bootstrap(struct pool *a, struct pool *b, bool together, uint64_t seed)
{
    struct stats_interval interval = {NAN, NAN};
    const struct pool *fewer = b && b->n < a->n ? b : a;
    int count = resample_count(b && b->n > a->n ? b->n : a->n);
    double *values = malloc((size_t)count * sizeof *values);
    if (!values)
        return interval;
    struct rng rng;
    rng_seed(&rng, seed, 0);
    for (int i = 0; i < count; i++) {
        resample(a, b, together, &rng);
        values[i] = b ? pool_median(a) / pool_median(b) : pool_median(a);
    }
    qsort(values, (size_t)count, sizeof *values, by_value);
    interval.lo = quantile_sorted(values, count, tail(fewer->n, fewer->block));
    interval.hi = quantile_sorted(values, count, 1 - tail(fewer->n, fewer->block));
    free(values);
    return interval;
}

struct stats_interval stats_median_ci95(const double *x, int n, uint64_t seed)
{
    struct stats_interval interval = {NAN, NAN};
    struct pool pool;
    if (n == 1)
        return (struct stats_interval){x[0], x[0]};
    if (n < 1 || !pool_make(x, n, &pool))
        return interval;
    interval = bootstrap(&pool, NULL, false, seed);
    pool_free(&pool);
    return interval;
}

struct stats_interval stats_ratio_ci95(const double *a, const double *b, int na, int nb, int paired, uint64_t seed)
{
    struct stats_interval interval = {NAN, NAN};
    struct pool pa, pb;
    if (paired)
        na = nb = na < nb ? na : nb;
    if (na < 1 || nb < 1 || !pool_make(a, na, &pa))
        return interval;
    if (!pool_make(b, nb, &pb)) {
        pool_free(&pa);
        return interval;
    }
    interval = bootstrap(&pa, &pb, paired, seed);
    pool_free(&pa);
    pool_free(&pb);
    return interval;
}

double stats_GBps(double bytes, double us)
{
    return us > 0 ? bytes / us / 1e3 : NAN;
}

double stats_tflops(double flops, double us)
{
    return us > 0 ? flops / us / 1e6 : NAN;
}

double stats_alltoall_busbw(double algbw_GBps, int ranks)
{
    return ranks > 1 ? algbw_GBps * (ranks - 1) / ranks : 0;
}
