/* tests/kernels/test_attention_kernels.c -- every kernel of the table against the oracle: masks x GQA x dtype x packing
 * x odd sizes. */
#include "kernels/attention_fixture.h"

#include "base/rng.h"
#include "kernels/attention_cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void describe(const struct attention_shape *shape, const char *kernel, char *out, size_t size)
{
    snprintf(
        out, size,
        "%s: batch %lld, %lld x %lld, heads %d/%d group %d from %d, dims %d/%d, %s, causal %d, window %lld, docs %d",
        kernel, (long long)shape->batch, (long long)shape->seq_q, (long long)shape->seq_k, shape->heads,
        shape->kv_heads, shape->group, shape->group_first, shape->head_dim, shape->head_dim_v, dtype_name(shape->dtype),
        (int)shape->causal, (long long)shape->window, shape->docs);
}

/* Forward and backward of every kernel, `reference` too when asked. */
static void all_agree(const struct attention_shape *shape, uint64_t seed, double amplitude, bool dkv_fp32,
                      bool reference)
{
    struct variant variants[VARIANTS_MAX];
    struct inputs *in = inputs_create(shape, seed, amplitude);
    int n = fixture_variants(variants);
    for (int v = 0; v < n; v++) {
        char label[256];
        if (!reference && variants[v].isa < 0)
            continue;
        struct outputs *out = outputs_create(shape, dkv_fp32);
        describe(shape, variants[v].label, label, sizeof label);
        fixture_use(&variants[v]);
        CHECK_OK(fixture_forward(variants[v].kernel, in, out, 0xff));
        CHECK_OK(fixture_backward(variants[v].kernel, in, out, 0xff));
        fixture_no_nan(out, true, label);
        fixture_agrees(in, out, true, label);
        outputs_destroy(out);
    }
    inputs_destroy(in);
}

/* Ascending offsets over `tokens`, so that empty and one-token documents occur; half the time tokens are left outside.
 */
static void random_documents(struct rng *rng, int64_t tokens, int docs, int64_t *cu)
{
    cu[0] = tokens > 0 && rng_below(rng, 4) == 0 ? rng_below(rng, 2) : 0;
    for (int d = 1; d < docs; d++) {
        int64_t left = tokens - cu[d - 1];
        cu[d] = cu[d - 1] + (rng_below(rng, 3) == 0 ? rng_below(rng, 2) * (left > 0) : rng_below(rng, left + 1) / 2);
    }
    cu[docs] = rng_below(rng, 4) == 0 ? cu[docs - 1] : tokens;
}

/* Every combination of mask, window, GQA, dtype and packing, each with sizes drawn anew. */
static void every_combination_agrees(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 5, 13, 31, 49, 65}, windows[] = {0, 1, 9};
    static const struct {
        int heads, kv_heads, group, first;
    } groups[] = {{1, 1, 1, 0}, {3, 1, 4, 1}, {4, 2, 2, 0}, {5, 3, 3, 2}};
    struct rng rng;
    rng_seed(&rng, 11, 0);
    for (int at = 0; at < 3 * 3 * 4 * DTYPE_COUNT * 2; at++) {
        int g = at / 9 % 4, packed = at / 36 / DTYPE_COUNT;
        int64_t cu_q[6], cu_k[6];
        struct attention_shape shape = fixture_shape(packed ? 1 : 1 + rng_below(&rng, 2), sizes[rng_below(&rng, 8)],
                                                     sizes[rng_below(&rng, 8)], groups[g].heads, groups[g].kv_heads,
                                                     1 + (int)rng_below(&rng, 40), (enum dtype)(at / 36 % DTYPE_COUNT));
        shape.head_dim_v = 1 + (int)rng_below(&rng, 40);
        shape.group = groups[g].group;
        shape.group_first = groups[g].first;
        shape.causal = (enum attention_causal)(at % 3);
        shape.window = windows[at / 3 % 3];
        shape.q_stride += rng_below(&rng, 3) * 5; /* wider than its heads: a part of a larger buffer */
        shape.k_stride += rng_below(&rng, 3) * 7;
        shape.v_stride = shape.kv_heads * shape.head_dim_v + rng_below(&rng, 3);
        shape.o_stride = shape.heads * shape.head_dim_v + rng_below(&rng, 3) * 64;
        if (packed) {
            shape.docs = 1 + (int)rng_below(&rng, 5);
            random_documents(&rng, shape.seq_q, shape.docs, cu_q);
            random_documents(&rng, shape.seq_k, shape.docs, cu_k);
            shape.cu_q = cu_q;
            shape.cu_k = cu_k;
        }
        all_agree(&shape, rng_u64(&rng), 1.0, at % 2 == 1, true);
    }
}

static void odd_sizes_agree(void **state)
{
    (void)state;
    static const struct {
        int64_t seq_q, seq_k;
        int heads, kv_heads, dim;
    } rows[] = {{113, 203, 2, 1, 64}, {239, 1, 2, 2, 40}, {1, 239, 3, 1, 40}, {0, 113, 1, 1, 16},
                {113, 0, 1, 1, 16},   {1, 1, 2, 1, 128},  {0, 0, 1, 1, 8},    {1, 1023, 2, 1, 17}};
    for (int i = 0; i < CHECK_COUNT(rows); i++)
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
            struct attention_shape shape = fixture_shape(1, rows[i].seq_q, rows[i].seq_k, rows[i].heads,
                                                         rows[i].kv_heads, rows[i].dim, (enum dtype)dtype);
            shape.causal = (enum attention_causal)((i + dtype) % 3);
            all_agree(&shape, (uint64_t)i, 1.0, false, true);
        }
    struct attention_shape large = fixture_shape(1, 1023, 1024, 1, 1, 5, DTYPE_BF16);
    large.causal = ATTENTION_BOTTOM_RIGHT;
    all_agree(&large, 1, 1.0, false, false);
    large.dtype = DTYPE_FP32;
    large.window = 200;
    all_agree(&large, 2, 1.0, false, false);
}

static void every_head_dim_agrees(void **state)
{
    (void)state;
    for (int dim = 1; dim <= ATTENTION_CPU_DIM_MAX; dim += dim < 34 ? 1 : 13) {
        struct attention_shape shape = fixture_shape(1, 7, 9, 2, 1, dim, (enum dtype)(dim % DTYPE_COUNT));
        shape.head_dim_v = ATTENTION_CPU_DIM_MAX + 1 - dim;
        shape.v_stride = shape.head_dim_v;
        shape.o_stride = 2 * shape.head_dim_v;
        all_agree(&shape, (uint64_t)dim, 1.0, false, true);
    }
    struct attention_shape widest = fixture_shape(1, 3, 4, 1, 1, ATTENTION_CPU_DIM_MAX, DTYPE_FP32);
    all_agree(&widest, 1, 1.0, false, true);
}

static void scales_of_any_sign_agree(void **state)
{
    (void)state;
    static const float scales[] = {-0.3f, 0.0f, 1.0f, -2.0f, 1e-30f};
    for (int i = 0; i < CHECK_COUNT(scales); i++) {
        struct attention_shape shape = fixture_shape(1, 9, 20, 2, 1, 4, DTYPE_FP32);
        shape.scale = scales[i];
        shape.causal = ATTENTION_TOP_LEFT;
        all_agree(&shape, (uint64_t)i, 1.0, false, true);
    }
}

/* Logits of some 10^3 still obey the rule; of 10^8, and beyond fp32, they at least stay numbers and pick the largest.
 */
static void huge_logits_make_no_nan(void **state)
{
    (void)state;
    static const double amplitudes[] = {1e4, 1e18, 1e19};
    struct variant variants[VARIANTS_MAX];
    int n = fixture_variants(variants);
    struct attention_shape shape = fixture_shape(1, 50, 200, 2, 1, 1, DTYPE_FP32);
    shape.causal = ATTENTION_BOTTOM_RIGHT;
    shape.head_dim_v = 1;
    all_agree(&shape, 5, 30.0, false, true);
    for (int a = 0; a < CHECK_COUNT(amplitudes); a++)
        for (int v = 0; v < n; v++)
            for (int dtype = DTYPE_FP32; dtype <= DTYPE_BF16; dtype++) {
                shape.dtype = (enum dtype)dtype;
                struct inputs *in = inputs_create(&shape, 1, 1.0);
                struct outputs *out = outputs_create(&shape, false);
                for (int64_t i = 0; i < 200; i++) {
                    dtype_set(shape.dtype, in->k, i, dtype_get(shape.dtype, in->k, i) * (float)amplitudes[a]);
                    if (i < 100)
                        dtype_set(shape.dtype, in->q, i, dtype_get(shape.dtype, in->q, i) * (float)amplitudes[a]);
                }
                fixture_use(&variants[v]);
                CHECK_OK(fixture_forward(variants[v].kernel, in, out, 0xff));
                CHECK_OK(fixture_backward(variants[v].kernel, in, out, 0xff));
                fixture_no_nan(out, true, variants[v].label);
                inputs_destroy(in);
                outputs_destroy(out);
            }
}

static void nan_inputs_are_not_hidden(void **state)
{
    (void)state;
    struct variant variants[VARIANTS_MAX];
    struct attention_shape shape = fixture_shape(1, 9, 40, 1, 1, 4, DTYPE_FP32);
    for (int v = fixture_variants(variants) - 1; v >= 0; v--) {
        struct inputs *in = inputs_create(&shape, 1, 1.0);
        struct outputs *out = outputs_create(&shape, false);
        ((float *)in->k)[17 * 4] = NAN;
        fixture_use(&variants[v]);
        CHECK_OK(fixture_forward(variants[v].kernel, in, out, 0));
        for (int i = 0; i < 9 * 4; i++)
            assert_true(isnan(((float *)out->o)[i]));
        inputs_destroy(in);
        outputs_destroy(out);
    }
}

static void repeats_are_bitwise_equal(void **state)
{
    (void)state;
    static const int fills[] = {0xff, 0x00, 0x7f, 0x3c};
    struct variant variants[VARIANTS_MAX];
    int n = fixture_variants(variants);
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        struct attention_shape shape = fixture_shape(2, 101, 211, 4, 2, 24, (enum dtype)dtype);
        shape.causal = ATTENTION_BOTTOM_RIGHT;
        struct inputs *in = inputs_create(&shape, 9, 1.0);
        for (int v = 0; v < n; v++) {
            struct outputs *first = outputs_create(&shape, false);
            fixture_use(&variants[v]);
            CHECK_OK(fixture_forward(variants[v].kernel, in, first, 0x11));
            CHECK_OK(fixture_backward(variants[v].kernel, in, first, 0x11));
            for (int i = 0; i < CHECK_COUNT(fills); i++) {
                struct outputs *again = outputs_create(&shape, false);
                CHECK_OK(fixture_forward(variants[v].kernel, in, again, fills[i]));
                CHECK_OK(fixture_backward(variants[v].kernel, in, again, fills[i]));
                fixture_same(first, again, true, variants[v].label);
                outputs_destroy(again);
            }
            outputs_destroy(first);
        }
        inputs_destroy(in);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_agrees),  cmocka_unit_test(odd_sizes_agree),
        cmocka_unit_test(every_head_dim_agrees),     cmocka_unit_test(scales_of_any_sign_agree),
        cmocka_unit_test(huge_logits_make_no_nan),   cmocka_unit_test(nan_inputs_are_not_hidden),
        cmocka_unit_test(repeats_are_bitwise_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
