/* base/units_parse.c -- one number, as people write it, to an exact integer. */
#include "base/units.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef __int128 wide;

struct unit {
    const char *name;
    int64_t scale;
};

static const struct unit count_units[] = {{"", 1},        {"k", 1 << 10}, {"K", 1 << 10}, {"M", 1 << 20},
                                          {"m", 1 << 20}, {"G", 1 << 30}, {"g", 1 << 30}, {NULL, 0}};
static const struct unit memory_units[] = {
    {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},   {"TiB", 1LL << 40},    {"KB", 1000},
    {"kB", 1000},     {"MB", 1000000},  {"GB", 1000000000}, {"TB", 1000000000000}, {NULL, 0}};
static const struct unit duration_units[] = {{"us", 1},         {"ms", 1000},        {"s", 1000000},
                                             {"m", 60000000LL}, {"h", 3600000000LL}, {NULL, 0}};

enum outcome { FINE, NOT_A_NUMBER, BAD_UNIT, TOO_LARGE, TOO_FINE, NOT_WHOLE };

static const wide finest = 1000000000000000000; /* 10^18: 18 digits behind the point */

static const struct unit *find_unit(const struct unit *units, const char *name)
{
    while (units->name && strcmp(units->name, name) != 0)
        units++;
    return units->name ? units : NULL;
}

/* digits [. digits] unit. The product is exact; *out is its whole part, NOT_WHOLE when something was left over. */
static enum outcome scan(const char *text, const struct unit *units, int64_t *out)
{
    wide digits = 0, divisor = 1;
    const char *at = text;
    bool fraction = false, overflow = false, too_fine = false;
    if (!isdigit((unsigned char)*at))
        return NOT_A_NUMBER;
    for (; isdigit((unsigned char)*at) || (*at == '.' && !fraction); at++) {
        if (*at == '.') {
            if (!isdigit((unsigned char)at[1]))
                return NOT_A_NUMBER;
            fraction = true;
            continue;
        }
        overflow = overflow || digits > INT64_MAX / 10;
        too_fine = too_fine || divisor == finest;
        if (!overflow && !too_fine) {
            digits = digits * 10 + (*at - '0');
            divisor *= fraction ? 10 : 1;
        }
    }
    const struct unit *unit = find_unit(units, at + (*at == ' ' && at[1])); /* "80 GiB" as screens show it */
    if (!unit)
        return BAD_UNIT;
    if (too_fine)
        return TOO_FINE;
    wide product = digits * unit->scale;
    if (overflow || product / divisor > INT64_MAX)
        return TOO_LARGE;
    *out = (int64_t)(product / divisor);
    return product % divisor ? NOT_WHOLE : FINE;
}

static enum status refuse(const char *text, const char *option, const char *problem, const char *hint)
{
    const char *ellipsis = strlen(text) > 60 ? "..." : "";
    enum status status =
        *text ? FAIL(STATUS_USAGE, "'%.60s%s' %s", text, ellipsis, problem) : FAIL(STATUS_USAGE, "a value is missing");
    return HINT(WHERE(status, "%s", option), "%s", hint);
}

static enum status explain(enum outcome outcome, const char *text, const char *option, const char *noun,
                           const char *hint)
{
    switch (outcome) {
    case FINE:
        return STATUS_OK;
    case TOO_LARGE:
        return refuse(text, option, "is too large", hint);
    case TOO_FINE:
        return refuse(text, option, "has too many digits behind the point", hint);
    case NOT_WHOLE:
        return refuse(text, option, "is not a whole number", hint);
    default:
        return refuse(text, option, text[0] == '-' && isdigit((unsigned char)text[1]) ? "is negative" : noun, hint);
    }
}

enum status units_parse_count(const char *text, const char *option, int64_t min, int64_t max, int64_t *out)
{
    static const char hint[] = "write an exact integer, or steps of 1024 as k, M or G: 131072 or 128k";
    int64_t value = 0;
    text = text ? text : "";
    TRY(explain(scan(text, count_units, &value), text, option, "is not a whole number", hint));
    if (value < min)
        return HINT(WHERE(FAIL(STATUS_USAGE, "%.60s is too small", text), "%s", option), "use %lld or more",
                    (long long)min);
    if (value > max)
        return HINT(WHERE(FAIL(STATUS_USAGE, "%.60s is too large", text), "%s", option), "use %lld or less",
                    (long long)max);
    *out = value;
    return STATUS_OK;
}

enum status units_parse_memory(const char *text, const char *option, int64_t *out_bytes)
{
    static const char hint[] = "say which unit: GiB MiB KiB (powers of 1024) or GB MB KB (powers of 1000), as in 80GiB";
    int64_t value = 0;
    text = text ? text : "";
    enum outcome outcome = scan(text, memory_units, &value);
    if (outcome == NOT_WHOLE) /* 79.6GiB, as screens show it: part of a byte is nobody's memory */
        outcome = FINE;
    TRY(explain(outcome, text, option, "is not an amount of memory", hint));
    *out_bytes = value;
    return STATUS_OK;
}

enum status units_parse_duration(const char *text, const char *option, int64_t *out_us)
{
    int64_t value = 0;
    text = text ? text : "";
    TRY(explain(scan(text, duration_units, &value), text, option, "is not a duration",
                "write a number and its unit: 250ms 10s 5m 1h"));
    *out_us = value;
    return STATUS_OK;
}

enum status units_parse_double(const char *text, const char *option, double min, double max, double *out)
{
    char *end;
    text = text ? text : "";
    /* strtod alone would take leading blanks, hexadecimal, "inf" and "nan". */
    bool plain = *text && text[strspn(text, "0123456789+-.eE")] == '\0';
    errno = 0;
    double value = plain ? strtod(text, &end) : 0.0;
    if (!plain || end == text || *end)
        return refuse(text, option, "is not a number", "write a decimal number such as 0.5");
    if (!isfinite(value) || value < min || value > max)
        return HINT(WHERE(FAIL(STATUS_USAGE, "%.60s is out of range", text), "%s", option), "use %g to %g", min, max);
    *out = value;
    return STATUS_OK;
}

enum status units_parse_percent(const char *text, const char *option, double *out_fraction)
{
    static const char hint[] = "write a percentage from 0% to 100%, as in 50%";
    char number[64];
    double value = 0.0;
    text = text ? text : "";
    size_t len = strlen(text);
    if (len < 2 || len > sizeof number || text[len - 1] != '%')
        return refuse(text, option, "is not a percentage", hint);
    memcpy(number, text, len - 1);
    number[len - 1] = '\0';
    if (units_parse_double(number, option, 0.0, 100.0, &value) != STATUS_OK)
        return refuse(text, option, "is not a percentage from 0 to 100", hint);
    *out_fraction = value / 100.0;
    return STATUS_OK;
}
