/* bench/test_measure.c -- bench_run on forked ranks: every subject, every way of timing, and cases that fail beside cases that do not. */
#include "base/dev_ops.h"
#include "base/interrupt.h"
#include "bench/bench_test.h"
#include "bench/measure.h"
#include "bench/subject.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>

static void *const no_arg = NULL;

static bool has_condition(const struct sample *sample, const char *key)
{
    json_t *conditions = json_loads(sample->conditions, 0, NULL);
    bool has = conditions != NULL && json_object_get(conditions, key) != NULL;
    json_decref(conditions);
    return has;
}

/* What every good row has. */
static int good_row(const struct sample *s, const struct bench_options *options)
{
    if (s->outcome != SAMPLE_OK)
        fprintf(stderr, "%s: %s\n", s->key.subject, s->why);
    RANK_CHECK(s->outcome == SAMPLE_OK);
    RANK_CHECK(s->n >= options->samples_min && s->n <= options->samples_max);
    for (int i = 0; i < s->n; i++)
        RANK_CHECK(isfinite(s->times_us[i]) && s->times_us[i] > 0);
    RANK_CHECK(s->verified);
    RANK_CHECK(s->ceiling_GBps > 0 || s->ceiling_tflops > 0 || strcmp(s->key.subject, "link") == 0);
    RANK_CHECK(has_condition(s, "ceiling_by") == (s->ceiling_GBps > 0));
    RANK_CHECK(strlen(s->machine) == 32 && s->measured_at[0] != '\0');
    RANK_CHECK(has_condition(s, "ended") && has_condition(s, "state") && has_condition(s, "steal") && has_condition(s, "align_us"));
    return 0;
}

/* ---- every subject ---- */

enum { MANY = 25 };

static int cases_make(int world, struct bench_case cases[MANY])
{
    static const char *const ops[] = {"alltoall", "allgather", "reduce_scatter", "allreduce", "sendrecv"};
    int n = 0;
    for (int i = 0; i < 5; i++) {
        cases[n] = bench_test_case("collective", world, world == 4 ? 2 : world);
        snprintf(cases[n].op, sizeof cases[n].op, "%s", ops[i]);
        cases[n].timing = i % 2 == 0 ? BENCH_LOOP : BENCH_STREAM;
        cases[n++].buffers = i < 3 ? BENCH_HOT : BENCH_COLD;
    }
    for (int i = 0; i < 4; i++) {
        static const char *const whats[] = {"whole", "in", "out", "one"};
        cases[n] = bench_test_case("exchange", world, world);
        snprintf(cases[n].op, sizeof cases[n].op, "%s", whats[i]);
        cases[n].problem.direction = i == 0 ? PROBLEM_BOTH : i == 2 ? PROBLEM_BACKWARD : PROBLEM_FORWARD;
        cases[n].problem.kv_heads = i == 2 ? 1 : 4;
        cases[n].buffers = i < 3 ? BENCH_USED : BENCH_HOT;
        if (i == 2) /* of sums, which fetch what peers hold */
            snprintf(cases[n].plan.exchange, PLAN_NAME, "direct");
        cases[n++].plan.chunks = i == 0 ? 2 : 1;
    }
    for (int i = 0; i < 3; i++) {
        static const char *const copies[] = {"memcpy", "memcpy_one", "peer"};
        cases[n] = bench_test_case("link", world, i < 2 ? world : 2);
        cases[n].buffers = i == 0 ? BENCH_HOT : i == 1 ? BENCH_COLD : BENCH_USED;
        cases[n].bytes = i == 1 ? 1 << 20 : 4096;
        snprintf(cases[n++].op, sizeof cases[n].op, "%s", copies[i]);
    }
    cases[n] = bench_test_case("attention", world, 2);
    cases[n++].problem.direction = PROBLEM_BOTH;
    cases[n] = bench_test_case("attention", world, world);
    cases[n++].heads_timed = 1;
    cases[n++] = bench_test_case("gemm", world, world);
    cases[n] = bench_test_case("layer", world, 2);
    cases[n].problem.batch = 2;
    cases[n].problem.dtype = DTYPE_BF16;
    cases[n++].problem.direction = PROBLEM_BACKWARD;
    cases[n] = bench_test_case("layer", world, world);
    cases[n].heads_timed = 1;
    cases[n++].problem.seq = 41;
    for (int i = 0; i < 3; i++) {
        cases[n] = bench_test_case("layer", world, world);
        cases[n].plan.method = i < 2 ? PLAN_METHOD_RING : PLAN_METHOD_ULYSSES_RING;
        cases[n].plan.ring = 2;
        snprintf(cases[n].plan.exchange, PLAN_NAME, "%s", i < 2 ? PLAN_RING_EXCHANGE : "direct");
        cases[n].problem.direction = i == 0 ? PROBLEM_FORWARD : PROBLEM_BACKWARD;
        cases[n].problem.causal = i != 1;
        cases[n].problem.batch = 2;
        cases[n].heads_timed = i == 2 ? 1 : 0;
        cases[n++].problem.seq = 37;
    }
    for (int i = 0; i < 5; i++) {
        static const enum plan_method methods[] = {PLAN_METHOD_ULYSSES, PLAN_METHOD_RING, PLAN_METHOD_SPLIT_GATHER};
        cases[n] = bench_test_case("layer", world, i < 4 ? world : 2);
        cases[n].span = BENCH_SPAN_BLOCK;
        cases[n].plan.method = methods[i % 3];
        if (plan_method_exchange(methods[i % 3]) != NULL)
            snprintf(cases[n].plan.exchange, PLAN_NAME, "%s", plan_method_exchange(methods[i % 3]));
        cases[n].problem.direction = i % 2 == 0 ? PROBLEM_BACKWARD : PROBLEM_FORWARD;
        cases[n].problem.hidden = 48;
        cases[n].problem.ffn = 80;
        cases[n].buffers = i == 2 ? BENCH_COLD : BENCH_HOT;
        cases[n].problem.dtype = i == 2 ? DTYPE_BF16 : DTYPE_FP32;
        cases[n++].problem.seq = 37;
    }
    return n;
}

/* Cold buffers are thrice as large as the last-level cache, which may be hundreds of megabytes; test_traffic has the real one. */
static int64_t small_cache(const struct dev *dev)
{
    (void)dev;
    return 1 << 20;
}

static int every_subject(const struct launch *launch, void *arg)
{
    struct bench_case cases[MANY];
    struct bench_env env;
    struct side side;
    struct sample out[MANY];
    struct bench_options options = bench_test_options();
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    struct dev_ops ops = *env.dev->ops;
    ops.cache_bytes = small_cache;
    env.dev->ops = &ops;
    int n = cases_make(launch->size, cases);
    RANK_TRY(bench_run(&env, cases, n, &options, launch->rank == 0 ? out : NULL));
    for (int i = 0; i < n && launch->rank == 0; i++) {
        int failed = good_row(&out[i], &options);
        if (failed != 0)
            return failed;
        RANK_CHECK((out[i].scale > 1) == (cases[i].heads_timed > 0));
        bool moves = strcmp(cases[i].subject, "attention") != 0 && strcmp(cases[i].subject, "gemm") != 0 &&
                     strncmp(cases[i].op, "memcpy", 6) != 0;
        RANK_CHECK((out[i].transport[0] != '\0') == moves);
        RANK_CHECK((out[i].kernel[0] != '\0') ==
                   (strcmp(cases[i].subject, "collective") != 0 && strcmp(cases[i].subject, "exchange") != 0));
        RANK_CHECK(has_condition(&out[i], "loop") == (cases[i].timing == BENCH_LOOP));
        RANK_CHECK(has_condition(&out[i], "attention_us") == (strcmp(cases[i].subject, "layer") == 0));
        RANK_CHECK(has_condition(&out[i], "exposed_us") == (strcmp(cases[i].subject, "layer") == 0));
        bool packs = strcmp(cases[i].subject, "exchange") == 0;
        RANK_CHECK(has_condition(&out[i], "pack_us") == packs && has_condition(&out[i], "unpack_us") == packs);
        sample_free(&out[i]);
    }
    side_close(&side);
    return 0;
}

static void test_every_subject(void **state)
{
    (void)state;
    ranks_pass(2, every_subject, no_arg);
    ranks_pass(4, every_subject, no_arg);
}

static int alone(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct side side;
    struct bench_options options = bench_test_options();
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    struct bench_case cases[3] = {bench_test_case("exchange", 1, 1), bench_test_case("layer", 1, 1),
                                  bench_test_case("collective", 1, 1)};
    struct sample out[3];
    RANK_TRY(bench_run(&env, cases, 3, &options, out));
    for (int i = 0; i < 3; i++) {
        int failed = good_row(&out[i], &options);
        if (failed != 0)
            return failed;
        sample_free(&out[i]);
    }
    side_close(&side);
    return 0;
}

static void test_one_rank(void **state)
{
    (void)state;
    ranks_pass(1, alone, no_arg);
}

/* ---- what is waived ---- */

static int waived(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct side side;
    struct sample out[8];
    struct bench_options options = bench_test_options();
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    struct bench_case cases[8];
    for (int i = 0; i < 8; i++)
        cases[i] = bench_test_case(i == 6 ? "exchange" : "layer", 2, 2);
    cases[0].timing = BENCH_GRAPH;
    cases[1].problem.world = 3;
    snprintf(cases[2].subject, sizeof cases[2].subject, "nonsense");
    cases[3].problem.seq = (int64_t)1 << 40; /* does not fit in any memory here */
    cases[4].plan.chunks = 99;
    cases[5].buffers = cases[6].buffers = BENCH_USED; /* attention reads and writes them itself; no time in a loop */
    cases[6].timing = BENCH_LOOP;
    static const enum rule rules[] = {RULE_ABSENT, RULE_WORLD,  RULE_ABSENT, RULE_MEMORY, RULE_EXCHANGE_CANNOT,
                                      RULE_ABSENT, RULE_ABSENT};
    RANK_TRY(bench_run(&env, cases, 8, &options, launch->rank == 0 ? out : NULL));
    for (int i = 0; i < 7 && launch->rank == 0; i++) {
        if (out[i].rule != rules[i])
            fprintf(stderr, "case %d: %s: %s\n", i, rule_code(out[i].rule), out[i].why);
        RANK_CHECK(out[i].outcome == SAMPLE_WAIVED && out[i].rule == rules[i] && out[i].why[0] != '\0' && out[i].n == 0);
    }
    if (launch->rank == 0)
        RANK_CHECK(good_row(&out[7], &options) == 0);
    for (int i = 0; i < 8 && launch->rank == 0; i++)
        sample_free(&out[i]);
    /* No time: nothing is started. */
    options.budget_us = 0;
    RANK_TRY(bench_run(&env, cases + 7, 1, &options, launch->rank == 0 ? out : NULL));
    if (launch->rank == 0) {
        RANK_CHECK(out[0].outcome == SAMPLE_WAIVED && out[0].rule == RULE_BUDGET && out[0].n == 0);
        sample_free(&out[0]);
    }
    RANK_CHECK(bench_run(&env, cases, 0, &options, out) == STATUS_USAGE);
    RANK_CHECK(bench_run(&env, cases, BENCH_CASES_MAX + 1, &options, out) == STATUS_USAGE);
    side_close(&side);
    return 0;
}

static void test_waived(void **state)
{
    (void)state;
    ranks_pass(2, waived, no_arg);
}

/* ---- subjects that fail on one rank ---- */

struct fake {
    struct bench_env *env;
    const struct bench_case *c;
    int iterations, poisons, verifies, uses;
};

static struct verdict fake_check(const struct bench_case *c, const struct bench_env *env)
{
    return subject_check_world(c, env);
}

static void fake_key(const struct bench_case *c, const struct bench_env *env, struct sample *out)
{
    (void)env;
    subject_key_common(c, out);
    snprintf(out->key.op, sizeof out->key.op, "%s", c->op);
}

static bool is(const struct fake *f, const char *op)
{
    return strcmp(f->c->op, op) == 0 && comm_rank(f->env->world) == 1;
}

static enum status fake_create(const struct bench_case *c, struct bench_env *env, void **state)
{
    struct fake *f = calloc(1, sizeof *f);
    *f = (struct fake){.env = env, .c = c};
    enum status status = STATUS_OK;
    if (is(f, "nomem"))
        status = FAIL(STATUS_NOMEM, "no memory on purpose");
    if (is(f, "cannot"))
        status = FAIL(STATUS_UNSUPPORTED, "unsupported on purpose");
    if (strcmp(c->op, "interrupt_create") == 0 && comm_rank(env->world) == 0)
        raise(SIGINT);
    status = group_hear(env, status);
    if (status != STATUS_OK)
        free(f);
    else
        *state = f;
    return status;
}

static enum status fake_iterate(void *state, int iteration)
{
    struct fake *f = state;
    if (iteration != f->iterations) /* counted up by one, always */
        return FAIL(STATUS_USAGE, "iteration %d after %d", iteration, f->iterations);
    if (f->uses != (f->c->buffers == BENCH_USED ? f->iterations + 1 : 0))
        return FAIL(STATUS_USAGE, "used %d times before iteration %d", f->uses, iteration);
    f->iterations++;
    if (is(f, "early") || (is(f, "late") && f->iterations > 5))
        return FAIL(STATUS_USAGE, "failed on purpose");
    if (is(f, "die") && f->iterations == 4)
        raise(SIGKILL);
    if (strcmp(f->c->op, "interrupt") == 0 && comm_rank(f->env->world) == 0 && f->iterations == 6)
        raise(SIGINT);
    return STATUS_OK;
}

static enum status fake_poison(void *state)
{
    ((struct fake *)state)->poisons++;
    return STATUS_OK;
}

static enum status fake_verify(void *state, bool *ok, char why[256])
{
    struct fake *f = state;
    f->verifies++;
    *ok = !is(f, "wrong") && f->poisons == f->verifies; /* poisoned before each verified iteration */
    snprintf(why, 256, "wrong on purpose");
    return STATUS_OK;
}

static void fake_use(void *state)
{
    ((struct fake *)state)->uses++;
}

static const char *fake_kernel(void *state)
{
    (void)state;
    return "fake";
}

static const struct bench_subject fake = {.name = "fake", .about = "", .check = fake_check, .key = fake_key, .create = fake_create,
                                          .iterate = fake_iterate, .poison = fake_poison, .verify = fake_verify,
                                          .use = fake_use, .destroy = free, .kernel = fake_kernel};
static const struct bench_subject *const fakes[] = {&fake, NULL};

/* ---- a rate that cannot be ---- */

static void liar_key(const struct bench_case *c, const struct bench_env *env, struct sample *out)
{
    fake_key(c, env, out);
    out->bytes = 1 << 20;
    out->group = c->plan.sp;
}

static enum status liar_iterate(void *state, int iteration) /* moves nothing; "honest" takes its time at least */
{
    if (strcmp(((struct fake *)state)->c->op, "honest") == 0)
        ranks_sleep_ms(20);
    return fake_iterate(state, iteration);
}

static const struct bench_subject liar = {.name = "exchange", .about = "", .traffic = TRAFFIC_ALL, .check = fake_check,
                                          .key = liar_key, .create = fake_create, .iterate = liar_iterate,
                                          .poison = fake_poison, .verify = fake_verify, .destroy = free, .kernel = fake_kernel};
static const struct bench_subject *const liars[] = {&liar, NULL};

static int lies(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct side side;
    struct sample out[2];
    struct bench_options options = bench_test_options();
    struct bench_case cases[2] = {bench_test_case("exchange", 2, 2), bench_test_case("exchange", 2, 2)};
    (void)arg;
    snprintf(cases[1].op, sizeof cases[1].op, "honest");
    RANK_TRY(bench_test_open(&side, launch, &env));
    RANK_TRY(measure_run(&env, liars, cases, 2, &options, launch->rank == 0 ? out : NULL));
    for (int i = 0; i < 2 && launch->rank == 0; i++) {
        RANK_CHECK(out[i].outcome == SAMPLE_OK && out[i].ceiling_GBps > 0);
        RANK_CHECK(has_condition(&out[i], "ceiling_samples"));
        RANK_CHECK(has_condition(&out[i], "above_ceiling") == (i == 0));
    }
    if (launch->rank == 0) /* the same bytes at once: one ceiling for both */
        RANK_CHECK(out[0].ceiling_GBps <= out[1].ceiling_GBps && out[0].ceiling_GBps >= out[1].ceiling_GBps);
    for (int i = 0; i < 2 && launch->rank == 0; i++)
        sample_free(&out[i]);
    side_close(&side);
    return 0;
}

static void test_above_ceiling(void **state)
{
    (void)state;
    ranks_pass(2, lies, no_arg);
}

static int some_fail(const struct launch *launch, void *arg)
{
    static const struct {
        const char *op;
        enum sample_outcome outcome;
        enum rule rule;
        const char *why;
    } want[] = {
        {"fine", SAMPLE_OK, RULE_OK, ""},
        {"nomem", SAMPLE_WAIVED, RULE_MEMORY, "no memory on purpose"},
        {"cannot", SAMPLE_WAIVED, RULE_KERNEL_CANNOT, "unsupported on purpose"},
        {"early", SAMPLE_FAILED, RULE_OK, "failed on purpose"},
        {"late", SAMPLE_FAILED, RULE_OK, "failed on purpose"},
        {"wrong", SAMPLE_FAILED, RULE_OK, "wrong data on rank 1: wrong on purpose"},
        {"fine", SAMPLE_OK, RULE_OK, ""}, /* its buffers are used before every iteration, those of the others never */
    };
    enum { N = sizeof want / sizeof want[0] };
    struct bench_env env;
    struct side side;
    struct bench_case cases[N];
    struct sample out[N];
    struct bench_options options = bench_test_options();
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    for (int i = 0; i < N; i++) {
        cases[i] = bench_test_case("fake", 2, 2);
        snprintf(cases[i].op, sizeof cases[i].op, "%s", want[i].op);
    }
    cases[N - 1].buffers = BENCH_USED;
    RANK_TRY(measure_run(&env, fakes, cases, N, &options, launch->rank == 0 ? out : NULL));
    for (int i = 0; i < N && launch->rank == 0; i++) {
        if (out[i].outcome != want[i].outcome || strcmp(out[i].why, want[i].why) != 0)
            fprintf(stderr, "%s: %s, %s\n", want[i].op, sample_outcome_name(out[i].outcome), out[i].why);
        RANK_CHECK(out[i].outcome == want[i].outcome && out[i].rule == want[i].rule && strcmp(out[i].why, want[i].why) == 0);
        RANK_CHECK(out[i].verified == (out[i].outcome == SAMPLE_OK));
        RANK_CHECK(out[i].outcome != SAMPLE_OK || out[i].n >= options.samples_min);
        sample_free(&out[i]);
    }
    side_close(&side);
    return 0;
}

static void test_some_fail(void **state)
{
    (void)state;
    ranks_pass(2, some_fail, no_arg);
}

/* Ctrl-C at rank 0 while a row is timed, or made ready: all ranks stop together; what was not finished is waived as interrupted. */
static int interrupted(const struct launch *launch, void *arg)
{
    const char *when = arg;
    struct bench_env env;
    struct side side;
    struct sample out[2];
    struct bench_options options = bench_test_options();
    struct bench_case cases[2] = {bench_test_case("fake", 2, 2), bench_test_case("fake", 2, 2)};
    if (launch->rank == 0)
        interrupt_setup(NULL);
    else
        interrupt_ignore();
    RANK_TRY(bench_test_open(&side, launch, &env));
    options.samples_min = options.samples_max = 100000;
    snprintf(cases[0].op, sizeof cases[0].op, "%s", when);
    RANK_TRY(measure_run(&env, fakes, cases, 2, &options, launch->rank == 0 ? out : NULL));
    for (int i = 0; i < 2 && launch->rank == 0; i++) {
        RANK_CHECK(out[i].outcome == SAMPLE_WAIVED && out[i].rule == RULE_BUDGET && strstr(out[i].why, "interrupted") != NULL);
        sample_free(&out[i]);
    }
    RANK_TRY(comm_barrier(side.comm, side.queue)); /* the job goes on */
    side_close(&side);
    return 0;
}

static void test_interrupted(void **state)
{
    (void)state;
    ranks_pass(2, interrupted, "interrupt");
    ranks_pass(2, interrupted, "interrupt_create");
}

/* A rank that is killed in the middle: the run ends everywhere, naming it. */
static int one_dies(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct side side;
    struct sample out;
    struct bench_options options = bench_test_options();
    struct bench_case c = bench_test_case("fake", 2, 2);
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    snprintf(c.op, sizeof c.op, "die");
    enum status status = measure_run(&env, fakes, &c, 1, &options, launch->rank == 0 ? &out : NULL);
    RANK_CHECK(launch->rank != 0 || (status == STATUS_PEER && status_last()->rank == 1));
    return status_exit_code(status);
}

static void test_one_dies(void **state)
{
    (void)state;
    struct launch_report report = ranks_run(2, one_dies, no_arg);
    assert_int_equal(report.failed_rank, 1);
    assert_int_equal(report.exit_code, 4);
}

/* A budget that ends first leaves what there is, marked; one that ends before there is enough leaves a waived row that says so. How
 * much a busy machine needs is not known, so the budget grows until something is left. */
static int budget_cut(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct side side;
    struct sample out;
    struct bench_options options = bench_test_options();
    struct bench_case c = bench_test_case("fake", 2, 2);
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    options.samples_min = options.samples_max = 1 << 30;
    bool left = false;
    for (options.budget_us = 50 * 1000; !left && options.budget_us < 20 * 1000 * 1000; options.budget_us *= 4) {
        RANK_TRY(measure_run(&env, fakes, &c, 1, &options, launch->rank == 0 ? &out : NULL));
        double ok = launch->rank == 0 && out.outcome == SAMPLE_OK;
        if (launch->rank == 0) {
            RANK_CHECK(out.outcome == SAMPLE_OK ? out.n > 0 && strstr(out.conditions, "\"ended\":\"budget\"") != NULL
                                                : out.outcome == SAMPLE_WAIVED && out.rule == RULE_BUDGET);
            sample_free(&out);
        }
        RANK_TRY(comm_max(env.world, &ok, 1));
        left = ok > 0;
    }
    RANK_CHECK(left);
    side_close(&side);
    return 0;
}

static void test_budget_cut(void **state)
{
    (void)state;
    ranks_pass(2, budget_cut, no_arg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_subject), cmocka_unit_test(test_one_rank),    cmocka_unit_test(test_waived),
        cmocka_unit_test(test_some_fail),     cmocka_unit_test(test_interrupted), cmocka_unit_test(test_budget_cut),
        cmocka_unit_test(test_one_dies),      cmocka_unit_test(test_above_ceiling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
