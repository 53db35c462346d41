/* results/export_json.c -- sptune.samples/1: the envelope, then one sample per line, so that files can be read and compared. */
#include "results/export_private.h"

#include <stdlib.h>
#include <string.h>

static enum status add_value(struct text *text, json_t *value, bool indent, size_t drop)
{
    char *json = NULL;
    enum status status = value ? json_format(value, indent, &json) : FAIL(STATUS_NOMEM, "no memory to write samples");
    json_decref(value);
    if (status == STATUS_OK)
        text_add_raw(text, json, strlen(json) - drop);
    free(json);
    return status;
}

static enum status render(const struct sample *samples, int n, const struct export_context *context, char **out,
                          size_t *out_len)
{
    struct text text = {0};
    enum status status = add_value(&text, json_document("samples", &context->envelope), true, strlen("\n}"));
    text_add(&text, ",\n  \"samples\": [");
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        text_add(&text, "%s\n    ", i ? "," : "");
        status = add_value(&text, sample_to_json(&samples[i]), false, 0);
    }
    text_add(&text, "%s]\n}\n", n ? "\n  " : "");
    if (status == STATUS_OK)
        return export_finish(&text, out, out_len);
    text_free(&text);
    return status;
}

extern const struct export export_json;
const struct export export_json = {"json", "one sptune.samples/1 document", render};
