/* tests/kernels/test_attention_gradients.c -- the reference's gradients by finite differences; values worked out by
 * hand. */
#include "kernels/attention_fixture.h"

#include <math.h>
#include <stdlib.h>

/* f = sum of dO * O, summed in double. */
static double objective(const struct inputs *in, struct outputs *out)
{
    const struct attention_shape *shape = &in->shape;
    double sum = 0;
    CHECK_OK(fixture_forward(attention_find("reference"), in, out, 0));
    for (int64_t i = 0; i < shape->batch * shape->seq_q * shape->o_stride; i++)
        sum += (double)((const float *)out->o)[i] * (double)((const float *)in->d_o)[i];
    return sum;
}

/* Central difference of f by each element of x. O is rounded to fp32 (6e-8 of values near 1, a dozen of them): with a
 * step of 2^-6 the noise is about 1e-5, the truncation about 2^-12 / 6 times a third derivative near 1, 4e-5. */
static void by_differences(const struct inputs *in, float *x, const float *gradient, int64_t n, const char *label)
{
    const float step = 0x1p-6f;
    struct outputs *out = outputs_create(&in->shape, false);
    for (int64_t i = 0; i < n; i++) {
        float was = x[i];
        x[i] = was + step;
        double up = objective(in, out);
        x[i] = was - step;
        double down = objective(in, out);
        x[i] = was;
        double difference = (up - down) / (2 * (double)step);
        if (!(fabs(difference - (double)gradient[i]) < 1e-3))
            fail_msg("%s[%lld]: gradient %g, by differences %g", label, (long long)i, (double)gradient[i], difference);
    }
    outputs_destroy(out);
}

static void gradients_agree(struct attention_shape shape)
{
    struct inputs *in = inputs_create(&shape, 3, 0.7);
    struct outputs *out = outputs_create(&shape, false);
    CHECK_OK(fixture_forward(attention_find("reference"), in, out, 0));
    CHECK_OK(fixture_backward(attention_find("reference"), in, out, 0));
    by_differences(in, in->q, out->dq, shape.batch * shape.seq_q * shape.q_stride, "dq");
    by_differences(in, in->k, out->dk, shape.batch * shape.seq_k * shape.k_stride, "dk");
    by_differences(in, in->v, out->dv, shape.batch * shape.seq_k * shape.v_stride, "dv");
    inputs_destroy(in);
    outputs_destroy(out);
}

static void reference_gradients_by_finite_differences(void **state)
{
    (void)state;
    const int64_t cu_q[] = {0, 3, 3, 4, 6}, cu_k[] = {0, 2, 3, 3, 5};
    struct attention_shape shape = fixture_shape(1, 4, 5, 1, 1, 3, DTYPE_FP32);
    gradients_agree(shape);
    shape = fixture_shape(2, 3, 4, 4, 2, 2, DTYPE_FP32);
    shape.causal = ATTENTION_BOTTOM_RIGHT;
    shape.scale = -0.9f;
    gradients_agree(shape);
    shape = fixture_shape(1, 6, 4, 2, 1, 3, DTYPE_FP32);
    shape.causal = ATTENTION_BOTTOM_RIGHT; /* the first two rows see nothing */
    gradients_agree(shape);
    shape = fixture_shape(1, 5, 5, 3, 3, 2, DTYPE_FP32);
    shape.causal = ATTENTION_TOP_LEFT;
    shape.window = 2;
    gradients_agree(shape);
    shape = fixture_shape(1, 6, 5, 2, 2, 2, DTYPE_FP32);
    shape.docs = 4; /* one empty in queries, one in keys */
    shape.cu_q = cu_q;
    shape.cu_k = cu_k;
    gradients_agree(shape);
}

/* Two keys, scores 0 and ln 3: weights 1/4 and 3/4. */
static void two_keys_by_hand(void **state)
{
    (void)state;
    struct variant variants[VARIANTS_MAX];
    struct attention_shape shape = fixture_shape(1, 1, 2, 1, 1, 1, DTYPE_FP32);
    for (int v = fixture_variants(variants) - 1; v >= 0; v--) {
        struct inputs *in = inputs_create(&shape, 1, 0);
        struct outputs *out = outputs_create(&shape, false);
        float *q = in->q, *k = in->k, *value = in->v, *d_o = in->d_o, *o = out->o, *dq = out->dq, *dk = out->dk,
              *dv = out->dv;
        q[0] = 1, k[0] = 0, k[1] = logf(3), value[0] = 8, value[1] = 16, d_o[0] = 2;
        fixture_use(&variants[v]);
        CHECK_OK(fixture_forward(variants[v].kernel, in, out, 0xff));
        CHECK_OK(fixture_backward(variants[v].kernel, in, out, 0xff));
        assert_true(fabsf(o[0] - 14) < 1e-5f);
        assert_true(fabsf(out->lse[0] - logf(4)) < 1e-6f);
        /* dV = P dO; dP = (16, 32), their mean under P is 28, so dS = (1/4 * -12, 3/4 * 4) = (-3, 3) */
        assert_true(fabsf(dv[0] - 0.5f) < 1e-6f && fabsf(dv[1] - 1.5f) < 1e-6f);
        assert_true(fabsf(dk[0] + 3) < 1e-5f && fabsf(dk[1] - 3) < 1e-5f);
        assert_true(fabsf(dq[0] - 3 * logf(3)) < 1e-5f);
        inputs_destroy(in);
        outputs_destroy(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_gradients_by_finite_differences),
        cmocka_unit_test(two_keys_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
