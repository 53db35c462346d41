/* tests/kernels/test_cudnn_gpu.c -- cuDNN's attention on a GPU against the oracle: what it is asked for, and that the rest is refused. */
#include "kernels/attention_fixture.h"

#include "base/clock.h"
#include "base/team.h"
#include "kernels/attention_cudnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dev *gpu;
static struct dev_queue *queue;

static void *up(const void *host, int64_t bytes)
{
    void *out = NULL;
    CHECK_OK(dev_alloc(gpu, (size_t)bytes, "a tensor", &out));
    CHECK_OK(dev_copy(queue, out, host, (size_t)bytes));
    return out;
}

static void down(void *host, void *memory, int64_t bytes)
{
    CHECK_OK(dev_copy(queue, host, memory, (size_t)bytes));
    CHECK_OK(dev_sync(queue, clock_deadline(20 * 1000 * 1000)));
    dev_free(gpu, memory);
}

enum { GUARD = 4096 };

/* Behind the workspace lies a pattern that stays. */
static void run(const struct attention *kernel, const struct inputs *in, struct outputs *out, bool backward)
{
    const struct attention_shape *shape = &in->shape;
    int64_t dkv = out->dkv_fp32 ? 4 : 2;
    int64_t q = shape->batch * shape->seq_q * shape->q_stride, k = shape->batch * shape->seq_k * shape->k_stride;
    int64_t v = shape->batch * shape->seq_k * shape->v_stride, o = shape->batch * shape->seq_q * shape->o_stride;
    int64_t lse = shape->batch * shape->heads * shape->seq_q * 4;
    size_t room = kernel->workspace_bytes(shape, backward, 1);
    unsigned char guard[GUARD];
    assert_true(room > 0);
    struct attention_args args = {.q = up(in->q, q * 2),
                                  .k = up(in->k, k * 2),
                                  .v = up(in->v, v * 2),
                                  .d_o = up(in->d_o, o * 2),
                                  .o = up(out->o, o * 2),
                                  .lse = up(out->lse, lse),
                                  .dq = up(out->dq, q * 2),
                                  .dk = up(out->dk, k * dkv),
                                  .dv = up(out->dv, v * dkv),
                                  .dkv_fp32 = out->dkv_fp32,
                                  .dkv_accumulate = out->dkv_accumulate};
    CHECK_OK(dev_alloc(gpu, room + GUARD, "the workspace", &args.workspace));
    CHECK_OK(dev_fill(queue, args.workspace, 0xff, room));
    CHECK_OK(dev_fill(queue, (char *)args.workspace + room, 0x5a, GUARD));
    CHECK_OK((backward ? kernel->backward : kernel->forward)(shape, &args, queue));
    CHECK_OK(dev_copy(queue, guard, (char *)args.workspace + room, GUARD));
    CHECK_OK(dev_sync(queue, clock_deadline(20 * 1000 * 1000)));
    for (int i = 0; i < GUARD; i++)
        assert_int_equal(guard[i], 0x5a);
    down(out->o, args.o, o * 2);
    down(out->lse, args.lse, lse);
    down(out->dq, args.dq, q * 2);
    down(out->dk, args.dk, k * dkv);
    down(out->dv, args.dv, v * dkv);
    dev_free(gpu, (void *)(uintptr_t)args.q);
    dev_free(gpu, (void *)(uintptr_t)args.k);
    dev_free(gpu, (void *)(uintptr_t)args.v);
    dev_free(gpu, (void *)(uintptr_t)args.d_o);
    dev_free(gpu, args.workspace);
}

static void name_shape(char *label, size_t size, const char *kernel, const struct attention_shape *shape)
{
    snprintf(
        label, size,
        "%s: batch %lld, %lld x %lld, heads %d/%d group %d from %d, dim %d/%d, %s, causal %d, window %lld, docs %d",
        kernel, (long long)shape->batch, (long long)shape->seq_q, (long long)shape->seq_k, shape->heads,
        shape->kv_heads, shape->group, shape->group_first, shape->head_dim, shape->head_dim_v, dtype_name(shape->dtype),
        (int)shape->causal, (long long)shape->window, shape->docs);
}

static void agrees(const char *name, const struct attention_shape *shape, bool dkv_fp32)
{
    const struct attention *kernel = attention_find(name);
    char label[256];
    name_shape(label, sizeof label, name, shape);
    struct verdict verdict = kernel->supports(shape);
    if (!verdict_ok(&verdict)) {
        print_message("refused: %s: %s\n", label, verdict.why);
        fail();
    }
    struct inputs *in = inputs_create(shape, 7, 1.0);
    struct outputs *out = outputs_create(shape, dkv_fp32), *again = outputs_create(shape, dkv_fp32);
    run(kernel, in, out, false);
    run(kernel, in, out, true);
    fixture_no_nan(out, true, label);
    fixture_agrees(in, out, true, label);
    if (!kernel->unordered) {
        run(kernel, in, again, false);
        run(kernel, in, again, true);
        fixture_same(out, again, true, label);
    }
    outputs_destroy(out);
    outputs_destroy(again);
    inputs_destroy(in);
    print_message("good: %s\n", label);
}

/* All of them, with two that nobody takes, and one twice. What was prepared is compiled before it is asked for; `agrees` runs it. */
static void prepared(const char *name, const struct attention_shape *shapes, int n)
{
    const struct attention_shape *all[32];
    struct attention_shape odd = shapes[0], wide = shapes[0];
    odd.dtype = DTYPE_FP32;
    wide.head_dim = wide.head_dim_v = 1024;
    assert_true(n + 3 <= 32);
    all[0] = &odd;
    all[1] = &wide;
    all[2] = &shapes[0];
    for (int i = 0; i < n; i++)
        all[3 + i] = &shapes[i];
    int64_t start = clock_ns();
    attention_prepare(attention_find(name), all, n + 3, true);
    int64_t middle = clock_ns();
    attention_prepare(attention_find(name), all, n + 3, true);
    print_message("%d shapes prepared in %.1f s, again in %.4f s\n", n, (double)(middle - start) * 1e-9,
                  (double)(clock_ns() - middle) * 1e-9);
    if (team_spare(2) < 2)
        print_message("skipped: with fewer than 4 CPUs nothing is compiled before it is asked for\n");
    for (int i = 0; i < n && team_spare(2) > 1; i++)
        for (int backward = 0; backward < 2; backward++) {
            struct cudnn_key key;
            const struct cudnn_plan *plan = NULL;
            struct verdict verdict = cudnn_key_of(&shapes[i], backward != 0, strcmp(name, "cudnn") != 0, &key);
            if (!verdict_ok(&verdict))
                continue;
            CHECK_OK(cudnn_plan_get(&key, false, &plan));
            assert_true(plan->compiled);
        }
}

static void test_dense(void **state)
{
    (void)state;
    static const struct {
        int batch, seq_q, seq_k, heads, kv_heads, dim;
        enum dtype dtype;
        enum attention_causal causal;
    } rows[] = {
        {2, 256, 256, 4, 4, 64, DTYPE_BF16, ATTENTION_FULL},
        {1, 300, 300, 8, 2, 128, DTYPE_BF16, ATTENTION_TOP_LEFT},
        {2, 113, 113, 4, 2, 128, DTYPE_FP16, ATTENTION_TOP_LEFT},
        {1, 57, 300, 4, 1, 128, DTYPE_BF16, ATTENTION_BOTTOM_RIGHT},
        {1, 200, 333, 4, 2, 64, DTYPE_FP16, ATTENTION_BOTTOM_RIGHT},
        {1, 200, 333, 4, 2, 64, DTYPE_BF16, ATTENTION_TOP_LEFT},
        {1, 128, 1, 2, 1, 128, DTYPE_BF16, ATTENTION_FULL},
        {1, 1, 128, 2, 1, 128, DTYPE_BF16, ATTENTION_FULL},
        {1, 190, 190, 2, 2, 96, DTYPE_BF16, ATTENTION_TOP_LEFT},
        {1, 190, 190, 2, 1, 256, DTYPE_BF16, ATTENTION_TOP_LEFT},
    };
    struct attention_shape shapes[CHECK_COUNT(rows)];
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        shapes[i] = fixture_shape(rows[i].batch, rows[i].seq_q, rows[i].seq_k, rows[i].heads, rows[i].kv_heads,
                                  rows[i].dim, rows[i].dtype);
        shapes[i].causal = rows[i].causal;
    }
    prepared("cudnn", shapes, CHECK_COUNT(rows));
    for (int i = 0; i < CHECK_COUNT(rows); i++)
        agrees("cudnn", &shapes[i], i % 2);
}

/* Heads of one group, kv heads that nobody uses, and tokens with gaps between them. */
static void test_groups_and_gaps(void **state)
{
    (void)state;
    struct attention_shape shape = fixture_shape(1, 160, 160, 2, 3, 64, DTYPE_BF16);
    shape.causal = ATTENTION_TOP_LEFT;
    shape.group = 4;
    shape.group_first = 1;
    agrees("cudnn", &shape, false);
    shape = fixture_shape(2, 160, 160, 4, 2, 64, DTYPE_BF16);
    shape.q_stride += 64;
    shape.k_stride += 128;
    shape.v_stride += 8;
    shape.o_stride += 192;
    agrees("cudnn", &shape, false);
    agrees("cudnn", &shape, true);
}

static void test_window(void **state)
{
    (void)state;
    struct attention_shape shape = fixture_shape(1, 300, 300, 4, 2, 128, DTYPE_BF16);
    shape.causal = ATTENTION_TOP_LEFT;
    shape.window = 50;
    agrees("cudnn", &shape, false);
    shape = fixture_shape(1, 200, 300, 4, 2, 128, DTYPE_BF16);
    shape.causal = ATTENTION_BOTTOM_RIGHT;
    shape.window = 64;
    agrees("cudnn", &shape, false);
}

static void test_packed(void **state)
{
    (void)state;
    static const int64_t even[] = {0, 100, 100, 228, 229, 300, 640}, inside[] = {5, 105, 400, 600},
                         keys[] = {5, 155, 450, 660};
    struct attention_shape shape = fixture_shape(1, 640, 640, 4, 4, 64, DTYPE_BF16);
    shape.docs = 6;
    shape.cu_q = shape.cu_k = even;
    agrees("cudnn", &shape, false);
    shape = fixture_shape(1, 640, 640, 8, 2, 128, DTYPE_BF16);
    shape.causal = ATTENTION_TOP_LEFT;
    shape.docs = 6;
    shape.cu_q = shape.cu_k = even;
    agrees("cudnn", &shape, false);
    agrees("cudnn", &shape, true);
    shape.docs = 3;
    shape.cu_q = shape.cu_k = inside;
    agrees("cudnn", &shape, false);
    shape = fixture_shape(1, 640, 700, 4, 2, 128, DTYPE_FP16);
    shape.causal = ATTENTION_BOTTOM_RIGHT;
    shape.docs = 3;
    shape.cu_q = inside;
    shape.cu_k = keys;
    agrees("cudnn", &shape, false);
    shape.window = 40;
    agrees("cudnn", &shape, false);
}

static void test_many_documents(void **state)
{
    (void)state;
    int64_t cu[501];
    for (int i = 0; i <= 500; i++)
        cu[i] = 2 * i;
    struct attention_shape shape = fixture_shape(1, 1000, 1000, 2, 1, 64, DTYPE_BF16);
    shape.causal = ATTENTION_TOP_LEFT;
    shape.docs = 500;
    shape.cu_q = shape.cu_k = cu;
    agrees("cudnn", &shape, false);
}

static void test_ordered(void **state)
{
    (void)state;
    struct attention_shape shape = fixture_shape(1, 900, 900, 4, 2, 128, DTYPE_BF16);
    shape.causal = ATTENTION_TOP_LEFT;
    prepared("cudnn-ordered", &shape, 1);
    agrees("cudnn-ordered", &shape, false);
}

/* The deterministic backward's S x S workspace does not fit this long. */
static void test_ordered_beyond_memory(void **state)
{
    (void)state;
    struct attention_shape shape = fixture_shape(1, 131072, 131072, 8, 8, 128, DTYPE_BF16);
    shape.causal = ATTENTION_TOP_LEFT;
    struct verdict verdict = attention_find("cudnn-ordered")->supports(&shape);
    assert_int_equal(verdict.rule, RULE_MEMORY);
}

static int open_gpu(void **state)
{
    (void)state;
    CHECK_OK(dev_open(DEV_CUDA, 0, &gpu));
    CHECK_OK(dev_queue_create(gpu, &queue));
    return 0;
}

static int close_gpu(void **state)
{
    (void)state;
    dev_queue_destroy(queue);
    dev_close(gpu);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),  cmocka_unit_test(test_groups_and_gaps), cmocka_unit_test(test_window),
        cmocka_unit_test(test_packed), cmocka_unit_test(test_many_documents),  cmocka_unit_test(test_ordered),
        cmocka_unit_test(test_ordered_beyond_memory),
    };
    if (dev_open(DEV_CUDA, 0, &gpu) != STATUS_OK) {
        printf("skipped: %s\n", status_last()->what);
        return 77;
    }
    dev_close(gpu);
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
