/* bench/admitted.h -- for tests: would a case be timed by ranks of a device, or waived? By the rules of bench_run; nothing is opened, so GPUs are
 * asked about where there are none.
 */
#ifndef SPTUNE_TESTS_BENCH_ADMITTED_H
#define SPTUNE_TESTS_BENCH_ADMITTED_H

#include "base/check.h"

#include "base/dev_ops.h"
#include "bench/measure.h"

#include <string.h>

/* cuBLAS and cuDNN need not be where tests run; cuDNN's own rules come first. */
static inline bool library_is_absent(const struct bench_case *c, const struct row *row)
{
    bool cudnn = strncmp(c->plan.attention, "cudnn", 5) == 0 && strstr(row->why, "cuDNN") != NULL;
    return row->rule == RULE_ABSENT && (cudnn || strcmp(c->subject, "gemm") == 0);
}

static inline bool is_admitted(const struct bench_case *c, enum dev_kind kind, char why[256])
{
    const struct dev_ops ops = {.kind = kind};
    struct dev dev = {.ops = &ops};
    struct bench_env env = {.dev = &dev};
    const struct run run = {.env = &env, .subjects = bench_subjects};
    struct row row = {.c = c};
    row_check(&run, &row);
    memcpy(why, row.why, sizeof row.why);
    return !row.settled || library_is_absent(c, &row);
}

#endif
