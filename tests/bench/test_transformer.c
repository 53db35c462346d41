/* bench/test_transformer.c -- a block under a plan is told from one that is wrong: other weights, a row that was not written, a gradient of
 * one rank that is missing. That every method's is right is bench.check's. */
#include "base/interrupt.h"
#include "bench/bench_test.h"
#include "bench/transformer_state.h"
#include "sp/exec_state.h"
#include "sp/work.h"

#include <signal.h>
#include <string.h>

static void *const no_arg = NULL;

enum { WORLD = 2 };

struct scene {
    struct bench_env env;
    struct side side;
    struct group group;
    struct problem problem;
    struct plan plan;
    struct transformer_order order;
};

static enum status scene_open(struct scene *s, const struct launch *launch, enum plan_method method, bool backward)
{
    if (s->env.world == NULL) { /* a process joins its job once */
        TRY(bench_test_open(&s->side, launch, &s->env));
        TRY(group_open(&s->env, WORLD, &s->group));
    }
    s->problem = bench_test_case("layer", WORLD, WORLD).problem;
    s->problem.seq = 19;
    s->problem.batch = 2;
    s->problem.hidden = 40;
    s->problem.ffn = 56;
    s->problem.direction = backward ? PROBLEM_BACKWARD : PROBLEM_FORWARD;
    plan_default(&s->plan);
    s->plan.method = method;
    s->plan.sp = WORLD;
    s->plan.micro_batch = 2;
    if (plan_method_exchange(method) != NULL)
        snprintf(s->plan.exchange, PLAN_NAME, "%s", plan_method_exchange(method));
    s->order = (struct transformer_order){.problem = &s->problem, .plan = &s->plan, .seed = 5, .rank = launch->rank};
    return STATUS_OK;
}

static void scene_close(struct scene *s)
{
    group_close(&s->group);
    side_close(&s->side);
}

static enum status run(struct scene *s, struct transformer *t)
{
    TRY(transformer_forward(t, s->side.queue));
    if (s->problem.direction == PROBLEM_FORWARD)
        return STATUS_OK;
    TRY(transformer_prepare(t, s->side.queue));
    return transformer_backward(t, s->side.queue);
}

/* Truth of seed 5 against blocks of seed 5 and 6. */
static int other_weights(const struct launch *launch, void *arg)
{
    const enum plan_method *method = arg;
    struct scene s = {0};
    for (int backward = 0; backward < 2; backward++) {
        struct truth *truth = NULL;
        RANK_TRY(scene_open(&s, launch, *method, backward != 0));
        RANK_TRY(truth_open(&s.env, &s.order, &truth));
        for (uint64_t seed = 5; seed < 7; seed++) {
            struct transformer *t = NULL;
            char why[256] = "";
            bool ok = false;
            s.order.seed = seed;
            RANK_TRY(transformer_open(&s.env, &s.group, &s.order, s.side.queue, &t));
            RANK_TRY(run(&s, t));
            RANK_TRY(truth_compare(&s.env, truth, t, &ok, why));
            RANK_CHECK(ok == (seed == 5) && (why[0] == '\0') == ok);
            const struct exec *exec = transformer_exec(t);
            struct problem problem = s.problem;
            problem.direction = backward ? PROBLEM_BOTH : PROBLEM_FORWARD;
            RANK_CHECK(exec_bytes(exec) == work_exec_bytes(&problem, &s.plan) + exec->workspace_bytes);
            transformer_close(t);
        }
        truth_close(truth);
    }
    scene_close(&s);
    return 0;
}

static void test_other_weights(void **state)
{
    static enum plan_method methods[] = {PLAN_METHOD_ULYSSES, PLAN_METHOD_RING, PLAN_METHOD_SPLIT_GATHER};
    (void)state;
    for (int i = 0; i < 3; i++)
        ranks_pass(WORLD, other_weights, &methods[i]);
}

/* A row of y that nobody wrote is named by the rank that has it. */
static int row_missing(const struct launch *launch, void *arg)
{
    struct scene s = {0};
    struct truth *truth = NULL;
    struct transformer *t = NULL;
    char why[256] = "";
    bool ok = false;
    (void)arg;
    RANK_TRY(scene_open(&s, launch, PLAN_METHOD_ULYSSES, false));
    RANK_TRY(truth_open(&s.env, &s.order, &truth));
    RANK_TRY(transformer_open(&s.env, &s.group, &s.order, s.side.queue, &t));
    RANK_TRY(run(&s, t));
    if (launch->rank == 1)
        memset((float *)t->y + 13 * 40, 0xff,
               40 * sizeof(float)); /* ten tokens a rank: the fourth of the second sequence */
    RANK_TRY(truth_compare(&s.env, truth, t, &ok, why));
    RANK_CHECK(ok == (launch->rank == 0));
    RANK_CHECK(ok || strstr(why, "y of a block, batch 1, token 13,") != NULL);
    transformer_close(t);
    truth_close(truth);
    scene_close(&s);
    return 0;
}

static void test_row_missing(void **state)
{
    (void)state;
    ranks_pass(WORLD, row_missing, no_arg);
}

/* Gradients of weights are sums over ranks: without one rank's every rank finds them wrong, and says of which weight. */
static int gradient_missing(const struct launch *launch, void *arg)
{
    struct scene s = {0};
    struct truth *truth = NULL;
    struct transformer *t = NULL;
    char why[256] = "";
    bool ok = false;
    (void)arg;
    RANK_TRY(scene_open(&s, launch, PLAN_METHOD_ULYSSES, true));
    RANK_TRY(truth_open(&s.env, &s.order, &truth));
    RANK_TRY(transformer_open(&s.env, &s.group, &s.order, s.side.queue, &t));
    RANK_TRY(run(&s, t));
    if (launch->rank == 1)
        memset(t->grads.of[BLOCK_UP], 0, (size_t)56 * 40 * sizeof(float));
    RANK_TRY(truth_compare(&s.env, truth, t, &ok, why));
    RANK_CHECK(!ok && strstr(why, "mlp.up_proj.weight") != NULL);
    transformer_close(t);
    truth_close(truth);
    scene_close(&s);
    return 0;
}

static void test_gradient_missing(void **state)
{
    (void)state;
    ranks_pass(WORLD, gradient_missing, no_arg);
}

static const char *scarce = ""; /* what the second request for it finds no memory for */
static int requests;

enum status __real_mem_alloc(size_t bytes, const char *what, void **out);
enum status __wrap_mem_alloc(size_t bytes, const char *what, void **out);
enum status __wrap_mem_alloc(size_t bytes, const char *what, void **out)
{
    if (strcmp(what, scarce) == 0 && ++requests == 2)
        return FAIL(STATUS_NOMEM, "no memory for %s", what);
    return __real_mem_alloc(bytes, what, out);
}

/* A rank that has no memory for positions: the others do not wait for it where they are gathered. */
static int positions_missing(const struct launch *launch, void *arg)
{
    struct scene s = {0};
    struct transformer *t = NULL;
    (void)arg;
    if (launch->rank == 1)
        scarce = "positions of rows"; /* first the device's, then the host's */
    RANK_TRY(scene_open(&s, launch, PLAN_METHOD_SPLIT_GATHER, false));
    RANK_CHECK(transformer_open(&s.env, &s.group, &s.order, s.side.queue, &t) == STATUS_NOMEM);
    RANK_CHECK(t == NULL);
    scene_close(&s);
    return 0;
}

static void test_positions_missing(void **state)
{
    (void)state;
    ranks_pass(WORLD, positions_missing, no_arg);
}

/* Ctrl-C at rank 0 while the whole block is made or run: all ranks hear of it, and none keeps a part of one. */
static int interrupted(const struct launch *launch, void *arg)
{
    struct scene s = {0};
    struct truth *truth = NULL;
    struct transformer *t = NULL;
    (void)arg;
    if (launch->rank == 0)
        interrupt_setup(NULL);
    else
        interrupt_ignore();
    RANK_TRY(scene_open(&s, launch, PLAN_METHOD_ULYSSES, true));
    if (launch->rank == 0)
        raise(SIGINT);
    RANK_CHECK(truth_open(&s.env, &s.order, &truth) == STATUS_INTERRUPTED && truth == NULL);
    RANK_CHECK(transformer_open(&s.env, &s.group, &s.order, s.side.queue, &t) == STATUS_INTERRUPTED && t == NULL);
    RANK_TRY(comm_barrier(s.side.comm, s.side.queue)); /* the job goes on */
    scene_close(&s);
    return 0;
}

static void test_interrupted(void **state)
{
    (void)state;
    ranks_pass(WORLD, interrupted, no_arg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_weights),    cmocka_unit_test(test_row_missing),
        cmocka_unit_test(test_gradient_missing), cmocka_unit_test(test_positions_missing),
        cmocka_unit_test(test_interrupted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
