/* base/text.c -- growing strings and small string helpers. */
#include "base/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool reserve(struct text *text, size_t extra)
{
    if (text->failed)
        return false;
    if (extra < text->cap - text->len)
        return true;
    if (extra > SIZE_MAX / 2 - text->len - 1) {
        text->failed = true;
        return false;
    }
    size_t cap = text->cap < 64 ? 64 : text->cap;
    while (cap - text->len <= extra)
        cap *= 2;
    char *s = realloc(text->s, cap);
    if (!s) {
        text->failed = true;
        return false;
    }
    text->s = s;
    text->cap = cap;
    return true;
}

void text_add_raw(struct text *text, const char *bytes, size_t len)
{
    if (!reserve(text, len))
        return;
    if (len)
        memcpy(text->s + text->len, bytes, len);
    text->len += len;
    text->s[text->len] = '\0';
}

void text_add(struct text *text, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int need = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (need < 0) {
        text->failed = true;
        return;
    }
    if (!reserve(text, (size_t)need))
        return;
    va_start(args, fmt);
    vsnprintf(text->s + text->len, text->cap - text->len, fmt, args);
    va_end(args);
    text->len += (size_t)need;
}

enum status text_status(const struct text *text)
{
    return text->failed ? FAIL(STATUS_NOMEM, "no memory for a text of more than %zu bytes", text->len) : STATUS_OK;
}

const char *text_get(const struct text *text)
{
    return text->s ? text->s : "";
}

void text_free(struct text *text)
{
    free(text->s);
    *text = (struct text){0};
}

bool text_print(char *buf, size_t size, const char *fmt, ...)
{
    if (!size)
        return false;
    va_list args;
    va_start(args, fmt);
    int need = vsnprintf(buf, size, fmt, args);
    va_end(args);
    if (need < 0)
        buf[0] = '\0';
    return need >= 0 && (size_t)need < size;
}

/* Bytes of the well-formed UTF-8 sequence at s, 0 when there is none: overlong forms, surrogates and cut tails are
 * none. */
static size_t utf8_len(const unsigned char *s)
{
    static const uint32_t lowest[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] < 0x80 ? 1 : (s[0] & 0xe0) == 0xc0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : (s[0] & 0xf8) == 0xf0 ? 4 : 0;
    if (n < 2)
        return n;
    uint32_t point = s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (s[i] & 0x3fu);
    }
    return point < lowest[n] || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff) ? 0 : n;
}

void text_clean(char *s)
{
    while (*s) {
        size_t n = utf8_len((unsigned char *)s);
        /* C1 controls (0xc2 0x80..0x9f) move a terminal's cursor as C0 controls do. */
        bool control = (n == 1 && ((unsigned char)*s < 0x20 || *s == 0x7f)) ||
                       (n == 2 && (unsigned char)s[0] == 0xc2 && (unsigned char)s[1] < 0xa0);
        if (n == 0 || control)
            *s = '?';
        if (n == 2 && control)
            memmove(s + 1, s + 2, strlen(s + 2) + 1);
        s += n == 0 || control ? 1 : n;
    }
}

enum { WORD_MAX = 48 };

static int min3(int a, int b, int c)
{
    int least = a < b ? a : b;
    return least < c ? least : c;
}

/* Edits (insert, delete, replace, swap of neighbours) between two words of at most WORD_MAX bytes. */
static int distance(const char *a, const char *b)
{
    int rows[3][WORD_MAX + 1];
    int na = (int)strlen(a), nb = (int)strlen(b);
    for (int j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *now = rows[i % 3], *before = rows[(i + 2) % 3], *two_before = rows[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= nb; j++) {
            now[j] = min3(before[j] + 1, now[j - 1] + 1, before[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && two_before[j - 2] + 1 < now[j])
                now[j] = two_before[j - 2] + 1;
        }
    }
    return rows[na % 3][nb];
}

const char *text_nearest(const char *word, const char *const *words, size_t n)
{
    size_t len = word ? strlen(word) : 0;
    if (len == 0 || len > WORD_MAX)
        return NULL;
    int best = (int)(len + 2) / 3 + 1; /* "nearer than": one slip in 1..3 letters, two in 4..6 */
    if (len < 3)
        best = 2;
    const char *found = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!words[i] || strlen(words[i]) > WORD_MAX)
            continue;
        int edits = distance(word, words[i]);
        if (len >= 3 && edits > 1 && strncasecmp(word, words[i], len) == 0)
            edits = 1; /* "exch" means exchange */
        if (edits < best && edits < (int)strlen(words[i])) {
            best = edits;
            found = words[i];
        }
    }
    return found;
}
