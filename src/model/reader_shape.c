/* model/reader_shape.c -- the sizes every decoder has, and what they must agree on. */
#include "model/reader.h"

static const struct {
    const char *key;
    int64_t max;
} roles[ROLE_COUNT] = {
    [ROLE_LAYERS] = {"num_hidden_layers", READER_LAYERS_MAX},
    [ROLE_HIDDEN] = {"hidden_size", READER_HIDDEN_MAX},
    [ROLE_HEADS] = {"num_attention_heads", READER_HEADS_MAX},
    [ROLE_KV_HEADS] = {"num_key_value_heads", READER_HEADS_MAX},
    [ROLE_FFN] = {"intermediate_size", READER_FFN_MAX},
    [ROLE_POSITIONS] = {"max_position_embeddings", READER_TOKENS_MAX},
};

/* Published text_configs leave out what equals the class's default. */
static int64_t nested_default(const struct reader *r, int64_t value)
{
    return r->outer != NULL && value > 0 ? value : READER_REQUIRED;
}

static enum status read_role(const struct reader *r, enum role role, int64_t fallback, int64_t *out)
{
    return reader_either(r, roles[role].key, r->family->alias[role], fallback, roles[role].max, out);
}

static enum status read_tied(struct reader *r)
{
    bool tied = r->family->tied;
    if (r->outer != NULL)
        TRY(json_bool(r->outer, "tie_word_embeddings", r->where, tied, &tied));
    return reader_bool(r, "tie_word_embeddings", tied, &r->model->tied);
}

enum status reader_sizes(struct reader *r)
{
    struct model *m = r->model;
    const int64_t *defaults = r->family->defaults;
    int64_t layers = 0, heads = 0;
    TRY(read_role(r, ROLE_LAYERS, nested_default(r, defaults[ROLE_LAYERS]), &layers));
    TRY(read_role(r, ROLE_HIDDEN, nested_default(r, defaults[ROLE_HIDDEN]), &m->hidden));
    TRY(read_role(r, ROLE_HEADS, nested_default(r, defaults[ROLE_HEADS]), &heads));
    TRY(reader_size(r, "vocab_size", nested_default(r, r->family->default_vocab), READER_VOCAB_MAX, &m->vocab));
    TRY(read_role(r, ROLE_POSITIONS, r->outer != NULL ? defaults[ROLE_POSITIONS] : 0, &m->max_positions));
    m->layers = (int)layers;
    m->heads = (int)heads;
    return read_tied(r);
}

static enum status read_ffn(struct reader *r)
{
    TRY(read_role(r, ROLE_FFN, nested_default(r, r->family->defaults[ROLE_FFN]), &r->model->ffn));
    r->model->ffn_dense = r->model->ffn;
    return STATUS_OK;
}

/* A key that says null means one KV head per head; one that is not there means the class's default. */
enum status reader_kv_heads(struct reader *r)
{
    const char *alias = r->family->alias[ROLE_KV_HEADS];
    bool said = json_object_get(r->object, roles[ROLE_KV_HEADS].key) != NULL ||
                (alias != NULL && json_object_get(r->object, alias) != NULL);
    int64_t kv_heads = 0, usual = r->family->kv_heads;
    int64_t fallback = !said && usual > 0 ? usual : r->model->heads;
    if (r->model->heads % fallback != 0) {
        enum status s = FAIL(STATUS_USAGE,
                             "num_key_value_heads is missing, and the %lld of %s by default do not divide %d "
                             "heads",
                             (long long)usual, r->family->type, r->model->heads);
        return reader_where(r, roles[ROLE_KV_HEADS].key, HINT(s, "give the number that the model was trained with"));
    }
    TRY(read_role(r, ROLE_KV_HEADS, fallback, &kv_heads));
    r->model->kv_heads = (int)kv_heads;
    return STATUS_OK;
}

enum status reader_head_dim(struct reader *r)
{
    struct model *m = r->model;
    int64_t head_dim = json_object_get(r->object, "head_dim") == NULL ? r->family->head_dim : 0;
    TRY(reader_size(r, "head_dim", head_dim, READER_HEAD_DIM_MAX, &head_dim));
    if (head_dim == 0 && m->hidden % m->heads != 0) {
        enum status s =
            FAIL(STATUS_USAGE, "hidden size %lld is not a whole multiple of %d heads, and head_dim is absent",
                 (long long)m->hidden, m->heads);
        return reader_where(r, roles[ROLE_HIDDEN].key, HINT(s, "give head_dim, or sizes that divide"));
    }
    if (head_dim == 0)
        head_dim = m->hidden / m->heads;
    if (head_dim > READER_HEAD_DIM_MAX) {
        enum status s = FAIL(STATUS_USAGE, "%lld hidden over %d heads makes heads of %lld", (long long)m->hidden,
                             m->heads, (long long)head_dim);
        return reader_where(r, "head_dim", HINT(s, "heads of up to %d are read", READER_HEAD_DIM_MAX));
    }
    m->head_dim = m->head_dim_v = (int)head_dim;
    return STATUS_OK;
}

enum status reader_heads_agree(const struct reader *r)
{
    const struct model *m = r->model;
    if (m->heads % m->kv_heads == 0)
        return STATUS_OK;
    enum status s = FAIL(STATUS_USAGE, "%d query heads cannot share %d KV heads evenly", m->heads, m->kv_heads);
    return reader_where(r, roles[ROLE_KV_HEADS].key, HINT(s, "num_attention_heads must be a multiple of it"));
}

enum status reader_shape(struct reader *r)
{
    TRY(reader_sizes(r));
    TRY(read_ffn(r));
    TRY(reader_kv_heads(r));
    TRY(reader_head_dim(r));
    return reader_heads_agree(r);
}
