/* tuner/test_document.c -- sptune.recommendation/1 and sptune.plans/1: every field of the contract, of the right type,
 * through text and back. */
#include "tuner/bench_fixture.h"

#include "base/text.h"
#include "tuner/search.h"

#include <math.h>
#include <stdlib.h>

static struct recommendation answer;
static const struct json_envelope envelope = {
    .command = "sptune tune", .started = "2026-11-29T18:30:00Z", .machine = "fake", .seed = 1};

static void run(enum status expected)
{
    CHECK_OK(request_complete(&request));
    fake_fill(&bench, &fake_default, &request);
    recommend_free(&answer);
    enum status status = search_run(&request, &bench.session, &answer);
    if (status != expected)
        fail_msg("%s: %s", status_name(status), status_last()->what);
}

/* "number" may be null where `or_null`. */
static void check_fields(const json_t *object, const char *where, const char *const *fields)
{
    for (int i = 0; fields[i] != NULL; i++) {
        char name[64], type = fields[i][0];
        text_print(name, sizeof name, "%s", fields[i] + 1);
        const json_t *value = json_object_get(object, name);
        bool right = value != NULL;
        switch (type) {
        case 's':
            right = json_is_string(value);
            break;
        case 'i':
            right = json_is_integer(value);
            break;
        case 'n':
            right = json_is_number(value);
            break;
        case 'o':
            right = json_is_object(value);
            break;
        case 'a':
            right = json_is_array(value);
            break;
        case 'b':
            right = json_is_boolean(value);
            break;
        case 'O':
            right = json_is_object(value) || json_is_null(value);
            break;
        case 'S':
            right = json_is_string(value) || json_is_null(value);
            break;
        default:
            break;
        }
        if (!right)
            fail_msg("%s.%s is missing or not of type '%c'", where, name, type);
    }
}

static const char *const plan_keys[] = {"Smethod",
                                        "isp_size",
                                        "idp_shard_size",
                                        "idp_replicate_size",
                                        "itp_size",
                                        "arank_order",
                                        "sexchange",
                                        "sattention",
                                        "ichunks",
                                        "izero_stage",
                                        "imicro_batch",
                                        "iaccumulate",
                                        "scheckpointing",
                                        "soffload",
                                        "sloss",
                                        "smlp",
                                        "stext",
                                        "shash",
                                        NULL};
static const char *const predicted_keys[] = {"nstep_us", "ointerval", "obreakdown_us", NULL};
static const char *const interval_keys[] = {"nlo_us", "nhi_us", "nlevel", NULL};
static const char *const breakdown_keys[] = {"nexchange_in", "nattention", "nexchange_out", "nexposed",     "ngemm",
                                             "nzero",        "noptimizer", "nlogits",       "nelementwise", NULL};
static const char *const memory_keys[] = {"aterms", "ipeak_bytes", "ilimit_bytes", "ihost_bytes", "sverdict", NULL};
static const char *const candidate_keys[] = {"oplan",       "ntokens_per_s_per_device",
                                             "opredicted",  "Omeasured",
                                             "ipeak_bytes", "ssource",
                                             "nloses_by",   "Stied_with",
                                             "srule",       "swhy",
                                             NULL};
static const char *const rejected_keys[] = {"oplan", "srule", "swhy", NULL};
static const char *const measured_keys[] = {"nstep_us", "iranks", "scomposed_of", NULL};
static const char *const answer_keys[] = {
    "oproblem",          "starget",     "oplan",     "oparallelism_config", "Omeasured",    "opredicted",
    "omemory",           "acandidates", "arejected", "Onative_best",        "aassumptions", "aflips",
    "snext_measurement", "afiles",      NULL};
static const char *const envelope_keys[] = {"sschema", "sversion", "scommand",  "sstarted",
                                            "iseed",   "smachine", "awarnings", NULL};

static void check_predicted(const json_t *predicted)
{
    check_fields(predicted, "predicted", predicted_keys);
    check_fields(json_object_get(predicted, "interval"), "interval", interval_keys);
    check_fields(json_object_get(predicted, "breakdown_us"), "breakdown_us", breakdown_keys);
}

static void check_each(const json_t *array, const char *where, const char *const *fields)
{
    size_t i;
    json_t *one;
    json_array_foreach(array, i, one) check_fields(one, where, fields);
}

static void check_answer(const json_t *root)
{
    static const char *const assumption_keys[] = {"sname", "svalue", "sfrom", NULL}, *const flip_keys[] = {
                                                                                         "sif", "othen_plan", NULL};
    static const char *const term_keys[] = {"sname", "ibytes", NULL};
    size_t i;
    json_t *one;
    check_fields(root, "answer", answer_keys);
    check_fields(json_object_get(root, "plan"), "plan", plan_keys);
    check_predicted(json_object_get(root, "predicted"));
    check_fields(json_object_get(root, "memory"), "memory", memory_keys);
    check_each(json_object_get(json_object_get(root, "memory"), "terms"), "terms", term_keys);
    if (!json_is_null(json_object_get(root, "measured")))
        check_fields(json_object_get(root, "measured"), "measured", measured_keys);
    json_array_foreach(json_object_get(root, "candidates"), i, one)
    {
        check_fields(one, "candidates", candidate_keys);
        check_fields(json_object_get(one, "plan"), "candidates.plan", plan_keys);
        check_predicted(json_object_get(one, "predicted"));
    }
    check_each(json_object_get(root, "rejected"), "rejected", rejected_keys);
    check_each(json_object_get(root, "assumptions"), "assumptions", assumption_keys);
    check_each(json_object_get(root, "flips"), "flips", flip_keys);
}

/* As text and back: nothing is lost, nothing is NaN. */
static json_t *there_and_back(json_t *document)
{
    char *text = json_dumps(document, 0);
    json_t *again = NULL;
    assert_non_null(text);
    CHECK_OK(json_parse(text, strlen(text), "document", &again));
    assert_true(json_equal(document, again));
    free(text);
    json_decref(document);
    return again;
}

static json_t *document_of(void)
{
    json_t *document = recommend_to_json(&answer, &envelope);
    assert_non_null(document);
    document = there_and_back(document);
    check_fields(document, "document", envelope_keys);
    check_answer(document);
    return document;
}

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    assert_non_null(text);
    return text;
}

static double number_at(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static void test_contract(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.world = 4;
    run(STATUS_OK);
    json_t *document = document_of();
    assert_string_equal(text_at(document, "schema"), "sptune.recommendation/1");
    assert_string_equal(text_at(document, "target"), "accelerate");
    const json_t *config = json_object_get(document, "parallelism_config");
    CHECK_NEAR(number_at(config, "sp_size") * number_at(config, "dp_shard_size") *
                   number_at(config, "dp_replicate_size"),
               4, 0);
    assert_string_equal(text_at(config, "sp_attn_implementation"), "sdpa");
    /* every candidate is in one of the two lists */
    size_t n = json_array_size(json_object_get(document, "candidates")) +
               json_array_size(json_object_get(document, "rejected"));
    assert_int_equal(n, answer.n);
    /* breakdown sums to the step; exposed is part of the exchanges */
    const json_t *predicted = json_object_get(document, "predicted"),
                 *parts = json_object_get(predicted, "breakdown_us");
    double sum = 0;
    static const char *const summed[] = {"exchange_in", "attention", "exchange_out", "gemm",
                                         "zero",        "optimizer", "logits",       "elementwise"};
    for (int i = 0; i < CHECK_COUNT(summed); i++)
        sum += number_at(parts, summed[i]);
    CHECK_NEAR(sum / number_at(predicted, "step_us"), 1, 1e-4); /* six digits */
    json_decref(document);
}

static void test_tied_with(void **state)
{
    struct fake fake = fake_default;
    (void)state;
    fake_forget(&bench);
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    fake.exchange_GBps = fake.collective_GBps = fake.copy_GBps = 1e6;
    request.global_batch_tokens = 8192;
    CHECK_OK(request_complete(&request));
    fake_fill(&bench, &fake, &request);
    recommend_free(&answer);
    CHECK_OK(search_run(&request, &bench.session, &answer));
    json_t *document = document_of();
    const char *chosen = text_at(json_object_get(document, "plan"), "text");
    const json_t *candidates = json_object_get(document, "candidates");
    assert_true(json_is_null(json_object_get(json_array_get(candidates, 0), "tied_with")));
    assert_string_equal(text_at(json_array_get(candidates, 1), "tied_with"), chosen);
    assert_string_equal(text_at(json_array_get(candidates, 1), "rule"), "tied");
    struct plan plan;
    CHECK_OK(plan_parse(chosen, &plan));
    assert_int_equal(plan.sp, 1);
    json_decref(document);
}

/* What was not timed as it will run was not measured. */
static void test_measured(void **state)
{
    (void)state;
    fake_forget(&bench);
    fake_request(&bench, "llama-3.2-1b", 16384, 2, &request);
    request.world = 8;
    run(STATUS_OK);
    json_t *document = document_of();
    size_t i;
    json_t *one;
    int measured = 0, modelled = 0;
    json_array_foreach(json_object_get(document, "candidates"), i, one)
    {
        bool is = json_is_object(json_object_get(one, "measured"));
        bool extrapolated = strcmp(text_at(one, "source"), "extrapolated") == 0;
        assert_int_equal(is, !extrapolated);
        measured += is;
        modelled += !is;
    }
    assert_true(measured > 0 && modelled > 0);
    json_decref(document);
    fake_forget(&bench);
    fake_request(&bench, "llama-3.2-1b", 4096, 2, &request);
    request.effort = REQUEST_ESTIMATE;
    run(STATUS_OK);
    document = document_of();
    assert_true(json_is_null(json_object_get(document, "measured")));
    assert_string_equal(text_at(json_array_get(json_object_get(document, "candidates"), 0), "source"), "assumed");
    json_decref(document);
}

static void test_does_not_fit(void **state)
{
    (void)state;
    fake_forget(&bench);
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.device_memory_bytes = (int64_t)2 << 30;
    run(STATUS_NOFIT);
    json_t *document = document_of();
    assert_string_equal(text_at(json_object_get(document, "memory"), "verdict"), "does_not_fit");
    assert_string_equal(text_at(document, "verdict"), "does_not_fit");
    assert_true(text_at(document, "fits_if")[0] != '\0');
    assert_int_equal(json_array_size(json_object_get(document, "files")), 0);
    json_decref(document);
}

/* A name that is not UTF-8 does not lose its key; a job too large to list has no list. */
static void test_odd_values(void **state)
{
    (void)state;
    fake_forget(&bench);
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    run(STATUS_OK);
    text_print(answer.request.model.name, sizeof answer.request.model.name, "bad \xff\xfe name");
    json_t *document = document_of();
    assert_string_equal(text_at(json_object_get(document, "model"), "name"), "bad ?? name");
    json_decref(document);
    answer.request.world = 1 << 20;
    document = recommend_to_json(&answer, &envelope);
    assert_true(json_is_null(json_object_get(json_object_get(document, "plan"), "rank_order")));
    json_decref(document);
}

static void test_list(void **state)
{
    static const int64_t lengths[] = {4096, 8192};
    struct recommendation *answers[2];
    (void)state;
    fake_forget(&bench);
    for (int i = 0; i < 2; i++) {
        fake_request(&bench, "qwen2.5-0.5b", lengths[i], 2, &request);
        run(STATUS_OK);
        answers[i] = malloc(sizeof *answers[i]);
        *answers[i] = answer;
        answer = (struct recommendation){0};
    }
    json_t *document = recommend_list_to_json((const struct recommendation *const *)answers, 2, &envelope);
    document = there_and_back(document);
    assert_string_equal(text_at(document, "schema"), "sptune.plans/1");
    const json_t *list = json_object_get(document, "answers");
    assert_int_equal(json_array_size(list), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *one = json_array_get(list, i);
        check_answer(one);
        CHECK_NEAR(number_at(json_object_get(one, "problem"), "seq"), (double)lengths[i], 0);
    }
    json_decref(document);
    for (int i = 0; i < 2; i++) {
        recommend_free(answers[i]);
        free(answers[i]);
    }
}

static int close_answer(void **state)
{
    recommend_free(&answer);
    return close_all(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contract),     cmocka_unit_test(test_tied_with),  cmocka_unit_test(test_measured),
        cmocka_unit_test(test_does_not_fit), cmocka_unit_test(test_odd_values), cmocka_unit_test(test_list),
    };
    return cmocka_run_group_tests(tests, open_all, close_answer);
}
