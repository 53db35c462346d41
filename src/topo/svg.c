/* topo/svg.c -- writes SVG shapes. */
#include "topo/svg.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PIXELS_PER_CHARACTER = 7, MARGIN = 20 };

static void grow(struct svg *svg, int right, int bottom)
{
    svg->right = right > svg->right ? right : svg->right;
    svg->bottom = bottom > svg->bottom ? bottom : svg->bottom;
}

/* XML 1.0 has no control characters, and U+FFFE and U+FFFF are none of its characters either. */
static void add_escaped(struct text *text, const char *words)
{
    for (const char *at = words; *at; at++) {
        if (strncmp(at, "\xef\xbf\xbe", 3) == 0 || strncmp(at, "\xef\xbf\xbf", 3) == 0) {
            text_add_raw(text, "?", 1);
            at += 2;
        } else if (*at == '&')
            text_add(text, "&amp;");
        else if (*at == '<')
            text_add(text, "&lt;");
        else if (*at == '>')
            text_add(text, "&gt;");
        else if (*at == '"')
            text_add(text, "&quot;");
        else
            text_add_raw(text, at, 1);
    }
}

/* Cut to n characters of UTF-8, the last of them an ellipsis. */
static void cut(char *words, size_t size, size_t n)
{
    size_t at = 0, last = 0, count = 0;
    for (; words[at]; at++) {
        if (((unsigned char)words[at] & 0xc0) == 0x80)
            continue;
        if (++count == n)
            last = at;
    }
    if (count > n && last + 4 <= size)
        memcpy(words + last, "\xe2\x80\xa6", 4);
}

void svg_box(struct svg *svg, const char *classes, int x, int y, int w, int h)
{
    text_add(&svg->body, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"%d\"/>\n", classes, x, y,
             w, h, h < 40 ? 4 : 8);
    grow(svg, x + w, y + h);
}

void svg_line(struct svg *svg, const char *classes, int x1, int y1, int x2, int y2)
{
    text_add(&svg->body, "<line class=\"%s\" x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\"/>\n", classes, x1, y1, x2, y2);
    grow(svg, x1 > x2 ? x1 : x2, y1 > y2 ? y1 : y2);
}

void svg_arc(struct svg *svg, const char *classes, int x1, int x2, int y, int depth, int width)
{
    int control = y + depth * 4 / 3; /* a cubic curve comes 3/4 of the way to its control points */
    text_add(&svg->body, "<path class=\"%s\" stroke-width=\"%d\" d=\"M%d %dC%d %d %d %d %d %d\"/>\n", classes, width,
             x1, y, x1, control, x2, control, x2, y);
    grow(svg, x1 > x2 ? x1 : x2, y + depth);
}

void svg_text(struct svg *svg, const char *classes, int x, int y, int room, const char *fmt, ...)
{
    char words[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    text_clean(words);
    if (room)
        cut(words, sizeof words, (size_t)(room / PIXELS_PER_CHARACTER));
    text_add(&svg->body, "<text class=\"%s\" x=\"%d\" y=\"%d\">", classes, x, y);
    add_escaped(&svg->body, words);
    text_add(&svg->body, "</text>\n");
    grow(svg, x, y + 4);
}

void svg_text_up(struct svg *svg, const char *classes, int x, int y, const char *word)
{
    text_add(&svg->body, "<text class=\"%s\" transform=\"translate(%d %d) rotate(-90)\">", classes, x, y);
    add_escaped(&svg->body, word);
    text_add(&svg->body, "</text>\n");
}

void svg_open(struct svg *svg, const char *fmt, ...)
{
    char words[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    text_clean(words);
    text_add(&svg->body, "<g><title>");
    add_escaped(&svg->body, words);
    text_add(&svg->body, "</title>\n");
}

void svg_close(struct svg *svg)
{
    text_add(&svg->body, "</g>\n");
}

static void add_element(struct text *text, const char *name, const char *words)
{
    char clean[512];
    text_print(clean, sizeof clean, "%s", words);
    text_clean(clean);
    text_add(text, "<%s>", name);
    add_escaped(text, clean);
    text_add(text, "</%s>\n", name);
}

enum status svg_finish(struct svg *svg, const char *style, const char *title, const char *description, char **out)
{
    struct text text = {0};
    int w = svg->right + MARGIN, h = svg->bottom + MARGIN;
    text_add(&text,
             "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" "
             "height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n",
             w, h, w, h);
    add_element(&text, "title", title);
    add_element(&text, "desc", description);
    text_add(&text, "<style>%s</style>\n<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", style, w, h);
    text_add_raw(&text, text_get(&svg->body), svg->body.len);
    text_add(&text, "</svg>\n");
    text.failed |= svg->body.failed;
    text_free(&svg->body);
    enum status status = text_status(&text);
    if (status == STATUS_OK)
        *out = text.s;
    else
        text_free(&text);
    return status;
}
