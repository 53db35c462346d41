/* results/sample.c -- keys and their text, and what a sample owns. */
#include "results/sample.h"
#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const struct sample_field sample_fields[SAMPLE_FIELDS] = {
#define FIELD_TEXT(name) {#name, true, offsetof(struct sample_key, name)},
#define FIELD_INT(name) {#name, false, offsetof(struct sample_key, name)},
    SAMPLE_KEY_LIST(FIELD_TEXT, FIELD_INT)
#undef FIELD_TEXT
#undef FIELD_INT
};

const char *sample_field_text(const struct sample_key *key, const struct sample_field *field)
{
    return field->text ? (const char *)key + field->offset : "";
}

int64_t sample_field_int(const struct sample_key *key, const struct sample_field *field)
{
    int64_t value = -1;
    if (!field->text)
        memcpy(&value, (const char *)key + field->offset, sizeof value);
    return value < 0 ? -1 : value;
}

bool sample_field_present(const struct sample_key *key, const struct sample_field *field)
{
    return field->text ? *sample_field_text(key, field) != '\0' : sample_field_int(key, field) >= 0;
}

const struct sample_field *sample_field_find(const char *name)
{
    for (int i = 0; i < SAMPLE_FIELDS; i++)
        if (strcmp(sample_fields[i].name, name) == 0)
            return &sample_fields[i];
    return NULL;
}

void sample_key_init(struct sample_key *key)
{
    memset(key, 0, sizeof *key);
#define FIELD_TEXT(name)
#define FIELD_INT(name) key->name = -1;
    SAMPLE_KEY_LIST(FIELD_TEXT, FIELD_INT)
#undef FIELD_TEXT
#undef FIELD_INT
}

bool sample_key_equal(const struct sample_key *a, const struct sample_key *b)
{
    for (int i = 0; i < SAMPLE_FIELDS; i++)
        if (strcmp(sample_field_text(a, &sample_fields[i]), sample_field_text(b, &sample_fields[i])) != 0 ||
            sample_field_int(a, &sample_fields[i]) != sample_field_int(b, &sample_fields[i]))
            return false;
    return true;
}

static bool must_escape(unsigned char c)
{
    return c <= ' ' || c == 0x7f || c == '=' || c == '%';
}

char *sample_key_text(const struct sample_key *key)
{
    struct text text = {0};
    for (int i = 0; i < SAMPLE_FIELDS; i++) {
        const struct sample_field *field = &sample_fields[i];
        if (!sample_field_present(key, field))
            continue;
        text_add(&text, "%s%s=", text.len ? " " : "", field->name);
        if (!field->text)
            text_add(&text, "%lld", (long long)sample_field_int(key, field));
        for (const char *c = sample_field_text(key, field); *c; c++)
            text_add(&text, must_escape((unsigned char)*c) ? "%%%02X" : "%c", (unsigned char)*c);
    }
    if (text_status(&text) != STATUS_OK) {
        text_free(&text);
        return NULL;
    }
    return text.s ? text.s : strdup("");
}

static int hex_digit(char c)
{
    const char *digits = "0123456789ABCDEF", *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* One %XX or plain character of a name at *at, which moves on; '\0' when it is neither. */
static char unescape(const char **at, const char *end)
{
    const char *c = *at;
    if (*c != '%') {
        *at = c + 1;
        if (must_escape((unsigned char)*c))
            return '\0';
        return *c;
    }
    int high = end - c > 2 ? hex_digit(c[1]) : -1, low = end - c > 2 ? hex_digit(c[2]) : -1;
    *at = end - c > 2 ? c + 3 : end;
    if (high < 0 || low < 0)
        return '\0';
    return (char)(high * 16 + low);
}

static enum status parse_text(const char *from, const char *end, const struct sample_field *field, char *out)
{
    size_t len = 0;
    for (const char *at = from; at < end;) {
        char c = unescape(&at, end);
        if (!c)
            return HINT(FAIL(STATUS_USAGE, "%s=%.*s in a key cannot be read", field->name, (int)(end - from), from),
                        "blanks, '=' and '%%' are written %%20, %%3D and %%25");
        if (len + 1 == SAMPLE_NAME)
            return FAIL(STATUS_USAGE, "%s=%.*s in a key is longer than %d characters", field->name, (int)(end - from),
                        from, SAMPLE_NAME - 1);
        out[len++] = c;
    }
    if (!len)
        return HINT(FAIL(STATUS_USAGE, "%s= in a key has no value", field->name), "leave absent fields out");
    out[len] = '\0';
    return STATUS_OK;
}

static enum status parse_int(const char *from, const char *end, const struct sample_field *field, int64_t *out)
{
    char *stop = NULL;
    errno = 0;
    long long value = *from >= '0' && *from <= '9' ? strtoll(from, &stop, 10) : -1;
    if (stop != end || errno)
        return HINT(FAIL(STATUS_USAGE, "%s=%.*s in a key is not a number", field->name, (int)(end - from), from),
                    "0 to 9223372036854775807, in plain digits");
    *out = value;
    return STATUS_OK;
}

static enum status unknown_field(const char *from, const char *end)
{
    const char *names[SAMPLE_FIELDS];
    for (int i = 0; i < SAMPLE_FIELDS; i++)
        names[i] = sample_fields[i].name;
    char name[SAMPLE_NAME];
    text_print(name, sizeof name, "%.*s", (int)(end - from), from);
    const char *nearest = text_nearest(name, names, SAMPLE_FIELDS);
    enum status status = FAIL(STATUS_USAGE, "'%.*s' is not a field of a key", (int)(end - from), from);
    return nearest ? HINT(status, "did you mean %s?", nearest) : status;
}

static enum status parse_field(const char *from, const char *end, struct sample_key *key)
{
    const char *equals = memchr(from, '=', (size_t)(end - from));
    if (!equals)
        return HINT(FAIL(STATUS_USAGE, "'%.*s' in a key has no '='", (int)(end - from), from), "write field=value");
    const struct sample_field *field = NULL;
    for (int i = 0; i < SAMPLE_FIELDS && !field; i++)
        if (strlen(sample_fields[i].name) == (size_t)(equals - from) &&
            memcmp(sample_fields[i].name, from, (size_t)(equals - from)) == 0)
            field = &sample_fields[i];
    if (!field)
        return unknown_field(from, equals);
    if (sample_field_present(key, field))
        return FAIL(STATUS_USAGE, "%s is in the key twice", field->name);
    void *value = (char *)key + field->offset;
    return field->text ? parse_text(equals + 1, end, field, value) : parse_int(equals + 1, end, field, value);
}

enum status sample_key_parse(const char *text, struct sample_key *out)
{
    struct sample_key key;
    sample_key_init(&key);
    for (const char *at = text; *at;) {
        const char *end = at + strcspn(at, " ");
        if (end > at)
            TRY(parse_field(at, end, &key));
        at = *end ? end + 1 : end;
    }
    *out = key;
    return STATUS_OK;
}

const char *sample_outcome_name(enum sample_outcome outcome)
{
    static const char *const names[] = {"ok", "waived", "failed"};
    return names[outcome];
}

void sample_init(struct sample *sample)
{
    *sample = (struct sample){.bytes = -1, .group = 1, .scale = 1};
    sample_key_init(&sample->key);
}

void sample_free(struct sample *sample)
{
    if (!sample)
        return;
    free(sample->times_us);
    free(sample->conditions);
    free(sample->versions);
    sample->times_us = NULL;
    sample->n = 0;
    sample->conditions = sample->versions = NULL;
}

static enum status copy_text(const char *from, char **out)
{
    *out = from ? strdup(from) : NULL;
    return from && !*out ? FAIL(STATUS_NOMEM, "no memory to copy a sample") : STATUS_OK;
}

enum status sample_copy(const struct sample *from, struct sample *out)
{
    struct sample copy = *from;
    copy.times_us = NULL;
    copy.conditions = copy.versions = NULL;
    enum status status = STATUS_OK;
    void *times = NULL;
    if (from->n > 0) {
        TRY_OUT(mem_alloc((size_t)from->n * sizeof *from->times_us, "times of a sample", &times));
        memcpy(times, from->times_us, (size_t)from->n * sizeof *from->times_us);
        copy.times_us = times;
    }
    TRY_OUT(copy_text(from->conditions, &copy.conditions));
    TRY_OUT(copy_text(from->versions, &copy.versions));
    *out = copy;
    return STATUS_OK;
out:
    sample_free(&copy);
    return status;
}
