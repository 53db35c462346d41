/* tests/results/test_stats.c -- exact values, properties, and whether 95 % means 95 %. */
#include "base/check.h"
#include "base/rng.h"
#include "results/rows.h"
#include "results/stats.h"

static void quantiles_are_exact(void **state)
{
    (void)state;
    const double odd[] = {5, 1, 4, 2, 3}, even[] = {4, 1, 3, 2}, one[] = {7};
    CHECK_NEAR(stats_median(odd, 5), 3, 0);
    CHECK_NEAR(stats_median(even, 4), 2.5, 0);
    CHECK_NEAR(stats_median(one, 1), 7, 0);
    CHECK_NEAR(stats_quantile(odd, 5, 0), 1, 0);
    CHECK_NEAR(stats_quantile(odd, 5, 1), 5, 0);
    CHECK_NEAR(stats_quantile(odd, 5, 0.95), 4.8, 1e-12); /* between the 4th and the 5th */
    CHECK_NEAR(stats_quantile(even, 4, 0.25), 1.75, 1e-12);
    CHECK_NEAR(odd[0], 5, 0); /* the input keeps its order */
}

static void nothing_has_no_statistics(void **state)
{
    (void)state;
    const double x[] = {1};
    assert_true(isnan(stats_median(x, 0)));
    assert_true(isnan(stats_quantile(x, 1, 1.5)));
    assert_true(isnan(stats_quantile(x, 1, NAN)));
    assert_true(isnan(stats_median_ci95(x, 0, 1).lo));
    assert_true(isnan(stats_ratio_ci95(x, x, 1, 0, 0, 1).hi));
    assert_true(isnan(stats_GBps(1, 0)));
    assert_true(isnan(stats_tflops(1, -1)));
}

/* C45: an all-to-all row of 134217728 B on 8 ranks in 364.47 us. */
static void bus_bandwidth_is_not_algorithm_bandwidth(void **state)
{
    (void)state;
    double algbw = stats_GBps(134217728, 364.47), busbw = stats_alltoall_busbw(algbw, 8);
    CHECK_NEAR(algbw, 368.25, 0.01);
    CHECK_NEAR(busbw, 322.22, 0.01);
    CHECK_NEAR(134217728 / algbw / 1e3, 364.47, 1e-9);
    CHECK_NEAR(algbw / busbw, 1.143, 0.0005); /* a time predicted from busbw is 14.3 % too long */
    CHECK_NEAR(stats_alltoall_busbw(algbw, 1), 0, 0);
    CHECK_NEAR(stats_tflops(4.0 * 32 * 4096 * 4096 * 128, 1000), 274.877906944, 1e-9);
}

/* C51: the first iteration is warm-up. */
static void warm_up_is_not_in_the_median(void **state)
{
    (void)state;
    const double rates[] = {9.68, 42.73, 40.62, 43.46, 43.09};
    CHECK_NEAR(stats_median(rates + 1, 4), 42.91, 1e-9);
    CHECK_NEAR(stats_median(rates, 5), 42.73, 1e-9);
}

static void one_sample_is_its_interval(void **state)
{
    (void)state;
    const double x[] = {117.5}, y[] = {235};
    struct stats_interval median = stats_median_ci95(x, 1, 1), ratio = stats_ratio_ci95(x, y, 1, 1, 1, 1);
    CHECK_NEAR(median.lo, 117.5, 0);
    CHECK_NEAR(median.hi, 117.5, 0);
    CHECK_NEAR(ratio.lo, 0.5, 0);
    CHECK_NEAR(ratio.hi, 0.5, 0);
}

static void fill(struct rng *rng, double *x, int n, double centre, double spread)
{
    for (int i = 0; i < n; i++)
        x[i] = centre + spread * rng_normal(rng);
}

static void intervals_follow_their_seed(void **state)
{
    (void)state;
    struct rng rng;
    double x[40];
    rng_seed(&rng, 3, 0);
    fill(&rng, x, 40, 100, 5);
    struct stats_interval a = stats_median_ci95(x, 40, 1), b = stats_median_ci95(x, 40, 1);
    assert_memory_equal(&a, &b, sizeof a);
    double median = stats_median(x, 40), least = stats_quantile(x, 40, 0), most = stats_quantile(x, 40, 1);
    assert_true(least <= a.lo && a.lo <= median && median <= a.hi && a.hi <= most);
    for (int i = 0; i < 40; i++)
        x[i] *= 4; /* exact in binary: the interval scales with the unit */
    struct stats_interval scaled = stats_median_ci95(x, 40, 1);
    CHECK_NEAR(scaled.lo, 4 * a.lo, 0);
    CHECK_NEAR(scaled.hi, 4 * a.hi, 0);
}

/* The share of intervals that contain the true median, over many small experiments. `rho`: how much of an iteration's
 * deviation the next one keeps. */
static double coverage(int n, int skewed, double rho, int experiments)
{
    struct rng rng;
    double x[64];
    int inside = 0;
    rng_seed(&rng, 11, (uint64_t)n);
    for (int e = 0; e < experiments; e++) {
        double z = rng_normal(&rng);
        for (int i = 0; i < n; i++) {
            z = rho * z + sqrt(1 - rho * rho) * rng_normal(&rng);
            x[i] = skewed ? 100 * exp(0.5 * z) : 100 + z;
        }
        struct stats_interval interval = stats_median_ci95(x, n, 1);
        inside += interval.lo <= 100 && 100 <= interval.hi;
    }
    return (double)inside / experiments;
}

static void ninety_five_percent_means_it(void **state)
{
    (void)state;
    for (int skewed = 0; skewed < 2; skewed++) {
        assert_in_range((int)(1000 * coverage(10, skewed, 0, 500)), 910, 980); /* plain percentiles: 876 */
        assert_in_range((int)(1000 * coverage(20, skewed, 0, 500)), 915, 980);
        assert_in_range((int)(1000 * coverage(50, skewed, 0, 300)), 915, 985);
    }
    assert_true(coverage(50, 0, 0.5, 300) > 0.86); /* autocorrelated; single samples instead of blocks: 0.81 */
}

static void ratios_are_judged(void **state)
{
    (void)state;
    struct rng rng;
    double slow[50], fast[50];
    rng_seed(&rng, 5, 0);
    fill(&rng, slow, 50, 117, 2);
    fill(&rng, fast, 50, 100, 2);
    struct stats_interval ratio = stats_ratio_ci95(slow, fast, 50, 50, 0, 1);
    assert_true(ratio.lo > 1.14 && ratio.hi < 1.20 && ratio.hi > ratio.lo);
    fill(&rng, slow, 50, 100, 2);
    ratio = stats_ratio_ci95(slow, fast, 50, 30, 0, 1);
    assert_true(ratio.lo < 1 && 1 < ratio.hi);
}

/* Measured next to each other, both sides share the drift of the machine; it cancels only when they are kept together. */
static void pairs_cancel_what_they_share(void **state)
{
    (void)state;
    struct rng rng;
    double a[40], b[40];
    rng_seed(&rng, 9, 0);
    for (int i = 0; i < 40; i++) {
        double drift = exp(0.2 * rng_normal(&rng));
        a[i] = 103 * drift * (1 + 0.001 * rng_normal(&rng));
        b[i] = 100 * drift * (1 + 0.001 * rng_normal(&rng));
    }
    struct stats_interval paired = stats_ratio_ci95(a, b, 40, 40, 1, 1), apart = stats_ratio_ci95(a, b, 40, 40, 0, 1);
    assert_true(paired.lo > 1.01 && paired.lo <= 1.03 && 1.03 <= paired.hi && paired.hi < 1.05);
    assert_true(apart.lo < 1 && apart.hi - apart.lo > 3 * (paired.hi - paired.lo));
    struct stats_interval shorter = stats_ratio_ci95(a, b, 40, 30, 1, 1); /* pairs are what both have */
    struct stats_interval thirty = stats_ratio_ci95(a, b, 30, 30, 1, 1);
    assert_memory_equal(&shorter, &thirty, sizeof thirty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_exact),
        cmocka_unit_test(nothing_has_no_statistics),
        cmocka_unit_test(bus_bandwidth_is_not_algorithm_bandwidth),
        cmocka_unit_test(warm_up_is_not_in_the_median),
        cmocka_unit_test(one_sample_is_its_interval),
        cmocka_unit_test(intervals_follow_their_seed),
        cmocka_unit_test(ninety_five_percent_means_it),
        cmocka_unit_test(ratios_are_judged),
        cmocka_unit_test(pairs_cancel_what_they_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
