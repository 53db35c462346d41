/* tuner/test_screen.c -- the answer as a screen: at most 80 columns, every reason, honest digits; and the table of
 * many. */
#include "tuner/bench_fixture.h"

#include "base/text.h"
#include "tuner/search.h"
#include "tuner/search_state.h"

#include <math.h>
#include <stdlib.h>

static struct recommendation answer;

static void run(const struct fake *fake, enum status expected)
{
    CHECK_OK(request_complete(&request));
    fake_fill(&bench, fake, &request);
    recommend_free(&answer);
    enum status status = search_run(&request, &bench.session, &answer);
    if (status != expected)
        fail_msg("%s: %s", status_name(status), status_last()->what);
}

/* At most 80 columns, nothing but printable text, a newline at the end. */
static void check_shape(const char *screen)
{
    int column = 0;
    for (const char *c = screen; *c != '\0'; c++) {
        if (*c == '\n') {
            assert_true(column <= 80);
            column = 0;
            continue;
        }
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            fail_msg("a control character 0x%02x in %s", (unsigned)*c, screen);
        column += ((unsigned char)*c & 0xc0) != 0x80;
    }
    assert_int_equal(column, 0);
}

static char *screen_of(void)
{
    char *screen = NULL;
    CHECK_OK(recommend_screen(&answer, &screen));
    check_shape(screen);
    return screen;
}

#define SAYS(screen, words)                                                                                            \
    do {                                                                                                               \
        if (strstr(screen, words) == NULL)                                                                             \
            fail_msg("'%s' is not in\n%s", words, screen);                                                             \
    } while (0)

static void test_one(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    run(&fake_default, STATUS_OK);
    char *screen = screen_of();
    SAYS(screen, "qwen2.5-0.5b 0.494 B 14/2 heads | seq 4,096 | 2 x CPU rank 1 TiB");
    SAYS(screen, "assumed: loss=plain zero=3 checkpointing=full");
    SAYS(screen, "USE  sp_size=1 dp_shard_size=2 dp_replicate_size=1 sdpa  (ZeRO-3 over all 2)");
    SAYS(screen, ">= 8,192 tok/step");
    SAYS(screen, "fits; peak at loss: logits_grad");
    SAYS(screen, "why  sp 2: ");
    SAYS(screen, "chosen");
    SAYS(screen, "not measured here: flash_attention_2, flash_attention_3");
    SAYS(screen, "native harness at sp 1: "); /* which has no exchange */
    free(screen);
}

/* CPUs stand in for the GPUs that are planned: the header names these, and a line under the choice says what speeds are
 * worth; so do a table of many answers and both documents. Where the devices are one, nothing does. */
static void test_planned(void **state)
{
    const struct recommendation *answers[] = {&answer, &answer};
    const struct json_envelope envelope = {.command = "sptune tune", .started = "", .machine = ""};
    static const char note[] = "speeds are of CPUs in place of the planned GPUs";
    (void)state;
    for (int planned = DEV_CPU; planned <= DEV_CUDA; planned++) {
        char *screens[2] = {NULL, NULL};
        fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
        request.planned = (enum dev_kind)planned;
        request.world = 4;
        request.ranks_per_host = 2;
        run(&fake_default, STATUS_OK);
        screens[0] = screen_of();
        CHECK_OK(recommend_list_screen(answers, 2, &screens[1]));
        check_shape(screens[1]);
        json_t *documents[] = {recommend_to_json(&answer, &envelope), recommend_list_to_json(answers, 2, &envelope)};
        SAYS(screens[0], planned == DEV_CUDA ? "4 x planned GPU 1 TiB on 2 hosts" : "4 x CPU rank 1 TiB on 2 hosts");
        if (planned == DEV_CUDA)
            SAYS(screens[0], "tok/step\nNOTE speeds are of CPUs"); /* right under the choice */
        for (int i = 0; i < 2; i++) {
            size_t warnings = json_array_size(json_object_get(documents[i], "warnings"));
            assert_int_equal(strstr(screens[i], note) != NULL, planned == DEV_CUDA);
            assert_int_equal(warnings, planned == DEV_CUDA);
            json_decref(documents[i]);
            free(screens[i]);
        }
    }
}

/* A word that the line of assumptions has no room to explain. */
static void test_disturbed(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    run(&fake_default, STATUS_OK);
    char *screen = screen_of();
    int before = answer.request.nassumptions;
    assert_null(strstr(screen, "slowed what was timed"));
    free(screen);
    request_assume(&answer.request, "samples", "disturbed", search_disturber(DEV_CPU));
    screen = screen_of();
    SAYS(screen, "samples=disturbed: other work on these CPUs slowed what was timed");
    free(screen);
    answer.request.nassumptions = before;
    request_assume(&answer.request, "samples", "disturbed", search_disturber(DEV_CUDA));
    screen = screen_of();
    SAYS(screen, "samples=disturbed: other work on these GPUs, or heat, slowed what was timed");
    free(screen);
    answer.request.nassumptions = before;
    request_assume(&answer.request, "samples", "few", "the estimates' share of the budget ended");
    screen = screen_of();
    SAYS(screen, "samples=few: the estimates' share of the budget ended before all was timed;");
    free(screen);
}

static void test_not(void **state)
{
    (void)state;
    fake_forget(&bench);
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.device_memory_bytes = (int64_t)2 << 30;
    run(&fake_default, STATUS_NOFIT);
    char *screen = screen_of();
    SAYS(screen, "NOT  sp_size=2");
    SAYS(screen, "does not fit; peak at");
    SAYS(screen, "FIT  ");
    SAYS(screen, "nearest");
    assert_null(strstr(screen, "USE"));
    assert_null(strstr(screen, "chosen"));
    assert_null(strstr(screen, "FLIP")); /* none of them fits either */
    free(screen);
}

static void test_measure_first(void **state)
{
    (void)state;
    fake_forget(&bench);
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.device_memory_bytes = (int64_t)11 << 30; /* sp 2 takes 9.4 */
    request.global_batch_tokens = 2 * 4096;
    run(&fake_default, STATUS_OK);
    char *screen = screen_of();
    SAYS(screen, "USE  sp_size=2");
    SAYS(screen, "measure first (above 80 %)");
    SAYS(screen, "to know more: one training step at sp 2");
    assert_null(strstr(screen, ">= ")); /* the batch is fixed */
    assert_null(strstr(screen, "not fixed"));
    SAYS(screen, "FLIP --loss fused -> sp 1, 6.74 GiB, +2 % tok/s by estimate");
    SAYS(screen, "FLIP --offload optimizer -> sp 2, 6.15 GiB, 0 % tok/s");
    free(screen);
}

/* sp 1 splits nothing: no method is named that nobody asked for. */
static void test_method(void **state)
{
    (void)state;
    fake_forget(&bench);
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    CHECK_OK(request_retarget(&request, target_find("sptune")));
    request.space.nmethod = 2;
    request.space.method[0] = PLAN_METHOD_RING;
    request.space.method[1] = PLAN_METHOD_SPLIT_GATHER;
    run(&fake_default, STATUS_OK);
    char *screen = screen_of();
    assert_null(strstr(screen, "ulysses"));
    SAYS(screen, " whole");
    SAYS(screen, " ring");
    free(screen);
    json_t *document =
        recommend_to_json(&answer, &(struct json_envelope){.command = "sptune tune", .started = "", .machine = ""});
    char *text = NULL;
    CHECK_OK(json_format(document, false, &text));
    SAYS(text, "\"method\": null");
    SAYS(text, "\"method\": \"ring\"");
    assert_null(strstr(text, "whole\""));
    free(text);
    json_decref(document);
}

/* Options that were opened differ between rows, so each row names its own; lines stay short. */
static void test_opened(void **state)
{
    (void)state;
    fake_forget(&bench);
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    struct plan_space *space = &request.space;
    space->nloss = 2;
    space->loss[0] = PLAN_LOSS_PLAIN;
    space->loss[1] = PLAN_LOSS_FUSED;
    space->nzero = 2;
    space->zero[0] = 2;
    space->zero[1] = 3;
    space->ncheckpointing = 2;
    space->checkpointing[0] = PLAN_CHECKPOINTING_NONE;
    space->checkpointing[1] = PLAN_CHECKPOINTING_FULL;
    request.nmicro = 2;
    request.micro_batch[0] = 1;
    request.micro_batch[1] = 2;
    run(&fake_default, STATUS_OK);
    char *screen = screen_of();
    SAYS(screen, "slower micro_batch=1\n     zero=2 checkpointing=none loss=plain");
    SAYS(screen, "and ");
    SAYS(screen, "--json has them all");
    for (int i = 0; i < answer.nflips; i++) /* what the user opened is no flip */
        assert_true(strncmp(answer.flips[i].condition, "--loss", 6) != 0 &&
                    strncmp(answer.flips[i].condition, "--zero", 6) != 0);
    free(screen);
}

/* Names and numbers as long as they come. */
static void test_extremes(void **state)
{
    (void)state;
    fake_forget(&bench);
    fake_request(&bench, "llama-3.1-405b", INT64_C(1) << 33, 2, &request);
    request.world = 1 << 20;
    memset(request.model.name, 'x', sizeof request.model.name - 1);
    request.model.name[3] = '\x1b';
    request.model.name[4] = '\xff';
    request.device_memory_bytes = INT64_C(1) << 60;
    request.host_memory_bytes = 1;
    request.space.noffload = 1;
    request.space.offload[0] = PLAN_OFFLOAD_OPTIMIZER;
    run(&fake_default, STATUS_NOFIT);
    char *screen = screen_of();
    SAYS(screen, "hosts with");
    SAYS(screen, "refused sp 256 512 1024 2048 4096 8192 16384 32768 65536 131072 262144 524288");
    SAYS(screen, "... (heads_not_divisible): ");
    free(screen);
    answer.interrupted = answer.budget_ended = true;
    for (int i = answer.request.nassumptions; i < REQUEST_ASSUMPTIONS; i++)
        request_assume(&answer.request, "a_rather_long_assumption_name",
                       "and a value of sixty-three characters, which is as long as it gets", "f");
    struct plan *plan = &answer.candidates[answer.chosen].plan;
    plan->order_n = PLAN_ORDER_MAX;
    screen = screen_of();
    SAYS(screen, "INTERRUPTED");
    SAYS(screen, "budget ended");
    SAYS(screen, "rank order 0 0");
    free(screen);
}

/* No row of the table says more digits than its interval carries. */
static void test_digits(void **state)
{
    (void)state;
    fake_forget(&bench);
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.effort = REQUEST_ESTIMATE;
    run(&fake_default, STATUS_OK);
    struct recommend_candidate *c = &answer.candidates[answer.chosen];
    c->tokens_per_s_per_device = 412.3456;
    c->lo = 330;
    c->hi = 490;
    c->time.step_us = 39.87654e6;
    c->time.lo_us = 33e6;
    c->time.hi_us = 47e6;
    char *screen = screen_of();
    SAYS(screen, "412 tok/s/rank [330..490, 95 %]");
    assert_null(strstr(screen, "412."));
    assert_null(strstr(screen, "39.88"));
    SAYS(screen, "  A  chosen");
    free(screen);
}

/* Lists: the best per length, and where the answer changes; in whatever order. */
static void test_list(void **state)
{
    static const int64_t lengths[] = {16384, 2048, 8192, 65536};
    struct recommendation *answers[CHECK_COUNT(lengths)] = {NULL};
    char *screen = NULL;
    (void)state;
    fake_forget(&bench);
    for (int i = 0; i < CHECK_COUNT(lengths); i++) {
        fake_request(&bench, "qwen2.5-0.5b", lengths[i], 2, &request);
        request.device_memory_bytes = (int64_t)32 << 30; /* sp 1 up to 8k, sp 2 at 16k, neither at 64k */
        run(&fake_default, lengths[i] == 65536 ? STATUS_NOFIT : STATUS_OK);
        answers[i] = malloc(sizeof *answers[i]);
        *answers[i] = answer;
        answer = (struct recommendation){0};
    }
    CHECK_OK(recommend_list_screen((const struct recommendation *const *)answers, CHECK_COUNT(lengths), &screen));
    check_shape(screen);
    SAYS(screen, "heads 14/2: sp 1 -> 2 between 8,192 and 16,384 tokens");
    SAYS(screen, "heads 14/2: fits -> does not fit between 16,384 and 65,536 tokens");
    assert_null(strstr(screen, "between 2,048"));
    free(screen);
    for (int i = 0; i < CHECK_COUNT(lengths); i++) {
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
        cmocka_unit_test(test_one),           cmocka_unit_test(test_not),      cmocka_unit_test(test_disturbed),
        cmocka_unit_test(test_measure_first), cmocka_unit_test(test_opened),   cmocka_unit_test(test_method),
        cmocka_unit_test(test_planned),       cmocka_unit_test(test_extremes), cmocka_unit_test(test_digits),
        cmocka_unit_test(test_list),
    };
    return cmocka_run_group_tests(tests, open_all, close_answer);
}
