/* tests/bench/test_behind.c -- checks and rows on a device whose memory the host cannot read, and that counts as running behind it. */
#include "bench/bench_test.h"
#include "bench/check_parts.h"
#include "bench/measure.h"
#include "bench/odd_device.h"
#include "bench/phases.h"
#include "bench/subject.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

static void *const no_arg = NULL;

static enum status odd_open(const struct launch *launch, struct bench_env *env, struct boot **boot)
{
    memset(env, 0, sizeof *env);
    TRY(boot_open(launch, INT64_MAX, boot));
    env->dev = odd_device();
    env->usable_cpus = 1;
    return comm_open(*boot, env->dev, "ucx", NULL, &env->world);
}

static int check_on(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct boot *boot = NULL;
    struct tally tally = {0};
    (void)arg;
    RANK_TRY(odd_open(launch, &env, &boot));
    RANK_TRY(check_collectives(env.world, 1, &tally));
    if (tally.wrong)
        fprintf(stderr, "%s\n", tally.why);
    RANK_CHECK(!tally.wrong && tally.cases > 50);
    comm_close(env.world);
    boot_close(boot);
    return 0;
}

enum { CASES = 8 };

static void cases_make(int world, struct bench_case cases[CASES])
{
    static const char *const ops[CASES] = {"alltoall", "allgather", "sendrecv", "alltoall",
                                           "memcpy",   "allreduce", "alltoall", "memcpy"};
    for (int i = 0; i < CASES; i++) {
        cases[i] = bench_test_case(i == 4 || i == 7 ? "link" : "collective", world, world);
        snprintf(cases[i].op, sizeof cases[i].op, "%s", ops[i]);
        cases[i].timing = i == 3 ? BENCH_LOOP : i == 6 ? BENCH_GRAPH : BENCH_STREAM;
        cases[i].buffers = i == 0 ? BENCH_COLD : i == 7 ? BENCH_USED : BENCH_HOT;
        cases[i].bytes = i == 0 ? 300000 : 4096;
    }
}

static int row_is_good(const struct sample *s, int i)
{
    if (i >= 5) { /* sums go through the host; this device keeps no graphs, and has no caches of a CPU */
        RANK_CHECK(s->outcome == SAMPLE_WAIVED && s->rule == RULE_ABSENT);
        return 0;
    }
    if (s->outcome != SAMPLE_OK)
        fprintf(stderr, "%s %s: %s\n", s->key.subject, s->key.op, s->why);
    RANK_CHECK(s->outcome == SAMPLE_OK && s->verified && s->n >= 10);
    for (int k = 0; k < s->n; k++)
        RANK_CHECK(isfinite(s->times_us[k]) && s->times_us[k] > 0);
    RANK_CHECK(strstr(s->conditions, "\"state\"") == NULL); /* what the CPUs do meanwhile is not in the times */
    return 0;
}

static int rows_on(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct boot *boot = NULL;
    struct bench_case cases[CASES];
    struct sample samples[CASES];
    struct bench_options options = bench_test_options();
    (void)arg;
    RANK_TRY(odd_open(launch, &env, &boot));
    cases_make(launch->size, cases);
    RANK_TRY(bench_run(&env, cases, CASES, &options, samples));
    for (int i = 0; i < CASES && launch->rank == 0; i++) {
        int failed = row_is_good(&samples[i], i);
        if (failed)
            return failed;
        sample_free(&samples[i]);
    }
    comm_close(env.world);
    boot_close(boot);
    return 0;
}

/* An all-to-all by a subject of the test's own. */
struct odd {
    struct bench_env env;
    struct boot *boot;
    struct bench_case c;
    struct bench_subject subject;
    struct bench_options options;
    struct sample sample; /* on rank 0 */
};

static enum status odd_row_open(const struct launch *launch, struct odd *out)
{
    out->c = bench_test_case("collective", launch->size, launch->size);
    snprintf(out->c.op, sizeof out->c.op, "alltoall");
    out->c.bytes = 4096;
    out->subject = subject_collective;
    out->options = bench_test_options();
    out->options.warmup = 3;
    return odd_open(launch, &out->env, &out->boot);
}

static enum status odd_row(struct odd *odd)
{
    const struct bench_subject *subjects[] = {&odd->subject, NULL};
    return measure_run(&odd->env, subjects, &odd->c, 1, &odd->options, &odd->sample);
}

static void odd_row_close(struct odd *odd)
{
    comm_close(odd->env.world);
    boot_close(odd->boot);
}

static int told, marked, enqueued; /* of this rank */

static enum status count_told(void *state, bool ran)
{
    (void)state;
    told += ran;
    return STATUS_OK;
}

static enum status count_enqueued(void *state, int iteration)
{
    marked += dev_queue_marks_on(subject_collective.queue(state));
    enqueued++;
    return subject_collective.enqueue(state, iteration);
}

/* A subject is told of iterations that were enqueued with marks on: some before those that are timed, and none of these. */
static int told_on(const struct launch *launch, void *arg)
{
    struct odd odd;
    (void)arg;
    RANK_TRY(odd_row_open(launch, &odd));
    odd.subject.timed = count_told;
    odd.subject.enqueue = count_enqueued;
    for (int loop = 0; loop < 2; loop++) {
        odd.c.timing = loop ? BENCH_LOOP : BENCH_STREAM;
        told = marked = enqueued = 0;
        RANK_TRY(odd_row(&odd));
        RANK_CHECK(told >= 2 && marked == told && enqueued - marked >= odd.options.samples_min);
        if (launch->rank == 0) {
            RANK_CHECK(odd.sample.outcome == SAMPLE_OK);
            sample_free(&odd.sample);
        }
    }
    odd_row_close(&odd);
    return 0;
}

enum { WORK_MS = 25 }; /* and some: two of them in a block of 60 ms, one in one of 50; four or five make a load */

static enum status work(void *state, int iteration)
{
    nanosleep(&(struct timespec){.tv_nsec = WORK_MS * 1000 * 1000}, NULL);
    return count_enqueued(state, iteration);
}

/* Iterations that nobody was told of when outputs were poisoned first: in the first block, before its last sample. */
static int before_poison;

static enum status note_poison(void *state)
{
    if (before_poison == 0)
        before_poison = enqueued - marked;
    return subject_collective.poison(state);
}

/* The first iteration loads what it runs; the others take longer than those that each block begins with an untimed one of. */
static enum status load_first(void *state, int iteration)
{
    const struct timespec first = {.tv_nsec = 400 * 1000 * 1000}, other = {.tv_nsec = 4 * 1000 * 1000};
    nanosleep(iteration == 0 ? &first : &other, NULL);
    return count_enqueued(state, iteration);
}

/* What the first iteration takes beside a small budget ends no warm-up: else nobody is told of one, and a layer has no phases. */
static int first_on(const struct launch *launch, void *arg)
{
    struct odd odd;
    (void)arg;
    RANK_TRY(odd_row_open(launch, &odd));
    odd.subject.timed = count_told;
    odd.subject.enqueue = load_first;
    odd.options.budget_us = 3 * 1000 * 1000;
    told = marked = 0;
    RANK_TRY(odd_row(&odd));
    RANK_CHECK(told >= 1 && marked == told);
    if (launch->rank == 0) {
        RANK_CHECK(odd.sample.outcome == SAMPLE_OK);
        sample_free(&odd.sample);
    }
    odd_row_close(&odd);
    return 0;
}

static enum status work_briefly(void *state, int iteration)
{
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000}, NULL);
    return count_enqueued(state, iteration);
}

/* Short iterations of what computes: several are a sample, so that the device hardly rests between samples. */
static int together_on(const struct launch *launch, void *arg)
{
    struct odd odd;
    int all[2] = {0};
    (void)arg;
    RANK_TRY(odd_row_open(launch, &odd));
    odd.subject.timed = count_told;
    odd.subject.enqueue = work_briefly;
    odd.subject.computes = true;
    odd.options.warmup = 10; /* of nine iterations one takes less than 3 ms, however busy the machine is */
    told = marked = enqueued = 0;
    RANK_TRY(odd_row(&odd));
    RANK_TRY(boot_allgather(odd.boot, &enqueued, sizeof enqueued, all, INT64_MAX));
    RANK_CHECK(all[0] == all[1]);
    if (launch->rank == 0) {
        const struct sample *s = &odd.sample;
        RANK_CHECK(s->outcome == SAMPLE_OK && s->verified);
        json_t *conditions = json_loads(s->conditions, 0, NULL);
        int loop = (int)json_integer_value(json_object_get(conditions, "loop"));
        int blocks = (int)json_integer_value(json_object_get(conditions, "blocks"));
        RANK_CHECK(loop >= 2 && loop <= 16);
        RANK_CHECK(enqueued - marked >= 1 + s->n * loop + blocks);
        json_decref(conditions);
        sample_free(&odd.sample);
    }
    odd_row_close(&odd);
    return 0;
}

/* A subject that computes works for a while before each block, on all ranks as often; what is timed stays as it was. */
static int loaded_on(const struct launch *launch, void *arg)
{
    struct odd odd;
    int all[2] = {0};
    (void)arg;
    RANK_TRY(odd_row_open(launch, &odd));
    odd.subject.timed = count_told;
    odd.subject.enqueue = work;
    odd.subject.poison = note_poison;
    for (int computes = 0; computes < 2; computes++) {
        odd.subject.computes = computes;
        told = marked = enqueued = before_poison = 0;
        RANK_TRY(odd_row(&odd));
        RANK_CHECK(marked == told);
        if (launch->rank == 0) {
            const struct sample *s = &odd.sample;
            RANK_CHECK(s->outcome == SAMPLE_OK && s->verified);
            json_t *conditions = json_loads(s->conditions, 0, NULL);
            json_t *load_us = json_object_get(conditions, "load_us");
            RANK_CHECK(computes ? json_number_value(load_us) > 0 : load_us == NULL);
            int blocks = (int)json_integer_value(json_object_get(conditions, "blocks"));
            int loads = enqueued - marked - s->n - 1 /* the first, which nobody is told of */;
            RANK_CHECK(computes ? loads >= 2 * blocks && blocks < s->n : loads == 0 && blocks == s->n);
            RANK_CHECK(computes ? before_poison >= 1 + 2 : before_poison == 1);
            json_decref(conditions);
            sample_free(&odd.sample);
        }
    }
    RANK_TRY(boot_allgather(odd.boot, &enqueued, sizeof enqueued, all, INT64_MAX));
    RANK_CHECK(all[0] == all[1]);
    odd_row_close(&odd);
    return 0;
}

static void what_computes_is_timed_under_load(void **state)
{
    (void)state;
    ranks_pass(2, loaded_on, no_arg);
    ranks_pass(2, together_on, no_arg);
    assert_int_equal(bench_load(1000), 120);
    assert_int_equal(bench_load(50 * 1000), 2); /* 2.4 */
    assert_int_equal(bench_load(120 * 1000), 1);
    assert_int_equal(bench_load(1190 * 1000), 1);
    assert_int_equal(bench_load(1210 * 1000), 0);
    assert_int_equal(bench_loaded_loop(5000), 1);
    assert_int_equal(bench_loaded_loop(3000), 2); /* 1.7 */
    assert_int_equal(bench_loaded_loop(500), 10);
    assert_int_equal(bench_loaded_loop(5), 16);
    assert_int_equal(bench_loaded_loop(0), 1);
    assert_int_equal(bench_load_samples(500), 12); /* of 5 ms */
    assert_true(bench_loaded_us(500, 10) == 500 * (10 * 10 + 240));
    assert_int_equal(bench_load_samples(20 * 1000), 3);
    assert_int_equal(bench_load_samples(100 * 1000), 1);
    assert_int_equal(bench_load_samples(100), 32);
    assert_true(bench_loaded_us(20e3, 10) == 20e3 * (10 + 4 * 6)); /* four blocks of three */
    assert_true(bench_loaded_us(200e3, 10) == 200e3 * 20 && bench_loaded_us(2e6, 10) == 2e6 * 10);
    assert_int_equal(bench_load(0), 0);
    assert_int_equal(bench_load(1e-9), 120 * 1000);
    assert_true(subject_attention.computes && subject_gemm.computes && subject_layer.computes && span_block.computes);
    assert_false(subject_link.computes || subject_collective.computes || subject_exchange.computes);
}

static int asked; /* after an iteration that ended the job */

static enum status count_asked(void *state, bool ran)
{
    (void)state;
    asked += !ran;
    return STATUS_OK;
}

static enum status end_the_job(void *state, int iteration)
{
    return iteration < 1 ? subject_collective.enqueue(state, iteration)
                         : FAIL(STATUS_MACHINE, "the device fell off the bus");
}

/* An iteration that ends the job ends the row at once: a subject that was told of it would wait for the other ranks. */
static int over_on(const struct launch *launch, void *arg)
{
    struct odd odd;
    (void)arg;
    RANK_TRY(odd_row_open(launch, &odd));
    odd.subject.timed = count_asked;
    odd.subject.enqueue = end_the_job;
    odd.c.timing = BENCH_STREAM;
    RANK_CHECK(odd_row(&odd) == STATUS_MACHINE);
    RANK_CHECK(strcmp(status_last()->what, "the device fell off the bus") == 0 && asked == 0);
    odd_row_close(&odd);
    return 0;
}

static void an_iteration_that_ends_the_job_ends_the_row(void **state)
{
    (void)state;
    ranks_pass(2, over_on, no_arg);
}

static bool has_phases(void *state)
{
    json_t *conditions = json_object();
    subject_exchange.note(state, conditions);
    bool has = json_number_value(json_object_get(conditions, "pack_us")) > 0 &&
               json_object_get(conditions, "unpack_us") != NULL;
    json_decref(conditions);
    return has;
}

/* Phases of an exchange are those of iterations that it is told of and that ran, of one call each: a further call overwrites them. */
static int phases_on(const struct launch *launch, void *arg)
{
    struct bench_env env;
    struct side side;
    struct bench_case c = bench_test_case("exchange", launch->size, launch->size);
    (void)arg;
    RANK_TRY(bench_test_open(&side, launch, &env));
    for (int whole = 0; whole < 2; whole++) {
        void *state = NULL;
        snprintf(c.op, sizeof c.op, "%s", whole ? "whole" : "in");
        RANK_TRY(subject_exchange.create(&c, &env, &state));
        RANK_TRY(subject_exchange.enqueue(state, 0));
        RANK_TRY(subject_exchange.timed(state, false));
        RANK_CHECK(!has_phases(state));
        RANK_TRY(subject_exchange.timed(state, true));
        RANK_CHECK(has_phases(state) == !whole);
        subject_exchange.destroy(state);
    }
    side_close(&side);
    return 0;
}

/* Rank 1 waits for nobody; what rank 0 waited is not in its row. An iteration that failed on one rank is kept by none. */
static int last_rank(const struct launch *launch, void *arg)
{
    static struct phases phases;
    struct side side;
    double us[PHASES] = {100 + launch->rank, 200, 300, launch->rank == 1 ? 20 : 70};
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(phases_add_last(&phases, side.comm, true, us));
    RANK_TRY(phases_add_last(&phases, side.comm, launch->rank != 2, us));
    RANK_CHECK(phases.n == 1 && fabs(phases.us[0][0] - 101) < 1e-9 && fabs(phases.us[PHASES - 1][0] - 20) < 1e-9);
    side_close(&side);
    return 0;
}

static void phases_are_the_last_ranks(void **state)
{
    (void)state;
    ranks_pass(3, last_rank, no_arg);
}

static void phases_of_an_exchange_are_of_one_call(void **state)
{
    (void)state;
    ranks_pass(2, phases_on, no_arg);
}

static void subjects_are_told(void **state)
{
    (void)state;
    ranks_pass(2, told_on, no_arg);
}

static void the_first_iteration_ends_no_warm_up(void **state)
{
    (void)state;
    ranks_pass(2, first_on, no_arg);
}

static void collectives_are_checked(void **state)
{
    (void)state;
    ranks_pass(3, check_on, no_arg);
}

static void rows_are_timed(void **state)
{
    (void)state;
    ranks_pass(2, rows_on, no_arg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_are_checked),
        cmocka_unit_test(rows_are_timed),
        cmocka_unit_test(phases_are_the_last_ranks),
        cmocka_unit_test(subjects_are_told),
        cmocka_unit_test(the_first_iteration_ends_no_warm_up),
        cmocka_unit_test(what_computes_is_timed_under_load),
        cmocka_unit_test(an_iteration_that_ends_the_job_ends_the_row),
        cmocka_unit_test(phases_of_an_exchange_are_of_one_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
