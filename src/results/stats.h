/* results/stats.h -- statistics over raw times; docs/measurement.md derives each. Pure functions; n >= 1 unless said otherwise.
 *
 * Intervals are percentile bootstraps with a fixed seed, so that the same samples always give the same interval; iterations are
 * autocorrelated, so blocks are resampled (block length n^(1/3)). */
#ifndef SPTUNE_RESULTS_STATS_H
#define SPTUNE_RESULTS_STATS_H

#include <stdint.h>

struct stats_interval {
    double lo, hi;
};

double stats_quantile(const double *x, int n, double q); /* linear interpolation between order statistics */
double stats_median(const double *x, int n);
/* 95 % interval of the median; [x, x] for n = 1. */
struct stats_interval stats_median_ci95(const double *x, int n, uint64_t seed);
/* 95 % interval of median(a)/median(b); paired: a[i] and b[i] were measured next to each other and are resampled together. */
struct stats_interval stats_ratio_ci95(const double *a, const double *b, int na, int nb, int paired, uint64_t seed);
/* Bandwidths from a time in microseconds. */
double stats_GBps(double bytes, double us);
double stats_tflops(double flops, double us);
double stats_alltoall_busbw(double algbw_GBps, int ranks); /* algbw * (n-1)/n; 0 for one rank */

#endif
