/* tuner/test_gpu.c -- searches on a machine of two GPUs whose rates are known: which exchanges and kernels are candidates there, for both
 * targets, and that an answer comes. In builds with GPU parts; no GPU is asked.
 */
#include "tuner/admitted.h"
#include "tuner/search_fixture.h"

static struct topo gpus;

static void ask(const char *target)
{
    fake_request(&bench, "llama-3-8b", 32768, 2, &request);
    request.target = target_find(target);
    request.topo = &gpus;
    request.dev = request.planned = DEV_CUDA;
}

static const char *assumed(const char *name, const char **from)
{
    for (int i = 0; i < answer.request.nassumptions; i++)
        if (strcmp(answer.request.assumptions[i].name, name) == 0) {
            *from = answer.request.assumptions[i].from;
            return answer.request.assumptions[i].value;
        }
    return NULL;
}

/* What trainers run: NCCL, one tensor after another; flash_attention_2 through the kernel of ours that is nearest. */
static void test_accelerate(void **state)
{
    const char *from = "";
    (void)state;
    ask("accelerate");
    run(&fake_default);
    assert_string_equal(chosen()->plan.exchange, "nccl-separate");
    assert_true(chosen()->timed);
    assert_int_equal(chosen()->plan.chunks, 1);
    assert_string_equal(assumed("flash_attention_2", &from), "kernel flash2");
    assert_non_null(strstr(from, "stands in"));
    assert_null(assumed("exchange", &from)); /* that is the target's own */
    for (int i = 0; i < answer.n; i++) {
        const struct recommend_candidate *row = &answer.candidates[i];
        assert_string_equal(row->plan.exchange, "nccl-separate");
        if (strcmp(row->attention_class, "flash_attention_3") == 0) /* nothing here stands for it */
            assert_int_equal(row->verdict.rule, RULE_NOT_MEASURED);
        if (strcmp(row->attention_class, "flash_attention_2") == 0)
            assert_true(verdict_ok(&row->verdict) && row->timed);
    }
    assert_true(answer.native_best >= 0);
    assert_string_equal(answer.native.plan.exchange, "push");
}

/* What is to be timed of a plan can be: by exchanges and kernels of GPUs, also where nothing is exchanged. */
static void test_parts_run_here(void **state)
{
    (void)state;
    check_everything(&bench, &gpus, DEV_CUDA);
}

static int rows_with(const char *exchange, int sp)
{
    int n = 0;
    for (int i = 0; i < answer.n; i++)
        n += answer.candidates[i].plan.sp == sp && strcmp(answer.candidates[i].plan.exchange, exchange) == 0 &&
             strcmp(answer.candidates[i].plan.attention, "flash2") == 0 && answer.candidates[i].plan.chunks == 1;
    return n;
}

/* Ours: exchanges that store, fetch, and those of NCCL; kernels of GPUs alone. */
static void test_sptune(void **state)
{
    (void)state;
    ask("sptune");
    run(&fake_default);
    assert_true(chosen()->timed);
    assert_int_equal(rows_with("push", 2), 1);
    assert_int_equal(rows_with("pull", 2), 1);
    assert_int_equal(rows_with("nccl", 2), 1);
    assert_int_equal(rows_with("nccl-separate", 2), 0);
    assert_int_equal(rows_with("push", 1) + rows_with("pull", 1) + rows_with("nccl", 1), 1); /* nothing moves there */
    for (int i = 0; i < answer.n; i++)
        assert_string_not_equal(answer.candidates[i].attention_class, "cpu");
}

/* Ranks whose GPUs do not reach each other's memory: NCCL's exchanges are left, and the reason is told. */
static void test_without_peer_access(void **state)
{
    (void)state;
    ask("sptune");
    CHECK_OK(request_complete(&request));
    assert_string_equal(request.space.base.exchange, "push");
    request_without_direct(&request, "GPU 0 cannot reach the memory of GPU 1");
    assert_string_equal(request.space.base.exchange, "nccl");
    assert_true(request.space.nexchange > 0);
    for (int i = 0; i < request.space.nexchange; i++)
        assert_int_equal(strncmp(request.space.exchange[i], "nccl", 4), 0);
    bool told = false;
    for (int i = 0; i < request.nassumptions; i++)
        told = told || strcmp(request.assumptions[i].from, "GPU 0 cannot reach the memory of GPU 1") == 0;
    assert_true(told);
}

/* The smallest of the GPUs that ranks get; where NVML is silent what CUDA says; the host's memory never. */
static void test_memory(void **state)
{
    (void)state;
    ask("accelerate");
    request.device_memory_bytes = 0;
    gpus.gpus[0].memory_bytes = INT64_C(144) << 30;
    gpus.gpus[1].memory_bytes = INT64_C(96) << 30;
    CHECK_OK(request_complete(&request));
    assert_int_equal(request.device_memory_bytes, INT64_C(96) << 30);
    ask("accelerate");
    request.device_memory_bytes = 0;
    gpus.gpus[0].memory_bytes = gpus.gpus[1].memory_bytes = -1;
    request.dev_memory_bytes = INT64_C(80) << 30;
    CHECK_OK(request_complete(&request));
    assert_int_equal(request.device_memory_bytes, INT64_C(80) << 30);
    assert_string_equal(request.device_memory_from, "as CUDA tells it");
    ask("accelerate");
    request.device_memory_bytes = 0;
    CHECK_FAILS(STATUS_USAGE, "no driver tells", request_complete(&request));
}

/* NVLink joins 0-4, 1-5, 2-6 and 3-7: groups of 2 are those. Of a job of more hosts no links are known, and its order is an assumption. */
static void test_rank_order(void **state)
{
    static const int want[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const char *from = "";
    struct topo pairs;
    (void)state;
    CHECK_OK(topo_open("synth:8xA6000,nvlink=4,pairs=0-4,1-5,2-6,3-7", &pairs));
    for (int hosts = 1; hosts <= 64; hosts *= 64) {
        ask("accelerate");
        request.topo = &pairs;
        request.world = 8 * hosts;
        request.sp_fixed = true;
        request.space.nsp = 1;
        request.space.sp[0] = 2;
        run(&fake_default);
        assert_int_equal(chosen()->plan.sp, 2);
        assert_int_equal(chosen()->plan.order_n, hosts == 1 ? 8 : 0);
        for (int r = 0; r < chosen()->plan.order_n; r++)
            assert_int_equal(chosen()->plan.order[r], want[r]);
        assert_int_equal(assumed("rank_order", &from) != NULL, hosts > 1);
    }
    assert_non_null(strstr(from, "8 GPUs"));
    topo_free(&pairs);
}

static int open_gpus(void **state)
{
    CHECK_OK(topo_open("synth:1x2xH200,nvlink=18", &gpus));
    return open_all(state);
}

static int close_gpus(void **state)
{
    topo_free(&gpus);
    return close_all(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_accelerate),          CASE(test_parts_run_here), CASE(test_sptune),
        CASE(test_without_peer_access), CASE(test_memory),         CASE(test_rank_order),
    };
    return cmocka_run_group_tests(tests, open_gpus, close_gpus);
}
