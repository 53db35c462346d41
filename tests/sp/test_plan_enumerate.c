/* tests/sp/test_plan_enumerate.c -- the walk over a space of plans: each once, with its verdict. */
#include "base/rng.h"
#include "sp/sp_test.h"
#include <stdio.h>
#include <stdlib.h>

/* What plan_enumerate visited: legal sp sizes as a set, and every verdict by sp. */
struct seen {
    int n, legal[64], legal_n;
    struct {
        int sp;
        enum rule rule;
    } all[256];
};

static enum status see(void *arg, const struct plan *plan, const struct verdict *verdict)
{
    struct seen *seen = arg;
    assert_true(seen->n < 256);
    seen->all[seen->n].sp = plan->sp;
    seen->all[seen->n++].rule = verdict->rule;
    if (verdict_ok(verdict) && (seen->legal_n == 0 || seen->legal[seen->legal_n - 1] != plan->sp))
        seen->legal[seen->legal_n++] = plan->sp;
    return STATUS_OK;
}

static enum rule rule_of(const struct seen *seen, int sp)
{
    for (int i = 0; i < seen->n; i++)
        if (seen->all[i].sp == sp)
            return seen->all[i].rule;
    return RULE_COUNT;
}

static void enumerate(int heads, int kv_heads, int world, struct seen *seen)
{
    struct problem problem = small_problem(heads, kv_heads, 64, world);
    struct plan_space space = {.dev = DEV_CPU};
    plan_default(&space.base);
    memset(seen, 0, sizeof *seen);
    CHECK_OK(plan_enumerate(&problem, &space, see, seen));
}

static void legal_is(int heads, int kv_heads, int world, const int *want, int n)
{
    struct seen seen;
    enumerate(heads, kv_heads, world, &seen);
    assert_int_equal(seen.legal_n, n);
    assert_memory_equal(seen.legal, want, (size_t)n * sizeof *want);
}
#define LEGAL(heads, kv, world, ...)                                                                                   \
    legal_is(heads, kv, world, (const int[]){__VA_ARGS__}, (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)))

static void c19_28_heads_and_40_heads(void **state)
{
    (void)state;
    struct seen seen;
    LEGAL(28, 4, 8, 1, 2, 4);
    enumerate(28, 4, 8, &seen);
    assert_int_equal(rule_of(&seen, 8), RULE_HEADS_NOT_DIVISIBLE);
    LEGAL(40, 8, 40, 1, 2, 4, 8, 40);
    enumerate(40, 8, 40, &seen);
    assert_int_equal(rule_of(&seen, 5), RULE_KV_RULE);
    assert_int_equal(rule_of(&seen, 10), RULE_KV_RULE);
    assert_int_equal(rule_of(&seen, 20), RULE_KV_RULE);
    enumerate(28, 4, 28, &seen);
    assert_int_equal(rule_of(&seen, 7), RULE_KV_RULE);
    assert_int_equal(rule_of(&seen, 14), RULE_KV_RULE);
    LEGAL(28, 4, 28, 1, 2, 4, 28);
}

static void c20_odd_heads_against_the_world(void **state)
{
    (void)state;
    LEGAL(9, 3, 8, 1);
    LEGAL(9, 3, 6, 1, 3);
    LEGAL(9, 3, 9, 1, 3, 9);
    LEGAL(25, 25, 8, 1);
    LEGAL(71, 1, 8, 1);
    LEGAL(30, 30, 4, 1, 2);
    LEGAL(28, 4, 7, 1);
    struct seen seen;
    enumerate(30, 30, 4, &seen);
    assert_int_equal(rule_of(&seen, 4), RULE_HEADS_NOT_DIVISIBLE);
}

static void c17_padding_one_kind_of_head_is_not_offered(void **state)
{
    (void)state;
    struct seen seen;
    LEGAL(28, 7, 28, 1, 7, 14, 28);
    enumerate(28, 7, 2, &seen);
    assert_int_equal(rule_of(&seen, 2), RULE_KV_RULE);
}

static void enumerate_walks_everything_once(void **state)
{
    (void)state;
    struct problem problem = small_problem(8, 8, 64, 8);
    struct plan_space space = {.dev = DEV_CPU,
                               .nsp = 3,
                               .sp = {2, 3, 4},
                               .nexchange = 2,
                               .nchunks = 2,
                               .chunks = {1, 2},
                               .nzero = 2,
                               .zero = {1, 3},
                               .nloss = 3,
                               .loss = {PLAN_LOSS_PLAIN, PLAN_LOSS_TILED, PLAN_LOSS_FUSED},
                               .ncheckpointing = 2,
                               .checkpointing = {PLAN_CHECKPOINTING_NONE, PLAN_CHECKPOINTING_FULL},
                               .noffload = 1,
                               .offload = {PLAN_OFFLOAD_NONE},
                               .nattention = 1};
    struct seen seen = {0};
    plan_default(&space.base);
    strcpy(space.exchange[0], "packed");
    strcpy(space.exchange[1], "packed-separate");
    strcpy(space.attention[0], "reference");
    CHECK_OK(plan_enumerate(&problem, &space, see, &seen));
    assert_int_equal(seen.n, 2 * (2 * 2 * 2 * 3 * 2) + 1); /* sp 3 can never be legal: visited once */
    assert_int_equal(rule_of(&seen, 3), RULE_HEADS_NOT_DIVISIBLE);
    assert_int_equal(seen.legal_n, 2);
}

static enum status stop_at_second(void *arg, const struct plan *plan, const struct verdict *verdict)
{
    (void)plan;
    (void)verdict;
    return ++*(int *)arg == 2 ? STATUS_INTERRUPTED : STATUS_OK;
}

struct methods {
    int n;
    struct plan plan[32];
    enum rule rule[32];
};

static enum status see_method(void *arg, const struct plan *plan, const struct verdict *verdict)
{
    struct methods *seen = arg;
    assert_true(seen->n < 32);
    seen->plan[seen->n] = *plan;
    seen->rule[seen->n++] = verdict->rule;
    return STATUS_OK;
}

/* One rank is ulysses' alone; a method that moves data in one way has no exchanges and chunks to choose from. */
static void enumerate_walks_methods(void **state)
{
    (void)state;
    struct problem problem = small_problem(4, 2, 64, 8);
    struct plan_space space = {.dev = DEV_CPU,
                               .nmethod = 3,
                               .method = {PLAN_METHOD_ULYSSES, PLAN_METHOD_RING, PLAN_METHOD_SPLIT_GATHER},
                               .nsp = 3,
                               .sp = {1, 2, 8},
                               .nexchange = 2,
                               .exchange = {"packed", "direct"},
                               .nchunks = 2,
                               .chunks = {1, 2}};
    struct methods seen = {0};
    problem.hidden = 32;
    problem.ffn = 96;
    plan_default(&space.base);
    CHECK_OK(plan_enumerate(&problem, &space, see_method, &seen));
    assert_int_equal(seen.n, 4 + (4 + 1 + 1) + (1 + 1 + 1));
    for (int i = 0; i < seen.n; i++) {
        const struct plan *plan = &seen.plan[i];
        const char *only = plan_method_exchange(plan->method);
        assert_true(plan->sp > 1 || plan->method == PLAN_METHOD_ULYSSES);
        assert_true(only == NULL || (strcmp(plan->exchange, only) == 0 && plan->chunks == 1));
        /* 4 heads on 8 ranks: a ring alone; on one rank two chunks are as legal as one */
        assert_int_equal(seen.rule[i] == RULE_OK, plan->sp < 8 || plan->method == PLAN_METHOD_RING);
    }
}

static void enumerate_stops_when_told(void **state)
{
    (void)state;
    struct problem problem = small_problem(8, 8, 64, 8);
    struct plan_space space = {.dev = DEV_CPU};
    int calls = 0;
    plan_default(&space.base);
    assert_int_equal(plan_enumerate(&problem, &space, stop_at_second, &calls), STATUS_INTERRUPTED);
    assert_int_equal(calls, 2);
    problem.heads = 0;
    assert_int_equal(plan_enumerate(&problem, &space, stop_at_second, &calls), STATUS_USAGE);
}

static enum status count(void *arg, const struct plan *plan, const struct verdict *verdict)
{
    (void)verdict;
    int *last = arg;
    assert_true(plan->sp > *last); /* ascending, no repeats */
    *last = plan->sp;
    return STATUS_OK;
}

static void a_world_with_many_divisors(void **state)
{
    (void)state;
    struct problem problem = small_problem(8, 8, 64, 2095133040); /* 1600 divisors, no int has more */
    struct plan_space space = {.dev = DEV_CPU};
    int last = 0;
    plan_default(&space.base);
    CHECK_OK(plan_enumerate(&problem, &space, count, &last));
    assert_int_equal(last, 2095133040);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c19_28_heads_and_40_heads),
        cmocka_unit_test(c20_odd_heads_against_the_world),
        cmocka_unit_test(c17_padding_one_kind_of_head_is_not_offered),
        cmocka_unit_test(enumerate_walks_everything_once),
        cmocka_unit_test(enumerate_walks_methods),
        cmocka_unit_test(enumerate_stops_when_told),
        cmocka_unit_test(a_world_with_many_divisors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
