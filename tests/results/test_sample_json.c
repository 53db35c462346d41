/* tests/results/test_sample_json.c -- a sample through JSON and back; documents that lie. */
#include "base/check.h"
#include "results/rows.h"

static json_t *parse(const char *text)
{
    json_t *json = NULL;
    CHECK_OK(json_parse(text, strlen(text), "test", &json));
    return json;
}

static bool is_real(const json_t *object, const char *key, double value)
{
    const json_t *found = json_object_get(object, key);
    return json_is_number(found) && fabs(json_number_value(found) - value) <= 1e-5 * fabs(value);
}

static struct sample full_row(void)
{
    static const double times[] = {364.47, 0.001, 123456789.123, 364.471, 400};
    struct sample s = row_exchange(131072, "odd \"name\"\t=%", 100);
    row_times(&s, times, 5);
    s.outcome = SAMPLE_FAILED;
    s.rule = RULE_TAINTED;
    s.flops = 1e12;
    s.ceiling_tflops = 0.5;
    s.scaled = true;
    s.scale = 7;
    s.verified = false;
    s.conditions = strdup("{\"steal\":0.25,\"oversubscribed\":true}");
    s.versions = strdup("{\"sptune\":\"0.1.0\",\"ucx\":\"1.13.1\"}");
    text_print(s.kernel, sizeof s.kernel, "cpu avx2");
    text_print(s.why, sizeof s.why, "rank 1: wrong data at head 3, token 7");
    return s;
}

static void expect_equal(const struct sample *a, const struct sample *b)
{
    assert_true(sample_key_equal(&a->key, &b->key));
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->times_us, b->times_us, (size_t)a->n * sizeof(double)); /* to the last bit */
    assert_int_equal(a->outcome, b->outcome);
    assert_int_equal(a->rule, b->rule);
    assert_string_equal(a->why, b->why);
    assert_int_equal(a->bytes, b->bytes);
    CHECK_NEAR(a->flops, b->flops, 0);
    CHECK_NEAR(a->scale, b->scale, 0);
    CHECK_NEAR(a->ceiling_GBps, b->ceiling_GBps, 0);
    CHECK_NEAR(a->ceiling_tflops, b->ceiling_tflops, 0);
    assert_int_equal(a->group, b->group);
    assert_int_equal(a->verified, b->verified);
    assert_int_equal(a->scaled, b->scaled);
    assert_string_equal(a->transport, b->transport);
    assert_string_equal(a->kernel, b->kernel);
    assert_string_equal(a->machine, b->machine);
    assert_string_equal(a->measured_at, b->measured_at);
    json_t *ca = parse(a->conditions), *cb = parse(b->conditions), *va = parse(a->versions), *vb = parse(b->versions);
    assert_true(json_equal(ca, cb) && json_equal(va, vb));
    json_decref(ca);
    json_decref(cb);
    json_decref(va);
    json_decref(vb);
}

static void samples_come_back(void **state)
{
    (void)state;
    struct sample sample = full_row(), back;
    json_t *json = sample_to_json(&sample);
    char *text = NULL;
    CHECK_OK(json_format(json, false, &text));
    assert_non_null(strstr(text, "364.47,")); /* as measured, not 364.47000000000003 */
    json_t *again = parse(text);
    CHECK_OK(sample_from_json(again, "test", &back));
    expect_equal(&sample, &back);
    free(text);
    json_decref(json);
    json_decref(again);
    sample_free(&sample);
    sample_free(&back);
}

static void fields_are_the_contract(void **state)
{
    (void)state;
    static const char *const fields[] = {"machine",  "key",        "conditions",     "times_us",     "median_us", "p95_us",
                                         "ci95_us",  "bytes",      "algbw_GBps",     "busbw_GBps",   "effective_GBps",
                                         "ceiling_GBps", "tflops", "transport",      "outcome",      "rule",      "why",
                                         "verified", "scaled",     "kernel",         "versions"};
    struct sample sample = row_make("collective");
    double us = 364.47;
    strcpy(sample.key.op, "alltoall");
    sample.key.ranks = 8;
    sample.group = 8;
    sample.bytes = sample.key.bytes = 134217728;
    row_times(&sample, &us, 1);
    json_t *json = sample_to_json(&sample);
    for (int i = 0; i < CHECK_COUNT(fields); i++)
        if (!json_object_get(json, fields[i]))
            fail_msg("%s is missing", fields[i]);
    assert_true(is_real(json, "algbw_GBps", 368.254) && is_real(json, "busbw_GBps", 322.222));
    assert_true(is_real(json, "median_us", 364.47) && is_real(json, "bytes", 134217728));
    assert_int_equal(json_array_size(json_object_get(json, "ci95_us")), 2);
    assert_true(json_is_null(json_object_get(json, "effective_GBps")));
    assert_true(json_is_null(json_object_get(json, "ceiling_GBps")));
    assert_true(json_is_null(json_object_get(json, "tflops")));
    assert_string_equal(json_string_value(json_object_get(json, "outcome")), "ok");
    assert_string_equal(json_string_value(json_object_get(json, "rule")), "ok");
    const json_t *key = json_object_get(json, "key");
    assert_int_equal(json_object_size(key), 4); /* only what applies */
    json_decref(json);
    sample_free(&sample);
}

static void layout_included_has_no_bus_bandwidth(void **state)
{
    (void)state;
    struct sample sample = row_exchange(4096, "packed", 1000);
    json_t *json = sample_to_json(&sample);
    assert_true(json_is_null(json_object_get(json, "busbw_GBps")));
    assert_true(json_is_real(json_object_get(json, "effective_GBps")));
    json_decref(json);
    sample_free(&sample);
}

static void waived_rows_have_nulls(void **state)
{
    (void)state;
    struct sample sample = row_make("exchange"), back;
    sample.outcome = SAMPLE_WAIVED;
    sample.rule = RULE_KV_RULE;
    text_print(sample.why, sizeof sample.why, "not \xff UTF-8");
    json_t *json = sample_to_json(&sample);
    assert_true(json_is_null(json_object_get(json, "median_us")) && json_is_null(json_object_get(json, "ci95_us")));
    assert_true(json_is_null(json_object_get(json, "bytes")));
    assert_int_equal(json_array_size(json_object_get(json, "times_us")), 0);
    assert_string_equal(json_string_value(json_object_get(json, "rule")), "kv_rule");
    assert_string_equal(json_string_value(json_object_get(json, "why")), "not ? UTF-8");
    CHECK_OK(sample_from_json(json, "test", &back));
    assert_int_equal(back.n, 0);
    assert_int_equal(back.bytes, -1);
    json_decref(json);
    sample_free(&back);
}

static void bad_documents_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"[]", "object"},
        {"{}", "\"key\" is missing"},
        {"{\"key\": null}", "\"key\" is missing"},
        {"{\"key\": 7}", "not an object"},
        {"{\"key\": {}}", "no \"subject\""},
        {"{\"key\": {\"subject\": 7}}", "\"subject\" is an integer"},
        {"{\"key\": {\"subject\": \"x\", \"colour\": 1}}", "unknown field \"colour\""},
        {"{\"key\": {\"subject\": \"x\", \"seq\": \"4k\"}}", "\"seq\""},
        {"{\"key\": {\"subject\": \"x\", \"seq\": -7}}", "\"seq\" is -7"},
        {"{\"key\": {\"subject\": \"x\", \"sp\": 0}}", "\"sp\" is 0"},
        {"{\"key\": {\"subject\": \"x\", \"sp\": -1}}", "\"sp\" is -1"},
        {"{\"key\": {\"subject\": \"x\", \"ranks\": 0}}", "\"ranks\" is 0"},
        {"{\"key\": {\"subject\": \"x\", \"bytes\": -1}}", "\"bytes\" is -1"},
        {"{\"key\": {\"subject\": \"x\", \"dtype\": \"int3\"}}", "'int3' is not a data type"},
        {"{\"key\": {\"subject\": \"x\", \"ranks\": 2, \"sp\": 5}, \"times_us\": [1]}", "\"sp\" is 5 of 2 ranks"},
        {"{\"key\": {\"subject\": \"x\", \"ranks\": 4, \"sp\": 3}, \"times_us\": [1]}", "\"sp\" is 3 of 4 ranks"},
        {"{\"key\": {\"subject\": \"x\", \"seq\": 1e30}}", "too large"},
        {"{\"key\": {\"subject\": \"x\", \"seq\": 1.5}}", "1.5"},
        {"{\"key\": {\"subject\": \"12345678901234567890123456789012\"}}", "longer than 31"},
        {"{\"key\": {\"subject\": \"x\"}}", "no times"},
        {"{\"key\": {\"subject\": \"x\"}, \"times_us\": 5}", "not a list"},
        {"{\"key\": {\"subject\": \"x\"}, \"times_us\": [1, \"2\"]}", "entry 2"},
        {"{\"key\": {\"subject\": \"x\"}, \"times_us\": [-1]}", "entry 1"},
        {"{\"key\": {\"subject\": \"x\"}, \"times_us\": [null]}", "entry 1"},
        {"{\"key\": {\"subject\": \"x\"}, \"times_us\": [1], \"outcome\": \"fine\"}", "\"outcome\" is \"fine\""},
        {"{\"key\": {\"subject\": \"x\"}, \"times_us\": [1], \"rule\": \"because\"}", "\"rule\" is \"because\""},
        {"{\"key\": {\"subject\": \"x\"}, \"times_us\": [1], \"bytes\": -1}", "\"bytes\" is -1"},
        {"{\"key\": {\"subject\": \"x\"}, \"times_us\": [1], \"group\": 0}", "\"group\" is 0"},
        {"{\"key\": {\"subject\": \"x\"}, \"times_us\": [1], \"group\": 4294967296}", "\"group\" is 4294967296"},
        {"{\"key\": {\"subject\": \"x\"}, \"times_us\": [1], \"flops\": -1}", "\"flops\" is -1"},
        {"{\"key\": {\"subject\": \"x\"}, \"times_us\": [1], \"versions\": []}", "\"versions\" is not an object"},
        {"{\"key\": {\"subject\": \"x\"}, \"times_us\": [1], \"verified\": 1}", "\"verified\""},
        {"{\"key\": {\"subject\": \"x\"}, \"times_us\": [1], \"machine\": \"123456789012345678901234567890123\"}", "longer"},
    };
    struct sample sample;
    for (int i = 0; i < CHECK_COUNT(bad); i++) {
        json_t *json = parse(bad[i].text);
        CHECK_FAILS(STATUS_USAGE, bad[i].word, sample_from_json(json, "file.json", &sample));
        assert_string_equal(status_last()->where, "file.json");
        json_decref(json);
    }
}

static void statistics_are_not_believed(void **state)
{
    (void)state;
    struct sample sample;
    struct sample_summary summary;
    json_t *json = parse("{\"key\": {\"subject\": \"x\", \"seq\": 8.0, \"sp\": null}, \"times_us\": [4, 2, 3], \"median_us\": 1}");
    CHECK_OK(sample_from_json(json, "test", &sample));
    sample_summarize(&sample, &summary);
    CHECK_NEAR(summary.median_us, 3, 0);
    assert_int_equal(sample.key.seq, 8);
    assert_int_equal(sample.key.sp, -1);
    json_decref(json);
    sample_free(&sample);
}

/* What scripts/peers/attention.py writes; tests/peers/test_attention.py holds that file to be what it writes. */
static void rows_of_peers_are_read(void **state)
{
    (void)state;
    json_t *document = NULL, *rows = NULL;
    struct sample timed, waived;
    CHECK_OK(json_read("tests/peers/attention_rows.json", &document));
    CHECK_OK(json_need(document, "samples", "test", &rows));
    assert_int_equal(json_array_size(rows), 2);
    CHECK_OK(sample_from_json(json_array_get(rows, 0), "test", &timed));
    CHECK_OK(sample_from_json(json_array_get(rows, 1), "test", &waived));
    char *key = sample_key_text(&timed.key);
    assert_string_equal(key, "subject=attention ranks=1 sp=1 heads=8 kv_heads=2 head_dim=128 seq=64 batch=1 dtype=bf16 "
                             "attention=sdpa direction=fwd causal=1 window=0 docs=none timing=stream buffers=hot");
    assert_int_equal(timed.outcome, SAMPLE_OK);
    assert_true(timed.verified);
    assert_int_equal(timed.n, 12);
    CHECK_NEAR(timed.times_us[11], 100, 0);
    CHECK_NEAR(timed.flops, 4. * 8 * 128 * 64 * 65 / 2, 0);
    assert_string_equal(timed.machine, "0123abcd");
    assert_int_equal(waived.outcome, SAMPLE_WAIVED);
    assert_int_equal(waived.rule, RULE_ABSENT);
    free(key);
    sample_free(&timed);
    sample_free(&waived);
    json_decref(document);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_come_back),
        cmocka_unit_test(fields_are_the_contract),
        cmocka_unit_test(layout_included_has_no_bus_bandwidth),
        cmocka_unit_test(waived_rows_have_nulls),
        cmocka_unit_test(bad_documents_are_refused),
        cmocka_unit_test(statistics_are_not_believed),
        cmocka_unit_test(rows_of_peers_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
