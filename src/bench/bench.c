/* bench/bench.c -- what a case is before anyone says more, and how hard an effort tries. */
#include "bench/bench.h"

#include "base/text.h"

#include <string.h>

void bench_case_init(struct bench_case *out)
{
    memset(out, 0, sizeof *out); /* padding too: a case is broadcast as bytes */
    text_print(out->subject, sizeof out->subject, "collective");
    text_print(out->op, sizeof out->op, "alltoall");
    out->bytes = 1 << 20;
    out->m = out->n = out->k = 1024;
    out->problem.batch = 1;
    out->problem.seq = 4096;
    out->problem.heads = 32;
    out->problem.kv_heads = 8;
    out->problem.head_dim = 128;
    out->problem.dtype = DTYPE_FP32;
    out->problem.causal = true;
    out->problem.direction = PROBLEM_FORWARD;
    out->problem.world = 1;
    plan_default(&out->plan);
    out->seed = 1;
}

void bench_options_effort(const char *effort, struct bench_options *out)
{
    static const struct {
        const char *name;
        int warmup, samples_min, samples_max, repeats;
        double ci_target;
    } efforts[] = {
        {"quick", 3, 10, 100, 5, 0.05},
        {"normal", 5, 20, 500, 8, 0.02},
        {"full", 10, 30, 2000, 12, 0.01},
    };
    size_t at = 0;
    for (size_t i = 0; effort != NULL && i < sizeof efforts / sizeof efforts[0]; i++)
        if (strcmp(efforts[i].name, effort) == 0)
            at = i;
    *out = (struct bench_options){.warmup = efforts[at].warmup,
                                  .samples_min = efforts[at].samples_min,
                                  .samples_max = efforts[at].samples_max,
                                  .ci_target = efforts[at].ci_target,
                                  .budget_us = -1,
                                  .timeout_us = 60 * 1000 * 1000,
                                  .repeats = efforts[at].repeats};
}
