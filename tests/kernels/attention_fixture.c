/* tests/kernels/attention_fixture.c -- poisoned tensors, runs, and comparison with the oracle. */
#include "kernels/attention_fixture.h"

#include "base/rng.h"
#include "kernels/attention_cpu.h"
#include "kernels/attention_oracle.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { PATTERN = 0xa5, NAN_BYTE = 0xff };

int fixture_variants(struct variant out[VARIANTS_MAX])
{
    int n = 0;
    for (int i = 0; attentions[i] != NULL; i++) {
        if (attentions[i]->dev != DEV_CPU)
            continue;
        if (strcmp(attentions[i]->name, "cpu") != 0)
            out[n++] = (struct variant){attentions[i], -1, attentions[i]->name};
        for (int isa = 0; strcmp(attentions[i]->name, "cpu") == 0 && attention_cpu_isa(isa) != NULL; isa++)
            out[n++] = (struct variant){attentions[i], isa, attention_cpu_isa(isa)->name};
    }
    assert_true(n <= VARIANTS_MAX);
    return n;
}

void fixture_use(const struct variant *variant)
{
    attention_cpu_use(variant->isa);
}

struct attention_shape fixture_shape(int64_t batch, int64_t seq_q, int64_t seq_k, int heads, int kv_heads, int head_dim,
                                     enum dtype dtype)
{
    struct attention_shape shape = {.batch = batch,
                                    .seq_q = seq_q,
                                    .seq_k = seq_k,
                                    .heads = heads,
                                    .kv_heads = kv_heads,
                                    .head_dim = head_dim,
                                    .dtype = dtype};
    attention_shape_fill(&shape);
    return shape;
}

/* One tensor of a shape: tokens x stride elements, of which `lanes` at the start of each token are its own. */
struct tensor {
    int64_t tokens, stride, lanes;
};

static struct tensor tensor_q(const struct attention_shape *shape)
{
    return (struct tensor){shape->batch * shape->seq_q, shape->q_stride, (int64_t)shape->heads * shape->head_dim};
}

static struct tensor tensor_k(const struct attention_shape *shape)
{
    return (struct tensor){shape->batch * shape->seq_k, shape->k_stride, (int64_t)shape->kv_heads * shape->head_dim};
}

static struct tensor tensor_v(const struct attention_shape *shape)
{
    return (struct tensor){shape->batch * shape->seq_k, shape->v_stride, (int64_t)shape->kv_heads * shape->head_dim_v};
}

static struct tensor tensor_o(const struct attention_shape *shape)
{
    return (struct tensor){shape->batch * shape->seq_q, shape->o_stride, (int64_t)shape->heads * shape->head_dim_v};
}

static void *filled(size_t bytes, int byte)
{
    void *out = malloc(bytes);
    assert_true(out != NULL || bytes == 0);
    if (bytes > 0)
        memset(out, byte, bytes);
    return out;
}

static void *random_tensor(struct tensor tensor, enum dtype dtype, struct rng *rng, double amplitude)
{
    void *out = filled((size_t)(tensor.tokens * tensor.stride * dtype_bytes(dtype)), NAN_BYTE);
    for (int64_t i = 0; i < tensor.tokens; i++)
        for (int64_t t = 0; t < tensor.lanes; t++)
            dtype_set(dtype, out, i * tensor.stride + t, amplitude == 0 ? 0.0f : (float)(amplitude * rng_normal(rng)));
    return out;
}

struct inputs *inputs_create(const struct attention_shape *shape, uint64_t seed, double amplitude)
{
    struct inputs *in = calloc(1, sizeof *in);
    struct rng rng;
    assert_non_null(in);
    rng_seed(&rng, seed, 0);
    in->shape = *shape;
    in->q = random_tensor(tensor_q(shape), shape->dtype, &rng, amplitude);
    in->k = random_tensor(tensor_k(shape), shape->dtype, &rng, amplitude);
    in->v = random_tensor(tensor_v(shape), shape->dtype, &rng, amplitude);
    in->d_o = random_tensor(tensor_o(shape), shape->dtype, &rng, amplitude);
    return in;
}

void inputs_destroy(struct inputs *in)
{
    free(in->q);
    free(in->k);
    free(in->v);
    free(in->d_o);
    oracle_destroy(in->exact);
    oracle_destroy(in->plain);
    free(in);
}

static size_t tensor_bytes(struct tensor tensor, enum dtype dtype)
{
    return (size_t)(tensor.tokens * tensor.stride * dtype_bytes(dtype));
}

static size_t lse_bytes(const struct attention_shape *shape)
{
    return (size_t)(shape->batch * shape->heads * shape->seq_q) * sizeof(float);
}

static enum dtype dkv_dtype(const struct outputs *out)
{
    return out->dkv_fp32 ? DTYPE_FP32 : out->shape.dtype;
}

struct outputs *outputs_create(const struct attention_shape *shape, bool dkv_fp32)
{
    struct outputs *out = calloc(1, sizeof *out);
    assert_non_null(out);
    out->shape = *shape;
    out->dkv_fp32 = dkv_fp32;
    out->o = filled(tensor_bytes(tensor_o(shape), shape->dtype), PATTERN);
    out->dq = filled(tensor_bytes(tensor_q(shape), shape->dtype), PATTERN);
    out->dk = filled(tensor_bytes(tensor_k(shape), dkv_dtype(out)), PATTERN);
    out->dv = filled(tensor_bytes(tensor_v(shape), dkv_dtype(out)), PATTERN);
    out->lse = filled(lse_bytes(shape), PATTERN);
    return out;
}

void outputs_destroy(struct outputs *out)
{
    free(out->o);
    free(out->dq);
    free(out->dk);
    free(out->dv);
    free(out->lse);
    free(out);
}

static struct dev_queue *on_queue;

void fixture_on(struct dev_queue *queue)
{
    on_queue = queue;
}

static enum status fixture_run(const struct attention *kernel, const struct inputs *in, struct outputs *out, int fill,
                               bool backward)
{
    void *workspace = filled(kernel->workspace_bytes(&in->shape, backward, dev_queue_threads(on_queue)), fill);
    struct attention_args args = {.q = in->q,
                                  .k = in->k,
                                  .v = in->v,
                                  .o = out->o,
                                  .lse = out->lse,
                                  .d_o = in->d_o,
                                  .dq = out->dq,
                                  .dk = out->dk,
                                  .dv = out->dv,
                                  .dkv_fp32 = out->dkv_fp32,
                                  .dkv_accumulate = out->dkv_accumulate,
                                  .workspace = workspace};
    enum status status = (backward ? kernel->backward : kernel->forward)(&in->shape, &args, on_queue);
    free(workspace);
    return status;
}

enum status fixture_forward(const struct attention *kernel, const struct inputs *in, struct outputs *out, int fill)
{
    return fixture_run(kernel, in, out, fill, false);
}

enum status fixture_backward(const struct attention *kernel, const struct inputs *in, struct outputs *out, int fill)
{
    return fixture_run(kernel, in, out, fill, true);
}

static double largest(const void *base, struct tensor tensor, enum dtype dtype)
{
    double max = 0;
    for (int64_t i = 0; i < tensor.tokens; i++)
        for (int64_t t = 0; t < tensor.lanes; t++)
            max = fmax(max, fabs((double)dtype_get(dtype, base, i * tensor.stride + t)));
    return max;
}

/* |a - b|, where equal infinities are equal and a NaN is never small. */
static double distance(double a, double b)
{
    return a == b ? 0 : isfinite(a) && isfinite(b) ? fabs(a - b) : INFINITY;
}

static void tensor_agrees(const char *label, const char *name, const void *base, struct tensor tensor, enum dtype dtype,
                          const double *exact, const double *plain, double constant)
{
    double error = 0, plain_error = 0;
    for (int64_t i = 0; i < tensor.tokens; i++)
        for (int64_t t = 0; t < tensor.lanes; t++) {
            double truth = exact[i * tensor.lanes + t];
            error = fmax(error, distance((double)dtype_get(dtype, base, i * tensor.stride + t), truth));
            plain_error = fmax(plain_error, distance(plain[i * tensor.lanes + t], truth));
        }
    if (!(error <= 2 * plain_error + constant))
        fail_msg("%s: %s is off by %g; the plain computation by %g, allowed beyond twice that %g", label, name, error,
                 plain_error, constant);
}

static void gaps_untouched(const char *label, const char *name, const void *base, struct tensor tensor,
                           enum dtype dtype)
{
    const unsigned char *bytes = base;
    int64_t elem = dtype_bytes(dtype);
    for (int64_t i = 0; i < tensor.tokens; i++)
        for (int64_t at = (i * tensor.stride + tensor.lanes) * elem; at < (i + 1) * tensor.stride * elem; at++)
            if (bytes[at] != PATTERN)
                fail_msg("%s: %s was written outside its heads, token %lld", label, name, (long long)i);
}

static double largest_of(const double *values, struct tensor tensor)
{
    double max = 0;
    for (int64_t i = 0; i < tensor.tokens * tensor.lanes; i++)
        max = isfinite(values[i]) ? fmax(max, fabs(values[i])) : max;
    return max;
}

static bool rounds_terms;

void fixture_rounds_terms(bool rounds)
{
    rounds_terms = rounds;
}

/* Half an ulp of every term at most, of any sign: a quarter of that is beyond what chance makes of it. */
static double terms_error(const struct attention_shape *shape)
{
    static const double half_ulp[DTYPE_COUNT] = {[DTYPE_FP32] = 0x1p-24, [DTYPE_BF16] = 0x1p-8, [DTYPE_FP16] = 0x1p-11};
    return rounds_terms ? half_ulp[shape->dtype] / 4 : 0;
}

/* The constants: u is half an ulp of fp32. S is a sum of terms of at most s_max. P is recomputed from an LSE
 * that is stored in fp32, so each P may be off by u |LSE|, and each product by u: that much of the sum of all terms'
 * magnitudes. */
void fixture_agrees(struct inputs *in, const struct outputs *out, bool backward, const char *label)
{
    const double u = 0x1p-24;
    const struct attention_shape *shape = &in->shape;
    enum dtype dkv = dkv_dtype(out);
    if (in->exact == NULL) {
        in->exact = oracle_create(in, EXACT);
        in->plain = oracle_create(in, PLAIN);
    }
    const struct oracle *exact = in->exact, *plain = in->plain;
    struct tensor q = tensor_q(shape), k = tensor_k(shape), v = tensor_v(shape), o = tensor_o(shape);
    struct tensor lse = {shape->batch * shape->heads * shape->seq_q, 1, 1};
    double s_max = fabs((double)shape->scale) * largest(in->q, q, shape->dtype) * largest(in->k, k, shape->dtype);
    double u_p = u * (1 + largest_of(exact->lse, lse)) + terms_error(shape);
    tensor_agrees(label, "o", out->o, o, shape->dtype, exact->o, plain->o, 4 * u * largest(in->v, v, shape->dtype));
    tensor_agrees(label, "lse", out->lse, lse, DTYPE_FP32, exact->lse, plain->lse, 4 * u * (1 + s_max));
    gaps_untouched(label, "o", out->o, o, shape->dtype);
    if (backward) {
        tensor_agrees(label, "dq", out->dq, q, shape->dtype, exact->dq, plain->dq,
                      u_p * largest_of(exact->dq_terms, q));
        tensor_agrees(label, "dk", out->dk, k, dkv, exact->dk, plain->dk, u_p * largest_of(exact->dk_terms, k));
        tensor_agrees(label, "dv", out->dv, v, dkv, exact->dv, plain->dv, u_p * largest_of(exact->dv_terms, v));
        gaps_untouched(label, "dq", out->dq, q, shape->dtype);
        gaps_untouched(label, "dk", out->dk, k, dkv);
        gaps_untouched(label, "dv", out->dv, v, dkv);
    }
}

static void bytes_same(const char *label, const char *name, const void *a, const void *b, size_t bytes)
{
    if (bytes > 0 && memcmp(a, b, bytes) != 0)
        fail_msg("%s: %s differs in some bit", label, name);
}

void fixture_same(const struct outputs *a, const struct outputs *b, bool backward, const char *label)
{
    const struct attention_shape *shape = &a->shape;
    bytes_same(label, "o", a->o, b->o, tensor_bytes(tensor_o(shape), shape->dtype));
    bytes_same(label, "lse", a->lse, b->lse, lse_bytes(shape));
    if (!backward)
        return;
    bytes_same(label, "dq", a->dq, b->dq, tensor_bytes(tensor_q(shape), shape->dtype));
    bytes_same(label, "dk", a->dk, b->dk, tensor_bytes(tensor_k(shape), dkv_dtype(a)));
    bytes_same(label, "dv", a->dv, b->dv, tensor_bytes(tensor_v(shape), dkv_dtype(a)));
}

static void no_nan(const char *label, const char *name, const void *base, struct tensor tensor, enum dtype dtype)
{
    for (int64_t i = 0; i < tensor.tokens; i++)
        for (int64_t t = 0; t < tensor.lanes; t++)
            if (isnan(dtype_get(dtype, base, i * tensor.stride + t)))
                fail_msg("%s: %s has a NaN at token %lld, lane %lld", label, name, (long long)i, (long long)t);
}

void fixture_no_nan(const struct outputs *out, bool backward, const char *label)
{
    const struct attention_shape *shape = &out->shape;
    struct tensor lse = {shape->batch * shape->heads * shape->seq_q, 1, 1};
    no_nan(label, "o", out->o, tensor_o(shape), shape->dtype);
    no_nan(label, "lse", out->lse, lse, DTYPE_FP32);
    if (!backward)
        return;
    no_nan(label, "dq", out->dq, tensor_q(shape), shape->dtype);
    no_nan(label, "dk", out->dk, tensor_k(shape), dkv_dtype(out));
    no_nan(label, "dv", out->dv, tensor_v(shape), dkv_dtype(out));
}
