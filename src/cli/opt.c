/* cli/opt.c -- option tables over getopt_long. */
#include "cli/opt.h"

#include "base/units.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const struct opt *find(const struct opt *const *tables, const char *name, char letter)
{
    for (int t = 0; tables[t] != NULL; t++)
        for (const struct opt *o = tables[t]; o->name != NULL; o++)
            if ((name != NULL && strcmp(o->name, name) == 0) || (letter != 0 && o->letter == letter))
                return o;
    return NULL;
}

enum { LONG_FIRST = 256 }; /* long options return LONG_FIRST + index, beyond every letter */

static int collect(const struct opt *const *tables, struct option *longs, char *shorts, const char **names)
{
    int n = 0;
    size_t s = 0;
    shorts[s++] = '-'; /* arguments are returned in place, as 1 */
    shorts[s++] = ':'; /* a missing value is told apart from an unknown option */
    for (int t = 0; tables[t] != NULL; t++) {
        for (const struct opt *o = tables[t]; o->name != NULL && n < OPT_MAX - 1; o++, n++) {
            bool value = o->kind != OPT_FLAG;
            longs[n] = (struct option){
                .name = o->name, .has_arg = value ? required_argument : no_argument, .val = LONG_FIRST + n};
            names[n] = o->name;
            if (o->letter != 0) {
                shorts[s++] = o->letter;
                if (value)
                    shorts[s++] = ':';
            }
        }
    }
    longs[n] = (struct option){0};
    shorts[s] = '\0';
    return n;
}

static enum status unknown(const char *verb, const char *word, const char *const *names, int n)
{
    char plain[64];
    const char *start = word;
    while (*start == '-')
        start++;
    text_print(plain, sizeof plain, "%s", start);
    plain[strcspn(plain, "=")] = '\0';
    const char *near = text_nearest(plain, names, (size_t)n);
    enum status status = FAIL(STATUS_USAGE, "unknown option %.64s", word);
    if (near != NULL)
        return HINT(status, "did you mean --%s? `sptune help %s` lists the options", near, verb);
    return HINT(status, "`sptune help %s` lists the options", verb);
}

/* `--model --seq 4k`: getopt would take --seq for a file's name. Who means that writes --model=--seq. */
static enum status check_value(const struct opt_set *set, const struct opt *o, const char *word, const char *value)
{
    if (o->kind == OPT_FLAG || strncmp(value, "--", 2) != 0 || strchr(word, '=') != NULL ||
        find(set->tables, value + 2, 0) == NULL)
        return STATUS_OK;
    return HINT(FAIL(STATUS_USAGE, "option --%s needs a value, but %s follows", o->name, value),
                "--%s %s; a value that looks like an "
                "option is given as --%s=%s",
                o->name, o->arg, o->name, value);
}

static enum status keep(struct opt_set *set, const struct opt *o, const char *value)
{
    if (o->kind != OPT_MANY) {
        for (int i = 0; i < set->n; i++) {
            if (set->given[i].opt == o) {
                set->given[i].value = value;
                return STATUS_OK;
            }
        }
    }
    if (set->n == OPT_MANY_MAX)
        return HINT(FAIL(STATUS_USAGE, "more than %d options", OPT_MANY_MAX), "give fewer; lists take commas");
    set->given[set->n].opt = o;
    set->given[set->n].value = value;
    set->n++;
    return STATUS_OK;
}

static enum status keep_arg(struct opt_set *set, char *arg)
{
    if (set->nargs == OPT_ARGS_MAX)
        return HINT(FAIL(STATUS_USAGE, "unexpected argument '%.60s'", arg), "at most %d arguments", OPT_ARGS_MAX);
    set->args[set->nargs++] = arg;
    return STATUS_OK;
}

/* getopt said no: optopt names a known option that was used wrongly, or is 0 or a letter nobody knows. */
static enum status refuse(const char *verb, int c, char **argv, const char *const *names, int n)
{
    const char *word = argv[optind - 1];
    if (optopt >= LONG_FIRST && c == '?')
        return HINT(FAIL(STATUS_USAGE, "option --%s takes no value", names[optopt - LONG_FIRST]), "write --%s alone",
                    names[optopt - LONG_FIRST]);
    if (c == ':')
        return HINT(FAIL(STATUS_USAGE, "option %.64s needs a value", word), "`sptune help %s` lists the options", verb);
    char letter[3] = {'-', (char)optopt, '\0'};
    return unknown(verb, optopt != 0 ? letter : word, names, n);
}

enum status opt_parse(int argc, char **argv, const struct opt *const *tables, struct opt_set *out)
{
    struct option longs[OPT_MAX];
    char shorts[2 * OPT_MAX + 2];
    const char *names[OPT_MAX];
    int nnames = collect(tables, longs, shorts, names);
    *out = (struct opt_set){.tables = tables};
    opterr = 0;
    optind = 0; /* glibc: start over, also after an earlier parse */
    int c, at = 1;
    while ((c = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        if (c == ':' || c == '?')
            return refuse(argv[0], c, argv, names, nnames);
        if (c == 1) {
            TRY(keep_arg(out, optarg));
        } else {
            const struct opt *o =
                c >= LONG_FIRST ? find(tables, names[c - LONG_FIRST], 0) : find(tables, NULL, (char)c);
            size_t len = strlen(o->name);
            if (c >= LONG_FIRST &&
                (strncmp(argv[at] + 2, o->name, len) != 0 || (argv[at][2 + len] != '\0' && argv[at][2 + len] != '=')))
                return unknown(argv[0], argv[at], names,
                               nnames); /* getopt takes prefixes; scripts must not depend on them */
            const char *value = optarg != NULL ? optarg : "";
            TRY(check_value(out, o, argv[at], value));
            TRY(keep(out, o, value));
        }
        at = optind;
    }
    for (; optind < argc; optind++) /* after "--" */
        TRY(keep_arg(out, argv[optind]));
    return STATUS_OK;
}

const char *opt_value(const struct opt_set *set, const char *name)
{
    const char *value = NULL;
    for (int i = 0; i < set->n; i++)
        if (strcmp(set->given[i].opt->name, name) == 0)
            value = set->given[i].value;
    return value;
}

bool opt_given(const struct opt_set *set, const char *name)
{
    return opt_value(set, name) != NULL;
}

int opt_values(const struct opt_set *set, const char *name, const char *out[OPT_MANY_MAX])
{
    int n = 0;
    for (int i = 0; i < set->n; i++)
        if (strcmp(set->given[i].opt->name, name) == 0)
            out[n++] = set->given[i].value;
    return n;
}

enum status opt_count(const struct opt_set *set, const char *name, int64_t min, int64_t max, int64_t fallback,
                      int64_t *out)
{
    const char *text = opt_value(set, name);
    if (text == NULL) {
        *out = fallback;
        return STATUS_OK;
    }
    char option[48];
    text_print(option, sizeof option, "--%s", name);
    return units_parse_count(text, option, min, max, out);
}

enum status opt_duration(const struct opt_set *set, const char *name, int64_t fallback_us, int64_t *out_us)
{
    static const int64_t year_us = INT64_C(365) * 24 * 3600 * 1000 * 1000;
    const char *text = opt_value(set, name);
    char option[48];
    *out_us = fallback_us;
    if (text == NULL)
        return STATUS_OK;
    text_print(option, sizeof option, "--%s", name);
    TRY(units_parse_duration(text, option, out_us));
    if (*out_us > 0 && *out_us <= year_us)
        return STATUS_OK;
    return HINT(WHERE(FAIL(STATUS_USAGE, "%.60s is too %s", text, *out_us <= 0 ? "small" : "large"), "%s", option),
                "write a number and its unit, up to a year: 250ms 10s 5m 1h");
}

enum status opt_unknown(const char *option, const char *word, const char *const *words, size_t n)
{
    struct text all = {0};
    for (size_t i = 0; i < n; i++)
        text_add(&all, "%s%s", i > 0 ? ", " : "", words[i]);
    const char *near = text_nearest(word, words, n);
    enum status status = FAIL(STATUS_USAGE, "%s does not know '%.40s'", option, word);
    status = near != NULL ? HINT(status, "did you mean %s? One of: %s", near, text_get(&all))
                          : HINT(status, "one of: %s", text_get(&all));
    text_free(&all);
    return status;
}

static enum status wrong_word(const char *name, const char *word, const char *const *words, int n)
{
    char option[48];
    text_print(option, sizeof option, "--%s", name);
    return opt_unknown(option, word, words, (size_t)n);
}

enum status opt_split(const char *text, char **storage, const char **out, int max, int *n)
{
    *n = 0;
    *storage = strdup(text);
    if (*storage == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a list");
    char *rest = *storage;
    while (rest != NULL) {
        char *piece = strsep(&rest, ",");
        if (*piece == '\0' || *n == max) {
            const char *problem = *text == '\0'    ? "a value is missing"
                                  : *piece == '\0' ? "the list has an empty place"
                                                   : "the list is too long";
            free(*storage);
            *storage = NULL;
            *n = 0;
            return HINT(FAIL(STATUS_USAGE, "%s", problem), "separate entries by single commas, at most %d", max);
        }
        out[(*n)++] = piece;
    }
    return STATUS_OK;
}

int opt_drop_repeats(int64_t *values, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < kept && values[k] != values[i])
            k++;
        if (k == kept)
            values[kept++] = values[i];
    }
    return kept;
}

int opt_drop_repeated_words(const char **words, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < kept && strcmp(words[k], words[i]) != 0)
            k++;
        if (k == kept)
            words[kept++] = words[i];
    }
    return kept;
}

enum status opt_words(const struct opt_set *set, const char *name, const char *const *words, int n, unsigned *mask)
{
    *mask = 0;
    const char *text = opt_value(set, name);
    if (text == NULL)
        return STATUS_OK;
    char *storage = NULL;
    const char *pieces[32];
    int count = 0;
    enum status status = WHERE(opt_split(text, &storage, pieces, 32, &count), "--%s", name);
    for (int p = 0; p < count && status == STATUS_OK; p++) {
        int found = -1;
        for (int i = 0; i < n; i++)
            if (strcmp(pieces[p], words[i]) == 0)
                found = i;
        if (found < 0)
            status = wrong_word(name, pieces[p], words, n);
        else
            *mask |= 1u << found;
    }
    free(storage);
    return status;
}

enum status opt_word(const struct opt_set *set, const char *name, const char *const *words, int n, int fallback,
                     int *out)
{
    const char *text = opt_value(set, name);
    *out = fallback;
    if (text == NULL)
        return STATUS_OK;
    for (int i = 0; i < n; i++) {
        if (strcmp(text, words[i]) == 0) {
            *out = i;
            return STATUS_OK;
        }
    }
    return wrong_word(name, text, words, n);
}

void opt_wrap(struct text *out, const char *words, int column, int indent)
{
    enum { WIDTH = 80 };
    const char *blank = "";
    while (*words != '\0') {
        int len = (int)strcspn(words, " ");
        if (column + (int)strlen(blank) + len > WIDTH && column > indent) {
            text_add(out, "\n%*s", indent, "");
            column = indent;
            blank = "";
        }
        text_add(out, "%s%.*s", blank, len, words);
        column += (int)strlen(blank) + len;
        words += len;
        words += strspn(words, " ");
        blank = " ";
    }
    text_add(out, "\n");
}

void opt_help(const struct opt *table, struct text *out)
{
    enum { INDENT = 28 };
    for (const struct opt *o = table; o->name != NULL; o++) {
        char left[64], letter[8] = "    ";
        if (o->letter != 0)
            text_print(letter, sizeof letter, "-%c, ", o->letter);
        text_print(left, sizeof left, "  %s--%s%s%s", letter, o->name, o->arg != NULL ? " " : "",
                   o->arg != NULL ? o->arg : "");
        bool fits = (int)strlen(left) < INDENT;
        text_add(out, "%-*s", fits ? INDENT : 0, left);
        if (!fits)
            text_add(out, "\n%*s", INDENT, "");
        opt_wrap(out, o->help, INDENT, INDENT);
    }
}
