/* cli/opt.h -- one table of options per verb, over getopt_long: parsing, help text and "did you mean" come from it.
 *
 * Values stay text until a verb asks for them through a typed getter, which names the option in its message. An option
 * given twice keeps the last value, unless it is OPT_MANY.
 */
#ifndef SPTUNE_CLI_OPT_H
#define SPTUNE_CLI_OPT_H

#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

enum opt_kind { OPT_FLAG, OPT_VALUE, OPT_MANY };

struct opt {
    const char *name; /* long name without dashes */
    char letter;      /* 0: none */
    enum opt_kind kind;
    const char *arg;  /* "N", "FILE" ...; NULL for flags */
    const char *help; /* one line, default in brackets */
};

enum { OPT_MAX = 80, OPT_MANY_MAX = 64, OPT_ARGS_MAX = 16 };

struct opt_set {
    const struct opt *const *tables; /* NULL-terminated list of tables, each ending with a NULL name */
    int n;                           /* values given, in order */
    struct {
        const struct opt *opt;
        const char *value; /* borrowed from argv; "" for flags */
    } given[OPT_MANY_MAX];
    int nargs;
    char *args[OPT_ARGS_MAX]; /* positional, borrowed from argv */
};

/* argv[0] is the verb. Unknown, ambiguous or incomplete options: STATUS_USAGE with the nearest name. */
enum status opt_parse(int argc, char **argv, const struct opt *const *tables, struct opt_set *out);
bool opt_given(const struct opt_set *set, const char *name);
const char *opt_value(const struct opt_set *set, const char *name); /* last value, NULL when not given */
int opt_values(const struct opt_set *set, const char *name, const char *out[OPT_MANY_MAX]);

/* Typed getters: `fallback` when not given. */
enum status opt_count(const struct opt_set *set, const char *name, int64_t min, int64_t max, int64_t fallback,
                      int64_t *out);
/* More than nothing, at most a year, in microseconds. */
enum status opt_duration(const struct opt_set *set, const char *name, int64_t fallback_us, int64_t *out_us);
/* Comma list of words from a fixed set; *mask has bit i for words[i]; 0 when not given. */
enum status opt_words(const struct opt_set *set, const char *name, const char *const *words, int n, unsigned *mask);
/* Index of one word of a fixed set; `fallback` when not given. */
enum status opt_word(const struct opt_set *set, const char *name, const char *const *words, int n, int fallback,
                     int *out);
/* A word that is none of n: says so, with the nearest and all of them. `option` with its dashes, or what else was
 * asked. */
enum status opt_unknown(const char *option, const char *word, const char *const *words, size_t n);
/* A value given twice in a list is taken once; the order stays. How many are left. */
int opt_drop_repeats(int64_t *values, int n);
int opt_drop_repeated_words(const char **words, int n);
/* Split a comma list; borrowed pieces live in *storage (free it). */
enum status opt_split(const char *text, char **storage, const char **out, int max, int *n);

void opt_help(const struct opt *table, struct text *out); /* indented lines, 80 columns */
/* Words separated by blanks, the first from `column` on, in lines of 80 columns that begin at `indent`. */
void opt_wrap(struct text *out, const char *words, int column, int indent);

#endif
