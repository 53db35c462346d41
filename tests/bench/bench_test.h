/* bench/bench_test.h -- for tests: an env on forked ranks, options that do not judge the machine, small cases. */
#ifndef SPTUNE_TESTS_BENCH_BENCH_TEST_H
#define SPTUNE_TESTS_BENCH_BENCH_TEST_H

#include "bench/bench.h"
#include "comm/ranks.h"
#include "kernels/gemm.h"

#include <string.h>

/* A test machine is busy with other tests: its state is recorded, never judged. */
static inline struct bench_options bench_test_options(void)
{
    struct bench_options options;
    bench_options_effort("quick", &options);
    options.warmup = 1;
    options.samples_max = 12;
    options.repeats = -1;
    options.timeout_us = 30 * 1000 * 1000;
    return options;
}

static inline struct bench_case bench_test_case(const char *subject, int world, int sp)
{
    struct bench_case c;
    bench_case_init(&c);
    snprintf(c.subject, sizeof c.subject, "%s", subject);
    if (strcmp(subject, "exchange") == 0)
        snprintf(c.op, sizeof c.op, "whole");
    if (strcmp(subject, "link") == 0)
        snprintf(c.op, sizeof c.op, "memcpy");
    c.bytes = 4096;
    c.m = 24, c.n = 17, c.k = 33;
    c.problem.world = world;
    c.problem.heads = 8;
    c.problem.kv_heads = 4;
    c.problem.head_dim = 16;
    c.problem.seq = 40;
    c.plan.sp = sp;
    c.plan.dp_shard = world / sp;
    return c;
}

static inline enum status bench_test_open(struct side *side, const struct launch *launch, struct bench_env *env)
{
    memset(env, 0, sizeof *env);
    TRY(side_open(side, launch, NULL));
    gemm_set_threads(1);
    env->world = side->comm;
    env->dev = side->dev;
    env->usable_cpus = 1;
    snprintf(env->machine, sizeof env->machine, "0123456789abcdef0123456789abcdef");
    snprintf(env->transport, sizeof env->transport, "%s", comm_transport(side->comm));
    return STATUS_OK;
}

#endif
