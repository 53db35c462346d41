/* train/data_parse.c -- forms and separators as people write them. */
#include "train/data_private.h"

#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {[DATA_BYTES] = "bytes", [DATA_U16] = "u16", [DATA_U32] = "u32"};
enum { FORMS = sizeof names / sizeof names[0] };

const char *data_form_name(enum data_form form)
{
    return (unsigned)form < FORMS ? names[form] : "unknown";
}

int data_token_bytes(enum data_form form)
{
    return form == DATA_U32 ? 4 : form == DATA_U16 ? 2 : 1;
}

enum status data_form_parse(const char *text, const char *option, const char *path, enum data_form *out)
{
    if (strcmp(text, "auto") == 0) {
        const char *dot = strrchr(path, '.');
        text = dot && strcmp(dot, ".u16") == 0 ? "u16" : dot && strcmp(dot, ".u32") == 0 ? "u32" : "bytes";
    }
    for (int i = 0; i < FORMS; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (enum data_form)i;
            return STATUS_OK;
        }
    }
    return HINT(WHERE(FAIL(STATUS_USAGE, "'%.40s' is not a form of tokens", text), "%s", option),
                "use auto, bytes, u16 or u32");
}

static int hex_digit(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : -1;
}

/* One character, as it stands or escaped; NULL when what follows the backslash means nothing. */
static const char *read_byte(const char *at, int32_t *out)
{
    static const char escapes[] = "n\nt\tr\r0\0\\\\";
    if (*at != '\\') {
        *out = (unsigned char)*at;
        return at + 1;
    }
    for (size_t i = 0; at[1] && i + 1 < sizeof escapes; i += 2) {
        if (at[1] == escapes[i]) {
            *out = (unsigned char)escapes[i + 1];
            return at + 2;
        }
    }
    int high = at[1] == 'x' ? hex_digit(at[2]) : -1, low = high < 0 ? -1 : hex_digit(at[3]);
    if (low < 0)
        return NULL;
    *out = high * 16 + low;
    return at + 4;
}

/* One id and, unless it is the last, the comma after it. */
static const char *read_id(const char *at, int32_t *out)
{
    char *end = NULL;
    errno = 0;
    long long id = isdigit((unsigned char)*at) ? strtoll(at, &end, 10) : -1;
    if (errno || id < 0 || id > INT32_MAX || (*end && (*end != ',' || !end[1])))
        return NULL;
    *out = (int32_t)id;
    return end + (*end == ',');
}

enum status data_separator_parse(const char *text, const char *option, enum data_form form, struct data_separator *out)
{
    struct data_separator separator = {0};
    const char *hint = form == DATA_BYTES ? "text with \\n \\t \\r \\0 \\\\ and \\xHH, as '\\n\\n'"
                                          : "the id of a token, or several with commas, as 151643";
    for (const char *at = text; *at;) {
        if (separator.n == DATA_SEPARATOR_MAX)
            return HINT(
                WHERE(FAIL(STATUS_USAGE, "a separator of more than %d tokens", DATA_SEPARATOR_MAX), "%s", option), "%s",
                hint);
        const char *next = form == DATA_BYTES ? read_byte(at, &separator.token[separator.n])
                                              : read_id(at, &separator.token[separator.n]);
        if (!next)
            return HINT(WHERE(FAIL(STATUS_USAGE, "'%.40s' is no separator of %s, from '%.8s' on", text,
                                   data_form_name(form), at),
                              "%s", option),
                        "%s", hint);
        separator.n++;
        at = next;
    }
    if (separator.n == 0)
        return HINT(WHERE(FAIL(STATUS_USAGE, "an empty separator"), "%s", option), "%s", hint);
    *out = separator;
    return STATUS_OK;
}
