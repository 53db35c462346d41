/* results/export_csv.c -- RFC 4180: CRLF, a header, one row per sample; quoted where needed, quotes doubled.
 *
 * Columns: every field of a key (empty when it does not apply), statistics, rates, what carried and computed, outcome, where it comes
 * from, and last the raw times in microseconds, blank-separated in one quoted field. Empty: does not apply or not measured. Version,
 * command and seed are columns: a comment line would be a row of data to most readers.
 */
#include "results/export_private.h"

#include "base/version.h"

#include <math.h>
#include <string.h>

enum { DIGITS_RAW = 15, DIGITS = 6 };

static const char *const columns[] = {
    "count",      "median_us",      "p95_us",       "ci95_lo_us", "ci95_hi_us",     "bytes",     "algbw_GBps", "busbw_GBps",
    "effective_GBps", "ceiling_GBps", "tflops",     "ceiling_tflops", "transport",  "kernel",    "outcome",    "rule",
    "why",        "verified",       "scaled",       "scale",      "machine",        "measured_at", "conditions", "versions",
    "version",    "command",        "seed",         "times_us",
};

static void add_text(struct text *text, const char *value)
{
    text_add(text, ",");
    value = value ? value : "";
    if (!value[strcspn(value, "\",\r\n")] && *value != ' ') {
        text_add(text, "%s", value);
        return;
    }
    text_add(text, "\"");
    for (; *value; value++)
        text_add(text, *value == '"' ? "\"\"" : "%c", *value);
    text_add(text, "\"");
}

static void add_number(struct text *text, double value, int digits)
{
    text_add(text, ",");
    export_number(text, value, digits);
}

static void add_positive(struct text *text, double value)
{
    add_number(text, value > 0 ? value : NAN, DIGITS_RAW);
}

static void add_key(struct text *text, const struct sample_key *key)
{
    struct text row = {0};
    for (int i = 0; i < SAMPLE_FIELDS; i++) {
        const struct sample_field *field = &sample_fields[i];
        if (field->text)
            add_text(&row, sample_field_text(key, field));
        else if (sample_field_present(key, field))
            text_add(&row, ",%lld", (long long)sample_field_int(key, field));
        else
            text_add(&row, ",");
    }
    text->failed |= row.failed;
    text_add(text, "%s", text_get(&row) + (row.len > 0)); /* without the first comma */
    text_free(&row);
}

static void add_sample(struct text *text, const struct sample *sample, const struct export_context *context)
{
    struct sample_summary s;
    sample_summarize(sample, &s);
    add_key(text, &sample->key);
    text_add(text, ",%d", sample->n);
    const double times[] = {s.median_us, s.p95_us, s.ci95_us.lo, s.ci95_us.hi};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        add_number(text, times[i], DIGITS);
    text_add(text, ",");
    if (sample->bytes >= 0)
        text_add(text, "%lld", (long long)sample->bytes);
    add_number(text, s.algbw_GBps, DIGITS);
    add_number(text, s.busbw_GBps, DIGITS);
    add_number(text, s.effective_GBps, DIGITS);
    add_positive(text, sample->ceiling_GBps);
    add_number(text, s.tflops, DIGITS);
    add_positive(text, sample->ceiling_tflops);
    add_text(text, sample->transport);
    add_text(text, sample->kernel);
    add_text(text, sample_outcome_name(sample->outcome));
    add_text(text, rule_code(sample->rule));
    add_text(text, sample->why);
    text_add(text, ",%s,%s", sample->verified ? "true" : "false", sample->scaled ? "true" : "false");
    add_number(text, sample->scale, DIGITS_RAW);
    add_text(text, sample->machine);
    add_text(text, sample->measured_at);
    add_text(text, sample->conditions);
    add_text(text, sample->versions);
    add_text(text, SPTUNE_VERSION);
    add_text(text, context->envelope.command);
    text_add(text, ",%lld,\"", (long long)context->envelope.seed);
    for (int i = 0; i < sample->n; i++) {
        text_add(text, "%s", i ? " " : "");
        export_number(text, sample->times_us[i], DIGITS_RAW);
    }
    text_add(text, "\"\r\n");
}

static enum status render(const struct sample *samples, int n, const struct export_context *context, char **out,
                          size_t *out_len)
{
    struct text text = {0};
    for (int i = 0; i < SAMPLE_FIELDS; i++) {
        /* bytes swept and bytes sent are two columns. */
        text_add(&text, "%s%s%s", i ? "," : "", strcmp(sample_fields[i].name, "bytes") == 0 ? "key_" : "",
                 sample_fields[i].name);
    }
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        text_add(&text, ",%s", columns[i]);
    text_add(&text, "\r\n");
    for (int i = 0; i < n; i++)
        add_sample(&text, &samples[i], context);
    return export_finish(&text, out, out_len);
}

extern const struct export export_csv;
const struct export export_csv = {"csv", "RFC 4180, one row per sample, raw times in the last column", render};
