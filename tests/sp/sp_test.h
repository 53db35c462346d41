/* tests/sp/sp_test.h -- small problems and plans for the tests of this room. */
#ifndef SPTUNE_TESTS_SP_TEST_H
#define SPTUNE_TESTS_SP_TEST_H

#include "base/check.h"

#include "sp/plan.h"
#include "sp/problem.h"

#include <string.h>

static inline struct problem small_problem(int heads, int kv_heads, int64_t seq, int world)
{
    struct problem problem = {.batch = 1,
                              .seq = seq,
                              .heads = heads,
                              .kv_heads = kv_heads,
                              .head_dim = 8,
                              .dtype = DTYPE_BF16,
                              .causal = true,
                              .direction = PROBLEM_BOTH,
                              .world = world};
    return problem;
}

static inline struct plan small_plan(int sp, int world)
{
    struct plan plan;
    plan_default(&plan);
    plan.sp = sp;
    plan.dp_shard = sp > 0 && world >= sp ? world / sp : 1;
    return plan;
}

#endif
