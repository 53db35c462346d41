/* base/json.c -- parse with a place in every message, write whole documents, read typed keys. */
#include "base/json.h"
#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_LIMIT_BYTES = 64 << 20, PRINTED_DIGITS = 15 /* what a double keeps through decimal text and back */ };

/* The parser of the library recurses; this scan comes first and needs no stack. */
static enum status check_depth(const char *text, size_t len, const char *where, int line)
{
    int depth = 0;
    size_t line_start = 0;
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '\n') {
            line++;
            line_start = i + 1;
        } else if (quoted) {
            if (c == '\\')
                i++;
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            if (++depth > JSON_DEPTH)
                return HINT(WHERE(FAIL(STATUS_USAGE, "JSON nested deeper than %d levels", JSON_DEPTH),
                                  "%s line %d column %zu", where, line, i - line_start + 1),
                            "is this the file you meant?");
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return STATUS_OK;
}

enum status json_parse_line(const char *text, size_t len, const char *where, int line, json_t **out)
{
    json_error_t error;
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte order mark, as some Windows editors write it */
        text += 3;
        len -= 3;
    }
    size_t blank = 0;
    while (blank < len && strchr(" \t\r\n", text[blank]) && text[blank])
        blank++;
    if (blank == len)
        return WHERE(FAIL(STATUS_USAGE, "no JSON here, it is empty"), "%s", where);
    TRY(check_depth(text, len, where, line));
    json_t *root = json_loadb(text, len, 0, &error);
    if (root) {
        *out = root;
        return STATUS_OK;
    }
    enum status status;
    switch (json_error_code(&error)) {
    case json_error_out_of_memory:
        return WHERE(FAIL(STATUS_NOMEM, "no memory to read JSON"), "%s", where);
    case json_error_numeric_overflow:
        status = HINT(FAIL(STATUS_USAGE, "a number is too large: %s", error.text),
                      "integers up to 9223372036854775807 and reals up to 1.8e308 can be read");
        break;
    case json_error_null_character:
    case json_error_null_byte_in_key:
        status = HINT(FAIL(STATUS_USAGE, "a string with the character \\u0000 in it"),
                      "no name or value that is read here may hold one");
        break;
    default:
        status = FAIL(STATUS_USAGE, "not valid JSON: %s", error.text);
    }
    return WHERE(status, "%s line %d column %d", where, line - 1 + error.line, error.column);
}

enum status json_parse(const char *text, size_t len, const char *where, json_t **out)
{
    return json_parse_line(text, len, where, 1, out);
}

enum status json_read(const char *path, json_t **out)
{
    char *text = NULL;
    size_t len = 0;
    TRY(file_read(path, FILE_LIMIT_BYTES, &text, &len));
    enum status status = json_parse(text, len, strcmp(path, "-") == 0 ? "stdin" : path, out);
    free(text);
    return status;
}

enum status json_format(const json_t *root, bool indent, char **out)
{
    size_t flags = JSON_REAL_PRECISION(PRINTED_DIGITS) | JSON_ENCODE_ANY;
    char *text = json_dumps(root, flags | (indent ? JSON_INDENT(2) : 0));
    if (!text)
        return FAIL(STATUS_NOMEM, "no memory to write JSON");
    *out = text;
    return STATUS_OK;
}

enum status json_write(const char *path, const json_t *root)
{
    char *text = NULL;
    TRY(json_format(root, true, &text));
    size_t len = strlen(text);
    text[len] = '\n'; /* in place of the terminator: file_write takes a length */
    enum status status = file_write(path, text, len + 1);
    free(text);
    return status;
}

enum status json_print(const json_t *root)
{
    char *text = NULL;
    TRY(json_format(root, true, &text));
    bool fine = fputs(text, stdout) != EOF && fputc('\n', stdout) != EOF && fflush(stdout) == 0;
    free(text);
    return fine ? STATUS_OK : WHERE(FAIL(STATUS_IO, "cannot write the JSON document"), "stdout");
}

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_NULL:
        return "null";
    default:
        return "true or false";
    }
}

/* *out is NULL when the key is absent or null. */
static enum status find(const json_t *object, const char *key, const char *where, json_t **out)
{
    if (!json_is_object(object))
        return WHERE(FAIL(STATUS_USAGE, "\"%s\" is looked for in %s, an object is expected", key,
                          object ? type_name(object) : "nothing"),
                     "%s", where);
    json_t *value = json_object_get(object, key);
    *out = json_is_null(value) ? NULL : value;
    return STATUS_OK;
}

static enum status ill_typed(const json_t *value, const char *key, const char *where, const char *expected)
{
    return WHERE(FAIL(STATUS_USAGE, "\"%s\" is %s, %s is expected", key, type_name(value), expected), "%s", where);
}

enum status json_need(const json_t *object, const char *key, const char *where, json_t **out)
{
    json_t *value = NULL;
    TRY(find(object, key, where, &value));
    if (!value)
        return WHERE(FAIL(STATUS_USAGE, "\"%s\" is missing", key), "%s", where);
    *out = value;
    return STATUS_OK;
}

enum status json_int(const json_t *object, const char *key, const char *where, int64_t fallback, int64_t *out)
{
    json_t *value = NULL;
    TRY(find(object, key, where, &value));
    if (!value) {
        *out = fallback;
    } else if (json_is_integer(value)) {
        *out = json_integer_value(value);
    } else if (json_is_real(value)) {
        const double beyond = 9223372036854775808.0; /* 2^63, the first real that int64 cannot hold */
        double real = json_real_value(value);
        if (real != floor(real))
            return WHERE(FAIL(STATUS_USAGE, "\"%s\" is %g, an integer is expected", key, real), "%s", where);
        if (real < -beyond || real >= beyond)
            return WHERE(FAIL(STATUS_USAGE, "\"%s\" is %g, which is too large for an integer", key, real), "%s", where);
        *out = (int64_t)real;
    } else {
        return ill_typed(value, key, where, "an integer");
    }
    return STATUS_OK;
}

enum status json_double(const json_t *object, const char *key, const char *where, double fallback, double *out)
{
    json_t *value = NULL;
    TRY(find(object, key, where, &value));
    if (value && !json_is_number(value))
        return ill_typed(value, key, where, "a number");
    *out = value ? json_number_value(value) : fallback;
    return STATUS_OK;
}

enum status json_bool(const json_t *object, const char *key, const char *where, bool fallback, bool *out)
{
    json_t *value = NULL;
    TRY(find(object, key, where, &value));
    if (value && !json_is_boolean(value))
        return ill_typed(value, key, where, "true or false");
    *out = value ? json_is_true(value) : fallback;
    return STATUS_OK;
}

enum status json_str(const json_t *object, const char *key, const char *where, const char *fallback, const char **out)
{
    json_t *value = NULL;
    TRY(find(object, key, where, &value));
    if (value && !json_is_string(value))
        return ill_typed(value, key, where, "a string");
    *out = value ? json_string_value(value) : fallback;
    return STATUS_OK;
}

json_t *json_num(double value, int digits)
{
    char text[64];
    if (!isfinite(value))
        return json_null();
    digits = digits < 1 ? 1 : digits > PRINTED_DIGITS ? PRINTED_DIGITS : digits;
    snprintf(text, sizeof text, "%.*e", digits - 1, value);
    double rounded = strtod(text, NULL);
    return json_real(isfinite(rounded) ? rounded : value); /* DBL_MAX to few digits rounds up to infinity */
}
