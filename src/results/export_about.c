/* results/export_about.c -- where a picture comes from, in the picture's own metadata.
 *
 * SVG: <title> and <desc>, first children of <svg>, in place of gnuplot's. PNG: iTXt chunks (UTF-8, not compressed) after IHDR, with
 * the keywords of the PNG specification, 11.3.4.2:
 *
 *   signature 8 | IHDR: length 4, type 4, data 13, CRC 4 | iTXt ... | the rest
 *   iTXt data: keyword \0 0 0 \0 \0 text      (no compression, no language, no translated keyword)
 *   CRC-32 of type and data, polynomial 0xedb88320
 */
#include "results/export_private.h"

#include "base/version.h"

#include <stdlib.h>
#include <string.h>

enum { PNG_HEAD = 8 + 4 + 4 + 13 + 4 };

/* "command: ...; seed 1; 2026-01-31T12:00:00Z; machine 9f2c11aa" */
static void describe(const struct json_envelope *e, struct text *out)
{
    if (e->command && *e->command)
        text_add(out, "command: %s; ", e->command);
    text_add(out, "seed %lld", (long long)e->seed);
    if (e->started && *e->started)
        text_add(out, "; %s", e->started);
    if (e->machine && *e->machine)
        text_add(out, "; machine %s", e->machine);
}

/* ---- SVG ---- */

static void add_escaped(struct text *out, const char *s)
{
    for (; *s; s++)
        switch (*s) {
        case '&':
            text_add(out, "&amp;");
            break;
        case '<':
            text_add(out, "&lt;");
            break;
        case '>':
            text_add(out, "&gt;");
            break;
        default:
            text_add_raw(out, s, 1);
        }
}

/* After the element at `at` when it is the one named; blanks before it are skipped. */
static const char *after_element(const char *at, const char *open, const char *close)
{
    const char *element = at + strspn(at, " \t\r\n");
    const char *end = strncmp(element, open, strlen(open)) == 0 ? strstr(element, close) : NULL;
    return end ? end + strlen(close) : at;
}

static bool about_svg(const char *picture, const char *title, const char *about, struct text *out)
{
    const char *svg = strstr(picture, "<svg"), *inside = svg ? strchr(svg, '>') : NULL;
    if (!inside)
        return false;
    inside++;
    text_add_raw(out, picture, (size_t)(inside - picture));
    text_add(out, "\n<title>");
    add_escaped(out, title);
    text_add(out, "</title>\n<desc>sptune %s; ", SPTUNE_VERSION);
    add_escaped(out, about);
    text_add(out, "</desc>");
    text_add(out, "%s", after_element(after_element(inside, "<title>", "</title>"), "<desc>", "</desc>"));
    return true;
}

/* ---- PNG ---- */

static uint32_t crc_of(const char *bytes, size_t len)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < len; i++) {
        crc ^= (unsigned char)bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0xedb88320) : 0);
    }
    return ~crc;
}

static void add_big_endian(struct text *out, uint32_t value)
{
    const char bytes[4] = {(char)(value >> 24), (char)(value >> 16), (char)(value >> 8), (char)value};
    text_add_raw(out, bytes, sizeof bytes);
}

static void add_chunk(struct text *out, const char *keyword, const char *value)
{
    static const char flags[5] = {0}; /* end of the keyword, compression 0 by method 0, no language, no translation */
    struct text chunk = {0};
    if (!value || !*value)
        return;
    text_add(&chunk, "iTXt%s", keyword);
    text_add_raw(&chunk, flags, sizeof flags);
    text_add(&chunk, "%s", value);
    out->failed |= chunk.failed;
    if (!chunk.failed) {
        add_big_endian(out, (uint32_t)(chunk.len - 4));
        text_add_raw(out, chunk.s, chunk.len);
        add_big_endian(out, crc_of(chunk.s, chunk.len));
    }
    text_free(&chunk);
}

static bool about_png(const char *picture, size_t len, const char *title, const struct export_context *context,
                      const char *about, struct text *out)
{
    if (len < PNG_HEAD || memcmp(picture, "\x89PNG\r\n\x1a\n", 8) != 0 || memcmp(picture + 12, "IHDR", 4) != 0)
        return false;
    text_add_raw(out, picture, PNG_HEAD);
    add_chunk(out, "Title", title);
    add_chunk(out, "Software", "sptune " SPTUNE_VERSION);
    add_chunk(out, "Creation Time", context->envelope.started);
    add_chunk(out, "Comment", about);
    text_add_raw(out, picture + PNG_HEAD, len - PNG_HEAD);
    return true;
}

enum status export_about(const char *terminal, const struct export_context *context, char **picture, size_t *len)
{
    struct text about = {0}, whole = {0};
    describe(&context->envelope, &about);
    char *title = strdup(context->title ? context->title : "sptune measurements");
    if (!title || text_status(&about) != STATUS_OK) {
        free(title);
        text_free(&about);
        return FAIL(STATUS_NOMEM, "no memory for what a picture says about itself");
    }
    text_clean(title);
    text_clean(about.s);
    bool known = strcmp(terminal, "svg") == 0 ? about_svg(*picture, title, about.s, &whole)
                                              : about_png(*picture, *len, title, context, about.s, &whole);
    free(title);
    text_free(&about);
    if (!known) { /* not what gnuplot writes today: the picture is good without */
        text_free(&whole);
        return STATUS_OK;
    }
    char *with = NULL;
    size_t with_len = 0;
    TRY(export_finish(&whole, &with, &with_len));
    free(*picture);
    *picture = with;
    *len = with_len;
    return STATUS_OK;
}
