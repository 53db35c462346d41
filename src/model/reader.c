/* model/reader.c -- from a config.json's top to the family that reads it, through a wrapper's text_config if need be.
 */
#include "model/reader.h"
#include "base/log.h"
#include "base/text.h"

#include <string.h>

/* Keys that change shapes in ways no family here models, unless the family says it reads them. Their "off" values
 * (null, false, 0, empty) are how many files write a feature that they do not use. */
static const struct {
    const char *key, *what;
} unmodelled[] = {
    {"is_encoder_decoder", "an encoder beside the decoder"},
    {"add_cross_attention", "cross-attention"},
    {"cross_attention_layers", "cross-attention layers"},
    {"block_configs", "layers of different shapes"},
    {"num_kv_shared_layers", "layers that share K and V"},
    {"attention_k_eq_v", "K and V from one projection"},
    {"global_head_dim", "wider heads in some layers"},
    {"num_global_key_value_heads", "other KV heads in some layers"},
    {"hidden_size_per_layer_input", "per-layer embeddings"},
    {"attn_output_gate", "a gate beside the queries"},
    {"linear_num_value_heads", "linear attention"},
    {"linear_attn_config", "linear attention"},
    {"full_attention_interval", "linear attention between full layers"},
    {"attn_type_list", "layers of different kinds"},
    {"mamba_d_state", "state-space layers"},
    {"attention_chunk_size", "chunked attention"},
    {"index_topk", "sparse attention"},
    {"kv_lora_rank", "latent attention"},
    {"q_lora_rank", "latent attention"},
    {"num_experts", "experts"},
    {"num_local_experts", "experts"},
    {"n_routed_experts", "experts"},
    {"moe_num_experts", "experts"},
    {"word_embed_proj_dim", "embeddings of another width"},
    {"embedding_size", "embeddings of another width"},
};

static bool is_off(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
    case JSON_FALSE:
        return true;
    case JSON_INTEGER:
    case JSON_REAL:
        return json_number_value(value) == 0;
    case JSON_ARRAY:
        return json_array_size(value) == 0;
    case JSON_OBJECT:
        return json_object_size(value) == 0;
    case JSON_STRING:
        return json_string_length(value) == 0;
    default:
        return false;
    }
}

static bool family_reads(const struct model_family *family, const char *key)
{
    for (const char *const *name = family->reads; name != NULL && *name != NULL; name++) {
        if (strcmp(*name, key) == 0)
            return true;
    }
    return false;
}

static enum status refuse_unmodelled(const struct reader *r)
{
    for (size_t i = 0; i < sizeof unmodelled / sizeof unmodelled[0]; i++) {
        const char *key = unmodelled[i].key;
        const json_t *value = json_object_get(r->object, key);
        if (value == NULL || is_off(value) || family_reads(r->family, key))
            continue;
        enum status s = FAIL(STATUS_USAGE, "%s says %s, which is not modelled for model_type %s", key,
                             unmodelled[i].what, r->family->type);
        return reader_where(r, key, HINT(s, "if the model does not use it, leave the key out or set it to null"));
    }
    return STATUS_OK;
}

static void warn_quantised(const json_t *object, const char *where)
{
    const json_t *config = json_object_get(object, "quantization_config");
    const char *method = json_string_value(json_object_get(config, "quant_method"));
    if (json_is_object(config))
        log_warn(
            "%s: quantization_config (%.40s) is ignored: shapes and counts are those of the model it was made from",
            where, method != NULL ? method : "no quant_method");
}

/* *out is NULL when neither model_type nor architectures says anything. */
static enum status find_type(const json_t *object, const char *where, const char **out)
{
    const json_t *type = json_object_get(object, "model_type");
    const json_t *first = json_array_get(json_object_get(object, "architectures"), 0);
    *out = NULL;
    if (json_is_string(type)) {
        *out = json_string_value(type);
        return STATUS_OK;
    }
    if (type != NULL && !json_is_null(type))
        return WHERE(HINT(FAIL(STATUS_USAGE, "model_type is not a string"), "such as \"model_type\": \"llama\""),
                     "%s, key model_type", where);
    if (!json_is_string(first))
        return STATUS_OK;
    const struct model_family *family = family_by_architecture(json_string_value(first));
    if (family == NULL) {
        enum status s =
            FAIL(STATUS_USAGE, "model_type is missing, and the architecture \"%.60s\" is not one that is read",
                 json_string_value(first));
        return WHERE(HINT(s, "add the key, such as \"model_type\": \"llama\""), "%s, key architectures", where);
    }
    *out = family->type;
    return STATUS_OK;
}

static enum status find_family(const json_t *object, const char *where, const struct model_family **out)
{
    const char *type = NULL;
    TRY(find_type(object, where, &type));
    if (type == NULL) {
        enum status s = FAIL(STATUS_USAGE, "model_type is missing, and architectures does not tell it either");
        s = HINT(s, "is this a model's config.json? If so add the key, such as \"model_type\": \"llama\"");
        return status_never_ok(WHERE(s, "%s", where));
    }
    *out = family_find(type);
    return *out != NULL ? STATUS_OK : status_never_ok(family_unknown(type, where));
}

/* Point the reader at the text part of a wrapper: under text_config, or on top in older files. */
static enum status open_wrapper(struct reader *r)
{
    const json_t *text = json_object_get(r->object, "text_config");
    const struct model_family *wrapper = r->family;
    const char *type = NULL;
    if (json_is_object(text)) {
        r->outer = r->object;
        r->object = text;
        TRY(find_type(text, r->where, &type));
    } else if (text != NULL && !json_is_null(text)) {
        enum status s = FAIL(STATUS_USAGE, "text_config is not an object");
        return WHERE(HINT(s, "it holds the keys of the language part"), "%s, key text_config", r->where);
    }
    r->model->params_exact = false; /* exact for the part that is read, not for the whole */
    r->family = family_find(type != NULL ? type : wrapper->text_type);
    if (r->family == NULL)
        return family_unknown(type, r->where);
    if (r->family->text_type != NULL) {
        enum status s = FAIL(STATUS_USAGE, "text_config is of type %s, itself a wrapper", r->family->type);
        return WHERE(HINT(s, "the model_type of a decoder is expected"), "%s, key text_config.model_type", r->where);
    }
    log_warn("%s: the language part (%s) of %s is read; other parts are not counted", r->where, r->family->type,
             wrapper->type);
    return STATUS_OK;
}

enum status reader_run(const json_t *object, const char *where, struct model *model)
{
    struct model read = {.params_exact = true};
    struct reader r = {.object = object, .where = where, .model = &read};
    if (!json_is_object(object))
        return WHERE(HINT(FAIL(STATUS_USAGE, "a config.json holds one object"), "is this the file you meant?"), "%s",
                     where);
    TRY(find_family(object, where, &r.family));
    warn_quantised(object, where);
    if (r.family->text_type != NULL)
        TRY(open_wrapper(&r));
    TRY(refuse_unmodelled(&r));
    TRY(r.family->read(&r));
    TRY(reader_decoder(&r));
    enum status status = count_finish(&r.counts, &read);
    if (status != STATUS_OK)
        return WHERE(status, "%s", where);
    text_print(read.type, sizeof read.type, "%s", r.family->type);
    *model = read;
    return STATUS_OK;
}
