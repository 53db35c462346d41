/* tuner/test_request.c -- what somebody asked: defaults are told, contradictions refused, repeats dropped. */
#include "tuner/bench_fixture.h"

#include "base/text.h"

#include <limits.h>
#include <stdlib.h>

static const struct request_assumption *assumption(const char *name)
{
    for (int i = 0; i < request.nassumptions; i++)
        if (strcmp(request.assumptions[i].name, name) == 0)
            return &request.assumptions[i];
    return NULL;
}

static void test_defaults_are_told(void **state)
{
    static const struct {
        const char *name, *value;
    } told[] = {{"loss", "plain"},      {"zero", "3"},        {"checkpointing", "full"},       {"offload", "none"},
                {"optimizer", "adamw"}, {"micro_batch", "1"}, {"exchange", "packed-separate"}, {"sdpa", "kernel cpu"}};
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    CHECK_OK(request_complete(&request));
    for (int i = 0; i < CHECK_COUNT(told); i++) {
        assert_non_null(assumption(told[i].name));
        assert_string_equal(assumption(told[i].name)->value, told[i].value);
    }
    assert_null(assumption("device_memory")); /* it was given */
    assert_null(assumption("measured_ranks"));
    assert_int_equal(request.ranks_per_host, 2);
    assert_string_equal(request.space.base.exchange, "packed-separate");
}

/* What was fixed is not an assumption. */
static void test_fixed_is_not_assumed(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.space.nloss = request.space.nzero = request.space.ncheckpointing = request.space.noffload = 1;
    request.space.zero[0] = 2;
    request.nmicro = 1;
    request.micro_batch[0] = 3;
    CHECK_OK(request_complete(&request));
    static const char *const gone[] = {"loss", "zero", "checkpointing", "offload", "micro_batch"};
    for (int i = 0; i < CHECK_COUNT(gone); i++)
        assert_null(assumption(gone[i]));
}

static void test_world(void **state)
{
    static const int worlds[][2] = {{2, 1}, {1, -1}, {0, 1}, {-1, -1}, {INT_MAX, 2}};
    (void)state;
    for (int i = 0; i < CHECK_COUNT(worlds); i++) {
        fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
        request.ranks = worlds[i][0];
        request.world = worlds[i][1];
        CHECK_FAILS(STATUS_USAGE, "--world", request_complete(&request));
    }
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.world = 1 << 20;
    CHECK_OK(request_complete(&request));
    assert_string_equal(assumption("measured_ranks")->value, "2 of 1048576");
}

static enum status hosts_of(int ranks, int world, int nodes, int gpus)
{
    fake_request(&bench, "qwen2.5-0.5b", 4096, ranks, &request);
    request.world = world;
    request.nodes = nodes;
    request.ranks_per_host = gpus;
    return request_complete(&request);
}

/* Hosts are those asked for; what was left out and is more than what runs here is told. */
static void test_hosts(void **state)
{
    static const struct {
        int ranks, asked[3], made[3]; /* world, nodes, gpus per node; 0: open */
        const char *gpus, *nodes;     /* what is assumed of them, NULL: nothing */
    } all[] = {{2, {0, 0, 0}, {2, 1, 2}, NULL, NULL},   {2, {8, 0, 0}, {8, 4, 2}, "2", NULL},
               {2, {8, 0, 8}, {8, 1, 8}, NULL, NULL},   {2, {16, 0, 8}, {16, 2, 8}, NULL, NULL},
               {2, {4, 0, 8}, {4, 1, 4}, NULL, NULL},   {2, {0, 2, 8}, {16, 2, 8}, NULL, NULL},
               {2, {0, 1, 0}, {2, 1, 2}, NULL, NULL},   {2, {0, 3, 0}, {6, 3, 2}, "2", NULL},
               {2, {8, 2, 0}, {8, 2, 4}, NULL, NULL},   {2, {0, 0, 8}, {8, 1, 8}, NULL, "1"},
               {2, {16, 2, 8}, {16, 2, 8}, NULL, NULL}, {2, {4, 1, 8}, {4, 1, 4}, NULL, NULL},
               {4, {6, 0, 0}, {6, 2, 3}, "3", NULL},    {2, {2, 2, 1}, {2, 2, 1}, NULL, NULL}};
    (void)state;
    for (int i = 0; i < CHECK_COUNT(all); i++) {
        CHECK_OK(hosts_of(all[i].ranks, all[i].asked[0], all[i].asked[1], all[i].asked[2]));
        const struct request_assumption *gpus = assumption("gpus_per_node"), *nodes = assumption("nodes");
        assert_int_equal(request.world, all[i].made[0]);
        assert_int_equal(request.problem.world, all[i].made[0]);
        assert_int_equal(request.nodes, all[i].made[1]);
        assert_int_equal(request.ranks_per_host, all[i].made[2]);
        assert_string_equal(gpus != NULL ? gpus->value : "", all[i].gpus != NULL ? all[i].gpus : "");
        assert_string_equal(nodes != NULL ? nodes->value : "", all[i].nodes != NULL ? all[i].nodes : "");
    }
    CHECK_OK(hosts_of(4, 6, 0, 0));
    assert_string_equal(assumption("gpus_per_node")->from, "hosts are alike, of at most the 4 that run here");
}

/* Every GPU of this host, whatever is measured on. */
static void test_hosts_of_gpus(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    struct topo topo = bench.topo;
    topo.ngpus = 8;
    topo.nhosts = 1;
    request.topo = &topo;
    request.dev = request.planned = DEV_CUDA;
    request.world = 16;
    CHECK_OK(request_complete(&request));
    assert_int_equal(request.ranks_per_host, 8);
    assert_string_equal(assumption("gpus_per_node")->value, "8");
}

static void test_hosts_refused(void **state)
{
    static const struct {
        int ranks, asked[3];
        const char *what, *hint;
    } all[] = {
        {2, {10, 0, 8}, "--world 10 is no multiple of --gpus-per-node 8", "--world 8 or 16, or --gpus-per-node 5"},
        {10, {10, 0, 8}, "--world 10 is no multiple of --gpus-per-node 8", "--world 16, or --gpus-per-node 5"},
        {2, {8, 3, 0}, "--world 8 is no multiple of --nodes 3", "--world 6 or 9"},
        {2, {2, 3, 0}, "--world 2 is no multiple of --nodes 3", "--world 3"},
        {2, {8, 2, 8}, "--world 8 is not --nodes 2 times --gpus-per-node 8", "--nodes 1, or leave --world out"},
        {2, {0, 1, 1}, "--gpus-per-node = 1 is smaller than the 2 ranks", "--ranks 1"},
        {2, {0, 1 << 20, 1 << 20}, "more than 1048576 processes", "--nodes 1 or fewer"},
        {2, {0, INT_MAX, 0}, "more than 1048576 processes", "--nodes 524288 or fewer"}};
    (void)state;
    for (int i = 0; i < CHECK_COUNT(all); i++) {
        CHECK_FAILS(STATUS_USAGE, all[i].what,
                    hosts_of(all[i].ranks, all[i].asked[0], all[i].asked[1], all[i].asked[2]));
        if (strstr(status_last()->hint, all[i].hint) == NULL)
            fail_msg("%s: %s", all[i].what, status_last()->hint);
    }
}

static void test_absurd_sizes(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", INT64_C(1000000000000000000), 2, &request);
    CHECK_FAILS(STATUS_USAGE, "seq", request_complete(&request));
    fake_request(&bench, "qwen2.5-0.5b", -1, 2, &request);
    CHECK_FAILS(STATUS_USAGE, "seq", request_complete(&request));
}

static void test_unknown_words(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.nclasses = 1;
    text_print(request.classes[0], PLAN_NAME, "flash_attention2");
    CHECK_FAILS(STATUS_USAGE, "flash_attention2", request_complete(&request));
    assert_non_null(strstr(status_last()->hint, "did you mean flash_attention_2?"));
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.nclasses = 1; /* a kernel is not a class of accelerate */
    text_print(request.classes[0], PLAN_NAME, "cpu");
    CHECK_FAILS(STATUS_USAGE, "'cpu'", request_complete(&request));
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.space.nexchange = 1;
    text_print(request.space.exchange[0], PLAN_NAME, "paked");
    CHECK_FAILS(STATUS_USAGE, "paked", request_complete(&request));
}

static void test_repeats(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.nclasses = 2;
    request.space.nsp = 3;
    request.nmicro = 3;
    request.space.nexchange = 2;
    for (int i = 0; i < 3; i++) {
        request.space.sp[i] = i < 2 ? 2 : 1;
        request.micro_batch[i] = i < 2 ? 4 : 2;
    }
    for (int i = 0; i < 2; i++) {
        text_print(request.classes[i], PLAN_NAME, "sdpa");
        text_print(request.space.exchange[i], PLAN_NAME, "packed-separate");
    }
    CHECK_OK(request_complete(&request));
    assert_int_equal(request.space.nattention, 1);
    assert_int_equal(request.space.nsp, 2);
    assert_int_equal(request.space.sp[1], 1);
    assert_int_equal(request.nmicro, 2);
    assert_int_equal(request.micro_batch[1], 2);
    assert_int_equal(request.space.nexchange, 1);
    struct candidates candidates;
    CHECK_OK(candidates_build(&request, &candidates));
    assert_int_equal(candidates.n, 4);
    candidates_free(&candidates);
}

/* A replay knows nothing of the memory here; a live run takes what is free. */
static void test_memory(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.device_memory_bytes = 0;
    CHECK_FAILS(STATUS_USAGE, "--replay", request_complete(&request));
    assert_non_null(strstr(status_last()->hint, "--device-memory"));
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.device_memory_bytes = 0;
    request.replay = false;
    CHECK_OK(request_complete(&request));
    assert_true(request.device_memory_bytes > 0);
    assert_string_equal(assumption("device_memory")->from, "available memory / 2 ranks");
}

/* The same question to our own harness: its defaults; what it cannot run is open, the rest stays fixed. */
static void test_retarget(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    struct plan_space *space = &request.space;
    space->noffload = space->nloss = space->nexchange = 1;
    space->offload[0] = PLAN_OFFLOAD_OPTIMIZER;
    space->loss[0] = PLAN_LOSS_FUSED;
    text_print(space->exchange[0], PLAN_NAME, "packed-separate");
    space->ncheckpointing = 2;
    space->checkpointing[0] = PLAN_CHECKPOINTING_OFFLOAD;
    space->checkpointing[1] = PLAN_CHECKPOINTING_NONE;
    CHECK_OK(request_complete(&request));
    assert_int_equal(space->nmethod, 1);
    assert_int_equal(space->method[0], PLAN_METHOD_ULYSSES);
    CHECK_OK(request_retarget(&request, target_find("sptune")));
    assert_int_equal(space->nmethod, 3); /* ulysses+ring is run, not searched */
    assert_int_equal(space->method[2], PLAN_METHOD_SPLIT_GATHER);
    assert_int_equal(space->noffload, 0);
    assert_int_equal(space->nexchange, 0);
    assert_string_equal(space->base.exchange, "direct");
    assert_int_equal(space->ncheckpointing, 1);
    assert_int_equal(space->checkpointing[0], PLAN_CHECKPOINTING_NONE);
    assert_int_equal(space->loss[0], PLAN_LOSS_FUSED);
    assert_int_equal(space->nattention, 1);
    assert_string_equal(space->attention[0], "cpu");
}

/* Ranks without mapped memory: packed in place of a default, with the reason; what was fixed stays, to be waived by
 * name. */
static void test_without_direct(void **state)
{
    (void)state;
    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    CHECK_OK(request_complete(&request));
    request_without_direct(&request, "no shared memory");
    assert_string_equal(request.space.base.exchange, "packed-separate"); /* accelerate's own needs none */
    CHECK_OK(request_retarget(&request, target_find("sptune")));
    assert_string_equal(request.space.base.exchange, "packed");
    assert_string_equal(assumption("exchange")->value, "packed");
    assert_string_equal(assumption("exchange")->from, "no shared memory");

    fake_request(&bench, "qwen2.5-0.5b", 4096, 2, &request);
    request.target = target_find("sptune");
    request.space.nexchange = 1;
    text_print(request.space.exchange[0], PLAN_NAME, "direct");
    CHECK_OK(request_complete(&request));
    request_without_direct(&request, "no shared memory");
    assert_null(assumption("exchange"));
    assert_string_equal(request.space.exchange[0], "direct");
}

static void test_many_assumptions(void **state)
{
    (void)state;
    request_init(&request);
    for (int i = 0; i < 2 * REQUEST_ASSUMPTIONS; i++)
        request_assume(&request, "a name that is much longer than the field has room for", "v", "f");
    assert_int_equal(request.nassumptions, REQUEST_ASSUMPTIONS);
    assert_int_equal(strlen(request.assumptions[0].name), sizeof request.assumptions[0].name - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_told),
        cmocka_unit_test(test_fixed_is_not_assumed),
        cmocka_unit_test(test_world),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_hosts_of_gpus),
        cmocka_unit_test(test_hosts_refused),
        cmocka_unit_test(test_absurd_sizes),
        cmocka_unit_test(test_unknown_words),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_retarget),
        cmocka_unit_test(test_without_direct),
        cmocka_unit_test(test_many_assumptions),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
