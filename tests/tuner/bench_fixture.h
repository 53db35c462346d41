/* tuner/bench_fixture.h -- for tests: the machine of fake.h, open from the first test to the last, and a request to it. */
#ifndef SPTUNE_TESTS_TUNER_BENCH_FIXTURE_H
#define SPTUNE_TESTS_TUNER_BENCH_FIXTURE_H

#include "tuner/fake.h"

static struct fake_bench bench;
static struct request request; /* large: one, used by one test at a time */

static inline int open_all(void **state)
{
    (void)state;
    fake_open(&bench);
    return 0;
}

static inline int close_all(void **state)
{
    (void)state;
    fake_close(&bench);
    return 0;
}

#endif
