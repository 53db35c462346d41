/* model/family_falcon.c -- Falcon: the flags, not the field, say how many KV heads there are.
 *
 *   new_decoder_architecture            num_kv_heads (or n_head_kv), 2 norms per layer unless num_ln_in_parallel_attn 1
 *   else multi_query (the default)      1, whatever num_kv_heads says (the 7B file says 71)
 *   else                                as many as heads
 */
#include "base/log.h"
#include "model/reader.h"

struct flags {
    bool new_decoder, multi_query, parallel, bias, alibi;
};

static enum status read_flags(const struct reader *r, struct flags *flags)
{
    TRY(reader_bool(r, "new_decoder_architecture", false, &flags->new_decoder));
    TRY(reader_bool(r, "multi_query", true, &flags->multi_query));
    TRY(reader_bool(r, "parallel_attn", true, &flags->parallel));
    TRY(reader_bool(r, "bias", false, &flags->bias));
    return reader_bool(r, "alibi", false, &flags->alibi);
}

static enum status read_kv_heads(struct reader *r, const struct flags *flags)
{
    struct model *m = r->model;
    TRY(reader_kv_heads(r));
    if (flags->new_decoder)
        return STATUS_OK;
    if (flags->multi_query) {
        if (reader_get(r, "num_kv_heads") != NULL && m->kv_heads != 1)
            log_info("%s: multi_query means 1 KV head; num_kv_heads %d is not used", r->where, m->kv_heads);
        m->kv_heads = 1;
        return STATUS_OK;
    }
    if (m->kv_heads != m->heads) {
        enum status s = FAIL(STATUS_USAGE,
                             "num_kv_heads is %d, but without multi_query and new_decoder_architecture "
                             "there are as many as heads, %d",
                             m->kv_heads, m->heads);
        return reader_where(r, "num_kv_heads", HINT(s, "set the flag that the model was trained with"));
    }
    return STATUS_OK;
}

/* Norms of one layer: two side by side (new architecture), one (parallel), or before attention and before MLP. */
static enum status read_norms(const struct reader *r, const struct flags *flags, int *out)
{
    int64_t parallel = flags->new_decoder ? 2 : 1;
    TRY(reader_int(r, "num_ln_in_parallel_attn", parallel, 1, 2, &parallel));
    if (flags->new_decoder && parallel == 2)
        *out = 2;
    else
        *out = flags->parallel ? 1 : 2;
    return STATUS_OK;
}

static enum status read_falcon(struct reader *r)
{
    struct model *m = r->model;
    struct flags flags;
    int norms = 0;
    TRY(reader_sizes(r));
    TRY(read_flags(r, &flags));
    TRY(reader_either(r, "ffn_hidden_size", NULL, count_mul(4, m->hidden), READER_FFN_MAX, &m->ffn));
    m->ffn_dense = m->ffn;
    TRY(read_kv_heads(r, &flags));
    TRY(read_norms(r, &flags, &norms));
    TRY(reader_head_dim(r));
    TRY(reader_heads_agree(r));
    if (flags.alibi)
        log_warn("%s: alibi adds a bias per head to the scores, which the attention kernels here do not", r->where);
    m->qkv_bias = m->o_bias = m->mlp_bias = flags.bias;
    count_dense(m, 2 * norms, &r->counts);
    r->counts.outside = count_mul(2, m->hidden);
    return reader_no_window(r);
}

const struct model_family family_falcon[] = {
    {.type = "falcon",
     .architecture = "FalconForCausalLM",
     .tied = true,
     .alias = {[ROLE_LAYERS] = "n_layer",
               [ROLE_HIDDEN] = "n_embed",
               [ROLE_HEADS] = "n_head",
               [ROLE_KV_HEADS] = "num_kv_heads"},
     .read = read_falcon},
    {.type = NULL},
};
