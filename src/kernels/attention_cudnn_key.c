/* kernels/attention_cudnn_key.c -- which plan a call needs, what cuDNN is not asked for, and where a call's workspace has what. */
#include "kernels/attention_cudnn.h"

#include "kernels/attention_check.h"
#include "kernels/attention_mask.h"

#include <limits.h>
#include <string.h>

enum { DIM_MAX = 256, LONG_LISTS = 512, SHORTEST = 128 };

static struct verdict no(const char *why)
{
    return verdict_no(RULE_KERNEL_CANNOT, "cudnn: %s", why);
}

static struct verdict check_heads(const struct attention_shape *shape)
{
    int used = attention_kv_head(shape, shape->heads - 1) + 1;
    if (shape->dtype != DTYPE_BF16 && shape->dtype != DTYPE_FP16)
        return verdict_no(RULE_KERNEL_CANNOT, "cudnn takes bf16 and fp16, not %s", dtype_name(shape->dtype));
    if (shape->head_dim > DIM_MAX || shape->head_dim_v > DIM_MAX || shape->head_dim % 8 || shape->head_dim_v % 8)
        return verdict_no(RULE_KERNEL_CANNOT, "cudnn takes head_dim in steps of 8 up to %d, not %d and %d", DIM_MAX,
                          shape->head_dim, shape->head_dim_v);
    if (used > 1 && (shape->group_first != 0 || shape->heads % shape->group != 0))
        return no("query heads that are no whole groups");
    if (shape->q_stride % 8 || shape->k_stride % 8 || shape->v_stride % 8 || shape->o_stride % 8)
        return no("tokens that do not begin at 16 bytes");
    return VERDICT_YES;
}

/* Rows without a key make NaN in it; 1 x 1 it refuses at the launch. */
static struct verdict check_lengths(const struct attention_shape *shape)
{
    bool bottom_right = shape->causal == ATTENTION_BOTTOM_RIGHT, tokens = shape->docs == 0;
    if (shape->batch < 1 || shape->seq_q < 1 || shape->seq_k < 1)
        return no("a tensor without tokens");
    if (shape->seq_q > INT_MAX || shape->seq_k > INT_MAX || shape->batch > INT_MAX)
        return no("more than 2^31 tokens");
    if (shape->docs == 0 && shape->seq_q == 1 && shape->seq_k == 1)
        return no("one query with one key");
    if (shape->docs == 0 && bottom_right && shape->seq_q > shape->seq_k)
        return no("rows without a key (bottom-right with more queries than keys)");
    for (int i = 0; i < shape->docs; i++) {
        struct attention_segment one = attention_segment_get(shape, i);
        if ((one.seq_q == 0) != (one.seq_k == 0))
            return no("documents with queries or keys alone");
        tokens |= one.seq_q > 0;
        if (bottom_right && one.seq_q > one.seq_k)
            return no("rows without a key (bottom-right with more queries than keys)");
    }
    if (!tokens)
        return no("documents without tokens");
    if (shape->docs > 0 && (shape->head_dim % 16 || shape->head_dim_v % 16))
        return no("packed documents with a head_dim that is no multiple of 16");
    return VERDICT_YES;
}

static int64_t up_to_power(int64_t n)
{
    int64_t power = 1;
    while (power < n)
        power *= 2;
    return power;
}

/* Documents differ from call to call, and a plan takes a second to make: few different sizes of plans. */
static void round_up(const struct attention_shape *shape, struct cudnn_key *key)
{
    int64_t real = 0, longest_q = 0, longest_k = 0;
    bool equal = true;
    for (int i = 0; i < shape->docs; i++) {
        struct attention_segment one = attention_segment_get(shape, i);
        real += one.seq_q > 0;
        equal &= one.seq_q == one.seq_k;
        longest_q = one.seq_q > longest_q ? one.seq_q : longest_q;
        longest_k = one.seq_k > longest_k ? one.seq_k : longest_k;
    }
    key->batch = real <= LONG_LISTS ? up_to_power(real) : (real + LONG_LISTS - 1) / LONG_LISTS * LONG_LISTS;
    key->seq_q = up_to_power(longest_q > SHORTEST ? longest_q : SHORTEST);
    key->seq_k = up_to_power(longest_k > SHORTEST ? longest_k : SHORTEST);
    if (equal && key->causal == ATTENTION_BOTTOM_RIGHT)
        key->causal = ATTENTION_TOP_LEFT;
}

struct verdict cudnn_key_of(const struct attention_shape *shape, bool backward, bool ordered, struct cudnn_key *out)
{
    struct verdict verdict = attention_shape_verdict(shape);
    if (verdict_ok(&verdict))
        verdict = check_heads(shape);
    if (verdict_ok(&verdict))
        verdict = check_lengths(shape);
    if (!verdict_ok(&verdict))
        return verdict;
    memset(out, 0, sizeof *out); /* keys are compared whole */
    out->batch = shape->batch;
    out->seq_q = shape->seq_q;
    out->seq_k = shape->seq_k;
    out->tokens_q = shape->batch * shape->seq_q;
    out->tokens_k = shape->batch * shape->seq_k;
    out->q_stride = shape->q_stride;
    out->k_stride = shape->k_stride;
    out->v_stride = shape->v_stride;
    out->o_stride = shape->o_stride;
    out->window = shape->window < shape->seq_q + shape->seq_k ? shape->window : 0;
    out->heads = shape->heads;
    out->kv_heads = attention_kv_head(shape, shape->heads - 1) + 1;
    out->head_dim = shape->head_dim;
    out->head_dim_v = shape->head_dim_v;
    out->dtype = (int32_t)shape->dtype;
    out->causal = (int32_t)shape->causal;
    out->scale = shape->scale;
    out->packed = shape->docs > 0;
    out->backward = backward;
    out->ordered = backward && ordered;
    if (out->packed)
        round_up(shape, out);
    else if (out->causal == ATTENTION_BOTTOM_RIGHT && shape->seq_q == shape->seq_k)
        out->causal = ATTENTION_TOP_LEFT;
    return VERDICT_YES;
}

/* There cuDNN's backward takes no statistics that are packed as the documents are: from 9.18.1 on NVIDIA's own front end (sdpa backward of
 * cudnn-frontend) refuses them, before that all packed tensors. Engines may take the graph all the same. */
struct verdict cudnn_key_on(const struct cudnn_key *key, int major)
{
    if (key->packed && key->backward && (major == 8 || major == 12))
        return verdict_no(RULE_KERNEL_CANNOT,
                          "cudnn has no backward pass over packed documents on compute capability %d.x", major);
    return VERDICT_YES;
}

static size_t take(struct cudnn_room *room, int64_t elems, size_t size)
{
    size_t at = room->bytes;
    room->bytes += ((size_t)elems * size + 255) / 256 * 256;
    return at;
}

struct cudnn_room cudnn_room_of(const struct cudnn_key *key, int64_t own_bytes)
{
    struct cudnn_room room = {0};
    bool packed = key->packed, backward = key->backward;
    int64_t rows = packed ? key->tokens_q * key->heads : key->batch * key->heads * key->seq_q;
    int64_t group = key->heads / key->kv_heads, places = packed ? key->batch : 0;
    bool by_head = backward && packed && group > 1;
    room.own = take(&room, own_bytes > 1 ? own_bytes : 1, 1); /* 0 would mean that there is no plan */
    room.stats = take(&room, packed ? rows : 0, sizeof(float));
    room.sum = take(&room, backward ? rows : 0, sizeof(float));
    room.dq_sum = take(&room,
                       !backward || key->ordered ? 0
                       : packed                  ? key->tokens_q * key->q_stride
                                                 : rows * key->head_dim,
                       sizeof(float));
    room.dk_heads = take(&room, by_head ? key->tokens_k * key->k_stride * group : 0, 2);
    room.dv_heads = take(&room, by_head ? key->tokens_k * key->v_stride * group : 0, 2);
    room.dk = take(&room, backward ? key->tokens_k * key->k_stride : 0, 2);
    room.dv = take(&room, backward ? key->tokens_k * key->v_stride : 0, 2);
    room.len_q = take(&room, places, sizeof(int32_t));
    room.len_k = take(&room, places, sizeof(int32_t));
    room.at_q = take(&room, packed ? places + 1 : 0, sizeof(int64_t));
    room.at_k = take(&room, packed ? places + 1 : 0, sizeof(int64_t));
    room.at_v = take(&room, packed ? places + 1 : 0, sizeof(int64_t));
    room.at_o = take(&room, packed ? places + 1 : 0, sizeof(int64_t));
    room.at_stats = take(&room, packed ? places + 1 : 0, sizeof(int64_t));
    return room;
}
