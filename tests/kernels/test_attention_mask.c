/* tests/kernels/test_attention_mask.c -- exactly which pairs count: every mask on small shapes, and at the edges of
 * blocks.
 *
 * With q = 0 every visible key weighs the same, so with V = one-hot by key the output row is the set of keys the query
 * saw, and with dO = one-hot by query dV is the set of queries that saw a key. Hidden lanes must be exactly 0.
 */
#include "kernels/attention_fixture.h"

#include "kernels/attention_mask.h"
#include "kernels/attention_oracle.h"

#include <math.h>
#include <stdlib.h>

static void range_is_the_mask(const struct attention_shape *shape)
{
    double pairs = 0;
    for (int64_t s = 0; s < attention_segment_count(shape); s++) {
        struct attention_segment segment = attention_segment_get(shape, s);
        for (int64_t i = 0; i < segment.seq_q; i++) {
            struct attention_range range = attention_keys(shape, &segment, i);
            assert_true(range.first >= 0 && range.first <= range.end && range.end <= segment.seq_k);
            for (int64_t j = 0; j < shape->seq_k; j++) {
                int64_t key = j - segment.k_first;
                bool sees = key >= range.first && key < range.end;
                assert_int_equal(sees, oracle_sees(shape, segment.q_first + i, j));
                pairs += sees;
            }
        }
    }
    assert_true(attention_pairs(shape) == pairs);
}

static void every_small_mask_is_one_range_per_query(void **state)
{
    (void)state;
    for (int64_t seq_q = 0; seq_q < 9; seq_q++)
        for (int64_t seq_k = 0; seq_k < 9; seq_k++)
            for (int causal = ATTENTION_FULL; causal <= ATTENTION_BOTTOM_RIGHT; causal++)
                for (int64_t window = 0; window < 12; window++) {
                    struct attention_shape shape = fixture_shape(1, seq_q, seq_k, 1, 1, 1, DTYPE_FP32);
                    shape.causal = (enum attention_causal)causal;
                    shape.window = window == 11 ? INT64_MAX : window;
                    range_is_the_mask(&shape);
                }
}

/* All ways to cut 6 queries and 5 keys into three documents, with tokens before the first and after the last left over.
 */
static void every_small_packing_is_one_range_per_query(void **state)
{
    (void)state;
    for (int cut = 0; cut < 7 * 7 * 6 * 6; cut++) {
        int64_t cu_q[4] = {cut % 7 % 2, cut % 7, 0, 6 - cut % 7 % 2}, cu_k[4] = {cut / 49 % 6 % 2, cut / 49 % 6, 0, 5};
        cu_q[1] = cu_q[1] < cu_q[0] ? cu_q[0] : cu_q[1] > cu_q[3] ? cu_q[3] : cu_q[1];
        cu_q[2] = cut / 7 % 7 < cu_q[1] ? cu_q[1] : cut / 7 % 7 > cu_q[3] ? cu_q[3] : cut / 7 % 7;
        cu_k[1] = cu_k[1] < cu_k[0] ? cu_k[0] : cu_k[1];
        cu_k[2] = cut / 294 < cu_k[1] ? cu_k[1] : cut / 294;
        for (int causal = ATTENTION_FULL; causal <= ATTENTION_BOTTOM_RIGHT; causal++)
            for (int64_t window = 0; window < 4; window++) {
                struct attention_shape shape = fixture_shape(1, 6, 5, 1, 1, 1, DTYPE_FP32);
                shape.docs = 3;
                shape.cu_q = cu_q;
                shape.cu_k = cu_k;
                shape.causal = (enum attention_causal)causal;
                shape.window = window;
                range_is_the_mask(&shape);
            }
    }
}

/* Tokens, rows of LSE and heads are counted in 64 bits: batch item 3 of 2^31 - 1 tokens. */
static void tokens_beyond_32_bits(void **state)
{
    (void)state;
    const int64_t seq = (INT64_C(1) << 31) - 1;
    struct attention_shape shape = fixture_shape(4, seq, seq, 6, 2, 1, DTYPE_BF16);
    struct attention_segment segment = attention_segment_get(&shape, 3);
    assert_true(attention_q_token(&shape, &segment, seq - 1) == 4 * seq - 1);
    assert_true(attention_k_token(&shape, &segment, seq - 1) == 4 * seq - 1);
    assert_true(attention_lse_index(&shape, &segment, 5, seq - 1) == 24 * seq - 1);
    shape.causal = ATTENTION_BOTTOM_RIGHT;
    shape.window = INT64_C(1) << 33;
    segment.seq_k = INT64_C(1) << 40;
    struct attention_range range = attention_keys(&shape, &segment, seq - 1);
    assert_true(range.end == INT64_C(1) << 40 && range.first == range.end - shape.window);
}

static void set_one_hot(float *base, int64_t rows, int64_t cols)
{
    memset(base, 0, (size_t)(rows * cols) * sizeof *base);
    for (int64_t i = 0; i < rows && i < cols; i++)
        base[i * cols + i] = 1.0f;
}

/* One shape with its mask, [seq_q][seq_k], and how many keys each query sees. */
struct masked {
    struct attention_shape shape;
    bool *sees;
    int64_t *count;
};

static struct masked masked_make(struct attention_shape shape)
{
    struct masked out = {shape, calloc((size_t)(shape.seq_q * shape.seq_k) + 1, sizeof(bool)),
                         calloc((size_t)shape.seq_q + 1, sizeof(int64_t))};
    int64_t lanes = shape.seq_q > shape.seq_k ? shape.seq_q : shape.seq_k;
    out.shape.head_dim_v = lanes > 0 ? (int)lanes : 1;
    out.shape.v_stride = out.shape.o_stride = out.shape.head_dim_v;
    for (int64_t i = 0; i < shape.seq_q; i++)
        for (int64_t j = 0; j < shape.seq_k; j++) {
            out.sees[i * shape.seq_k + j] = oracle_sees(&shape, i, j);
            out.count[i] += out.sees[i * shape.seq_k + j];
        }
    return out;
}

/* weight[i][j] as the kernel gave it: 1 / count where visible, exactly 0 elsewhere. */
static void weights_are_the_mask(const struct masked *masked, const float *weight, int64_t i_step, int64_t j_step,
                                 const char *label)
{
    const struct attention_shape *shape = &masked->shape;
    for (int64_t i = 0; i < shape->seq_q; i++)
        for (int64_t j = 0; j < shape->seq_k; j++) {
            float w = weight[i * i_step + j * j_step];
            if (masked->sees[i * shape->seq_k + j] ? fabsf(w * (float)masked->count[i] - 1.0f) > 1e-5f : w != 0.0f)
                fail_msg("%s: causal %d window %lld, %lld x %lld: query %lld gives key %lld the weight %g, sees %lld",
                         label, (int)shape->causal, (long long)shape->window, (long long)shape->seq_q,
                         (long long)shape->seq_k, (long long)i, (long long)j, (double)w, (long long)masked->count[i]);
        }
}

/* Forward with V one-hot by key and backward with dO one-hot by query. */
static void kernel_sees_the_mask(const struct variant *variant, const struct masked *masked)
{
    const struct attention_shape *shape = &masked->shape;
    int64_t lanes = shape->head_dim_v;
    struct inputs *in = inputs_create(shape, 1, 0.0);
    struct outputs *out = outputs_create(shape, false);
    set_one_hot(in->v, shape->seq_k, lanes);
    set_one_hot(in->d_o, shape->seq_q, lanes);
    fixture_use(variant);
    CHECK_OK(fixture_forward(variant->kernel, in, out, 0xff));
    weights_are_the_mask(masked, out->o, lanes, 1, variant->label);
    CHECK_OK(fixture_backward(variant->kernel, in, out, 0xff));
    weights_are_the_mask(masked, out->dv, 1, lanes, variant->label);
    for (int64_t i = 0; i < shape->seq_q; i++) {
        if (masked->count[i] == 0)
            assert_true(out->lse[i] == -INFINITY);
        else
            assert_true(fabs((double)out->lse[i] - log((double)masked->count[i])) < 1e-5);
    }
    inputs_destroy(in);
    outputs_destroy(out);
}

static void kernels_see_the_mask(const int64_t *sizes, int n_sizes, const int64_t *windows, int n_windows,
                                 bool reference)
{
    struct variant variants[VARIANTS_MAX];
    int n_variants = fixture_variants(variants);
    for (int at = 0; at < n_sizes * n_sizes * n_windows * 3; at++) {
        struct attention_shape shape =
            fixture_shape(1, sizes[at % n_sizes], sizes[at / n_sizes % n_sizes], 1, 1, 1, DTYPE_FP32);
        shape.window = windows[at / n_sizes / n_sizes % n_windows];
        shape.causal = (enum attention_causal)(at / n_sizes / n_sizes / n_windows);
        struct masked masked = masked_make(shape);
        for (int v = 0; v < n_variants; v++)
            if (reference || variants[v].isa >= 0)
                kernel_sees_the_mask(&variants[v], &masked);
        free(masked.sees);
        free(masked.count);
    }
}

static void kernels_see_every_small_mask(void **state)
{
    (void)state;
    const int64_t sizes[] = {0, 1, 2, 3, 5, 7, 9}, windows[] = {0, 1, 2, 4, 9};
    kernels_see_the_mask(sizes, CHECK_COUNT(sizes), windows, CHECK_COUNT(windows), true);
}

/* Panels are 6 or 12 queries and 8, 16 or 32 keys, blocks 48 queries and 192 keys: one less, exact, one more. */
static void kernels_see_masks_at_the_edges_of_blocks(void **state)
{
    (void)state;
    const int64_t sizes[] = {1, 12, 33, 48, 49, 191, 193, 250}, windows[] = {0, 1, 17, 192};
    kernels_see_the_mask(sizes, CHECK_COUNT(sizes), windows, CHECK_COUNT(windows), false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_mask_is_one_range_per_query),
        cmocka_unit_test(every_small_packing_is_one_range_per_query),
        cmocka_unit_test(tokens_beyond_32_bits),
        cmocka_unit_test(kernels_see_every_small_mask),
        cmocka_unit_test(kernels_see_masks_at_the_edges_of_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
