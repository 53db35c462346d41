/* tests/results/test_sample.c -- keys and their text, what a sample owns, what its times amount to, what is recorded. */
#include "base/check.h"
#include "results/rows.h"

static void key_round_trip(const struct sample_key *key)
{
    struct sample_key back;
    char *text = sample_key_text(key);
    assert_non_null(text);
    CHECK_OK(sample_key_parse(text, &back));
    assert_true(sample_key_equal(key, &back));
    free(text);
}

static void keys_have_one_text(void **state)
{
    (void)state;
    struct sample sample = row_exchange(4096, "packed", 100);
    char *text = sample_key_text(&sample.key);
    assert_string_equal(text, "subject=exchange ranks=2 sp=2 op=whole heads=14 kv_heads=2 head_dim=64 seq=4096 batch=1 "
                              "dtype=bf16 exchange=packed direction=fwd");
    struct sample_key back;
    CHECK_OK(sample_key_parse("  seq=4096 batch=1 subject=exchange ranks=2 sp=2 op=whole heads=14 kv_heads=2 "
                              "direction=fwd head_dim=64 dtype=bf16  exchange=packed ",
                              &back));
    assert_true(sample_key_equal(&sample.key, &back));
    back.causal = 0;
    assert_false(sample_key_equal(&sample.key, &back)); /* 0 is a value, -1 is absent */
    free(text);
    sample_free(&sample);
}

static void every_field_survives(void **state)
{
    (void)state;
    struct sample_key key;
    for (int f = 0; f < SAMPLE_FIELDS; f++) {
        sample_key_init(&key);
        key_round_trip(&key);
        assert_false(sample_field_present(&key, &sample_fields[f]));
        char *at = (char *)&key + sample_fields[f].offset;
        if (sample_fields[f].text)
            strcpy(at, "x");
        else
            memcpy(at, &(int64_t){INT64_MAX}, sizeof(int64_t));
        assert_true(sample_field_present(&key, &sample_fields[f]));
        assert_ptr_equal(sample_field_find(sample_fields[f].name), &sample_fields[f]);
        key_round_trip(&key);
    }
    sample_key_init(&key);
    char *empty = sample_key_text(&key);
    assert_string_equal(empty, "");
    free(empty);
}

static void hostile_names_survive(void **state)
{
    (void)state;
    static const char *const names[] = {"with blank", "a=b", "a=b c=d", "100%", "%20", "tab\there", "line\nbreak", "'; DROP",
                                        "\x7f\x01", "gr\xc3\xb6\xc3\x9f", "\xff\xfe", " ", "=", "%", "\"quoted\",comma",
                                        "1234567890123456789012345678901"};
    struct sample_key a, b;
    for (int i = 0; i < CHECK_COUNT(names); i++) {
        sample_key_init(&a);
        strcpy(a.subject, "exchange");
        strcpy(a.exchange, names[i]);
        a.seq = i;
        key_round_trip(&a);
    }
    sample_key_init(&a); /* two fields never look like one */
    sample_key_init(&b);
    strcpy(a.op, "x sp=2");
    strcpy(b.op, "x");
    b.sp = 2;
    char *ta = sample_key_text(&a), *tb = sample_key_text(&b);
    assert_string_not_equal(ta, tb);
    free(ta);
    free(tb);
}

static void bad_keys_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"subject", "no '='"},
        {"subject=", "no value"},
        {"=x", "not a field"},
        {"subjekt=x", "not a field"},
        {"ranks=x", "not a number"},
        {"ranks=", "not a number"},
        {"ranks=-1", "not a number"},
        {"ranks=+1", "not a number"},
        {"ranks=2x", "not a number"},
        {"ranks=1e3", "not a number"},
        {"ranks=9223372036854775808", "not a number"},
        {"ranks=1000000000000000000000000000000", "not a number"},
        {"ranks=1 ranks=1", "twice"},
        {"op=a%2", "cannot be read"},
        {"op=a%zz", "cannot be read"},
        {"op=a%00b", "cannot be read"},
        {"op=a=b", "cannot be read"},
        {"op=a\tb", "cannot be read"},
        {"op=12345678901234567890123456789012", "longer than 31"},
    };
    struct sample_key key;
    sample_key_init(&key);
    key.sp = 77;
    for (int i = 0; i < CHECK_COUNT(bad); i++)
        CHECK_FAILS(STATUS_USAGE, bad[i].word, sample_key_parse(bad[i].text, &key));
    assert_int_equal(key.sp, 77); /* untouched on failure */
    CHECK_FAILS(STATUS_USAGE, "not a field", sample_key_parse("kv_head=2", &key));
    assert_non_null(strstr(status_last()->hint, "kv_heads"));
}

static void copies_own_their_parts(void **state)
{
    (void)state;
    struct sample sample = row_exchange(4096, "packed", 100), copy;
    sample.conditions = strdup("{\"steal\": 0.01}");
    CHECK_OK(sample_copy(&sample, &copy));
    assert_ptr_not_equal(sample.times_us, copy.times_us);
    assert_memory_equal(sample.times_us, copy.times_us, (size_t)sample.n * sizeof(double));
    assert_string_equal(copy.conditions, sample.conditions);
    assert_null(copy.versions);
    sample_free(&sample);
    sample_free(&sample); /* a second time does no harm */
    sample_free(NULL);
    assert_true(copy.times_us[0] > 0);
    sample_free(&copy);
}

static struct sample_summary summary_of(const char *subject, const char *op, int64_t bytes, double flops, double us)
{
    struct sample_summary summary;
    struct sample sample = row_make(subject);
    text_print(sample.key.op, SAMPLE_NAME, "%s", op);
    sample.bytes = bytes;
    sample.flops = flops;
    sample.group = 8;
    sample.ceiling_GBps = 400;
    sample.ceiling_tflops = 500;
    row_times(&sample, &us, us > 0);
    sample_summarize(&sample, &summary);
    sample_free(&sample);
    return summary;
}

static void rates_belong_to_subjects(void **state)
{
    (void)state;
    struct sample_summary s = summary_of("collective", "alltoall", 134217728, 0, 364.47); /* C45 */
    CHECK_NEAR(s.algbw_GBps, 368.25, 0.01);
    CHECK_NEAR(s.busbw_GBps, 322.22, 0.01);
    CHECK_NEAR(s.ceiling_share, 322.22 / 400, 1e-4);
    assert_true(isnan(s.effective_GBps) && isnan(s.tflops));
    static const struct {
        const char *op;
        double factor;
    } ops[] = {{"all-to-all", 0.875}, {"all_to_all", 0.875}, {"allgather", 0.875}, {"reduce_scatter", 0.875},
               {"reduce-scatter", 0.875}, {"allreduce", 1.75}, {"all-reduce", 1.75}, {"sendrecv", 1}};
    for (int i = 0; i < CHECK_COUNT(ops); i++) {
        s = summary_of("collective", ops[i].op, 134217728, 0, 364.47);
        CHECK_NEAR(s.busbw_GBps / s.algbw_GBps, ops[i].factor, 1e-12);
    }
    s = summary_of("collective", "something", 134217728, 0, 364.47);
    assert_true(isnan(s.busbw_GBps) && !isnan(s.algbw_GBps));
    s = summary_of("exchange", "whole", 134217728, 0, 364.47); /* the change of layout is in: not a link rate */
    assert_true(isnan(s.busbw_GBps));
    CHECK_NEAR(s.effective_GBps, 368.25, 0.01);
    s = summary_of("layer", "", 134217728, 1e9, 1000);
    assert_true(isnan(s.algbw_GBps) && isnan(s.busbw_GBps) && isnan(s.effective_GBps));
    s = summary_of("attention", "", -1, 2.5e11, 1000);
    CHECK_NEAR(s.tflops, 250, 1e-9);
    CHECK_NEAR(s.ceiling_share, 0.5, 1e-12);
    s = summary_of("attention", "", -1, 2.5e11, 0); /* waived: no times */
    assert_true(isnan(s.median_us) && isnan(s.tflops) && isnan(s.ci95_us.lo) && isnan(s.ceiling_share));
}

/* Of a row scaled to more ranks the interval is the scaling's as well. */
static void predictions_carry_their_own_interval(void **state)
{
    (void)state;
    static const char *const conditions[] = {NULL, "{}", "{", "{\"predicted_within\": 0.35}",
                                             "{\"predicted_within\": 7}"};
    for (int i = 0; i < CHECK_COUNT(conditions); i++) {
        double times[] = {100, 100};
        struct sample sample;
        struct sample_summary s;
        sample_init(&sample);
        sample.scaled = true;
        sample.times_us = times;
        sample.n = 2;
        sample.conditions = conditions[i] ? strdup(conditions[i]) : NULL;
        sample_summarize(&sample, &s);
        CHECK_NEAR(s.ci95_us.lo, i == 3 ? 65 : 100, 1e-9);
        CHECK_NEAR(s.ci95_us.hi, i == 3 ? 135 : 100, 1e-9);
        sample.scaled = false; /* measured */
        sample_summarize(&sample, &s);
        CHECK_NEAR(s.ci95_us.hi, 100, 1e-9);
        free(sample.conditions);
    }
}

static void only_allowed_variables_are_recorded(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value;
        bool kept;
    } variables[] = {
        {"NCCL_ALGO", "Ring", true},         {"UCX_TLS", "posix,self", true},      {"OMP_NUM_THREADS", "2", true},
        {"SPTUNE_SEED", "", true},           {"CUDA_VISIBLE_DEVICES", "3,4", true}, {"SPTUNE_STORE", "/x/y.db", false},
        {"SPTUNE_TOKEN", "s3cret", false},   {"UCX_API_KEY", "s3cret", false},      {"AWS_SECRET", "s3cret", false},
        {"MY_NCCL_ALGO", "Ring", false},     {"NCCLX", "1", false},                 {"CUDA_VISIBLE_DEVICES_X", "1", false},
    };
    for (int i = 0; i < CHECK_COUNT(variables); i++)
        setenv(variables[i].name, variables[i].value, 1);
    setenv("UCX_ODD", "\xff\n", 1);
    json_t *object = json_object();
    CHECK_OK(sample_environment(object));
    for (int i = 0; i < CHECK_COUNT(variables); i++) {
        const json_t *value = json_object_get(object, variables[i].name);
        assert_int_equal(value != NULL, variables[i].kept);
        if (value)
            assert_string_equal(json_string_value(value), variables[i].value);
        unsetenv(variables[i].name);
    }
    assert_string_equal(json_string_value(json_object_get(object, "UCX_ODD")), "\?\?");
    assert_null(json_object_get(object, "PATH"));
    unsetenv("UCX_ODD");
    json_decref(object);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_have_one_text),
        cmocka_unit_test(every_field_survives),
        cmocka_unit_test(hostile_names_survive),
        cmocka_unit_test(bad_keys_are_refused),
        cmocka_unit_test(copies_own_their_parts),
        cmocka_unit_test(rates_belong_to_subjects),
        cmocka_unit_test(predictions_carry_their_own_interval),
        cmocka_unit_test(only_allowed_variables_are_recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
