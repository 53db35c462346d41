/* tests/kernels/test_attention.c -- the table of kernels, the rules for shapes and arguments, pairs and FLOPs. */
#include "kernels/attention_fixture.h"

#include "base/table.h"
#include "kernels/attention_cpu.h"

#include <math.h>
#include <stdio.h>

static void the_reference_is_first_and_names_are_unique(void **state)
{
    (void)state;
    assert_non_null(attentions[0]);
    assert_string_equal(attentions[0]->name, "reference");
    for (int i = 0; attentions[i] != NULL; i++) {
        assert_ptr_equal(attention_find(attentions[i]->name), attentions[i]);
        assert_non_null(attentions[i]->stands_for);
    }
    assert_non_null(attention_find("cpu"));
    assert_null(attention_find("no such kernel"));
    assert_null(attention_find(""));
    assert_null(attention_find(NULL));
}

static void every_kernel_file_is_in_the_table(void **state)
{
    (void)state;
    int rows = 0;
    while (attentions[rows] != NULL)
        rows++;
    assert_true(rows >= 2);
#if !SPTUNE_CUDNN /* GPU kernels have their rows, but this build leaves some out */
    rows = -1;
#endif
    table_holds("src/kernels", "attention", "attention", "src/kernels/attention.c", rows);
}

static void fill_sets_contiguous_strides(void **state)
{
    (void)state;
    struct attention_shape shape = {.heads = 32, .kv_heads = 8, .head_dim = 128};
    attention_shape_fill(&shape);
    assert_int_equal(shape.head_dim_v, 128);
    assert_int_equal(shape.group, 4);
    assert_int_equal(shape.group_first, 0);
    assert_true(shape.q_stride == 4096 && shape.k_stride == 1024 && shape.v_stride == 1024 && shape.o_stride == 4096);
    assert_true(fabsf(shape.scale - 0.088388348f) < 1e-8f);
    CHECK_OK(attention_shape_check(&shape));
    struct attention_shape empty = {0}; /* nonsense in, an answer out */
    attention_shape_fill(&empty);
    CHECK_FAILS(STATUS_USAGE, "0 query heads", attention_shape_check(&empty));
}

static struct attention_shape good(void)
{
    return fixture_shape(2, 5, 7, 4, 2, 8, DTYPE_FP32);
}

#define BAD(word, change)                                                                                              \
    do {                                                                                                               \
        struct attention_shape shape = good();                                                                         \
        change;                                                                                                        \
        CHECK_FAILS(STATUS_USAGE, word, attention_shape_check(&shape));                                                \
        for (int k = 0; attentions[k] != NULL; k++) {                                                                  \
            if (attentions[k]->dev != DEV_CPU)                                                                         \
                continue;                                                                                              \
            struct verdict verdict = attentions[k]->supports(&shape);                                                  \
            struct attention_args args = {0};                                                                          \
            assert_int_equal(verdict.rule, RULE_KERNEL_CANNOT);                                                        \
            assert_true(attentions[k]->workspace_bytes(&shape, true, 1) == 0);                                            \
            CHECK_FAILS(STATUS_USAGE, word, attentions[k]->forward(&shape, &args, NULL));                              \
            CHECK_FAILS(STATUS_USAGE, word, attentions[k]->backward(&shape, &args, NULL));                             \
        }                                                                                                              \
    } while (0)

static void bad_shapes_are_refused(void **state)
{
    (void)state;
    const int64_t descending[] = {0, 4, 3, 7}, beyond[] = {0, 2, 3, 8}, before[] = {-1, 2, 3, 5}, fine[] = {0, 2, 3, 5};
    struct attention_shape ok = good();
    CHECK_OK(attention_shape_check(&ok));
    BAD("query heads", shape.heads = 0);
    BAD("query heads", shape.heads = -4);
    BAD("kv heads", shape.kv_heads = 0);
    BAD("head_dim", shape.head_dim = 0);
    BAD("head_dim_v", shape.head_dim_v = -1);
    BAD("batch", shape.batch = -1);
    BAD("seq_q", shape.seq_q = -1);
    BAD("seq_k", shape.seq_k = INT64_MIN);
    BAD("group", shape.group = 0);
    BAD("group", shape.group_first = 2);
    BAD("group", shape.group_first = -1);
    BAD("kv heads", shape.group = 1);       /* 4 heads, 2 kv heads, no sharing */
    BAD("kv heads", shape.group_first = 1); /* 1 + 2 + 1: three kv heads */
    BAD("dtype", shape.dtype = DTYPE_COUNT);
    BAD("causal", shape.causal = (enum attention_causal)7);
    BAD("scale", shape.scale = NAN);
    BAD("scale", shape.scale = INFINITY);
    BAD("window", shape.window = -1);
    BAD("stride", shape.q_stride = 31);
    BAD("stride", shape.k_stride = 15);
    BAD("stride", shape.v_stride = 0);
    BAD("stride", shape.o_stride = -32);
    BAD("too large", shape.q_stride = INT64_MAX);
    BAD("too large", shape.batch = INT64_MAX);
    BAD("more than any machine", shape.seq_q = INT64_C(10000000000000000));
    BAD("too large", shape.seq_k = INT64_C(1000000000000000000));
    BAD("3 documents in a batch of 2", shape.docs = 3; shape.cu_q = shape.cu_k = fine);
    BAD("documents", shape.docs = -1);
    BAD("without cu_q", shape.batch = 1; shape.docs = 3; shape.cu_k = fine);
    BAD("without cu_k", shape.batch = 1; shape.docs = 3; shape.cu_q = fine);
    BAD("cu_q runs", shape.batch = 1; shape.docs = 3; shape.cu_q = before; shape.cu_k = fine);
    BAD("cu_k runs", shape.batch = 1; shape.docs = 3; shape.cu_q = fine; shape.cu_k = beyond);
    BAD("cu_k[2]", shape.batch = 1; shape.docs = 3; shape.cu_q = fine; shape.cu_k = descending);
}

static void missing_arguments_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"q", "k", "v", "o", "lse", "workspace", "d_o", "dq", "dk", "dv"};
    struct attention_shape shape = good();
    float any[1024] = {0};
    for (int kernel = 0; attentions[kernel] != NULL; kernel++)
        for (int missing = 0; missing < CHECK_COUNT(names) && attentions[kernel]->dev == DEV_CPU; missing++) {
            struct attention_args args = {any, any, any, any, any, any, any, any, any, false, false, any};
            char text[32];
            const void **inputs[] = {&args.q, &args.k, &args.v, NULL, NULL, NULL, &args.d_o};
            void **outputs[] = {NULL, NULL, NULL, &args.o, NULL, &args.workspace, NULL, &args.dq, &args.dk, &args.dv};
            if (missing == 4)
                args.lse = NULL;
            else if (missing < 7 && inputs[missing] != NULL)
                *inputs[missing] = NULL;
            else
                *outputs[missing] = NULL;
            snprintf(text, sizeof text, "no %s was given", names[missing]);
            for (int backward = missing < 6 ? 0 : 1; backward < 2; backward++) {
                if (missing == 5 && attentions[kernel]->workspace_bytes(&shape, backward != 0, 1) == 0)
                    continue; /* none is needed */
                CHECK_FAILS(STATUS_USAGE, text, (backward != 0 ? attentions[kernel]->backward : attentions[kernel]->forward)(
                                                    &shape, &args, NULL));
            }
        }
    struct attention_args narrow = {any, any, any, any, any, any, any, any, any, false, true, any};
    CHECK_FAILS(STATUS_USAGE, "fp32", attention_find("cpu")->backward(&shape, &narrow, NULL));
}

static void a_wide_head_is_a_reason_not_a_crash(void **state)
{
    (void)state;
    struct attention_shape shape = fixture_shape(1, 4, 4, 1, 1, 257, DTYPE_BF16);
    struct verdict verdict = attention_find("cpu")->supports(&shape);
    assert_int_equal(verdict.rule, RULE_KERNEL_CANNOT);
    assert_non_null(strstr(verdict.why, "256"));
    assert_true(verdict.nearest[0] == 256);
    float any[2048] = {0};
    struct attention_args args = {any, any, any, any, any, any, any, any, any, false, false, any};
    CHECK_FAILS(STATUS_UNSUPPORTED, "257", attention_find("cpu")->forward(&shape, &args, NULL));
    verdict = attention_find("reference")->supports(&shape);
    assert_true(verdict_ok(&verdict));
}

static void pairs_and_flops_follow_the_convention(void **state)
{
    (void)state;
    struct attention_shape shape = fixture_shape(2, 4096, 4096, 32, 8, 128, DTYPE_BF16);
    assert_true(attention_pairs(&shape) == 2.0 * 4096 * 4096);
    assert_true(attention_flops(&shape, false) == 4.0 * 2 * 32 * 4096 * 4096 * 128);
    assert_true(attention_flops(&shape, true) == 2.5 * attention_flops(&shape, false));
    shape.causal = ATTENTION_TOP_LEFT;
    assert_true(attention_pairs(&shape) == 2.0 * (4096.0 * 4097 / 2));
    shape.window = 1024; /* the first 1023 rows are a triangle */
    assert_true(attention_pairs(&shape) == 2.0 * (1023.0 * 1024 / 2 + (4096.0 - 1023) * 1024));
    shape.window = INT64_MAX;
    assert_true(attention_pairs(&shape) == 2.0 * (4096.0 * 4097 / 2));
    shape.seq_q = 0;
    assert_true(attention_pairs(&shape) == 0);
    /* Exact where doubles and int64 products would not be: 2^30 queries with a window. */
    shape = fixture_shape(1, INT64_C(1) << 30, INT64_C(1) << 30, 1, 1, 1, DTYPE_BF16);
    shape.causal = ATTENTION_BOTTOM_RIGHT;
    shape.window = 3;
    assert_true(attention_pairs(&shape) == 3.0 * ((INT64_C(1) << 30) - 1));
}

static void workspace_grows_with_length_only(void **state)
{
    (void)state;
    for (int isa = 0; attention_cpu_isa(isa) != NULL; isa++) {
        attention_cpu_use(isa);
        for (int backward = 0; backward < 2; backward++) {
            struct attention_shape shape = fixture_shape(1, 1 << 20, 1 << 20, 32, 8, 128, DTYPE_BF16);
            size_t million = attention_find("cpu")->workspace_bytes(&shape, backward, 1);
            shape.seq_k = shape.seq_q = 1 << 21;
            size_t two = attention_find("cpu")->workspace_bytes(&shape, backward, 1);
            assert_true(two <= 2 * million);
            /* beside them forward has blocks of one thread, backward up to 96 packed blocks of queries: 23.6 MiB at head_dim 128 */
            assert_true(million <= (size_t)(1 << 20) * 4 * 128 * (backward ? 5 : 2) + (backward ? 24 << 20 : 1 << 20));
            int64_t cu[129]; /* packed: of the longest document only */
            for (int i = 0; i <= 128; i++)
                cu[i] = i * INT64_C(16384);
            shape.docs = 128;
            shape.cu_q = shape.cu_k = cu;
            assert_true(attention_find("cpu")->workspace_bytes(&shape, backward, 1) < million / 32);
            assert_true(attention_find("reference")->workspace_bytes(&shape, backward, 1) < million / 16);
        }
    }
    attention_cpu_use(-1);
}

#if SPTUNE_CUDA
/* Of flash2: sums of dQ in fp32 and two numbers for each query head and token, a counter for each tile; no GPU is asked. */
static void flash2_workspace_grows_with_length_only(void **state)
{
    (void)state;
    for (int dim = 64; dim <= 128; dim *= 2) {
        struct attention_shape shape = fixture_shape(1, 1 << 20, 1 << 20, 32, 8, dim, DTYPE_BF16);
        size_t each = (size_t)(1 << 20) * 32 * (size_t)(4 * dim + 8);
        assert_in_range(attention_find("flash2")->workspace_bytes(&shape, true, 1), each, each + each / 1000);
        assert_true(attention_find("flash2")->workspace_bytes(&shape, false, 1) == 0);
        shape.seq_k = shape.seq_q = 1 << 21;
        assert_in_range(attention_find("flash2")->workspace_bytes(&shape, true, 1), 2 * each, 2 * each + each / 500);
    }
}
#endif

static void isa_choice_falls_back(void **state)
{
    (void)state;
    attention_cpu_use(1000);
    assert_string_equal(attention_cpu_isa_name(), attention_cpu_isa(0)->name);
    attention_cpu_use(-1);
    assert_string_equal(attention_cpu_isa_name(), attention_cpu_isa(0)->name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_is_first_and_names_are_unique),
        cmocka_unit_test(every_kernel_file_is_in_the_table),
        cmocka_unit_test(fill_sets_contiguous_strides),
        cmocka_unit_test(bad_shapes_are_refused),
        cmocka_unit_test(missing_arguments_are_refused),
        cmocka_unit_test(a_wide_head_is_a_reason_not_a_crash),
        cmocka_unit_test(pairs_and_flops_follow_the_convention),
        cmocka_unit_test(workspace_grows_with_length_only),
#if SPTUNE_CUDA
        cmocka_unit_test(flash2_workspace_grows_with_length_only),
#endif
        cmocka_unit_test(isa_choice_falls_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
