/* model/reader_layers.c -- what differs between layers: windows, experts, biases. */
#include "model/reader.h"

#include <string.h>

static enum status refuse_layer_type(const struct reader *r, size_t layer, const char *type)
{
    enum status s = FAIL(STATUS_USAGE, "layer %zu is of type \"%.40s\", which is not modelled", layer, type);
    return reader_where(r, "layer_types", HINT(s, "full_attention and sliding_attention are read"));
}

/* Sliding layers by layer_types; *out keeps its value when the key is absent. */
static enum status count_sliding(const struct reader *r, int *out)
{
    const json_t *types = reader_get(r, "layer_types");
    if (types == NULL)
        return STATUS_OK;
    if (!json_is_array(types) || json_array_size(types) != (size_t)r->model->layers) {
        enum status s = FAIL(STATUS_USAGE, "layer_types lists %zu layers, the model has %d", json_array_size(types),
                             r->model->layers);
        return reader_where(r, "layer_types", HINT(s, "one entry per layer"));
    }
    int sliding = 0;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type != NULL && strcmp(type, "sliding_attention") == 0)
            sliding++;
        else if (type == NULL || strcmp(type, "full_attention") != 0)
            return refuse_layer_type(r, i, type != NULL ? type : "(not a string)");
    }
    *out = sliding;
    return STATUS_OK;
}

static enum status set_window(struct reader *r, int64_t window, int layers)
{
    TRY(count_sliding(r, &layers));
    if (layers > 0 && window == 0 && reader_get(r, "layer_types") != NULL) {
        enum status s = FAIL(STATUS_USAGE, "layer_types has %d sliding layers, but no window is in use", layers);
        return reader_where(r, "layer_types", HINT(s, "give sliding_window, or full_attention throughout"));
    }
    r->model->window = layers > 0 ? window : 0;
    r->model->window_layers = window > 0 ? layers : 0;
    return STATUS_OK;
}

enum status reader_window(struct reader *r, int64_t fallback, int layers)
{
    int64_t window = json_object_get(r->object, "sliding_window") == NULL ? fallback : 0;
    TRY(reader_size(r, "sliding_window", window, READER_TOKENS_MAX, &window));
    return set_window(r, window, layers);
}

enum status reader_no_window(struct reader *r)
{
    return set_window(r, 0, 0);
}

enum status reader_biases(struct reader *r)
{
    bool bias = false;
    TRY(reader_bool(r, "attention_bias", false, &bias));
    r->model->qkv_bias = r->model->o_bias = bias;
    return reader_bool(r, "mlp_bias", false, &r->model->mlp_bias);
}

enum status reader_experts(struct reader *r, const char *key, const char *other)
{
    int64_t experts = 0, used = 0;
    TRY(reader_either(r, key, other, READER_REQUIRED, READER_EXPERTS_MAX, &experts));
    TRY(reader_size(r, "num_experts_per_tok", READER_REQUIRED, READER_EXPERTS_MAX, &used));
    if (used > experts) {
        enum status s = FAIL(STATUS_USAGE, "each token uses %lld of %lld experts", (long long)used, (long long)experts);
        return reader_where(r, "num_experts_per_tok", HINT(s, "it can be at most %s", key));
    }
    r->model->experts = (int)experts;
    r->model->experts_per_token = (int)used;
    return STATUS_OK;
}
