/* base/units_list.c -- comma lists and ranges of counts.
 *
 *     list  = item {"," item}
 *     item  = count | count ".." count ["*" factor | "+" step]
 */
#include "base/mem.h"
#include "base/units.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct list {
    const char *option;
    int64_t min, max;
    int64_t *values;
    size_t n, cap;
};

static const char range_hint[] = "write values and ranges as in 1k,4k or 1k..8G*2 or 2..8+2 or 1..4";

static enum status append(struct list *list, int64_t value)
{
    if (list->n == UNITS_LIST_MAX)
        return HINT(WHERE(FAIL(STATUS_USAGE, "the list has more than %d values", UNITS_LIST_MAX), "%s", list->option),
                    "use a larger step, or a factor such as *2");
    TRY(mem_grow((void **)&list->values, &list->cap, list->n + 1, sizeof *list->values));
    list->values[list->n++] = value;
    return STATUS_OK;
}

/* The text from `from` to `end` as a count. */
static enum status number(const struct list *list, const char *from, const char *end, int64_t min, int64_t max,
                          int64_t *out)
{
    char word[80];
    size_t len = (size_t)(end - from);
    if (len >= sizeof word)
        return HINT(WHERE(FAIL(STATUS_USAGE, "'%.60s...' is too long for a number", from), "%s", list->option), "%s",
                    range_hint);
    memcpy(word, from, len);
    word[len] = '\0';
    return units_parse_count(word, list->option, min, max, out);
}

static enum status range(struct list *list, const char *from, const char *dots, const char *end)
{
    int64_t lo = 0, hi = 0, step = 1;
    const char *high = dots + 2, *mark = high;
    while (mark < end && *mark != '*' && *mark != '+')
        mark++;
    bool geometric = mark < end && *mark == '*';
    TRY(number(list, from, dots, list->min, list->max, &lo));
    TRY(number(list, high, mark, list->min, list->max, &hi));
    if (mark < end)
        TRY(number(list, mark + 1, end, geometric ? 2 : 1, INT64_MAX, &step));
    if (hi < lo)
        return HINT(WHERE(FAIL(STATUS_USAGE, "the range '%.*s' ends below its start", (int)(end - from), from), "%s",
                          list->option),
                    "write the smaller value first");
    if (geometric && lo == 0)
        return HINT(WHERE(FAIL(STATUS_USAGE, "a range with a factor cannot start at 0"), "%s", list->option),
                    "start at 1 or more");
    for (int64_t value = lo;; value = geometric ? value * step : value + step) {
        TRY(append(list, value));
        if (geometric ? value > hi / step : step > hi - value)
            return STATUS_OK;
    }
}

static enum status items(struct list *list, const char *text)
{
    for (const char *from = text;; from++) {
        const char *end = from + strcspn(from, ",");
        const char *dots = strstr(from, "..");
        int64_t value = 0;
        if (end == from)
            return HINT(WHERE(FAIL(STATUS_USAGE, "%s", *text ? "the list has an empty place" : "a value is missing"),
                              "%s", list->option),
                        "%s", range_hint);
        if (dots && dots < end) {
            TRY(range(list, from, dots, end));
        } else {
            TRY(number(list, from, end, list->min, list->max, &value));
            TRY(append(list, value));
        }
        from = end;
        if (!*from)
            return STATUS_OK;
    }
}

enum status units_parse_list(const char *text, const char *option, int64_t min, int64_t max, int64_t **out, int *out_n)
{
    struct list list = {.option = option, .min = min, .max = max};
    enum status status = items(&list, text ? text : "");
    if (status != STATUS_OK) {
        free(list.values);
        return status;
    }
    *out = list.values;
    *out_n = (int)list.n;
    return STATUS_OK;
}
