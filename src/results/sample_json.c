/* results/sample_json.c -- a sample as an element of sptune.samples/1, and back.
 *
 *     {"machine": "9f2c...", "key": {"subject": "exchange", "ranks": 2, ...}, "conditions": {...}, "times_us": [117.2, ...],
 *      "median_us": 117.4, "p95_us": 121, "ci95_us": [116.9, 118.2], "bytes": 67108864, "algbw_GBps": 571, "busbw_GBps": null,
 *      "effective_GBps": 571, "ceiling_GBps": 700, "tflops": null, "transport": "ucx posix", "outcome": "ok", "rule": "ok",
 *      "why": "", "verified": true, "scaled": false, "scale": 1, "kernel": "", "versions": {...}, "flops": null, "group": 2,
 *      "ceiling_tflops": null, "measured_at": "2026-11-29T18:30:00Z"}
 *
 * The key lists the fields that apply. Numbers that do not apply are null. Times keep every digit, statistics six.
 */
#include "results/sample.h"

#include "base/dtype.h"
#include "base/text.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_RAW = 15, DIGITS = 6 };

/* Names come from users and peers: what is not UTF-8 is made so instead of losing the row. */
static json_t *string_json(const char *text)
{
    json_t *string = json_string(text);
    if (string)
        return string;
    char *clean = strdup(text);
    if (!clean)
        return NULL;
    text_clean(clean);
    string = json_string(clean);
    free(clean);
    return string;
}

static json_t *positive_json(double value)
{
    return value > 0 ? json_num(value, DIGITS_RAW) : json_null();
}

static json_t *key_json(const struct sample_key *key)
{
    json_t *object = json_object();
    for (int i = 0; object && i < SAMPLE_FIELDS; i++) {
        const struct sample_field *field = &sample_fields[i];
        if (!sample_field_present(key, field))
            continue;
        json_t *value =
            field->text ? string_json(sample_field_text(key, field)) : json_integer(sample_field_int(key, field));
        if (json_object_set_new(object, field->name, value) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static json_t *times_json(const struct sample *sample)
{
    json_t *array = json_array();
    for (int i = 0; array && i < sample->n; i++) {
        if (json_array_append_new(array, json_num(sample->times_us[i], DIGITS_RAW)) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *interval_json(struct stats_interval interval)
{
    if (isnan(interval.lo))
        return json_null();
    json_t *array = json_array();
    if (array && (json_array_append_new(array, json_num(interval.lo, DIGITS)) != 0 ||
                  json_array_append_new(array, json_num(interval.hi, DIGITS)) != 0)) {
        json_decref(array);
        return NULL;
    }
    return array;
}

/* Our own object text back as a value; null when there is none. */
static json_t *object_json(const char *text)
{
    json_t *value = text ? json_loads(text, 0, NULL) : NULL;
    return value ? value : json_null();
}

json_t *sample_to_json(const struct sample *sample)
{
    struct sample_summary s;
    sample_summarize(sample, &s);
    json_t *o = json_object();
    int failed = json_object_set_new(o, "machine", string_json(sample->machine));
    failed |= json_object_set_new(o, "key", key_json(&sample->key));
    failed |= json_object_set_new(o, "conditions", object_json(sample->conditions));
    failed |= json_object_set_new(o, "times_us", times_json(sample));
    failed |= json_object_set_new(o, "median_us", json_num(s.median_us, DIGITS));
    failed |= json_object_set_new(o, "p95_us", json_num(s.p95_us, DIGITS));
    failed |= json_object_set_new(o, "ci95_us", interval_json(s.ci95_us));
    failed |= json_object_set_new(o, "bytes", sample->bytes < 0 ? json_null() : json_integer(sample->bytes));
    failed |= json_object_set_new(o, "algbw_GBps", json_num(s.algbw_GBps, DIGITS));
    failed |= json_object_set_new(o, "busbw_GBps", json_num(s.busbw_GBps, DIGITS));
    failed |= json_object_set_new(o, "effective_GBps", json_num(s.effective_GBps, DIGITS));
    failed |= json_object_set_new(o, "ceiling_GBps", positive_json(sample->ceiling_GBps));
    failed |= json_object_set_new(o, "tflops", json_num(s.tflops, DIGITS));
    failed |= json_object_set_new(o, "transport", string_json(sample->transport));
    failed |= json_object_set_new(o, "outcome", json_string(sample_outcome_name(sample->outcome)));
    failed |= json_object_set_new(o, "rule", json_string(rule_code(sample->rule)));
    failed |= json_object_set_new(o, "why", string_json(sample->why));
    failed |= json_object_set_new(o, "verified", json_boolean(sample->verified));
    failed |= json_object_set_new(o, "scaled", json_boolean(sample->scaled));
    failed |= json_object_set_new(o, "scale", json_num(sample->scale, DIGITS_RAW));
    failed |= json_object_set_new(o, "kernel", string_json(sample->kernel));
    failed |= json_object_set_new(o, "versions", object_json(sample->versions));
    failed |= json_object_set_new(o, "flops", positive_json(sample->flops));
    failed |= json_object_set_new(o, "group", json_integer(sample->group));
    failed |= json_object_set_new(o, "ceiling_tflops", positive_json(sample->ceiling_tflops));
    failed |= json_object_set_new(o, "measured_at", string_json(sample->measured_at));
    if (!failed)
        return o;
    json_decref(o);
    return NULL;
}

/* ---- reading ---- */

static enum status read_name(const json_t *o, const char *key, const char *where, char *out, size_t size)
{
    const char *text = NULL;
    TRY(json_str(o, key, where, "", &text));
    if (strlen(text) >= size)
        return WHERE(FAIL(STATUS_USAGE, "\"%s\" is longer than %zu characters", key, size - 1), "%s", where);
    memcpy(out, text, strlen(text) + 1);
    return STATUS_OK;
}

static enum status read_positive(const json_t *o, const char *key, const char *where, double fallback, double *out)
{
    double value = 0;
    TRY(json_double(o, key, where, fallback, &value));
    if (!isfinite(value) || value < 0)
        return WHERE(FAIL(STATUS_USAGE, "\"%s\" is %g, a finite number from 0 on is expected", key, value), "%s",
                     where);
    *out = value;
    return STATUS_OK;
}

/* A number of at least `least`; what is not there stays as *out is. */
static enum status read_count(const json_t *o, const char *key, const char *where, int64_t least, int64_t *out)
{
    const json_t *value = json_object_get(o, key);
    int64_t number = 0;
    if (value == NULL || json_is_null(value))
        return STATUS_OK;
    TRY(json_int(o, key, where, 0, &number));
    if (number < least)
        return HINT(WHERE(FAIL(STATUS_USAGE, "\"%s\" is %lld", key, (long long)number), "%s", where),
                    "right would be %lld or more", (long long)least);
    *out = number;
    return STATUS_OK;
}

/* Flags, a window that is none and nothing to send are 0; sizes and ranks are not. */
static int64_t least_of(const struct sample_field *field)
{
    ptrdiff_t f = field - sample_fields;
    return f == SAMPLE_FIELD_causal || f == SAMPLE_FIELD_window || f == SAMPLE_FIELD_bytes ? 0 : 1;
}

static enum status read_key_field(const json_t *o, const struct sample_field *field, const char *where,
                                  struct sample_key *key)
{
    void *value = (char *)key + field->offset;
    if (field->text)
        return read_name(o, field->name, where, value, SAMPLE_NAME);
    int64_t number = -1;
    TRY(read_count(o, field->name, where, least_of(field), &number));
    memcpy(value, &number, sizeof number);
    return STATUS_OK;
}

/* A field we do not know would make unlike keys look alike, so it is refused, not skipped. */
static enum status read_key(json_t *o, const char *where, struct sample_key *out)
{
    sample_key_init(out);
    for (void *at = json_object_iter(o); at; at = json_object_iter_next(o, at)) {
        const char *name = json_object_iter_key(at);
        const struct sample_field *field = sample_field_find(name);
        if (!field)
            return WHERE(FAIL(STATUS_USAGE, "\"key\" has the unknown field \"%s\"", name), "%s", where);
        TRY(read_key_field(o, field, where, out));
    }
    if (!*out->subject)
        return WHERE(FAIL(STATUS_USAGE, "\"key\" has no \"subject\""), "%s", where);
    enum dtype dtype;
    return *out->dtype ? dtype_parse(out->dtype, where, &dtype) : STATUS_OK;
}

static enum status read_times(const json_t *o, const char *where, struct sample *out)
{
    const json_t *array = json_object_get(o, "times_us");
    if (!array || json_is_null(array))
        return STATUS_OK;
    if (!json_is_array(array) || json_array_size(array) > INT_MAX)
        return WHERE(FAIL(STATUS_USAGE, "\"times_us\" is not a list of times"), "%s", where);
    int n = (int)json_array_size(array);
    out->times_us = n ? malloc((size_t)n * sizeof *out->times_us) : NULL;
    if (n && !out->times_us)
        return FAIL(STATUS_NOMEM, "no memory for %d times", n);
    for (int i = 0; i < n; i++) {
        const json_t *value = json_array_get(array, (size_t)i);
        double us = json_is_number(value) ? json_number_value(value) : -1;
        if (!isfinite(us) || us < 0)
            return WHERE(FAIL(STATUS_USAGE, "\"times_us\" entry %d is not a time", i + 1), "%s", where);
        out->times_us[i] = us;
    }
    out->n = n;
    return STATUS_OK;
}

static enum status read_outcome(const json_t *o, const char *where, struct sample *out)
{
    const char *outcome = NULL, *rule = NULL;
    TRY(json_str(o, "outcome", where, "ok", &outcome));
    TRY(json_str(o, "rule", where, "ok", &rule));
    int at = SAMPLE_OK;
    while (at <= SAMPLE_FAILED && strcmp(sample_outcome_name((enum sample_outcome)at), outcome) != 0)
        at++;
    if (at > SAMPLE_FAILED)
        return HINT(WHERE(FAIL(STATUS_USAGE, "\"outcome\" is \"%s\"", outcome), "%s", where), "ok, waived or failed");
    out->outcome = (enum sample_outcome)at;
    for (int i = 0; i < RULE_COUNT; i++) {
        if (strcmp(rule_code((enum rule)i), rule) == 0) {
            out->rule = (enum rule)i;
            return STATUS_OK;
        }
    }
    return WHERE(FAIL(STATUS_USAGE, "\"rule\" is \"%s\", which this version does not know", rule), "%s", where);
}

static enum status read_object(const json_t *o, const char *key, const char *where, char **out)
{
    const json_t *value = json_object_get(o, key);
    if (!value || json_is_null(value))
        return STATUS_OK;
    if (!json_is_object(value))
        return WHERE(FAIL(STATUS_USAGE, "\"%s\" is not an object", key), "%s", where);
    return json_format(value, false, out);
}

static enum status read_numbers(const json_t *o, const char *where, struct sample *out)
{
    int64_t group = 1;
    TRY(read_count(o, "bytes", where, 0, &out->bytes));
    TRY(read_count(o, "group", where, 1, &group));
    if (group > INT_MAX)
        return WHERE(FAIL(STATUS_USAGE, "\"group\" is %lld", (long long)group), "%s", where);
    out->group = (int)group;
    TRY(read_positive(o, "flops", where, 0, &out->flops));
    TRY(read_positive(o, "scale", where, 1, &out->scale));
    TRY(read_positive(o, "ceiling_GBps", where, 0, &out->ceiling_GBps));
    return read_positive(o, "ceiling_tflops", where, 0, &out->ceiling_tflops);
}

/* Groups of sp ranks are all of the ranks. What was never measured may have asked for others: that is why it was waived. */
static enum status check_groups(const struct sample *sample, const char *where)
{
    int64_t sp = sample->key.sp, ranks = sample->key.ranks;
    if (sample->outcome == SAMPLE_WAIVED || sp < 1 || ranks < 1 || ranks % sp == 0)
        return STATUS_OK;
    return HINT(WHERE(FAIL(STATUS_USAGE, "\"sp\" is %lld of %lld ranks", (long long)sp, (long long)ranks), "%s", where),
                "right would be a divisor of \"ranks\"");
}

static enum status read_all(const json_t *o, const char *where, struct sample *out)
{
    json_t *key = NULL;
    TRY(json_need(o, "key", where, &key));
    if (!json_is_object(key))
        return WHERE(FAIL(STATUS_USAGE, "\"key\" is not an object"), "%s", where);
    TRY(read_key(key, where, &out->key));
    TRY(read_times(o, where, out));
    TRY(read_outcome(o, where, out));
    TRY(check_groups(out, where));
    TRY(read_numbers(o, where, out));
    TRY(json_bool(o, "verified", where, false, &out->verified));
    TRY(json_bool(o, "scaled", where, false, &out->scaled));
    TRY(read_name(o, "machine", where, out->machine, sizeof out->machine));
    TRY(read_name(o, "why", where, out->why, sizeof out->why));
    TRY(read_name(o, "transport", where, out->transport, sizeof out->transport));
    TRY(read_name(o, "kernel", where, out->kernel, sizeof out->kernel));
    TRY(read_name(o, "measured_at", where, out->measured_at, sizeof out->measured_at));
    TRY(read_object(o, "conditions", where, &out->conditions));
    TRY(read_object(o, "versions", where, &out->versions));
    if (out->outcome == SAMPLE_OK && !out->n)
        return WHERE(FAIL(STATUS_USAGE, "a sample that is ok has no times"), "%s", where);
    return STATUS_OK;
}

enum status sample_from_json(const json_t *json, const char *where, struct sample *out)
{
    struct sample sample;
    sample_init(&sample);
    enum status status = read_all(json, where, &sample);
    if (status == STATUS_OK)
        *out = sample;
    else
        sample_free(&sample);
    return status;
}
