/* base/verdict.c -- codes of rules, and the way to say no. */
#include "base/verdict.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

const char *rule_code(enum rule rule)
{
    static const char *const codes[RULE_COUNT] = {
#define RULE_CODE(name, code) code,
        RULE_LIST(RULE_CODE)
#undef RULE_CODE
    };
    return (unsigned)rule < RULE_COUNT ? codes[rule] : "unknown";
}

struct verdict verdict_no(enum rule rule, const char *fmt, ...)
{
    struct verdict verdict = {.rule = rule};
    va_list args;
    va_start(args, fmt);
    vsnprintf(verdict.why, sizeof verdict.why, fmt, args);
    va_end(args);
    text_clean(verdict.why);
    return verdict;
}
