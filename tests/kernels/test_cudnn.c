/* tests/kernels/test_cudnn.c -- cuDNN's attention without a GPU: what it is asked for, where a workspace has what, and that cuDNN, where
 * it is installed, recognises the graphs. */
#include "base/check.h"
#include "base/verdict.h"
#include "kernels/attention_cudnn.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* cuDNN never gives back its tables of engines; whoever looks for leaks is told to look away meanwhile. */
extern void __lsan_disable(void) __attribute__((weak));
extern void __lsan_enable(void) __attribute__((weak));

static struct attention_shape llama(void)
{
    struct attention_shape shape = {.batch = 1,
                                    .seq_q = 8192,
                                    .seq_k = 8192,
                                    .heads = 32,
                                    .kv_heads = 8,
                                    .head_dim = 128,
                                    .dtype = DTYPE_BF16,
                                    .causal = ATTENTION_TOP_LEFT};
    attention_shape_fill(&shape);
    return shape;
}

static struct cudnn_key key_of(const struct attention_shape *shape, bool backward, bool ordered)
{
    struct cudnn_key key;
    struct verdict verdict = cudnn_key_of(shape, backward, ordered, &key);
    if (!verdict_ok(&verdict))
        fail_msg("refused: %s", verdict.why);
    return key;
}

#define REFUSED(word, change)                                                                                          \
    do {                                                                                                               \
        struct attention_shape shape = llama();                                                                        \
        struct cudnn_key key;                                                                                          \
        change;                                                                                                        \
        struct verdict verdict = cudnn_key_of(&shape, true, false, &key);                                              \
        assert_int_equal(verdict.rule, RULE_KERNEL_CANNOT);                                                            \
        if (!strstr(verdict.why, word))                                                                                \
            fail_msg("'%s' does not say '%s'", verdict.why, word);                                                     \
    } while (0)

static void test_refusals(void **state)
{
    (void)state;
    static const int64_t some[] = {0, 10, 30}, fewer[] = {0, 10, 25}, none[] = {0, 0, 30}, empty[] = {4, 4, 4};
    REFUSED("not fp32", shape.dtype = DTYPE_FP32);
    REFUSED("not 264", shape.head_dim = shape.head_dim_v = 264; attention_shape_fill(&shape));
    REFUSED("not 100", shape.head_dim = shape.head_dim_v = 100; attention_shape_fill(&shape));
    REFUSED("whole groups", shape.heads = 6; shape.group = 4);
    REFUSED("whole groups", shape.heads = 4; shape.group = 4; shape.group_first = 2);
    REFUSED("begin at 16 bytes", shape.k_stride += 4);
    REFUSED("without tokens", shape.seq_k = 0);
    REFUSED("one query with one key", shape.seq_q = 1; shape.seq_k = 1);
    REFUSED("rows without a key", shape.seq_k = 8191; shape.causal = ATTENTION_BOTTOM_RIGHT);
    REFUSED("rows without a key", shape.docs = 2; shape.cu_q = some; shape.cu_k = fewer;
            shape.causal = ATTENTION_BOTTOM_RIGHT);
    REFUSED("queries or keys alone", shape.docs = 2; shape.cu_q = none; shape.cu_k = some);
    REFUSED("documents without tokens", shape.docs = 2; shape.cu_q = empty; shape.cu_k = empty);
    REFUSED("multiple of 16", shape.head_dim = shape.head_dim_v = 72; attention_shape_fill(&shape); shape.docs = 2;
            shape.cu_q = shape.cu_k = some);
    REFUSED("batch", shape.batch = -1); /* the rules of every kernel come first */
}

/* Heads inside one group are one kv head's; unused kv heads do not count. */
static void test_groups(void **state)
{
    (void)state;
    struct attention_shape shape = llama();
    struct cudnn_key key = key_of(&shape, false, false);
    assert_int_equal(key.kv_heads, 8);
    shape.heads = 2;
    shape.group = 4;
    shape.group_first = 1;
    key = key_of(&shape, false, false);
    assert_int_equal(key.kv_heads, 1);
    shape.heads = 8;
    shape.group_first = 0;
    key = key_of(&shape, false, false);
    assert_int_equal(key.kv_heads, 2);
}

/* Keys are compared byte by byte: equal calls make equal keys, and what a plan holds as a constant is in it. */
static void test_keys(void **state)
{
    (void)state;
    struct attention_shape shape = llama(), other = llama();
    struct cudnn_key a = key_of(&shape, true, false), b = key_of(&other, true, false);
    assert_memory_equal(&a, &b, sizeof a);
    other.scale = 0.5f;
    b = key_of(&other, true, false);
    assert_memory_not_equal(&a, &b, sizeof a);
    b = key_of(&shape, false, false);
    assert_memory_not_equal(&a, &b, sizeof a);
    b = key_of(&shape, true, true);
    assert_memory_not_equal(&a, &b, sizeof a);
    a = key_of(&shape, false, false);
    b = key_of(&shape, false, true); /* forward has one order anyway */
    assert_memory_equal(&a, &b, sizeof a);
    shape.causal = ATTENTION_BOTTOM_RIGHT; /* the same mask when the lengths are equal */
    b = key_of(&shape, false, false);
    assert_memory_equal(&a, &b, sizeof a);
    shape.window = 8192 * 2;
    b = key_of(&shape, false, false);
    assert_memory_equal(&a, &b, sizeof a);
}

/* The backward pass over documents is not for GPUs of every kind. */
static void test_gpus(void **state)
{
    (void)state;
    static const int64_t cu[] = {0, 1000, 8192};
    static const int majors[] = {8, 9, 10, 12};
    struct attention_shape shape = llama(), packed = llama();
    packed.docs = 2;
    packed.cu_q = packed.cu_k = cu;
    for (int i = 0; i < CHECK_COUNT(majors); i++)
        for (int backward = 0; backward < 2; backward++)
            for (int ordered = 0; ordered < 2; ordered++) {
                struct cudnn_key whole = key_of(&shape, backward, ordered),
                                 documents = key_of(&packed, backward, ordered);
                assert_int_equal(cudnn_key_on(&whole, majors[i]).rule, RULE_OK);
                bool no = backward && (majors[i] == 8 || majors[i] == 12);
                struct verdict verdict = cudnn_key_on(&documents, majors[i]);
                assert_int_equal(verdict.rule, no ? RULE_KERNEL_CANNOT : RULE_OK);
                assert_true(!no || strstr(verdict.why, "packed documents on compute capability") != NULL);
            }
}

/* Other documents, the same plan: counts and lengths are rounded up. */
static void test_documents_share_plans(void **state)
{
    (void)state;
    static const int64_t five[] = {0, 1000, 3000, 3001, 5000, 8192},
                         eight[] = {0, 100, 200, 300, 2300, 4200, 5200, 5200, 8000};
    struct attention_shape shape = llama();
    shape.docs = 5;
    shape.cu_q = shape.cu_k = five; /* longest 3192 */
    struct cudnn_key a = key_of(&shape, true, false);
    assert_int_equal(a.batch, 8);
    assert_int_equal(a.seq_q, 4096);
    assert_int_equal(a.seq_k, 4096);
    assert_int_equal(a.tokens_q, 8192);
    shape.docs = 8; /* one is empty; longest 2800 */
    shape.cu_q = shape.cu_k = eight;
    struct cudnn_key b = key_of(&shape, true, false);
    assert_memory_equal(&a, &b, sizeof a);
    shape.causal = ATTENTION_BOTTOM_RIGHT;
    b = key_of(&shape, true, false);
    assert_memory_equal(&a, &b, sizeof a);
    int64_t many[601];
    for (int i = 0; i <= 600; i++)
        many[i] = 3 * i;
    shape.docs = 600;
    shape.cu_q = shape.cu_k = many;
    b = key_of(&shape, true, false);
    assert_int_equal(b.batch, 1024);
    assert_int_equal(b.seq_q, 128);
}

static void test_workspace(void **state)
{
    (void)state;
    static const int64_t cu[] = {0, 1000, 8192};
    struct attention_shape shape = llama();
    struct cudnn_key key = key_of(&shape, false, false);
    assert_int_equal(cudnn_room_of(&key, 1000).bytes, 1024); /* forward: cuDNN's own alone */
    key = key_of(&shape, true, false);
    struct cudnn_room room = cudnn_room_of(&key, 256);
    assert_int_equal(room.stats, 256);
    assert_int_equal(room.dq_sum - room.sum, 32 * 8192 * 4);
    assert_int_equal(room.dk_heads - room.dq_sum, 32 * 8192 * 128 * 4);
    assert_int_equal(room.bytes - room.dk, 2 * 8192 * 8 * 128 * 2);
    key = key_of(&shape, true, true);
    assert_int_equal(cudnn_room_of(&key, 256).dk_heads, cudnn_room_of(&key, 256).dq_sum); /* no sum of dQ */
    shape.docs = 2;
    shape.cu_q = shape.cu_k = cu;
    key = key_of(&shape, true, false);
    room = cudnn_room_of(&key, 0);
    assert_int_equal(room.sum - room.stats, 32 * 8192 * 4);
    assert_int_equal(room.dv_heads - room.dk_heads, 32 * 8192 * 128 * 2);
    assert_true(room.at_stats - room.at_o >= 3 * sizeof(int64_t) && room.bytes > room.at_stats);
}

/* An H200 as cuDNN describes devices. */
static const char h200[] =
    "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
    "\"multiProcessorCount\":132,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
    "\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
    "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"
    "\"supportCoopLaunch\":1,\"totalGlobalMem\":150121545728,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,"
    "\"l2CacheSize\":62914560,\"cudaDeviceId\":0,\"deviceVer\":900,\"driverVer\":13000,\"deviceName\":\"NVIDIA H200\"}";

static enum status engines_of(const struct cudnn_key *key, int *out_engines, char why[160])
{
    if (__lsan_disable)
        __lsan_disable();
    enum status status = cudnn_plan_candidates(key, h200, out_engines, why);
    if (__lsan_enable)
        __lsan_enable();
    return status;
}

static void recognised(const char *what, const struct attention_shape *shape)
{
    for (int backward = 0; backward < 2; backward++) {
        struct cudnn_key key = key_of(shape, backward, false);
        char why[160];
        int engines = -1;
        CHECK_OK(engines_of(&key, &engines, why));
        if (engines < 1)
            fail_msg("%s, %s: %s", what, backward ? "backward" : "forward", why);
    }
}

static void test_graphs_are_recognised(void **state)
{
    (void)state;
    static const int64_t cu[] = {0, 1000, 1000, 8000};
    const struct cudnn_api *api;
    struct attention_shape shape = llama();
    if (cudnn_load(&api) != STATUS_OK) {
        print_message("skipped: %s\n", status_last()->what);
        skip();
    }
    recognised("GQA causal", &shape);
    shape.docs = 3;
    shape.cu_q = shape.cu_k = cu;
    recognised("packed", &shape);
    shape.window = 512;
    recognised("packed with a window", &shape);
    shape = llama();
    shape.seq_q = 4096;
    shape.causal = ATTENTION_BOTTOM_RIGHT;
    recognised("bottom-right", &shape);
    shape = llama();
    shape.kv_heads = 32;
    shape.head_dim = shape.head_dim_v = 64;
    shape.dtype = DTYPE_FP16;
    shape.causal = ATTENTION_FULL;
    attention_shape_fill(&shape);
    recognised("64 full fp16", &shape);
    struct cudnn_key key = key_of(&shape, false, false);
    key.head_dim = key.head_dim_v = 61; /* what no engine takes gives a reason */
    char why[160];
    int engines = -1;
    CHECK_OK(engines_of(&key, &engines, why));
    assert_int_equal(engines, 0);
    assert_true(why[0] != '\0');
}

/* A library that is not there, or too old, is a reason, found again once it is. */
static void test_absent(void **state)
{
    (void)state;
    const struct attention *kernel = attention_find("cudnn");
    const struct cudnn_api *api;
    struct attention_shape shape = llama();
    char before[1024] = "";
    if (getenv("SPTUNE_CUDNN"))
        snprintf(before, sizeof before, "%s", getenv("SPTUNE_CUDNN"));
    setenv("SPTUNE_CUDNN", "/nowhere/libcudnn.so", 1);
    CHECK_FAILS(STATUS_ABSENT, "cuDNN cannot be loaded: /nowhere/libcudnn.so", cudnn_load(&api));
    struct verdict verdict = kernel->supports(&shape);
    assert_int_equal(verdict.rule, RULE_ABSENT);
    assert_int_equal(kernel->workspace_bytes(&shape, true, 1), 0);
    setenv("SPTUNE_CUDNN", OLD_LIBRARIES, 1);
    CHECK_FAILS(STATUS_UNSUPPORTED, "cuDNN 9.1.0 is loaded", cudnn_load(&api));
    verdict = kernel->supports(&shape);
    assert_true(verdict.rule == RULE_ABSENT && strstr(verdict.why, "cuDNN 9.1.0") != NULL);
    shape.head_dim = 12; /* what no cuDNN takes is told before */
    verdict = kernel->supports(&shape);
    assert_int_equal(verdict.rule, RULE_KERNEL_CANNOT);
    assert_true(kernel->unordered && !attention_find("cudnn-ordered")->unordered);
    assert_true(kernel->version != NULL && attention_find("cudnn-ordered")->version == kernel->version);
    setenv("SPTUNE_CUDNN", before, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_gpus),
        cmocka_unit_test(test_documents_share_plans),
        cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_absent),
        cmocka_unit_test(test_graphs_are_recognised),
    };
#ifdef CUDA_STUB /* cuDNN wants a driver's library even where it does nothing */
    (void)dlopen(CUDA_STUB, RTLD_NOW | RTLD_GLOBAL);
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
