/* bench/test_scarce.c -- one rank has no memory for what it is to time: all ranks are told, and none keeps what it had for it. */
#include "bench/bench_test.h"
#include "bench/timing.h"
#include "comm/scarce.h"

static const struct {
    const char *subject, *what;
    enum bench_span span;
    int at;
} wants[] = {
    {"collective", "a collective", BENCH_SPAN_ATTENTION, 1},
    {"exchange", "an exchange", BENCH_SPAN_ATTENTION, 1},
    {"attention", "an attention", BENCH_SPAN_ATTENTION, 1},
    {"gemm", "a gemm", BENCH_SPAN_ATTENTION, 1},
    {"layer", "a layer", BENCH_SPAN_ATTENTION, 1},
    {"link", "a link", BENCH_SPAN_ATTENTION, 1},
    {"link", "copies", BENCH_SPAN_ATTENTION, 1},
    {"layer", "a block", BENCH_SPAN_BLOCK, 1}, /* the row's, */
    {"layer", "a block to compare with", BENCH_SPAN_BLOCK, 1},
    {"layer", "a block", BENCH_SPAN_BLOCK, 2}, /* that of one rank, */
    {"layer", "a block", BENCH_SPAN_BLOCK, 3}, /* and that of the plan */
};

/* On every rank, with memory for all but what rank 1 is to lack. */
static int create(struct bench_env *env, const struct bench_case *c, const char *what, int at)
{
    const struct bench_subject *subject = bench_subject_of(c);
    bool lacks = what != NULL && comm_rank(env->world) == 1, happened;
    void *state = NULL;
    scarce_begin(lacks ? what : NULL, at);
    enum status status = subject->create(c, env, &state);
    if (status == STATUS_OK)
        subject->destroy(state);
    int kept = scarce_end(&happened);
    if (kept > 0 || !happened)
        fprintf(stderr, "%s, %s: %s%d pieces of memory kept\n", c->subject, what != NULL ? what : "all there",
                happened ? "" : "not asked for; ", kept);
    RANK_CHECK(happened && kept == 0);
    RANK_CHECK(status == (what != NULL ? STATUS_NOMEM : STATUS_OK));
    return 0;
}

static int rows(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct side side;
    int failed = 0;
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    for (size_t i = 0; i < sizeof wants / sizeof wants[0] && !failed; i++) {
        struct bench_case c = bench_test_case(wants[i].subject, launch->size, launch->size);
        c.span = wants[i].span;
        c.problem.hidden = 48;
        c.problem.ffn = 80;
        if (strcmp(c.subject, "collective") == 0)
            snprintf(c.op, sizeof c.op, "alltoall");
        failed = create(&env, &c, wants[i].what, wants[i].at);
        if (!failed) /* and it works again */
            failed = create(&env, &c, NULL, 0);
    }
    side_close(&side);
    return failed;
}

static int clocks(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct side side;
    struct timing *timing = NULL;
    bool happened;
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    scarce_begin(launch->rank == 1 ? "a clock" : NULL, 1);
    RANK_CHECK(timing_open(&env, &timing) == STATUS_NOMEM && timing == NULL);
    RANK_CHECK(scarce_end(&happened) == 0 && happened);
    side_close(&side);
    return 0;
}

static void test_rows(void **state)
{
    (void)state;
    ranks_pass(2, rows, NULL);
}

static void test_clocks(void **state)
{
    (void)state;
    ranks_pass(2, clocks, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_clocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
