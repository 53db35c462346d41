/* results/export_jsonl.c -- one JSON object per line: what `--jsonl` streams and `--export jsonl=` writes. Every line stands
 * alone: a sample with the schema, version, command, date and seed of its document. */
#include "results/export_private.h"

#include <stdlib.h>
#include <string.h>

json_t *export_row(const struct sample *sample, const struct json_envelope *envelope)
{
    json_t *row = json_document("sample", envelope), *fields = sample_to_json(sample);
    if (row && fields) {
        json_object_del(row, "warnings"); /* they belong to the whole run */
        if (json_object_update(row, fields) == 0) {
            json_decref(fields);
            return row;
        }
    }
    json_decref(row);
    json_decref(fields);
    return NULL;
}

static enum status add_row(struct text *text, const struct sample *sample, const struct json_envelope *envelope)
{
    char *json = NULL;
    json_t *row = export_row(sample, envelope);
    enum status status = row ? json_format(row, false, &json) : FAIL(STATUS_NOMEM, "no memory to write samples");
    json_decref(row);
    if (status == STATUS_OK)
        text_add(text, "%s\n", json);
    free(json);
    return status;
}

static enum status render(const struct sample *samples, int n, const struct export_context *context, char **out,
                          size_t *out_len)
{
    struct text text = {0};
    for (int i = 0; i < n; i++) {
        enum status status = add_row(&text, &samples[i], &context->envelope);
        if (status != STATUS_OK) {
            text_free(&text);
            return status;
        }
    }
    return export_finish(&text, out, out_len);
}

extern const struct export export_jsonl;
const struct export export_jsonl = {"jsonl", "one JSON object per line and sample", render};
