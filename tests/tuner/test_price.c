/* tuner/test_price.c -- pools and prices: medians, intervals, what cancels, the source of a sum. */
#include "tuner/fake.h"

#include "base/rng.h"
#include "base/text.h"
#include "tuner/price.h"

#include <math.h>

static struct sample sample_of(double *times, int n, double us, double noise, uint64_t seed)
{
    struct sample sample;
    struct rng rng;
    rng_seed(&rng, seed, 0);
    for (int i = 0; i < n; i++)
        times[i] = us * (1 + noise * rng_normal(&rng));
    sample_init(&sample);
    sample.times_us = times;
    sample.n = n;
    return sample;
}

/* A pool with n samples: "0" takes 100 us, "1" 200 us ... with 2 % noise. */
static void fill(struct pool *pool, int n)
{
    double times[40];
    char key[8];
    for (int i = 0; i < n; i++) {
        struct sample sample = sample_of(times, 40, 100.0 * (i + 1), 0.02, (uint64_t)i);
        text_print(key, sizeof key, "%d", i);
        CHECK_OK(pool_add(pool, key, &sample));
    }
}

static void add(struct price *price, int sample, double times, enum recommend_source source, double slack, int kind)
{
    struct price_term term = {.sample = sample,
                              .times = times,
                              .part = PRICE_ATTENTION,
                              .source = source,
                              .slack = slack,
                              .slack_kind = kind};
    CHECK_OK(price_add(price, &term));
}

static void test_pool(void **state)
{
    struct pool pool = {0};
    double times[3];
    (void)state;
    assert_int_equal(pool_find(&pool, "a"), -1);
    assert_null(pool_tried(&pool, "a"));
    CHECK_OK(pool_refuse(&pool, "a", RULE_BUDGET, "the budget ended"));
    assert_int_equal(pool_find(&pool, "a"), -1);
    assert_int_equal(pool_tried(&pool, "a")->rule, RULE_BUDGET);
    struct sample sample = sample_of(times, 3, 50, 0, 1);
    CHECK_OK(pool_add(&pool, "a", &sample)); /* a better row takes its place */
    int at = pool_find(&pool, "a");
    assert_int_equal(at, 0);
    CHECK_NEAR(pool.medians[at], 50, 1e-9);
    CHECK_OK(pool_refuse(&pool, "a", RULE_TAINTED, "busy")); /* a worse one does not */
    assert_int_equal(pool_find(&pool, "a"), 0);
    assert_int_equal(pool.n, 1);
    pool_free(&pool);
    pool_free(&pool);
}

/* A damaged store may hold times that are none. */
static void test_pool_nonsense(void **state)
{
    static const double nonsense[] = {0, -1, NAN, INFINITY};
    struct pool pool = {0};
    (void)state;
    for (int i = 0; i < CHECK_COUNT(nonsense); i++) {
        double times[] = {nonsense[i]};
        struct sample sample;
        sample_init(&sample);
        sample.times_us = times;
        sample.n = 1;
        CHECK_OK(pool_add(&pool, "a", &sample));
        assert_int_equal(pool_find(&pool, "a"), -1);
    }
    pool_free(&pool);
}

/* The ratio of a price with itself is exactly one, whatever its errors. */
static void test_ratio_with_itself(void **state)
{
    struct pool pool = {0};
    struct price price = {0};
    (void)state;
    fill(&pool, 4);
    add(&price, 0, 3, RECOMMEND_MEASURED, 0, 0);
    add(&price, 1, 0.5, RECOMMEND_ASSUMED, 0.35, 1);
    add(&price, 2, 7, RECOMMEND_EXTRAPOLATED, 0.9, 2);
    add(&price, 3, 1, RECOMMEND_INTERPOLATED, 0.08, 1);
    struct stats_interval ratio = price_ratio(&price, &price, &pool);
    CHECK_NEAR(ratio.lo, 1, 0);
    CHECK_NEAR(ratio.hi, 1, 0);
    pool_free(&pool);
}

/* Twice the coefficients: twice the time, twice the interval, and a ratio of exactly two. */
static void test_time_scales(void **state)
{
    struct pool pool = {0};
    struct price one = {0}, two = {0};
    struct recommend_time a, b;
    (void)state;
    fill(&pool, 3);
    for (int i = 0; i < 3; i++) {
        add(&one, i, 1 + i, RECOMMEND_MEASURED, 0.1 * i, i);
        add(&two, i, 2 * (1 + i), RECOMMEND_MEASURED, 0.1 * i, i);
    }
    price_time(&one, &pool, &a);
    price_time(&two, &pool, &b);
    CHECK_NEAR(b.step_us / a.step_us, 2, 1e-12);
    CHECK_NEAR(b.lo_us / a.lo_us, 2, 1e-12);
    CHECK_NEAR(b.hi_us / a.hi_us, 2, 1e-12);
    assert_true(a.lo_us < a.step_us && a.step_us < a.hi_us);
    struct stats_interval ratio = price_ratio(&two, &one, &pool);
    CHECK_NEAR(ratio.lo, 2, 1e-12);
    CHECK_NEAR(ratio.hi, 2, 1e-12);
    pool_free(&pool);
}

/* A shared error cancels in the ratio, another kind's does not. */
static void test_shared_errors_cancel(void **state)
{
    struct pool pool = {0};
    struct price a = {0}, same = {0}, other = {0};
    struct recommend_time time;
    (void)state;
    fill(&pool, 2);
    add(&a, 0, 1, RECOMMEND_ASSUMED, 0.35, 1);
    add(&same, 1, 1, RECOMMEND_ASSUMED, 0.35, 1);
    add(&other, 1, 1, RECOMMEND_ASSUMED, 0.35, 2);
    price_time(&a, &pool, &time);
    assert_true(time.lo_us < 75 && time.hi_us > 130); /* 35 % either way */
    struct stats_interval close = price_ratio(&same, &a, &pool), wide = price_ratio(&other, &a, &pool);
    assert_true(close.lo > 1.95 && close.hi < 2.05);
    assert_true(wide.lo < 1.5 && wide.hi > 2.6);
    pool_free(&pool);
}

/* The weakest source that matters: terms below a twentieth of the step name it only together. */
static void test_source(void **state)
{
    struct pool pool = {0};
    struct recommend_time time;
    (void)state;
    fill(&pool, 1);
    struct price price = {0};
    add(&price, 0, 1000, RECOMMEND_MEASURED, 0, 0);
    price_time(&price, &pool, &time);
    assert_int_equal(time.source, RECOMMEND_MEASURED);
    add(&price, 0, 30, RECOMMEND_ASSUMED, 0.35, 1);
    price_time(&price, &pool, &time);
    assert_int_equal(time.source, RECOMMEND_MEASURED); /* 3 % */
    add(&price, 0, 30, RECOMMEND_EXTRAPOLATED, 0.35, 2);
    price_time(&price, &pool, &time);
    assert_int_equal(time.source, RECOMMEND_EXTRAPOLATED); /* 3 % and 3 % are weaker than measured */
    add(&price, 0, 40, RECOMMEND_ASSUMED, 0.35, 1);
    price_time(&price, &pool, &time);
    assert_int_equal(time.source, RECOMMEND_ASSUMED);
    pool_free(&pool);
}

static void test_breakdown(void **state)
{
    struct pool pool = {0};
    struct price price = {0};
    struct recommend_time time;
    (void)state;
    fill(&pool, PRICE_PARTS);
    for (int part = 0; part < PRICE_PARTS; part++) {
        struct price_term term = {.sample = part, .times = 1, .part = (enum price_part)part};
        CHECK_OK(price_add(&price, &term));
    }
    price_time(&price, &pool, &time);
    const double parts[] = {time.exchange_in, time.attention, time.exchange_out, time.gemm,
                            time.zero,        time.optimizer, time.logits,       time.elementwise};
    double sum = 0;
    for (int part = 0; part < PRICE_PARTS; part++) {
        CHECK_NEAR(parts[part], pool.medians[part], 1e-9);
        sum += parts[part];
    }
    CHECK_NEAR(sum, time.step_us, 1e-9);
    pool_free(&pool);
}

static void test_too_many_terms(void **state)
{
    struct price price = {0};
    struct price_term term = {.times = 1};
    (void)state;
    for (int i = 0; i < PRICE_TERMS; i++)
        CHECK_OK(price_add(&price, &term));
    CHECK_FAILS(STATUS_USAGE, "terms", price_add(&price, &term));
}

/* The interval covers the truth about as often as it says: over 200 pools, 95 % within what chance allows. */
static void test_coverage(void **state)
{
    int inside = 0;
    (void)state;
    for (int trial = 0; trial < 200; trial++) {
        struct pool pool = {0};
        struct price price = {0};
        struct recommend_time time;
        double times[25];
        struct sample sample = sample_of(times, 25, 100, 0.1, 100 + (uint64_t)trial);
        CHECK_OK(pool_add(&pool, "a", &sample));
        add(&price, 0, 1, RECOMMEND_MEASURED, 0, 0);
        price_time(&price, &pool, &time);
        inside += time.lo_us <= 100 && 100 <= time.hi_us;
        pool_free(&pool);
    }
    assert_true(inside >= 170 && inside <= 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_pool_nonsense),
        cmocka_unit_test(test_ratio_with_itself),
        cmocka_unit_test(test_time_scales),
        cmocka_unit_test(test_shared_errors_cancel),
        cmocka_unit_test(test_source),
        cmocka_unit_test(test_breakdown),
        cmocka_unit_test(test_too_many_terms),
        cmocka_unit_test(test_coverage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
