/* base/status.c -- the thread's one message. */
#include "base/status.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct status_message last = {.rank = -1};

static const char *const names[STATUS_COUNT] = {
    "ok",      "check", "nofit",   "usage", "absent", "unsupported", "nodata", "busy",
    "machine", "peer",  "timeout", "io",    "nomem",  "interrupted", "unread", "terminated",
};

static const struct {
    int exit_code;
    const char *text;
} rows[STATUS_COUNT] = {
#define STATUS_ROW(name, exit_code, text) {exit_code, text},
    STATUS_LIST(STATUS_ROW)
#undef STATUS_ROW
};

static int known(enum status code)
{
    return (unsigned)code < STATUS_COUNT;
}

const char *status_name(enum status code)
{
    return known(code) ? names[code] : "unknown";
}

const char *status_text(enum status code)
{
    return known(code) ? rows[code].text : "unknown status";
}

int status_exit_code(enum status code)
{
    return known(code) ? rows[code].exit_code : rows[STATUS_MACHINE].exit_code;
}

/* The build passes absolute paths; a message names the file as the tree does. */
static const char *tree_path(const char *file)
{
    const char *best = file;
    for (const char *p = strstr(file, "/src/"); p; p = strstr(p + 1, "/src/"))
        best = p + 5;
    return best;
}

static void begin(enum status code, const char *what)
{
    last = (struct status_message){.code = code, .rank = -1};
    text_print(last.what, sizeof last.what, "%s", what);
}

/* A code that arrives without its own FAIL must not borrow the text of an older failure. */
static void own(enum status code)
{
    if (last.code != code)
        begin(code, status_text(code));
}

/* The arguments may point into the message itself, so the text is made aside first. */
static void append(char *part, size_t size, const char *fmt, va_list args)
{
    char added[sizeof last.what];
    vsnprintf(added, sizeof added, fmt, args);
    text_clean(added);
    size_t used = strlen(part);
    if (added[0])
        text_print(part + used, size - used, "%s%s", used ? "; " : "", added);
    text_clean(part);
}

enum status status_set(enum status code, const char *file, int line, const char *fmt, ...)
{
    char what[sizeof last.what];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    text_clean(what);
    code = code == STATUS_OK ? STATUS_MACHINE : code;
    begin(code, what);
    text_print(last.source, sizeof last.source, "%s:%d", tree_path(file), line);
    return code;
}

enum status status_where(enum status code, const char *fmt, ...)
{
    if (code == STATUS_OK)
        return code;
    own(code);
    va_list args;
    va_start(args, fmt);
    append(last.where, sizeof last.where, fmt, args);
    va_end(args);
    return code;
}

enum status status_hint(enum status code, const char *fmt, ...)
{
    if (code == STATUS_OK)
        return code;
    own(code);
    va_list args;
    va_start(args, fmt);
    append(last.hint, sizeof last.hint, fmt, args);
    va_end(args);
    return code;
}

enum status status_rank(enum status code, int rank)
{
    if (code == STATUS_OK)
        return code;
    own(code);
    last.rank = rank;
    return code;
}

enum status status_agreed(enum status code)
{
    if (code == STATUS_OK)
        return code;
    own(code);
    last.agreed = 1;
    return code;
}

const struct status_message *status_last(void)
{
    return &last;
}

/* The message may have crossed a socket: terminate and clean whatever came. */
void status_restore(const struct status_message *message)
{
    struct status_message copy = *message;
    copy.what[sizeof copy.what - 1] = copy.where[sizeof copy.where - 1] = '\0';
    copy.hint[sizeof copy.hint - 1] = copy.source[sizeof copy.source - 1] = '\0';
    text_clean(copy.what);
    text_clean(copy.where);
    text_clean(copy.hint);
    text_clean(copy.source);
    if (!known(copy.code))
        copy.code = STATUS_PEER;
    last = copy;
}

void status_clear(void)
{
    last = (struct status_message){.rank = -1};
}
