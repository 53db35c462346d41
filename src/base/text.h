/* base/text.h -- a growing string, and the small string helpers that the screens and messages need. */
#ifndef SPTUNE_BASE_TEXT_H
#define SPTUNE_BASE_TEXT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Owns `s`; zero-initialise, release with text_free. An allocation failure is sticky: `s` keeps what it had and
 * text_status says so, so callers append freely and check once. */
struct text {
    char *s; /* NUL-terminated once anything was appended, else NULL */
    size_t len, cap;
    bool failed;
};

void text_add(struct text *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void text_add_raw(struct text *text, const char *bytes, size_t len);
enum status text_status(const struct text *text);
const char *text_get(const struct text *text); /* "" when empty */
void text_free(struct text *text);

/* The entry of `words` (n of them) nearest to `word` when it is near enough to be a slip, else NULL. */
const char *text_nearest(const char *word, const char *const *words, size_t n);
/* snprintf that always terminates and says whether it fitted. */
bool text_print(char *buf, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* In place: control characters and bytes that are not UTF-8 become '?', so that any input can stand in one line of a
 * message and in a JSON string. */
void text_clean(char *s);

#endif
