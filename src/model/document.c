/* model/document.c -- sptune.model/1: what the reader understood, and every sp size with ok or the rule.
 *
 *   name type layers hidden heads kv_heads head_dim head_dim_v ffn ... vocab params ...
 *   sp: [{size, ok, rule, why (null when ok), nearest: [legal sizes beside it], kv_copies (null when not ok)}]
 *
 * Sizes run to the world, or to the heads when no world is given. Beyond SIZES_MAX only those are listed that divide it
 * and are not more than the heads: a list of a million refusals helps nobody.
 */
#include "model/model.h"

enum { SIZES_MAX = 1024 };

static int set(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value);
}

static int add_shape(json_t *root, const struct model *m)
{
    int failed = set(root, "name", json_string(m->name));
    failed |= set(root, "type", json_string(m->type));
    failed |= set(root, "layers", json_integer(m->layers));
    failed |= set(root, "hidden", json_integer(m->hidden));
    failed |= set(root, "heads", json_integer(m->heads));
    failed |= set(root, "kv_heads", json_integer(m->kv_heads));
    failed |= set(root, "head_dim", json_integer(m->head_dim));
    failed |= set(root, "head_dim_v", json_integer(m->head_dim_v));
    failed |= set(root, "ffn", json_integer(m->ffn));
    failed |= set(root, "ffn_dense", json_integer(m->ffn_dense));
    failed |= set(root, "ffn_shared", json_integer(m->ffn_shared));
    failed |= set(root, "dense_layers", json_integer(m->dense_layers));
    failed |= set(root, "gated", json_boolean(m->gated));
    failed |= set(root, "vocab", json_integer(m->vocab));
    failed |= set(root, "tied", json_boolean(m->tied));
    failed |= set(root, "window", json_integer(m->window));
    failed |= set(root, "window_layers", json_integer(m->window_layers));
    failed |= set(root, "experts", json_integer(m->experts));
    failed |= set(root, "experts_per_token", json_integer(m->experts_per_token));
    failed |= set(root, "max_positions", json_integer(m->max_positions));
    failed |= set(root, "qkv_bias", json_boolean(m->qkv_bias));
    failed |= set(root, "o_bias", json_boolean(m->o_bias));
    failed |= set(root, "mlp_bias", json_boolean(m->mlp_bias));
    return failed | set(root, "qk_norm", json_boolean(m->qk_norm));
}

static int add_params(json_t *root, const struct model *m)
{
    int failed = set(root, "params", json_integer(m->params));
    failed |= set(root, "params_layer", json_integer(m->params_layer));
    failed |= set(root, "params_embedding", json_integer(m->params_embedding));
    failed |= set(root, "params_active", json_integer(m->params_active));
    return failed | set(root, "params_exact", json_boolean(m->params_exact));
}

static json_t *size_to_json(const struct model *m, int sp, int world)
{
    struct verdict verdict = model_sp(m, sp, world);
    bool ok = verdict_ok(&verdict);
    json_t *row = json_object(), *nearest = json_array();
    int failed = 0;
    for (int i = 0; i < 2; i++) {
        if (verdict.nearest[i] != 0)
            failed |= json_array_append_new(nearest, json_integer(verdict.nearest[i]));
    }
    failed |= set(row, "size", json_integer(sp));
    failed |= set(row, "ok", json_boolean(ok));
    failed |= set(row, "rule", json_string(rule_code(verdict.rule)));
    failed |= set(row, "why", ok ? json_null() : json_string(verdict.why));
    failed |= set(row, "nearest", nearest);
    failed |= set(row, "kv_copies", ok ? json_integer(model_kv_copies(m->kv_heads, sp)) : json_null());
    if (failed) {
        json_decref(row);
        return NULL;
    }
    return row;
}

static json_t *sizes_to_json(const struct model *m, int world)
{
    json_t *list = json_array();
    int most = world > 0 ? world : m->heads;
    int last = most > SIZES_MAX && most > m->heads ? (m->heads > SIZES_MAX ? m->heads : SIZES_MAX) : most;
    for (int sp = 1; sp <= last; sp++) {
        if (sp > SIZES_MAX && most % sp != 0)
            continue;
        if (json_array_append_new(list, size_to_json(m, sp, world)) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

json_t *model_to_json(const struct model *model, int world, const struct json_envelope *envelope)
{
    json_t *root = json_document("model", envelope);
    int failed = add_shape(root, model) | add_params(root, model);
    failed |= set(root, "world", world > 0 ? json_integer(world) : json_null());
    failed |= set(root, "sp", sizes_to_json(model, world));
    if (failed) {
        json_decref(root);
        return NULL;
    }
    return root;
}
