/* results/export.c -- the table of formats, and what they share. */
#include "results/export_private.h"

#include "base/units.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const struct export export_json, export_csv, export_jsonl, export_svg, export_png;

const struct export *const exports[] = {&export_json, &export_csv, &export_jsonl, &export_svg, &export_png, NULL};

const struct export *export_find(const char *name)
{
    for (int i = 0; exports[i]; i++)
        if (strcmp(exports[i]->name, name) == 0)
            return exports[i];
    return NULL;
}

void export_number(struct text *text, double value, int digits)
{
    char buf[64];
    if (!isfinite(value))
        return;
    snprintf(buf, sizeof buf, "%.*g", digits, value);
    const char *point = localeconv()->decimal_point;
    char *at = strcmp(point, ".") == 0 ? NULL : strstr(buf, point);
    if (!at) {
        text_add(text, "%s", buf);
        return;
    }
    text_add_raw(text, buf, (size_t)(at - buf));
    text_add(text, ".%s", at + strlen(point));
}

enum status export_finish(struct text *text, char **out, size_t *out_len)
{
    enum status status = text_status(text);
    if (status == STATUS_OK && !text->s)
        text_add_raw(text, "", 0);
    if (status != STATUS_OK || (status = text_status(text)) != STATUS_OK) {
        text_free(text);
        return status;
    }
    *out = text->s;
    *out_len = text->len;
    return STATUS_OK;
}

struct export_rate export_rate_of(const struct sample *sample, const struct sample_summary *summary)
{
    struct export_rate rate = {"tflops", summary->tflops, NAN, NAN, sample->ceiling_tflops};
    if (!isnan(summary->busbw_GBps))
        rate = (struct export_rate){"busbw_GBps", summary->busbw_GBps, NAN, NAN, sample->ceiling_GBps};
    else if (!isnan(summary->effective_GBps))
        rate = (struct export_rate){"effective_GBps", summary->effective_GBps, NAN, NAN, sample->ceiling_GBps};
    else if (!isnan(summary->algbw_GBps))
        rate = (struct export_rate){"algbw_GBps", summary->algbw_GBps, NAN, NAN, sample->ceiling_GBps};
    if (isnan(rate.value))
        return (struct export_rate){NULL, NAN, NAN, NAN, 0};
    rate.lo = rate.value * summary->median_us / summary->ci95_us.hi; /* a rate is a constant over a time */
    rate.hi = rate.value * summary->median_us / summary->ci95_us.lo;
    return rate;
}

bool export_field_differs(const struct sample *const *samples, int n, const struct sample_field *field)
{
    for (int i = 1; i < n; i++)
        if (strcmp(sample_field_text(&samples[0]->key, field), sample_field_text(&samples[i]->key, field)) != 0 ||
            sample_field_int(&samples[0]->key, field) != sample_field_int(&samples[i]->key, field))
            return true;
    return false;
}

void export_field_value(const struct sample_key *key, const struct sample_field *field, char buf[40])
{
    if (!sample_field_present(key, field)) {
        snprintf(buf, 40, "-");
    } else if (field->text) {
        snprintf(buf, 40, "%s", sample_field_text(key, field));
        text_clean(buf);
    } else {
        units_format_count(sample_field_int(key, field), buf);
    }
}
