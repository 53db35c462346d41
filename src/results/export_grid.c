/* results/export_grid.c -- a small table for a terminal: at most 80 columns wide, text cells wrapped at words, nothing cut off.
 *
 * The layout is decided here, so that it is the same with every version of libsmartcols; the library aligns and pads.
 */
#include "results/export_private.h"

#include <langinfo.h>
#include <libsmartcols.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

enum { WIDTH = 80, NARROWEST = 8, LONG_TEXT = 24, GRID_COLUMNS_MAX = 64 };

struct grid {
    const struct export_column *columns;
    int ncolumns, nrows;
    char **cells; /* header row first; owned copies that can be printed */
    int gap;
    int width[GRID_COLUMNS_MAX];  /* given to the column */
    int body[GRID_COLUMNS_MAX];   /* widest cell below the header */
    int header[GRID_COLUMNS_MAX]; /* longest piece of the header, */
    int piece[GRID_COLUMNS_MAX];  /* of any cell, that is not broken when lines are wrapped */
};

static bool is_utf8(void)
{
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

/* Printable in this locale: one '?' for each character that is not. */
static char *printable(const char *cell)
{
    char *copy = strdup(cell && *cell ? cell : "-");
    if (!copy)
        return NULL;
    text_clean(copy);
    if (is_utf8())
        return copy;
    char *to = copy;
    for (const char *from = copy; *from; from++) {
        if ((*from & 0xc0) == 0x80)
            continue; /* the rest of a character already replaced */
        *to++ = (char)(*from & 0x80 ? '?' : *from);
    }
    *to = '\0';
    return copy;
}

/* Bytes of the character at `at`, and the columns it takes. */
static size_t character(const char *at, int *width)
{
    mbstate_t state = {0};
    wchar_t wide;
    size_t n = mbrtowc(&wide, at, strlen(at), &state);
    if (n == 0 || n > strlen(at)) {
        *width = 1;
        return 1;
    }
    int w = wcwidth(wide);
    *width = w < 0 ? 1 : w;
    return n;
}

static int text_width(const char *text)
{
    int width = 0, one;
    for (; *text; width += one)
        text += character(text, &one);
    return width;
}

/* Bytes of the word at `at`: up to a blank, or with an '_' inside, which may end a line too. */
static size_t word_length(const char *at)
{
    size_t blank = strcspn(at, " "), underscore = strcspn(at, "_");
    return underscore < blank ? underscore + 1 : blank;
}

static int longest_piece(const char *text)
{
    int longest = 0;
    while (*text) {
        text += strspn(text, " ");
        size_t len = word_length(text);
        int width = 0, one;
        for (const char *at = text; at < text + len; width += one)
            at += character(at, &one);
        longest = width > longest ? width : longest;
        text += len;
    }
    return longest;
}

struct lines {
    struct text text;
    int column, width;
};

static void add_break(struct lines *lines)
{
    text_add(&lines->text, "\n");
    lines->column = 0;
}

static void add_word(struct lines *lines, const char *word, size_t len)
{
    for (size_t n; len; word += n, len -= n) {
        int one;
        n = character(word, &one);
        if (lines->column && lines->column + one > lines->width)
            add_break(lines);
        text_add_raw(&lines->text, word, n);
        lines->column += one;
    }
}

/* `text` in lines of at most `width` columns, broken at blanks and after '_', else only in words longer than a line. */
static char *wrap(const char *text, int width)
{
    struct lines lines = {.width = width};
    while (*text) {
        int blanks = (int)strspn(text, " ");
        size_t len = word_length(text + blanks);
        char *word = strndup(text + blanks, len);
        int needed = word ? text_width(word) : 0;
        free(word);
        if (lines.column && lines.column + blanks + needed > width) {
            add_break(&lines);
        } else {
            text_add(&lines.text, "%*s", blanks, "");
            lines.column += blanks;
        }
        add_word(&lines, text + blanks, len);
        text += (size_t)blanks + len;
    }
    if (text_status(&lines.text) != STATUS_OK) {
        text_free(&lines.text);
        return NULL;
    }
    return lines.text.s ? lines.text.s : strdup("");
}

static void grid_free(struct grid *grid)
{
    for (int i = 0; grid->cells && i < grid->ncolumns * (grid->nrows + 1); i++)
        free(grid->cells[i]);
    free(grid->cells);
}

static enum status grid_fill(struct grid *grid, const char *const *cells)
{
    size_t count = (size_t)grid->ncolumns * ((size_t)grid->nrows + 1);
    grid->cells = calloc(count, sizeof *grid->cells);
    if (!grid->cells)
        return FAIL(STATUS_NOMEM, "no memory for a table of %d rows", grid->nrows);
    for (size_t i = 0; i < count; i++) {
        size_t column = i % (size_t)grid->ncolumns;
        grid->cells[i] = printable(i < (size_t)grid->ncolumns ? grid->columns[i].name : cells[i - (size_t)grid->ncolumns]);
        if (!grid->cells[i])
            return FAIL(STATUS_NOMEM, "no memory for a table of %d rows", grid->nrows);
        int width = text_width(grid->cells[i]);
        if (width > grid->width[column])
            grid->width[column] = width;
        int piece = longest_piece(grid->cells[i]);
        if (i < (size_t)grid->ncolumns)
            grid->header[column] = piece;
        else if (width > grid->body[column])
            grid->body[column] = width;
        if (piece > grid->piece[column])
            grid->piece[column] = piece;
    }
    return STATUS_OK;
}

/* How far a column may shrink: first headers wrap over their cells, then long text, then any text at its blanks, then text
 * anywhere, and numbers only when nothing else is left. */
enum pass { WRAP_HEADERS, WRAP_LONG, WRAP_TEXT, BREAK_TEXT, BREAK_ALL, PASSES };

static int narrowest(const struct grid *grid, int column, enum pass pass)
{
    int whole = grid->body[column] > grid->header[column] ? grid->body[column] : grid->header[column];
    if (pass == WRAP_HEADERS || (grid->columns[column].right && pass < BREAK_ALL))
        return whole;
    if (pass == WRAP_LONG)
        return grid->header[column] > LONG_TEXT ? grid->header[column] : LONG_TEXT;
    return pass == WRAP_TEXT || grid->piece[column] < NARROWEST ? grid->piece[column] : NARROWEST;
}

static int total_width(const struct grid *grid)
{
    int total = grid->gap * (grid->ncolumns - 1);
    for (int i = 0; i < grid->ncolumns; i++)
        total += grid->width[i];
    return total;
}

/* Take one column at a time from whichever is widest. */
static void shrink(struct grid *grid, enum pass pass)
{
    while (total_width(grid) > WIDTH) {
        int found = -1;
        for (int i = 0; i < grid->ncolumns; i++)
            if (grid->width[i] > narrowest(grid, i, pass) && (found < 0 || grid->width[i] > grid->width[found]))
                found = i;
        if (found < 0)
            return;
        grid->width[found]--;
    }
}

/* The library aligns a cell's first line only. */
static enum status align_right(char **cell, int width)
{
    struct text out = {0};
    char *save = NULL;
    for (char *line = strtok_r(*cell, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        text_add(&out, "%s%*s%s", out.len ? "\n" : "", width - text_width(line), "", line);
    if (text_status(&out) != STATUS_OK) {
        text_free(&out);
        return STATUS_NOMEM;
    }
    free(*cell);
    *cell = out.s;
    return STATUS_OK;
}

static enum status grid_fit(struct grid *grid)
{
    if (total_width(grid) <= WIDTH)
        return STATUS_OK;
    for (int pass = WRAP_HEADERS; pass < PASSES; pass++) {
        shrink(grid, (enum pass)pass);
        grid->gap = pass >= WRAP_LONG && total_width(grid) > WIDTH ? 1 : grid->gap;
    }
    for (int i = 0; i < grid->ncolumns * (grid->nrows + 1); i++) {
        char *wrapped = wrap(grid->cells[i], grid->width[i % grid->ncolumns]);
        if (!wrapped)
            return FAIL(STATUS_NOMEM, "no memory for a table of %d rows", grid->nrows);
        free(grid->cells[i]);
        grid->cells[i] = wrapped;
        if (grid->columns[i % grid->ncolumns].right && strchr(wrapped, '\n'))
            TRY(align_right(&grid->cells[i], grid->width[i % grid->ncolumns]));
    }
    return STATUS_OK;
}

static bool add_columns(struct libscols_table *table, const struct grid *grid)
{
    for (int i = 0; i < grid->ncolumns; i++) {
        int flags = SCOLS_FL_WRAP | (grid->columns[i].right ? SCOLS_FL_RIGHT : 0);
        struct libscols_column *column = scols_table_new_column(table, "", grid->width[i], flags);
        if (!column || scols_column_set_safechars(column, "\n") != 0 ||
            scols_column_set_wrapfunc(column, scols_wrapnl_chunksize, scols_wrapnl_nextchunk, NULL) != 0)
            return false;
    }
    return true;
}

/* The header is an ordinary first line: headings of the library do not wrap. */
static bool add_lines(struct libscols_table *table, const struct grid *grid)
{
    for (int row = 0; row <= grid->nrows; row++) {
        struct libscols_line *line = scols_table_new_line(table, NULL);
        if (!line)
            return false;
        for (int i = 0; i < grid->ncolumns; i++)
            if (scols_line_set_data(line, (size_t)i, grid->cells[row * grid->ncolumns + i]) != 0)
                return false;
    }
    return true;
}

static char *strip_line_ends(char *text)
{
    char *to = text;
    for (char *from = text; *from; from++) {
        if (*from == '\n')
            while (to > text && to[-1] == ' ')
                to--;
        *to++ = *from;
    }
    while (to > text && (to[-1] == ' ' || to[-1] == '\n'))
        to--;
    *to++ = '\n';
    *to = '\0';
    return text;
}

static enum status grid_print(const struct grid *grid, char **out)
{
    char *printed = NULL;
    struct libscols_table *table = scols_new_table();
    bool fine = table && scols_table_set_column_separator(table, grid->gap > 1 ? "  " : " ") == 0 && add_columns(table, grid) &&
                add_lines(table, grid);
    if (fine) {
        scols_table_enable_noheadings(table, 1);
        scols_table_enable_colors(table, 0);
        scols_table_set_termforce(table, SCOLS_TERMFORCE_NEVER); /* already as wide as it may be */
        fine = scols_print_table_to_string(table, &printed) == 0 && printed;
    }
    scols_unref_table(table);
    if (!fine) {
        free(printed);
        return FAIL(STATUS_NOMEM, "no memory for a table of %d rows", grid->nrows);
    }
    char *copy = malloc(strlen(printed) + 2); /* room for the newline that the library leaves out at the end */
    if (copy)
        memcpy(copy, printed, strlen(printed) + 1);
    free(printed);
    if (!copy)
        return FAIL(STATUS_NOMEM, "no memory for a table of %d rows", grid->nrows);
    *out = strip_line_ends(copy);
    return STATUS_OK;
}

bool export_grid_fits(const struct export_column *columns, int ncolumns, const char *const *cells, int nrows)
{
    struct grid grid = {.columns = columns, .ncolumns = ncolumns, .nrows = nrows, .gap = 1};
    bool fits = ncolumns <= GRID_COLUMNS_MAX && grid_fill(&grid, cells) == STATUS_OK;
    for (int pass = WRAP_HEADERS; pass <= WRAP_TEXT; pass++)
        shrink(&grid, (enum pass)pass);
    fits = fits && total_width(&grid) <= WIDTH;
    grid_free(&grid);
    return fits;
}

enum status export_grid(const struct export_column *columns, int ncolumns, const char *const *cells, int nrows, char **out)
{
    if (ncolumns < 1 || ncolumns > GRID_COLUMNS_MAX || nrows < 0)
        return FAIL(STATUS_USAGE, "a table of %d columns and %d rows", ncolumns, nrows);
    struct grid grid = {.columns = columns, .ncolumns = ncolumns, .nrows = nrows, .gap = 2};
    enum status status = STATUS_OK;
    TRY_OUT(grid_fill(&grid, cells));
    TRY_OUT(grid_fit(&grid));
    TRY_OUT(grid_print(&grid, out));
out:
    grid_free(&grid);
    return status;
}
