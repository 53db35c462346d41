/* bench/test_session.c -- looked up, measured, committed, told to the ranks; nothing measured under replay. */
#include "base/check.h"
#include "base/temp.h"
#include "base/text.h"
#include "bench/bench_test.h"
#include "bench/check.h"
#include "bench/oracle.h"

#include <stdlib.h>

struct job {
    struct temp temp;
    char path[1024];
};

/* ---- a serve loop as the program has one ---- */

struct serving {
    struct boot *boot;
    int told;
};

static enum status tell(void *arg, const char *mode, const void *data, size_t bytes)
{
    struct serving *s = arg;
    size_t name = strlen(mode) + 1, total = name + bytes;
    char *message = malloc(total);
    void *borrowed = message;
    memcpy(message, mode, name);
    if (bytes > 0)
        memcpy(message + name, data, bytes);
    s->told++;
    enum status status = boot_bcast(s->boot, 0, &borrowed, &total, clock_deadline(BOOT_DEADLINE_US));
    free(message);
    return status;
}

static enum status serve(struct bench_env *env, struct boot *boot)
{
    for (bool end = false; !end;) {
        void *message = NULL;
        size_t bytes = 0;
        TRY(boot_bcast(boot, 0, &message, &bytes, clock_deadline(BOOT_DEADLINE_US)));
        const char *mode = message;
        size_t name = strlen(mode) + 1;
        enum status status = STATUS_OK;
        if (strcmp(mode, "bench") == 0)
            status = bench_serve(env, mode + name, bytes - name);
        else if (strcmp(mode, "check") == 0)
            status = check_serve(env, mode + name, bytes - name);
        else
            end = true;
        free(message);
        TRY(status);
    }
    return STATUS_OK;
}

/* ---- measuring with a store ---- */

static enum status session_make(struct bench_env *env, struct serving *serving, const char *path, struct bench_session *out)
{
    *out = (struct bench_session){.env = env, .tell = tell, .tell_arg = serving, .reuse = true};
    out->versions = bench_versions(env);
    TRY(store_open(path, STORE_WRITE, &out->store));
    return store_run_begin(out->store, "bench", "test", "", env->machine, 1, &out->run);
}

static int counts(struct store *store, int64_t run, int *samples)
{
    struct store_run *runs = NULL;
    int n = 0;
    RANK_TRY(store_runs(store, &runs, &n));
    *samples = -1;
    for (int i = 0; i < n; i++) {
        if (runs[i].id == run)
            *samples = runs[i].samples;
        store_run_free(&runs[i]);
    }
    free(runs);
    return 0;
}

/* A time scaled up from one head does not stand for one of all heads; the other way round it does. */
static int scaled_up(struct bench_session *session)
{
    struct bench_options options = bench_test_options();
    struct bench_case c = bench_test_case("attention", 2, 2);
    struct sample out;
    int measured = -1;
    session->reuse = true;
    for (int i = 0; i < 4; i++) {
        c.heads_timed = i < 2 || i == 3 ? 2 : 0; /* scaled, scaled, all, scaled */
        RANK_TRY(bench_measure(session, &c, 1, &options, &out, &measured));
        RANK_CHECK(out.outcome == SAMPLE_OK && out.scaled == (i < 2));
        RANK_CHECK(measured == (i == 0 || i == 2));
        sample_free(&out);
    }
    return 0;
}

/* --resume: what is there is taken where it has its samples; else it is measured again, and kept while no more come of that. */
static int too_few(struct bench_session *session)
{
    struct bench_options options = bench_test_options();
    struct bench_case c = bench_test_case("gemm", 2, 2);
    struct sample out;
    int measured = -1, missing = -1, kept = 0, after = 0, few = options.samples_min - 1;
    session->reuse = true;
    session->reuse_run = session->run;
    c.n = 23;
    options.samples_min = options.samples_max = few;
    RANK_TRY(bench_measure(session, &c, 1, &options, &out, &measured));
    RANK_CHECK(measured == 1 && out.n == few);
    sample_free(&out);
    options = bench_test_options();
    options.budget_us = 0;
    RANK_CHECK(counts(session->store, session->run, &kept) == 0);
    RANK_TRY(bench_missing(session, &c, 1, &options, &missing));
    RANK_TRY(bench_measure(session, &c, 1, &options, &out, NULL));
    RANK_CHECK(missing == 1 && out.outcome == SAMPLE_OK && out.n == few);
    sample_free(&out);
    RANK_CHECK(counts(session->store, session->run, &after) == 0 && after == kept);
    options.budget_us = -1;
    for (int i = 0; i < 2; i++) {
        RANK_TRY(bench_measure(session, &c, 1, &options, &out, &measured));
        RANK_CHECK(measured == (i == 0) && out.outcome == SAMPLE_OK && out.n >= options.samples_min);
        sample_free(&out);
    }
    session->reuse_run = 0;
    return 0;
}

static int measure_twice(struct bench_session *session, struct serving *serving)
{
    struct bench_options options = bench_test_options();
    struct bench_case cases[3] = {bench_test_case("exchange", 2, 2), bench_test_case("gemm", 2, 2),
                                  bench_test_case("layer", 2, 2)};
    struct sample out[3];
    int measured = -1, kept = 0;
    cases[2].problem.heads = 7; /* waived: kept too, measured never */
    RANK_TRY(bench_measure(session, cases, 3, &options, out, &measured));
    RANK_CHECK(measured == 2 && serving->told == 1);
    RANK_CHECK(out[0].outcome == SAMPLE_OK && out[1].outcome == SAMPLE_OK && out[2].outcome == SAMPLE_WAIVED);
    RANK_CHECK(out[0].versions != NULL && strstr(out[0].versions, "sptune") != NULL && strstr(out[0].versions, "ucx") != NULL);
    double first = out[0].times_us[0];
    for (int i = 0; i < 3; i++)
        sample_free(&out[i]);
    RANK_CHECK(counts(session->store, session->run, &kept) == 0 && kept == 3);
    RANK_TRY(bench_measure(session, cases, 2, &options, out, &measured));
    RANK_CHECK(measured == 0 && serving->told == 1 && out[0].times_us[0] == first);
    sample_free(&out[0]);
    sample_free(&out[1]);
    /* A case beside known ones: only it is measured. */
    cases[1].n = 19;
    RANK_TRY(bench_measure(session, cases, 2, &options, out, &measured));
    RANK_CHECK(measured == 1 && serving->told == 2);
    sample_free(&out[0]);
    sample_free(&out[1]);
    /* Of this run only, as --resume does: another run has none of it. */
    session->reuse_run = session->run + 1000;
    RANK_TRY(bench_measure(session, cases, 1, &options, out, &measured));
    RANK_CHECK(measured == 1);
    sample_free(&out[0]);
    session->reuse_run = 0;
    session->reuse = false;
    RANK_TRY(bench_measure(session, cases, 1, &options, out, &measured));
    RANK_CHECK(measured == 1);
    sample_free(&out[0]);
    RANK_CHECK(bench_measure(session, cases, 0, &options, out, NULL) == STATUS_USAGE);
    RANK_CHECK(too_few(session) == 0);
    return scaled_up(session);
}

static int measuring(const struct launch *launch, void *arg)
{
    const struct job *job = arg;
    struct bench_env env;
    struct side side;
    struct bench_session session;
    RANK_TRY(bench_test_open(&side, launch, &env));
    struct serving serving = {.boot = side.boot};
    if (launch->rank == 0) {
        RANK_TRY(session_make(&env, &serving, job->path, &session));
        int failed = measure_twice(&session, &serving);
        if (failed != 0)
            return failed;
        store_close(session.store);
        free(session.versions);
        RANK_TRY(tell(&serving, "end", NULL, 0));
    } else {
        RANK_TRY(serve(&env, side.boot));
        char few[3] = {0};
        RANK_CHECK(bench_serve(&env, few, sizeof few) == STATUS_PEER);
        RANK_CHECK(check_serve(&env, few, sizeof few) == STATUS_PEER);
    }
    side_close(&side);
    return 0;
}

static void test_measure(void **state)
{
    struct job *job = *state;
    ranks_pass(2, measuring, job);
}

/* After test_measure: the store holds samples, and there are no ranks. */
static void test_replay(void **state)
{
    struct job *job = *state;
    struct bench_session session = {.reuse = true};
    struct bench_options options = bench_test_options();
    struct bench_case c = bench_test_case("exchange", 2, 2), unknown = bench_test_case("exchange", 2, 1);
    struct sample out;
    int measured = -1;
    CHECK_OK(store_open(job->path, STORE_READ, &session.store));
    CHECK_OK(bench_measure(&session, &c, 1, &options, &out, &measured));
    assert_int_equal(measured, 0);
    assert_int_equal(out.outcome, SAMPLE_OK);
    sample_free(&out);
    snprintf(session.machine, sizeof session.machine, "0123456789abcdef0123456789abcdef");
    CHECK_OK(bench_measure(&session, &c, 1, &options, &out, &measured));
    sample_free(&out);
    CHECK_FAILS(STATUS_NODATA, "subject=exchange", bench_measure(&session, &unknown, 1, &options, &out, &measured));
    assert_non_null(strstr(status_last()->what, "sp=1"));
    snprintf(session.machine, sizeof session.machine, "another machine");
    CHECK_FAILS(STATUS_NODATA, "subject=exchange", bench_measure(&session, &c, 1, &options, &out, &measured));
    struct check_report report;
    CHECK_OK(check_before(&session, 1, &c.plan, &report)); /* nothing runs, so nothing needs checking */
    store_close(session.store);
}

/* ---- correctness before time ---- */

static int rows_of(const struct check_report *report, const char *area)
{
    int n = 0;
    for (int i = 0; i < report->nrows; i++)
        n += strcmp(report->rows[i].area, area) == 0;
    return n;
}

/* Attention is found wrong while this is set, on this rank. */
static bool spoil;

bool __real_oracle_all_agree(const struct attention_shape *shape, const struct oracle_error errors[ORACLE_OUTPUTS],
                             const struct oracle_scale *scale, char why[256]);
bool __wrap_oracle_all_agree(const struct attention_shape *shape, const struct oracle_error errors[ORACLE_OUTPUTS],
                             const struct oracle_scale *scale, char why[256]);
bool __wrap_oracle_all_agree(const struct attention_shape *shape, const struct oracle_error errors[ORACLE_OUTPUTS],
                             const struct oracle_scale *scale, char why[256])
{
    if (spoil)
        text_print(why, 256, "wrong on purpose");
    return !spoil && __real_oracle_all_agree(shape, errors, scale, why);
}

/* Nothing of a check that failed is remembered, so no later plan is timed without. */
static int check_wrong(struct bench_session *session, const struct serving *serving, struct bench_case *c)
{
    struct check_report report;
    int before = serving->told;
    text_print(c->plan.attention, sizeof c->plan.attention, "reference");
    for (int i = 0; i < 3; i++) {
        spoil = i == 0;
        c->plan.chunks = i == 1 ? 2 : 1;
        RANK_CHECK(check_before(session, 1, &c->plan, &report) == (spoil ? STATUS_CHECK : STATUS_OK));
        RANK_CHECK(serving->told == before + i + 1 && (rows_of(&report, "kernel") > 0) == (i < 2));
        check_report_free(&report);
    }
    return 0;
}

static int checking(const struct launch *launch, void *arg)
{
    const struct job *job = arg;
    struct bench_env env;
    struct side side;
    struct bench_session session;
    RANK_TRY(bench_test_open(&side, launch, &env));
    struct serving serving = {.boot = side.boot};
    if (launch->rank == 0) {
        struct check_report report;
        struct bench_case c = bench_test_case("layer", 2, 2);
        RANK_TRY(session_make(&env, &serving, job->path, &session));
        RANK_TRY(check_before(&session, 1, &c.plan, &report));
        RANK_CHECK(serving.told == 1 && report.passed > 0 && report.failed == 0 && report.remembered == 0);
        int all = report.passed, kernels = rows_of(&report, "kernel"), rest = all - kernels;
        RANK_CHECK(kernels > 0 && rest > 0);
        check_report_free(&report);
        RANK_TRY(check_before(&session, 1, &c.plan, &report)); /* remembered */
        RANK_CHECK(serving.told == 1 && report.nrows == 0 && report.remembered == all);
        c.plan.chunks = 2; /* another plan, whose kernels are known to be right */
        RANK_TRY(check_before(&session, 1, &c.plan, &report));
        RANK_CHECK(serving.told == 2 && rows_of(&report, "kernel") == 0 && rows_of(&report, "plan") > 0);
        RANK_CHECK(report.remembered == 0 && report.passed > 0); /* rows are counted where they ran */
        all = report.passed;
        check_report_free(&report);
        RANK_TRY(check_before(&session, 1, &c.plan, &report));
        RANK_CHECK(serving.told == 2 && report.remembered == all);
        RANK_CHECK(check_wrong(&session, &serving, &c) == 0 && serving.told == 5);
        session.checked = true;
        c.plan.chunks = 3;
        RANK_TRY(check_before(&session, 1, &c.plan, &report));
        RANK_CHECK(serving.told == 5);
        store_close(session.store);
        free(session.versions);
        RANK_TRY(tell(&serving, "end", NULL, 0));
    } else {
        RANK_TRY(serve(&env, side.boot));
    }
    side_close(&side);
    return 0;
}

static void test_check_before(void **state)
{
    struct job *job = *state;
    ranks_pass(2, checking, job);
}

static int setup(void **state)
{
    static struct job job;
    temp_open(&job.temp);
    snprintf(job.path, sizeof job.path, "%s", temp_path(&job.temp, "results.db"));
    *state = &job;
    return 0;
}

static int teardown(void **state)
{
    struct job *job = *state;
    temp_close(&job->temp);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measure),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_check_before),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
