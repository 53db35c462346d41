/* fuzz/fuzz_model.c -- a config.json: what the reader accepts has shapes that can be counted with. */
#include "fuzz/fuzz.h"

#include "model/model.h"

static void check_sound(const struct model *m)
{
    FUZZ_MUST(m->layers > 0 && m->hidden > 0 && m->heads > 0 && m->kv_heads > 0 && m->head_dim > 0);
    FUZZ_MUST(m->head_dim_v > 0 && m->ffn > 0 && m->vocab > 0 && m->max_positions >= 0);
    FUZZ_MUST(m->heads % m->kv_heads == 0);
    FUZZ_MUST(m->params > 0 && m->params_active > 0 && m->params_active <= m->params);
    FUZZ_MUST(m->window_layers >= 0 && m->window_layers <= m->layers);
    FUZZ_MUST(m->dense_layers >= 0 && m->dense_layers <= m->layers);
    for (int world = 1; world <= 8; world *= 2) {
        struct verdict verdict = model_sp(m, world, world);
        FUZZ_MUST(verdict_ok(&verdict) || verdict.why[0] != '\0');
    }
    const struct json_envelope envelope = {.command = "fuzz", .started = "", .machine = "", .seed = 1};
    json_t *document = model_to_json(m, 8, &envelope);
    FUZZ_MUST(document != NULL);
    json_decref(document);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model model;
    fuzz_quiet();
    enum status status = model_parse((const char *)data, size, "fuzz", &model);
    if (status == STATUS_OK)
        check_sound(&model);
    else
        fuzz_refused(status, STATUS_USAGE, STATUS_UNSUPPORTED);
    return 0;
}
