/* tests/results/rows.h -- for tests: samples made by hand, and doubles compared as doubles. */
#ifndef SPTUNE_TESTS_RESULTS_ROWS_H
#define SPTUNE_TESTS_RESULTS_ROWS_H

#include "base/rng.h"
#include "base/text.h"
#include "results/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_NEAR(a, b, tolerance)                                                                                    \
    do {                                                                                                               \
        double check_a_ = (a), check_b_ = (b);                                                                         \
        if (!(fabs(check_a_ - check_b_) <= (tolerance)))                                                               \
            fail_msg("%s is %.17g, expected %.17g", #a, check_a_, check_b_);                                           \
    } while (0)

static inline void row_times(struct sample *sample, const double *times_us, int n)
{
    free(sample->times_us);
    sample->times_us = malloc((size_t)n * sizeof *times_us);
    memcpy(sample->times_us, times_us, (size_t)n * sizeof *times_us);
    sample->n = n;
}

/* n times around a median, with the scatter of a real machine: a relative deviation and some slow iterations. */
static inline void row_scatter(struct sample *sample, double median_us, int n, uint64_t seed)
{
    struct rng rng;
    double times[256];
    rng_seed(&rng, seed, 0);
    for (int i = 0; i < n; i++)
        times[i] = median_us * (1 + 0.02 * rng_normal(&rng) + (rng_uniform(&rng) < 0.1 ? 0.2 : 0));
    row_times(sample, times, n);
}

static inline struct sample row_make(const char *subject)
{
    struct sample sample;
    sample_init(&sample);
    text_print(sample.key.subject, SAMPLE_NAME, "%s", subject);
    text_print(sample.machine, sizeof sample.machine, "9f2c11aa");
    text_print(sample.measured_at, sizeof sample.measured_at, "2026-11-29T18:30:00Z");
    sample.verified = true;
    return sample;
}

/* One exchange of the example model between two ranks. */
static inline struct sample row_exchange(int64_t seq, const char *exchange, double median_us)
{
    struct sample sample = row_make("exchange");
    struct sample_key *key = &sample.key;
    key->ranks = key->sp = 2;
    key->heads = 14;
    key->kv_heads = 2;
    key->head_dim = 64;
    key->seq = seq;
    key->batch = 1;
    text_print(key->op, SAMPLE_NAME, "whole");
    text_print(key->dtype, SAMPLE_NAME, "bf16");
    text_print(key->exchange, SAMPLE_NAME, "%s", exchange);
    text_print(key->direction, SAMPLE_NAME, "fwd");
    text_print(sample.transport, sizeof sample.transport, "ucx posix");
    sample.bytes = seq / 2 * 64 * 2 * 32;
    sample.group = 2;
    sample.ceiling_GBps = 9;
    row_scatter(&sample, median_us, 20, (uint64_t)seq);
    return sample;
}

#endif
