/* model/reader_decoder.c -- what a decoder computes with, beyond its shapes: epsilon of its norms, RoPE, activation; and whether the
 * block of this project's own training computes all of it.
 *
 * RoPE is in rope_theta and rope_scaling, in files since transformers 5 in rope_parameters. Types: absent or "default", "llama3"
 * (low frequencies divided by `factor`, with a ramp between two wavelengths), "linear" (all divided). Others are named, not refused:
 * shapes and counts do not depend on them.
 */
#include "model/reader.h"

#include "base/text.h"

#include <string.h>

static enum status number(const struct reader *r, const json_t *object, const char *key, double fallback, double *out)
{
    enum status s = json_double(object, key, "", fallback, out);
    if (s == STATUS_OK && *out > 0 && *out < 1e12)
        return STATUS_OK;
    if (s == STATUS_OK)
        s = FAIL(STATUS_USAGE, "%s is %g", key, *out);
    return reader_where(r, key, HINT(s, "it must be a number above 0"));
}

static void unlike(struct model *model, const char *why)
{
    if (model->unlike[0] == '\0')
        text_print(model->unlike, sizeof model->unlike, "%s", why);
}

static enum status read_rope(const struct reader *r)
{
    struct model *m = r->model;
    const json_t *scaling = reader_get(r, "rope_parameters");
    double theta = 10000;
    if (scaling == NULL)
        scaling = reader_get(r, "rope_scaling");
    TRY(number(r, r->object, "rope_theta", theta, &theta));
    m->rope = (struct model_rope){.theta = theta, .factor = 1};
    if (!json_is_object(scaling))
        return STATUS_OK;
    TRY(number(r, scaling, "rope_theta", theta, &m->rope.theta));
    const char *type = json_string_value(json_object_get(scaling, "rope_type"));
    type = type != NULL ? type : json_string_value(json_object_get(scaling, "type"));
    if (type == NULL || strcmp(type, "default") == 0)
        return STATUS_OK;
    bool llama3 = strcmp(type, "llama3") == 0;
    if (!llama3 && strcmp(type, "linear") != 0) {
        text_print(m->unlike, sizeof m->unlike, "its RoPE is scaled as \"%.40s\"", type);
        return STATUS_OK;
    }
    TRY(number(r, scaling, "factor", 1, &m->rope.factor));
    if (!llama3)
        return STATUS_OK;
    double original = 8192;
    TRY(number(r, scaling, "low_freq_factor", 1, &m->rope.low));
    TRY(number(r, scaling, "high_freq_factor", 4, &m->rope.high));
    TRY(number(r, scaling, "original_max_position_embeddings", original, &m->rope.original));
    return STATUS_OK;
}

static enum status read_dropout(const struct reader *r)
{
    enum status s = json_double(r->object, "attention_dropout", "", 0, &r->model->dropout);
    if (s == STATUS_OK && r->model->dropout >= 0 && r->model->dropout < 1)
        return STATUS_OK;
    if (s == STATUS_OK)
        s = FAIL(STATUS_USAGE, "attention_dropout is %g", r->model->dropout);
    return reader_where(r, "attention_dropout", HINT(s, "it must be a number from 0 to below 1"));
}

enum status reader_decoder(struct reader *r)
{
    struct model *m = r->model;
    const json_t *act = reader_get(r, "hidden_act");
    TRY(number(r, r->object, "rms_norm_eps", 1e-6, &m->norm_eps));
    TRY(read_dropout(r));
    if (!r->family->decoder)
        unlike(m, "its layers are not Llama's: a norm, attention, a norm, a gated MLP");
    if (m->experts > 0)
        unlike(m, "it has experts");
    if (m->window_layers != 0 && m->window_layers != m->layers)
        unlike(m, "only some of its layers have a window");
    if (m->o_bias || m->mlp_bias)
        unlike(m, "it has biases beyond those of q, k and v");
    if (act != NULL && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
        unlike(m, "its activation is not silu");
    const json_t *rotary = reader_get(r, "partial_rotary_factor");
    if (rotary != NULL && json_number_value(rotary) != 1.0)
        unlike(m, "RoPE turns part of each head only");
    return read_rope(r);
}
