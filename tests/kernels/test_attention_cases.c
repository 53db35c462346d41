/* tests/kernels/test_attention_cases.c -- situations from practice by their id, groups of heads cut into calls, huge
 * offsets. */
#include "kernels/attention_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

/* C25: causal with unequal lengths, bottom-right: 4 queries on 6 keys see 3, 4, 5, 6; of 6 queries on 4 keys two see
 * none. */
static void c25_causal_with_unequal_lengths(void **state)
{
    (void)state;
    struct variant variants[VARIANTS_MAX];
    int n = fixture_variants(variants);
    struct attention_shape shape = fixture_shape(1, 4, 6, 1, 1, 8, DTYPE_FP32);
    shape.causal = ATTENTION_BOTTOM_RIGHT;
    assert_true(attention_pairs(&shape) == 18);
    for (int v = 0; v < n; v++) {
        fixture_use(&variants[v]);
        struct inputs *in = inputs_create(&shape, 1, 0.0); /* q = k = 0: LSE is the log of the number of keys */
        struct outputs *out = outputs_create(&shape, false);
        CHECK_OK(fixture_forward(variants[v].kernel, in, out, 0xff));
        for (int i = 0; i < 4; i++)
            assert_true(fabsf(out->lse[i] - logf((float)(3 + i))) < 1e-6f);
        inputs_destroy(in);
        outputs_destroy(out);
    }
    shape = fixture_shape(1, 6, 4, 1, 1, 8, DTYPE_BF16);
    shape.causal = ATTENTION_BOTTOM_RIGHT;
    assert_true(attention_pairs(&shape) == 10);
    for (int v = 0; v < n; v++) {
        fixture_use(&variants[v]);
        struct inputs *in = inputs_create(&shape, 2, 1.0);
        struct outputs *out = outputs_create(&shape, false);
        CHECK_OK(fixture_forward(variants[v].kernel, in, out, 0xff));
        CHECK_OK(fixture_backward(variants[v].kernel, in, out, 0xff));
        fixture_no_nan(out, true, variants[v].label);
        fixture_agrees(in, out, true, variants[v].label);
        for (int i = 0; i < 2; i++)
            assert_true(out->lse[i] == -INFINITY);
        for (int i = 0; i < 2 * 8; i++)
            assert_true(dtype_get(DTYPE_BF16, out->o, i) == 0 && dtype_get(DTYPE_BF16, out->dq, i) == 0);
        inputs_destroy(in);
        outputs_destroy(out);
    }
}

/* C11: documents 3 + 5 packed: 21 causal pairs, not 36, and the packed call is the two documents computed alone. */
static void c11_packed_documents(void **state)
{
    (void)state;
    const int64_t cu[] = {0, 3, 8};
    struct variant variants[VARIANTS_MAX];
    struct attention_shape packed = fixture_shape(1, 8, 8, 2, 1, 4, DTYPE_FP32), alone = packed;
    packed.causal = alone.causal = ATTENTION_TOP_LEFT;
    assert_true(attention_pairs(&packed) == 36);
    packed.docs = 2;
    packed.cu_q = packed.cu_k = cu;
    assert_true(attention_pairs(&packed) == 21);
    for (int v = fixture_variants(variants) - 1; v >= 0; v--) {
        struct inputs *in = inputs_create(&packed, 4, 1.0);
        struct outputs *out = outputs_create(&packed, false);
        fixture_use(&variants[v]);
        CHECK_OK(fixture_forward(variants[v].kernel, in, out, 0xff));
        for (int d = 0; d < 2; d++) {
            alone.seq_q = alone.seq_k = cu[d + 1] - cu[d];
            struct inputs part = {alone,
                                  (float *)in->q + cu[d] * alone.q_stride,
                                  (float *)in->k + cu[d] * alone.k_stride,
                                  (float *)in->v + cu[d] * alone.v_stride,
                                  (float *)in->d_o + cu[d] * alone.o_stride,
                                  NULL,
                                  NULL};
            struct outputs *one = outputs_create(&alone, false);
            CHECK_OK(fixture_forward(variants[v].kernel, &part, one, 0xff));
            assert_memory_equal((float *)out->o + cu[d] * alone.o_stride, one->o,
                                (size_t)(alone.seq_q * alone.o_stride) * sizeof(float));
            outputs_destroy(one);
        }
        inputs_destroy(in);
        outputs_destroy(out);
    }
}

/* Query heads [first, first + heads) of `whole`, reading and writing in place; kv heads from `kv` on. */
static enum status run_heads(const struct attention *kernel, const struct inputs *in, struct outputs *out, int first,
                             int heads, bool backward)
{
    struct attention_shape shape = in->shape;
    int kv = first / shape.group, elem = dtype_bytes(shape.dtype), dkv = out->dkv_fp32 ? 4 : elem;
    shape.group_first = first % shape.group;
    shape.heads = heads;
    shape.kv_heads = (first + heads - 1) / shape.group - kv + 1;
    int64_t q = (int64_t)first * shape.head_dim, o = (int64_t)first * shape.head_dim_v;
    int64_t k = (int64_t)kv * shape.head_dim, v = (int64_t)kv * shape.head_dim_v;
    void *workspace = malloc(kernel->workspace_bytes(&shape, backward, 1));
    struct attention_args args = {.q = (char *)in->q + q * elem,
                                  .k = (char *)in->k + k * elem,
                                  .v = (char *)in->v + v * elem,
                                  .o = (char *)out->o + o * elem,
                                  .lse = out->lse + (int64_t)first * shape.seq_q, /* batch 1 */
                                  .d_o = (char *)in->d_o + o * elem,
                                  .dq = (char *)out->dq + q * elem,
                                  .dk = (char *)out->dk + k * dkv,
                                  .dv = (char *)out->dv + v * dkv,
                                  .dkv_fp32 = out->dkv_fp32,
                                  .dkv_accumulate = out->dkv_accumulate,
                                  .workspace = workspace};
    enum status status = (backward ? kernel->backward : kernel->forward)(&shape, &args, NULL);
    free(workspace);
    return status;
}

/* Chunks of heads that cut GQA groups: 6 heads over 2 kv heads in calls of 2 (the second uses both kv heads) and of 4.
 * The kernel that sums in fp32 gives the bits of one call; the reference rounds its double sums to fp32 between calls.
 */
static void chunks_that_cut_a_group_add_up(void **state)
{
    (void)state;
    struct variant variants[VARIANTS_MAX];
    int n = fixture_variants(variants);
    for (int dtype = DTYPE_FP32; dtype <= DTYPE_BF16; dtype++)
        for (int v = 0; v < n; v++)
            for (int chunk = 1; chunk < 6; chunk++) {
                struct attention_shape shape = fixture_shape(1, 60, 210, 6, 2, 20, (enum dtype)dtype);
                shape.head_dim_v = 12;
                shape.v_stride = 24;
                shape.o_stride = 72;
                shape.causal = ATTENTION_BOTTOM_RIGHT;
                struct inputs *in = inputs_create(&shape, 6, 1.0);
                struct outputs *one = outputs_create(&shape, true), *parts = outputs_create(&shape, true);
                fixture_use(&variants[v]);
                CHECK_OK(fixture_forward(variants[v].kernel, in, one, 0xff));
                CHECK_OK(fixture_backward(variants[v].kernel, in, one, 0xff));
                memset(parts->dk, 0, (size_t)(shape.seq_k * shape.k_stride) * sizeof(float));
                memset(parts->dv, 0, (size_t)(shape.seq_k * shape.v_stride) * sizeof(float));
                parts->dkv_accumulate = true;
                for (int first = 0; first < 6; first += chunk) {
                    int heads = 6 - first < chunk ? 6 - first : chunk;
                    CHECK_OK(run_heads(variants[v].kernel, in, parts, first, heads, false));
                    CHECK_OK(run_heads(variants[v].kernel, in, parts, first, heads, true));
                }
                if (variants[v].isa < 0)
                    fixture_agrees(in, parts, true, variants[v].label);
                else
                    fixture_same(one, parts, true, variants[v].label);
                inputs_destroy(in);
                outputs_destroy(one);
                outputs_destroy(parts);
            }
}

/* C16: 8 query heads over 2 kv heads on 4 ranks: ranks 0, 1, 2, 3 use kv heads 0, 0, 1, 1, and dK of kv head 0 is rank
 * 0 + rank 1. */
static void c16_kv_head_of_each_rank(void **state)
{
    (void)state;
    struct variant variants[VARIANTS_MAX];
    struct attention_shape shape = fixture_shape(1, 30, 30, 8, 2, 16, DTYPE_FP32);
    for (int v = fixture_variants(variants) - 1; v >= 0; v--) {
        struct inputs *in = inputs_create(&shape, 8, 1.0);
        struct outputs *one = outputs_create(&shape, true), *ranks[4];
        fixture_use(&variants[v]);
        CHECK_OK(fixture_forward(variants[v].kernel, in, one, 0xff));
        CHECK_OK(fixture_backward(variants[v].kernel, in, one, 0xff));
        for (int r = 0; r < 4; r++) {
            ranks[r] = outputs_create(&shape, true);
            CHECK_OK(run_heads(variants[v].kernel, in, ranks[r], 2 * r, 2, false));
            CHECK_OK(run_heads(variants[v].kernel, in, ranks[r], 2 * r, 2, true));
            for (int64_t i = 0; i < 30; i++)
                assert_memory_equal((float *)ranks[r]->o + i * 128 + 32 * r, (float *)one->o + i * 128 + 32 * r,
                                    32 * sizeof(float));
        }
        for (int64_t i = 0; i < 30; i++)
            for (int kv = 0; kv < 2; kv++)
                for (int t = 0; t < 16; t++) {
                    int64_t at = i * 32 + kv * 16 + t;
                    float sum = ((float *)ranks[2 * kv]->dk)[at] + ((float *)ranks[2 * kv + 1]->dk)[at];
                    assert_true(fabsf(sum - ((float *)one->dk)[at]) < 1e-5f);
                }
        for (int r = 0; r < 4; r++)
            outputs_destroy(ranks[r]);
        inputs_destroy(in);
        outputs_destroy(one);
    }
}

/* C17: 28 heads over 7 kv heads on 2 ranks. Rounding each count alone (28 over 8) is no whole group and is refused;
 * padding kv to 8 and q to 32 keeps groups of 4: rank 1 holds query heads 16..31 and kv heads 4..7, of which the last
 * group is padding. The real heads come out as without padding. */
static void c17_padding_heads_keeps_the_group(void **state)
{
    (void)state;
    struct variant variants[VARIANTS_MAX];
    struct attention_shape real = fixture_shape(1, 20, 20, 28, 7, 4, DTYPE_FP32), padded, broken;
    padded = fixture_shape(1, 20, 20, 32, 8, 4, DTYPE_FP32);
    broken = fixture_shape(1, 20, 20, 28, 8, 4, DTYPE_FP32);
    assert_int_equal(broken.group, 3); /* 3.5, cut off */
    broken.group = 3;
    CHECK_FAILS(STATUS_USAGE, "kv heads", attention_shape_check(&broken));
    for (int v = fixture_variants(variants) - 1; v >= 0; v--) {
        struct inputs *in = inputs_create(&padded, 8, 1.0);
        struct outputs *ranks = outputs_create(&padded, false), *whole = outputs_create(&real, false);
        real.q_stride = real.o_stride = padded.q_stride; /* the real heads lie first in each token */
        real.k_stride = real.v_stride = padded.k_stride;
        struct inputs unpadded = {real, in->q, in->k, in->v, in->d_o, NULL, NULL};
        outputs_destroy(whole);
        whole = outputs_create(&real, false);
        fixture_use(&variants[v]);
        CHECK_OK(fixture_forward(variants[v].kernel, &unpadded, whole, 0xff));
        for (int r = 0; r < 2; r++)
            CHECK_OK(run_heads(variants[v].kernel, in, ranks, 16 * r, 16, false));
        for (int64_t i = 0; i < 20; i++)
            assert_memory_equal((float *)ranks->o + i * 128, (float *)whole->o + i * 128, 28 * 4 * sizeof(float));
        inputs_destroy(in);
        outputs_destroy(ranks);
        outputs_destroy(whole);
    }
}

/* C37: latent attention, q and k 192 wide, v and o 128. */
static void c37_latent_attention_widths(void **state)
{
    (void)state;
    struct variant variants[VARIANTS_MAX];
    struct attention_shape shape = {.batch = 1,
                                    .seq_q = 33,
                                    .seq_k = 33,
                                    .heads = 2,
                                    .kv_heads = 2,
                                    .head_dim = 192,
                                    .head_dim_v = 128,
                                    .dtype = DTYPE_BF16,
                                    .causal = ATTENTION_TOP_LEFT};
    attention_shape_fill(&shape);
    assert_true(shape.q_stride == 384 && shape.v_stride == 256 && shape.o_stride == 256);
    assert_true(attention_flops(&shape, false) == 2.0 * 2 * (192 + 128) * (33.0 * 34 / 2));
    for (int v = fixture_variants(variants) - 1; v >= 0; v--) {
        struct verdict verdict = variants[v].kernel->supports(&shape);
        assert_true(verdict_ok(&verdict));
        struct inputs *in = inputs_create(&shape, 3, 1.0);
        struct outputs *out = outputs_create(&shape, false);
        fixture_use(&variants[v]);
        CHECK_OK(fixture_forward(variants[v].kernel, in, out, 0xff));
        CHECK_OK(fixture_backward(variants[v].kernel, in, out, 0xff));
        fixture_agrees(in, out, true, variants[v].label);
        inputs_destroy(in);
        outputs_destroy(out);
    }
}

/* Address space without memory: only the touched pages exist. */
static void *reserve(size_t bytes)
{
    void *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return out == MAP_FAILED ? NULL : out;
}

/* Three tokens 2^31 + 64 elements apart: every offset beyond the first token is more than 32 bits hold. */
static void offsets_beyond_two_to_the_31(void **state)
{
    (void)state;
    enum { TOKENS = 3, DIM = 8 };
    const int64_t stride = (INT64_C(1) << 31) + 64;
    size_t bytes = (size_t)((TOKENS - 1) * stride + 2 * DIM) * sizeof(float);
    struct variant variants[VARIANTS_MAX];
    struct attention_shape near = fixture_shape(1, TOKENS, TOKENS, 2, 2, DIM, DTYPE_FP32), far = near;
    far.q_stride = far.k_stride = far.v_stride = far.o_stride = stride;
    float *wide[8];
    for (int i = 0; i < 8; i++) {
        wide[i] = reserve(bytes);
        if (wide[i] == NULL) {
            while (i-- > 0)
                munmap(wide[i], bytes);
            print_message("[  SKIPPED ] no %zu bytes of address space\n", bytes);
            skip();
        }
    }
    for (int v = fixture_variants(variants) - 1; v >= 0; v--) {
        struct inputs *in = inputs_create(&near, 5, 1.0);
        struct outputs *out = outputs_create(&near, false);
        const float *inputs[4] = {in->q, in->k, in->v, in->d_o}, *outputs[4] = {out->o, out->dq, out->dk, out->dv};
        for (int i = 0; i < 4; i++)
            for (int64_t token = 0; token < TOKENS; token++)
                memcpy(wide[i] + token * stride, inputs[i] + token * 2 * DIM, 2 * DIM * sizeof(float));
        fixture_use(&variants[v]);
        CHECK_OK(fixture_forward(variants[v].kernel, in, out, 0xff));
        CHECK_OK(fixture_backward(variants[v].kernel, in, out, 0xff));
        float lse[2 * TOKENS];
        void *workspace = malloc(variants[v].kernel->workspace_bytes(&far, true, 1));
        struct attention_args args = {wide[0], wide[1], wide[2], wide[4], lse,   wide[3],
                                      wide[5], wide[6], wide[7], false,   false, workspace};
        CHECK_OK(variants[v].kernel->forward(&far, &args, NULL));
        CHECK_OK(variants[v].kernel->backward(&far, &args, NULL));
        for (int i = 0; i < 4; i++)
            for (int64_t token = 0; token < TOKENS; token++)
                assert_memory_equal(wide[4 + i] + token * stride, outputs[i] + token * 2 * DIM,
                                    2 * DIM * sizeof(float));
        assert_memory_equal(lse, out->lse, sizeof lse);
        free(workspace);
        inputs_destroy(in);
        outputs_destroy(out);
    }
    for (int i = 0; i < 8; i++)
        munmap(wide[i], bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c25_causal_with_unequal_lengths), cmocka_unit_test(c11_packed_documents),
        cmocka_unit_test(c16_kv_head_of_each_rank),        cmocka_unit_test(c17_padding_heads_keeps_the_group),
        cmocka_unit_test(c37_latent_attention_widths),     cmocka_unit_test(chunks_that_cut_a_group_add_up),
        cmocka_unit_test(offsets_beyond_two_to_the_31),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
