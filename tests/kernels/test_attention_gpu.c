/* tests/kernels/test_attention_gpu.c -- our GPU attentions against the oracle: masks x GQA x dtype x packing x odd sizes, and
 * the same bits every time. */
#include "kernels/attention_fixture.h"

#include "base/clock.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>

static struct dev *gpu;
static struct dev_queue *queue;

/* Kernels compiled here; a library's have a test of their own. */
static bool ours(const struct attention *kernel)
{
    return strcmp(kernel->name, "flash2") == 0 || strcmp(kernel->name, "gpu_reference") == 0;
}

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

/* The outputs go up as they are, so that a byte which must not be written is seen to change. */
static void run(const struct attention *kernel, const struct inputs *in, struct outputs *out, bool backward)
{
    const struct attention_shape *shape = &in->shape;
    int64_t elem = dtype_bytes(shape->dtype), dkv = out->dkv_fp32 ? 4 : elem;
    int64_t q = shape->batch * shape->seq_q * shape->q_stride, k = shape->batch * shape->seq_k * shape->k_stride;
    int64_t v = shape->batch * shape->seq_k * shape->v_stride, o = shape->batch * shape->seq_q * shape->o_stride;
    int64_t lse = shape->batch * shape->heads * shape->seq_q * 4;
    size_t room = kernel->workspace_bytes(shape, backward, 1);
    struct attention_args args = {.q = up(in->q, q * elem),
                                  .k = up(in->k, k * elem),
                                  .v = up(in->v, v * elem),
                                  .d_o = up(in->d_o, o * elem),
                                  .o = up(out->o, o * elem),
                                  .lse = up(out->lse, lse),
                                  .dq = up(out->dq, q * elem),
                                  .dk = up(out->dk, k * dkv),
                                  .dv = up(out->dv, v * dkv),
                                  .dkv_fp32 = out->dkv_fp32,
                                  .dkv_accumulate = out->dkv_accumulate};
    CHECK_OK(dev_alloc(gpu, room, "the workspace", &args.workspace));
    CHECK_OK(dev_fill(queue, args.workspace, 0xff, room));
    CHECK_OK((backward ? kernel->backward : kernel->forward)(shape, &args, queue));
    CHECK_OK(dev_sync(queue, clock_deadline(20 * 1000 * 1000)));
    down(out->o, args.o, o * elem);
    down(out->lse, args.lse, lse);
    down(out->dq, args.dq, q * elem);
    down(out->dk, args.dk, k * dkv);
    down(out->dv, args.dv, v * dkv);
    dev_free(gpu, (void *)args.q);
    dev_free(gpu, (void *)args.k);
    dev_free(gpu, (void *)args.v);
    dev_free(gpu, (void *)args.d_o);
    dev_free(gpu, args.workspace);
}

static void all_agree(const struct attention_shape *shape, uint64_t seed, double amplitude, bool dkv_fp32)
{
    struct inputs *in = inputs_create(shape, seed, amplitude);
    for (int i = 0; attentions[i] != NULL; i++) {
        char label[256];
        if (!ours(attentions[i]))
            continue;
        struct verdict verdict = attentions[i]->supports(shape);
        if (!verdict_ok(&verdict))
            continue;
        snprintf(
            label, sizeof label,
            "%s: batch %lld, %lld x %lld, heads %d/%d group %d from %d, dim %d, %s, causal %d, window %lld, docs %d",
            attentions[i]->name, (long long)shape->batch, (long long)shape->seq_q, (long long)shape->seq_k,
            shape->heads, shape->kv_heads, shape->group, shape->group_first, shape->head_dim, dtype_name(shape->dtype),
            (int)shape->causal, (long long)shape->window, shape->docs);
        struct outputs *out = outputs_create(shape, dkv_fp32), *again = outputs_create(shape, dkv_fp32);
        run(attentions[i], in, out, false);
        run(attentions[i], in, out, true);
        fixture_no_nan(out, true, label);
        fixture_rounds_terms(strcmp(attentions[i]->name, "flash2") == 0);
        fixture_agrees(in, out, true, label);
        if (!attentions[i]->unordered) {
            run(attentions[i], in, again, false);
            run(attentions[i], in, again, true);
            fixture_same(out, again, true, label);
        }
        outputs_destroy(out);
        outputs_destroy(again);
    }
    inputs_destroy(in);
}

static void random_documents(struct rng *rng, int64_t tokens, int docs, int64_t *cu)
{
    cu[0] = tokens > 0 && rng_below(rng, 4) == 0 ? rng_below(rng, 2) : 0;
    for (int d = 1; d < docs; d++) {
        int64_t left = tokens - cu[d - 1];
        cu[d] = cu[d - 1] + (rng_below(rng, 3) == 0 ? rng_below(rng, 2) * (left > 0) : rng_below(rng, left + 1) / 2);
    }
    cu[docs] = rng_below(rng, 4) == 0 ? cu[docs - 1] : tokens;
}

/* Every window and GQA; dtype, head_dim and sizes drawn anew; *state: which causal, packed or not. */
static void every_combination_agrees(void **state)
{
    int causal = *(int *)*state % 3, packed = *(int *)*state / 3;
    static const int64_t sizes[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 147, 193}, windows[] = {0, 1, 70};
    static const int dims[] = {64, 128, 96, 256};
    static const struct {
        int heads, kv_heads, group, first;
    } groups[] = {{1, 1, 1, 0}, {3, 1, 4, 1}, {4, 2, 2, 0}, {5, 3, 3, 2}};
    struct rng rng;
    rng_seed(&rng, 17, (uint64_t) * (int *)*state);
    for (int at = 0; at < 3 * 4; at++) {
        int g = at / 3, dim = dims[rng_below(&rng, 4)];
        int64_t cu_q[6], cu_k[6];
        struct attention_shape shape =
            fixture_shape(packed ? 1 : 1 + rng_below(&rng, 2), sizes[rng_below(&rng, 11)], sizes[rng_below(&rng, 11)],
                          groups[g].heads, groups[g].kv_heads, dim, rng_below(&rng, 2) == 0 ? DTYPE_BF16 : DTYPE_FP16);
        shape.group = groups[g].group;
        shape.group_first = groups[g].first;
        shape.causal = (enum attention_causal)causal;
        shape.window = windows[at % 3];
        shape.q_stride += rng_below(&rng, 3) * 8;
        shape.k_stride += rng_below(&rng, 3) * 24;
        shape.o_stride += rng_below(&rng, 3) * 64;
        if (packed) {
            shape.docs = 1 + (int)rng_below(&rng, 5);
            random_documents(&rng, shape.seq_q, shape.docs, cu_q);
            random_documents(&rng, shape.seq_k, shape.docs, cu_k);
            shape.cu_q = cu_q;
            shape.cu_k = cu_k;
        }
        all_agree(&shape, rng_u64(&rng), 1.0, at % 2 == 1);
    }
}

/* Several key blocks and many blocks at once, so that turns are waited for. */
static void longer_sequences_agree(void **state)
{
    (void)state;
    static const struct {
        int64_t seq_q, seq_k;
        int dim;
    } rows[] = {{520, 530, 64}, {410, 300, 96}, {300, 601, 128}, {270, 333, 256}};
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct attention_shape shape = fixture_shape(1, rows[i].seq_q, rows[i].seq_k, 2, 1, rows[i].dim, DTYPE_BF16);
        shape.causal = (enum attention_causal)(i % 3);
        all_agree(&shape, (uint64_t)i, 1.0, i % 2 == 0);
    }
}

/* fp32 and head_dims that only the plain kernel has. */
static void odd_dims_agree(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct attention_shape shape =
            fixture_shape(1 + i % 2, 33 + i, 50 - i, 4, 2, 1 + 7 * i, (enum dtype)(i % DTYPE_COUNT));
        shape.head_dim_v = 40 - 6 * i;
        shape.v_stride = 2 * shape.head_dim_v;
        shape.o_stride = 4 * shape.head_dim_v + 1;
        shape.causal = (enum attention_causal)(i % 3);
        all_agree(&shape, (uint64_t)i, 1.0, i >= 3);
    }
}

/* Logits in the hundreds, and of one sign: the kept maximum and rows of one large score. */
static void large_logits_agree(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct attention_shape shape = fixture_shape(1, 150, 270, 2, 1, i % 2 == 0 ? 128 : 64, DTYPE_BF16);
        shape.causal = ATTENTION_BOTTOM_RIGHT;
        all_agree(&shape, (uint64_t)i, i < 2 ? 4.0 : 12.0, false);
    }
}

/* dk and dv are added to, not replaced. */
static void gradients_accumulate(void **state)
{
    (void)state;
    struct attention_shape shape = fixture_shape(1, 130, 190, 2, 1, 128, DTYPE_BF16);
    struct inputs *in = inputs_create(&shape, 3, 1.0);
    for (int i = 0; attentions[i] != NULL; i++) {
        if (!ours(attentions[i]))
            continue;
        struct outputs *once = outputs_create(&shape, true), *twice = outputs_create(&shape, true);
        run(attentions[i], in, once, false);
        run(attentions[i], in, once, true);
        memcpy(twice->dk, once->dk, (size_t)(shape.seq_k * shape.k_stride * 4));
        memcpy(twice->dv, once->dv, (size_t)(shape.seq_k * shape.v_stride * 4));
        twice->dkv_accumulate = true;
        run(attentions[i], in, twice, false);
        run(attentions[i], in, twice, true);
        for (int64_t t = 0; t < shape.seq_k * shape.k_stride; t++) {
            assert_true(((float *)twice->dk)[t] == 2 * ((float *)once->dk)[t]);
            assert_true(((float *)twice->dv)[t] == 2 * ((float *)once->dv)[t]);
        }
        outputs_destroy(once);
        outputs_destroy(twice);
    }
    inputs_destroy(in);
}

static void what_it_cannot_is_refused(void **state)
{
    (void)state;
    const struct attention *flash2 = attention_find("flash2");
    struct attention_shape good = fixture_shape(1, 64, 64, 2, 2, 128, DTYPE_BF16), bad[5];
    assert_non_null(flash2);
    struct verdict verdict = flash2->supports(&good);
    assert_true(verdict_ok(&verdict));
    for (int i = 0; i < 5; i++)
        bad[i] = good;
    bad[0].dtype = DTYPE_FP32;
    bad[1] = fixture_shape(1, 64, 64, 2, 2, 80, DTYPE_BF16);
    bad[2].q_stride += 4;
    bad[3].scale = -1;
    bad[4].seq_k = INT64_C(1) << 29;
    for (int i = 0; i < 5; i++) {
        verdict = flash2->supports(&bad[i]);
        assert_int_equal(verdict.rule, i == 4 ? RULE_INDEX : RULE_KERNEL_CANNOT);
        assert_int_equal(flash2->workspace_bytes(&bad[i], true, 1), 0);
    }
}

static int open_gpu(void **state)
{
    (void)state;
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
    const struct CMUnitTest anywhere[] = {
        cmocka_unit_test(what_it_cannot_is_refused),
    };
    static int which[6] = {0, 1, 2, 3, 4, 5};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(every_combination_agrees, &which[0]),
        cmocka_unit_test_prestate(every_combination_agrees, &which[1]),
        cmocka_unit_test_prestate(every_combination_agrees, &which[2]),
        cmocka_unit_test_prestate(every_combination_agrees, &which[3]),
        cmocka_unit_test_prestate(every_combination_agrees, &which[4]),
        cmocka_unit_test_prestate(every_combination_agrees, &which[5]),
        cmocka_unit_test(longer_sequences_agree),
        cmocka_unit_test(odd_dims_agree),
        cmocka_unit_test(large_logits_agree),
        cmocka_unit_test(gradients_accumulate),
    };
    int failed = cmocka_run_group_tests(anywhere, NULL, NULL);
    if (failed == 0 && dev_open(DEV_CUDA, 0, &gpu) != STATUS_OK) {
        printf("skipped: %s\n", status_last()->what);
        return 77;
    }
    return failed + cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
