/* tuner/emit_quote.c -- any bytes as one word of a shell, one Python literal, or one line of a comment. */
#include "tuner/emit_quote.h"

#include <stdint.h>
#include <string.h>

void quote_shell(struct text *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:,@%=";
    if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
        text_add(out, "%s", word);
        return;
    }
    text_add(out, "'");
    for (const char *c = word; *c != '\0'; c++)
        if (*c == '\'')
            text_add(out, "'\\''");
        else
            text_add_raw(out, c, 1);
    text_add(out, "'");
}

/* The code point at *at, moving behind it; a byte that starts none comes back as -1 - byte. */
static int32_t next_point(const unsigned char **at)
{
    const unsigned char *s = *at;
    int more = s[0] < 0x80                   ? 0
               : s[0] >= 0xc2 && s[0] < 0xe0 ? 1
               : (s[0] & 0xf0) == 0xe0       ? 2
               : s[0] >= 0xf0 && s[0] < 0xf5 ? 3
                                             : -1;
    int32_t point = more <= 0 ? s[0] : s[0] & (0x3f >> more);
    for (int i = 1; more > 0 && i <= more; i++) {
        if ((s[i] & 0xc0) != 0x80) { /* the terminator is none either */
            more = -1;
            break;
        }
        point = point << 6 | (s[i] & 0x3f);
    }
    static const int32_t least[] = {0, 0x80, 0x800, 0x10000};
    if (more >= 0 && (point < least[more] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)))
        more = -1;
    *at = s + (more < 0 ? 1 : more + 1);
    return more < 0 ? -1 - (int32_t)s[0] : point;
}

void quote_python(struct text *out, const char *word)
{
    text_add(out, "\"");
    for (const unsigned char *at = (const unsigned char *)word; *at != '\0';) {
        int32_t point = next_point(&at);
        if (point < 0)
            text_add(out, "\\udc%02x", (unsigned)(-1 - point));
        else if (point == '"' || point == '\\')
            text_add(out, "\\%c", (int)point);
        else if (point >= 0x20 && point < 0x7f)
            text_add(out, "%c", (int)point);
        else if (point < 0x100)
            text_add(out, "\\x%02x", (unsigned)point);
        else if (point < 0x10000)
            text_add(out, "\\u%04x", (unsigned)point);
        else
            text_add(out, "\\U%08x", (unsigned)point);
    }
    text_add(out, "\"");
}

void quote_comment(struct text *out, const char *word, int width)
{
    const unsigned char *at = (const unsigned char *)word;
    int used = 0;
    while (*at != '\0' && used < width) {
        int32_t point = next_point(&at);
        bool plain = point >= 0x20 && point < 0x7f;
        text_add(out, "%c", plain ? (int)point : '?');
        used++;
    }
    if (*at != '\0')
        text_add(out, "...");
}
