/* tests/results/test_store.c -- what goes into the store comes out of it: samples, runs, documents, facts. */
#include "base/check.h"
#include "base/temp.h"
#include "results/rows.h"
#include "results/store.h"

#include <sqlite3.h>

static struct temp temp;
static struct store *store;

static int open_temp(void **state)
{
    (void)state;
    temp_open(&temp);
    return store_open(temp_path(&temp, "new/deeper/results.db"), STORE_WRITE, &store) == STATUS_OK ? 0 : -1;
}

static int close_temp(void **state)
{
    (void)state;
    store_close(store);
    store = NULL;
    temp_close(&temp);
    return 0;
}

static int64_t begin(const char *name)
{
    int64_t run = -1;
    CHECK_OK(store_run_begin(store, "bench", "sptune bench exchange", name, "9f2c11aa", 1, &run));
    return run;
}

static void put(int64_t run, int64_t seq, const char *versions)
{
    struct sample sample = row_exchange(seq, "packed", 100);
    sample.versions = versions ? strdup(versions) : NULL;
    CHECK_OK(store_put(store, run, &sample));
    sample_free(&sample);
}

static void samples_come_back_whole(void **state)
{
    (void)state;
    struct sample in = row_exchange(131072, "odd name = 100%", 1234.5), out;
    in.conditions = strdup("{\"steal\": 0.5}");
    in.versions = strdup("{\"ucx\": \"1.13.1\", \"sptune\": \"0.1.0\"}");
    in.flops = 1e15;
    in.scaled = true;
    in.scale = 3.5;
    in.ceiling_tflops = 2.25;
    text_print(in.kernel, sizeof in.kernel, "cpu avx2");
    in.times_us[0] = 0.1 + 0.2; /* a number that decimal text would change */
    CHECK_OK(store_put(store, begin(NULL), &in));
    CHECK_OK(store_find(store, &in.key, "9f2c11aa", NULL, -1, &out, NULL));
    assert_true(sample_key_equal(&in.key, &out.key));
    assert_int_equal(out.n, in.n);
    assert_memory_equal(in.times_us, out.times_us, (size_t)in.n * sizeof(double));
    assert_string_equal(out.conditions, in.conditions);
    assert_string_equal(out.versions, "{\"sptune\":\"0.1.0\",\"ucx\":\"1.13.1\"}");
    assert_string_equal(out.kernel, in.kernel);
    assert_string_equal(out.transport, in.transport);
    assert_string_equal(out.measured_at, in.measured_at);
    assert_int_equal(out.bytes, in.bytes);
    assert_int_equal(out.group, in.group);
    assert_true(out.verified && out.scaled);
    CHECK_NEAR(out.flops, in.flops, 0);
    CHECK_NEAR(out.scale, in.scale, 0);
    CHECK_NEAR(out.ceiling_GBps, in.ceiling_GBps, 0);
    CHECK_NEAR(out.ceiling_tflops, in.ceiling_tflops, 0);
    sample_free(&in);
    sample_free(&out);
}

static enum status count_rows(void *arg, int64_t run, const struct sample *sample)
{
    int *count = arg;
    (void)run;
    count[sample->outcome]++;
    return STATUS_OK;
}

static enum status stop_at_second(void *arg, int64_t run, const struct sample *sample)
{
    (void)run;
    (void)sample;
    return ++*(int *)arg == 2 ? FAIL(STATUS_INTERRUPTED, "enough") : STATUS_OK;
}

static void every_outcome_is_kept(void **state)
{
    (void)state;
    int64_t run = begin("mixed");
    struct sample waived = row_make("exchange"), failed = row_make("exchange"), back;
    waived.outcome = SAMPLE_WAIVED;
    waived.rule = RULE_HEADS_NOT_DIVISIBLE;
    failed.outcome = SAMPLE_FAILED;
    text_print(waived.why, sizeof waived.why, "14 heads on 4 ranks");
    text_print(failed.why, sizeof failed.why, "wrong data on rank 1");
    put(run, 1024, NULL);
    CHECK_OK(store_put(store, run, &waived));
    CHECK_OK(store_put(store, run, &failed));
    put(begin(NULL), 2048, NULL);
    int counts[3] = {0}, steps = 0;
    CHECK_OK(store_each(store, run, count_rows, counts));
    assert_int_equal(counts[SAMPLE_OK], 1);
    assert_int_equal(counts[SAMPLE_WAIVED], 1);
    assert_int_equal(counts[SAMPLE_FAILED], 1);
    CHECK_OK(store_each(store, -1, count_rows, counts));
    assert_int_equal(counts[SAMPLE_OK], 3);
    CHECK_FAILS(STATUS_INTERRUPTED, "enough", store_each(store, -1, stop_at_second, &steps));
    assert_int_equal(steps, 2);
    CHECK_FAILS(STATUS_NODATA, "no sample", store_find(store, &waived.key, "9f2c11aa", NULL, -1, &back, NULL));
    struct store_run found;
    CHECK_OK(store_resolve(store, "mixed", &found));
    assert_int_equal(found.samples, 3);
    assert_int_equal(found.failed, 1);
    assert_int_equal(found.waived, 1);
    store_run_free(&found);
}

static void what_cannot_be_kept_is_refused(void **state)
{
    (void)state;
    int64_t run = begin(NULL);
    struct sample sample = row_exchange(64, "packed", 5);
    CHECK_FAILS(STATUS_USAGE, "no run 77", store_put(store, 77, &sample));
    sample.times_us[3] = NAN;
    CHECK_FAILS(STATUS_USAGE, "time 4", store_put(store, run, &sample));
    sample.times_us[3] = 5;
    sample.flops = NAN;
    CHECK_FAILS(STATUS_USAGE, "not finite", store_put(store, run, &sample));
    sample.flops = 0;
    sample.versions = strdup("[1]");
    CHECK_FAILS(STATUS_USAGE, "versions", store_put(store, run, &sample));
    *sample.versions = '{';
    CHECK_FAILS(STATUS_USAGE, "not valid JSON", store_put(store, run, &sample));
    sample_free(&sample);
    sample = row_make("");
    CHECK_FAILS(STATUS_USAGE, "without a subject", store_put(store, run, &sample));
    int counts[3] = {0};
    CHECK_OK(store_each(store, -1, count_rows, counts));
    assert_int_equal(counts[0] + counts[1] + counts[2], 0);
}

static void resuming_needs_the_same_versions(void **state)
{
    (void)state;
    static const char *const old = "{\"ucx\": \"1.13.1\", \"NCCL_ALGO\": \"Ring\", \"n\": 1}";
    static const char *const new = "{\"ucx\": \"1.15.0\", \"n\": 1, \"OMP_NUM_THREADS\": \"2\"}";
    struct sample key = row_exchange(4096, "packed", 100), out;
    char *differs = NULL;
    int64_t first = begin(NULL), second = begin(NULL);
    put(first, 4096, old);
    CHECK_OK(store_find(store, &key.key, "9f2c11aa", "{\"n\":1,\"NCCL_ALGO\":\"Ring\",  \"ucx\":\"1.13.1\"}", -1, &out,
                        &differs)); /* equal as JSON */
    assert_null(differs);
    sample_free(&out);
    CHECK_FAILS(STATUS_NODATA, "no sample of subject=exchange",
                store_find(store, &key.key, "9f2c11aa", new, -1, &out, &differs));
    assert_non_null(differs);
    assert_non_null(strstr(differs, "ucx 1.13.1 -> 1.15.0"));
    assert_non_null(strstr(differs, "NCCL_ALGO Ring -> unset"));
    assert_non_null(strstr(differs, "OMP_NUM_THREADS unset -> 2"));
    assert_null(strstr(differs, "n 1"));
    free(differs);
    CHECK_FAILS(STATUS_NODATA, "no sample", store_find(store, &key.key, "9f2c11aa", new, -1, &out, NULL));
    CHECK_FAILS(STATUS_NODATA, "no sample", store_find(store, &key.key, "another", old, -1, &out, &differs));
    assert_null(differs); /* another machine is no near miss */
    CHECK_FAILS(STATUS_NODATA, "no sample", store_find(store, &key.key, "9f2c11aa", old, second, &out, &differs));
    key.key.causal = 0;
    CHECK_FAILS(STATUS_NODATA, "no sample", store_find(store, &key.key, "9f2c11aa", old, -1, &out, &differs));
    sample_free(&key);
}

static void the_newest_sample_counts(void **state)
{
    (void)state;
    struct sample sample = row_exchange(4096, "packed", 100), out;
    int64_t run = begin(NULL);
    for (int i = 1; i <= 3; i++) {
        double us = i;
        row_times(&sample, &us, 1);
        CHECK_OK(store_put(store, run, &sample));
    }
    sample.outcome = SAMPLE_FAILED;
    CHECK_OK(store_put(store, run, &sample));
    CHECK_OK(store_find(store, &sample.key, "9f2c11aa", "{}", run, &out, NULL)); /* no versions are empty versions */
    CHECK_NEAR(out.times_us[0], 3, 0);
    sample_free(&out);
    sample_free(&sample);
}

static int64_t resolved(const char *ref)
{
    struct store_run run;
    CHECK_OK(store_resolve(store, ref, &run));
    store_run_free(&run);
    return run.id;
}

static void references_name_runs(void **state)
{
    (void)state;
    struct store_run run;
    CHECK_FAILS(STATUS_NODATA, "no runs yet", store_resolve(store, "@last", &run));
    CHECK_FAILS(STATUS_NODATA, "no runs yet", store_resolve(store, "3", &run));
    int64_t a = begin("prod"), b = begin(NULL), c = begin("nightly"), d = begin("prod");
    char number[32];
    snprintf(number, sizeof number, "%lld", (long long)b);
    assert_int_equal(resolved(number), b);
    assert_int_equal(resolved("prod"), d); /* the newest of that name */
    assert_int_equal(resolved("nightly"), c);
    assert_int_equal(resolved("@last"), d);
    assert_int_equal(resolved("@last~0"), d);
    assert_int_equal(resolved("@last~3"), a);
    static const char *const bad[] = {"@last~4", "@last~", "@last~x", "@last~-1", "@lastly", "77", "0", "", "-1", "1.0",
                                      "99999999999999999999999999", "@last~99999999999999999999999999", "' OR 1=1 --"};
    for (int i = 0; i < CHECK_COUNT(bad); i++)
        CHECK_FAILS(STATUS_USAGE, "no run is called", store_resolve(store, bad[i], &run));
    CHECK_FAILS(STATUS_USAGE, "no run is called 'nihgtly'", store_resolve(store, "nihgtly", &run));
    assert_non_null(strstr(status_last()->hint, "nightly"));
    CHECK_FAILS(STATUS_USAGE, "no run is called", store_resolve(store, "@lsat", &run));
    assert_non_null(strstr(status_last()->hint, "@last"));
}

static void names_cannot_be_mistaken(void **state)
{
    (void)state;
    static const char *const bad[] = {"7", "@last", "-x", "a\nb", "a\x1b[2J", "\xff"};
    int64_t run;
    for (int i = 0; i < CHECK_COUNT(bad); i++)
        CHECK_FAILS(STATUS_USAGE, "cannot name a run", store_run_begin(store, "bench", "", bad[i], "", 1, &run));
    char name[80];
    memset(name, 'x', sizeof name);
    name[79] = '\0';
    CHECK_FAILS(STATUS_USAGE, "at most 63", store_run_begin(store, "bench", "", name, "", 1, &run));
    name[63] = '\0';
    run = begin(name);
    assert_int_equal(resolved(name), run);
    run = begin("r\xc3\xa9" "f 2.1");
    assert_int_equal(resolved("r\xc3\xa9" "f 2.1"), run);
}

static void runs_are_listed(void **state)
{
    (void)state;
    struct store_run *runs = NULL;
    int n = -1;
    CHECK_OK(store_runs(store, &runs, &n));
    assert_int_equal(n, 0);
    free(runs);
    int64_t first = begin("one"), second = begin(NULL);
    put(first, 64, NULL);
    CHECK_OK(store_run_end(store, first));
    CHECK_FAILS(STATUS_USAGE, "no run 99", store_run_end(store, 99));
    CHECK_OK(store_runs(store, &runs, &n));
    assert_int_equal(n, 2);
    assert_int_equal(runs[0].id, second); /* newest first */
    assert_false(runs[0].finished);
    assert_true(runs[1].finished);
    assert_string_equal(runs[1].name, "one");
    assert_string_equal(runs[1].verb, "bench");
    assert_string_equal(runs[1].command, "sptune bench exchange");
    assert_string_equal(runs[1].machine, "9f2c11aa");
    assert_int_equal(runs[1].seed, 1);
    assert_int_equal(runs[1].samples, 1);
    assert_int_equal(strlen(runs[1].started), strlen("2026-11-29T18:30:00Z"));
    for (int i = 0; i < n; i++)
        store_run_free(&runs[i]);
    free(runs);
}

static int64_t count_of(const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_open(temp_path(&temp, "new/deeper/results.db"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t count = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return count;
}

static void forgetting_leaves_nothing(void **state)
{
    (void)state;
    json_t *document = json_pack("{s:i}", "x", 1), *back = NULL;
    int64_t a = begin("a"), b = begin("b");
    put(a, 64, "{\"only\": \"a\"}");
    put(a, 128, "{\"both\": 1}");
    put(b, 64, "{\"both\": 1}");
    CHECK_OK(store_put_document(store, a, "recommendation", document));
    CHECK_OK(store_forget(store, a));
    CHECK_FAILS(STATUS_USAGE, "no run", store_forget(store, a));
    CHECK_FAILS(STATUS_NODATA, "no run has a recommendation", store_document(store, -1, "recommendation", &back));
    assert_int_equal(count_of("SELECT count(*) FROM samples"), 1);
    assert_int_equal(count_of("SELECT count(*) FROM versions"), 1);
    assert_int_equal(count_of("SELECT count(*) FROM documents"), 0);
    assert_int_equal(resolved("b"), b);
    CHECK_OK(store_forget(store, b));
    assert_true(begin("c") > b); /* numbers are not given twice */
    json_decref(document);
}

static void documents_come_back(void **state)
{
    (void)state;
    json_t *one = json_pack("{s:s, s:f}", "name", "\xc3\xa9\"'", "us", 364.47), *two = json_pack("{s:i}", "x", 2), *back = NULL;
    int64_t a = begin(NULL), b = begin(NULL);
    CHECK_FAILS(STATUS_NODATA, "has no recommendation", store_document(store, a, "recommendation", &back));
    CHECK_OK(store_put_document(store, a, "recommendation", two));
    CHECK_OK(store_put_document(store, a, "recommendation", one));
    CHECK_OK(store_put_document(store, b, "profile", two));
    CHECK_OK(store_document(store, a, "recommendation", &back)); /* newest of that run */
    assert_true(json_equal(one, back));
    json_decref(back);
    CHECK_FAILS(STATUS_NODATA, "has no recommendation", store_document(store, b, "recommendation", &back));
    CHECK_OK(store_document(store, -1, "profile", &back));
    assert_true(json_equal(two, back));
    json_decref(back);
    CHECK_FAILS(STATUS_USAGE, "no run 99", store_put_document(store, 99, "profile", two));
    json_decref(one);
    json_decref(two);
}

static void facts_are_remembered(void **state)
{
    (void)state;
    char buf[32] = "kept", small[4];
    assert_false(store_recall(store, "checked:b1:m1:packed", buf, sizeof buf));
    assert_string_equal(buf, "kept");
    CHECK_OK(store_remember(store, "checked:b1:m1:packed", "ok"));
    CHECK_OK(store_remember(store, "checked:b1:m1:packed", "ok 14 of 14"));
    assert_true(store_recall(store, "checked:b1:m1:packed", buf, sizeof buf));
    assert_string_equal(buf, "ok 14 of 14");
    assert_false(store_recall(store, "checked:b1:m1:packed", small, sizeof small)); /* a cut value is none */
    assert_false(store_recall(store, "checked:b2:m1:packed", buf, sizeof buf));
}

#define IN_TEMP(test) cmocka_unit_test_setup_teardown(test, open_temp, close_temp)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_TEMP(samples_come_back_whole),
        IN_TEMP(every_outcome_is_kept),
        IN_TEMP(what_cannot_be_kept_is_refused),
        IN_TEMP(resuming_needs_the_same_versions),
        IN_TEMP(the_newest_sample_counts),
        IN_TEMP(references_name_runs),
        IN_TEMP(names_cannot_be_mistaken),
        IN_TEMP(runs_are_listed),
        IN_TEMP(forgetting_leaves_nothing),
        IN_TEMP(documents_come_back),
        IN_TEMP(facts_are_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
