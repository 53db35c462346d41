/* kernels/attention.c -- the table of attention kernels, and what holds for all of them: shape rules, pairs, FLOPs. */
#include "kernels/attention.h"

#include "base/mem.h"
#include "kernels/attention_check.h"
#include "kernels/attention_mask.h"

#include <math.h>
#include <string.h>

extern const struct attention attention_reference;
extern const struct attention attention_cpu;
#if SPTUNE_CUDA
extern const struct attention attention_gpu_reference;
extern const struct attention attention_flash2;
#endif
#if SPTUNE_CUDNN
extern const struct attention attention_cudnn;
extern const struct attention attention_cudnn_ordered;
#endif

const struct attention *const attentions[] = {
    &attention_reference,
    &attention_cpu,
#if SPTUNE_CUDA
    &attention_gpu_reference,
    &attention_flash2,
#endif
#if SPTUNE_CUDNN
    &attention_cudnn,
    &attention_cudnn_ordered,
#endif
    NULL,
};

const struct attention *attention_find(const char *name)
{
    for (int i = 0; name != NULL && attentions[i] != NULL; i++)
        if (strcmp(attentions[i]->name, name) == 0)
            return attentions[i];
    return NULL;
}

void attention_prepare(const struct attention *attention, const struct attention_shape *const *shapes, int n,
                       bool backward)
{
    if (attention->prepare != NULL)
        attention->prepare(shapes, n, backward);
}

void attention_shape_fill(struct attention_shape *shape)
{
    if (shape->head_dim_v == 0)
        shape->head_dim_v = shape->head_dim;
    shape->group = shape->kv_heads > 0 && shape->heads > shape->kv_heads ? shape->heads / shape->kv_heads : 1;
    shape->group_first = 0;
    shape->scale = shape->head_dim > 0 ? (float)(1.0 / sqrt((double)shape->head_dim)) : 1.0f;
    shape->q_stride = (int64_t)shape->heads * shape->head_dim;
    shape->k_stride = (int64_t)shape->kv_heads * shape->head_dim;
    shape->v_stride = (int64_t)shape->kv_heads * shape->head_dim_v;
    shape->o_stride = (int64_t)shape->heads * shape->head_dim_v;
}

/* 2^60 bytes: far beyond any machine, and sums of a few such products still fit an int64. */
static enum status tensor_check(const char *name, int64_t batch, int64_t seq, int64_t stride, int heads, int dim)
{
    enum { LIMIT_BITS = 60 };
    int64_t elems;
    if (stride < (int64_t)heads * dim)
        return HINT(FAIL(STATUS_USAGE, "attention: stride %lld of %s is less than %d heads of %d", (long long)stride,
                         name, heads, dim),
                    "a token of %s takes %lld elements", name, (long long)((int64_t)heads * dim));
    TRY(WHERE(mem_mul(batch, seq, "batch times length", &elems), "attention, tensor %s", name));
    TRY(WHERE(mem_mul(elems, stride, "tokens times stride", &elems), "attention, tensor %s", name));
    if (elems > (INT64_C(1) << LIMIT_BITS) / 4)
        return FAIL(STATUS_USAGE, "attention: %s has %lld elements, more than any machine holds", name,
                    (long long)elems);
    return STATUS_OK;
}

static enum status documents_check(const char *name, const int64_t *cu, int docs, int64_t tokens)
{
    if (cu == NULL)
        return FAIL(STATUS_USAGE, "attention: %d packed documents without %s", docs, name);
    if (cu[0] < 0 || cu[docs] > tokens)
        return HINT(
            FAIL(STATUS_USAGE, "attention: %s runs from %lld to %lld", name, (long long)cu[0], (long long)cu[docs]),
            "offsets lie within 0 and %lld tokens", (long long)tokens);
    for (int i = 0; i < docs; i++)
        if (cu[i + 1] < cu[i])
            return HINT(FAIL(STATUS_USAGE, "attention: %s[%d] = %lld is less than %s[%d] = %lld", name, i + 1,
                             (long long)cu[i + 1], name, i, (long long)cu[i]),
                        "offsets ascend; equal ones make an empty document");
    return STATUS_OK;
}

static enum status heads_check(const struct attention_shape *shape)
{
    if (shape->heads < 1 || shape->kv_heads < 1 || shape->head_dim < 1 || shape->head_dim_v < 1)
        return HINT(FAIL(STATUS_USAGE, "attention: %d query heads, %d kv heads, head_dim %d, head_dim_v %d",
                         shape->heads, shape->kv_heads, shape->head_dim, shape->head_dim_v),
                    "all four are 1 or more");
    if (shape->group < 1 || shape->group_first < 0 || shape->group_first >= shape->group)
        return HINT(FAIL(STATUS_USAGE, "attention: group_first %d in a group of %d", shape->group_first, shape->group),
                    "0 <= group_first < group");
    int64_t kv_used = ((int64_t)shape->group_first + shape->heads - 1) / shape->group + 1;
    if (kv_used > shape->kv_heads)
        return HINT(FAIL(STATUS_USAGE,
                         "attention: %d query heads in groups of %d from %d use %lld kv heads, but there are %d",
                         shape->heads, shape->group, shape->group_first, (long long)kv_used, shape->kv_heads),
                    "group = query heads per kv head");
    return STATUS_OK;
}

enum status attention_shape_check(const struct attention_shape *shape)
{
    TRY(heads_check(shape));
    if (shape->batch < 0 || shape->seq_q < 0 || shape->seq_k < 0)
        return HINT(FAIL(STATUS_USAGE, "attention: batch %lld, seq_q %lld, seq_k %lld", (long long)shape->batch,
                         (long long)shape->seq_q, (long long)shape->seq_k),
                    "none is negative");
    if ((int)shape->dtype < 0 || shape->dtype >= DTYPE_COUNT)
        return FAIL(STATUS_USAGE, "attention: dtype %d does not exist", (int)shape->dtype);
    if ((int)shape->causal < 0 || shape->causal > ATTENTION_BOTTOM_RIGHT)
        return FAIL(STATUS_USAGE, "attention: causal %d does not exist", (int)shape->causal);
    if (!isfinite(shape->scale))
        return FAIL(STATUS_USAGE, "attention: scale %g is not a finite number", (double)shape->scale);
    if (shape->window < 0)
        return HINT(FAIL(STATUS_USAGE, "attention: window %lld is negative", (long long)shape->window),
                    "0 means no window");
    TRY(tensor_check("q", shape->batch, shape->seq_q, shape->q_stride, shape->heads, shape->head_dim));
    TRY(tensor_check("k", shape->batch, shape->seq_k, shape->k_stride, shape->kv_heads, shape->head_dim));
    TRY(tensor_check("v", shape->batch, shape->seq_k, shape->v_stride, shape->kv_heads, shape->head_dim_v));
    TRY(tensor_check("o", shape->batch, shape->seq_q, shape->o_stride, shape->heads, shape->head_dim_v));
    if (shape->docs < 0 || (shape->docs > 0 && shape->batch != 1))
        return HINT(
            FAIL(STATUS_USAGE, "attention: %d documents in a batch of %lld", shape->docs, (long long)shape->batch),
            "packed documents are one batch item");
    if (shape->docs > 0) {
        TRY(documents_check("cu_q", shape->cu_q, shape->docs, shape->seq_q));
        TRY(documents_check("cu_k", shape->cu_k, shape->docs, shape->seq_k));
    }
    return STATUS_OK;
}

struct verdict attention_shape_verdict(const struct attention_shape *shape)
{
    if (attention_shape_check(shape) == STATUS_OK)
        return VERDICT_YES;
    struct verdict verdict = verdict_no(RULE_KERNEL_CANNOT, "%s", status_last()->what);
    status_clear();
    return verdict;
}

bool attention_shape_good(const struct attention_shape *shape)
{
    bool good = attention_shape_check(shape) == STATUS_OK;
    if (!good)
        status_clear();
    return good;
}

static enum status need(const void *pointer, bool needed, const char *name)
{
    return pointer == NULL && needed ? FAIL(STATUS_USAGE, "attention: no %s was given", name) : STATUS_OK;
}

enum status attention_args_check(const struct attention_shape *shape, const struct attention_args *args, bool backward,
                                 size_t workspace_bytes)
{
    TRY(attention_shape_check(shape));
    bool some_q = shape->batch > 0 && shape->seq_q > 0, some_k = shape->batch > 0 && shape->seq_k > 0;
    TRY(need(args->q, some_q, "q"));
    TRY(need(args->k, some_k, "k"));
    TRY(need(args->v, some_k, "v"));
    TRY(need(args->o, some_q, "o"));
    TRY(need(args->lse, some_q, "lse"));
    TRY(need(args->workspace, workspace_bytes > 0, "workspace"));
    if (!backward)
        return STATUS_OK;
    TRY(need(args->d_o, some_q, "d_o"));
    TRY(need(args->dq, some_q, "dq"));
    TRY(need(args->dk, some_k, "dk"));
    TRY(need(args->dv, some_k, "dv"));
    if (args->dkv_accumulate && !args->dkv_fp32)
        return HINT(FAIL(STATUS_USAGE, "attention: dk and dv can only be added to in fp32"), "set dkv_fp32");
    return STATUS_OK;
}

/* sum over i < n of clamp(i + first, 0, top), exact: three pieces, the middle one an arithmetic series. */
__extension__ typedef __int128 wide;
static wide ramp_sum(int64_t n, int64_t first, int64_t top)
{
    int64_t rise = attention_clamp(-first, 0, n);         /* from here on i + first >= 0 */
    int64_t flat = attention_clamp(top - first, rise, n); /* from here on i + first >= top */
    wide middle = (wide)(flat - rise) * (2 * (wide)first + rise + flat - 1) / 2;
    return middle + (wide)(n - flat) * top;
}

/* The same ranges as attention_keys, summed in closed form: ends minus firsts. */
static wide segment_pairs(const struct attention_shape *shape, const struct attention_segment *segment)
{
    int64_t seq_q = segment->seq_q, seq_k = segment->seq_k;
    int64_t shift = shape->causal == ATTENTION_BOTTOM_RIGHT ? seq_k - seq_q : 0;
    wide ends = shape->causal == ATTENTION_FULL ? (wide)seq_q * seq_k : ramp_sum(seq_q, shift + 1, seq_k);
    if (segment->hidden)
        return 0;
    if (shape->window == 0)
        return ends;
    return ends - ramp_sum(seq_q, shift + 1 - attention_clamp(shape->window, 1, seq_q + seq_k), seq_k);
}

double attention_pairs(const struct attention_shape *shape)
{
    if (shape->docs == 0) {
        struct attention_segment one = {0, 0, 0, shape->seq_q, shape->seq_k, false};
        return (double)shape->batch * (double)segment_pairs(shape, &one);
    }
    wide pairs = 0;
    for (int64_t i = 0; i < shape->docs; i++) {
        struct attention_segment segment = attention_segment_get(shape, i);
        pairs += segment_pairs(shape, &segment);
    }
    return (double)pairs;
}

double attention_flops(const struct attention_shape *shape, bool backward)
{
    double lanes = (double)shape->head_dim + (double)shape->head_dim_v;
    return (backward ? 2.5 : 1.0) * 2.0 * shape->heads * lanes * attention_pairs(shape);
}
