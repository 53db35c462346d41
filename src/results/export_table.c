/* results/export_table.c -- samples on a terminal: one block per subject; what all its rows share stands above it, columns
 * are what differs, the time, its interval and the rate. Numbers have the digits that the interval carries.
 *
 *     exchange ranks=2 sp=2 op=whole heads=14 kv_heads=2 head_dim=64 batch=1 dtype=bf16 exchange=packed over ucx shm n=20
 *       seq  direction  median        95 %  effective_GBps  of ceiling
 *     4,096  fwd        117 us  [115..119]            57.1        82 %
 */
#include "results/export_private.h"

#include "base/units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CELL = 64, COLUMNS_MAX = SAMPLE_FIELDS + 6, WIDTH = 80 };

struct row {
    const struct sample *sample;
    struct sample_summary summary;
};

struct block {
    struct row *rows;
    const struct sample **samples; /* of the rows */
    int n;
    struct export_column columns[COLUMNS_MAX];
    int spare[COLUMNS_MAX]; /* left out when the line is too long: 0 never, else the highest first */
    int ncolumns;
    char (*cells)[CELL];   /* n * COLUMNS_MAX, row by row */
    const char *transport; /* of the rows that have one, NULL where they differ */
    char status[CELL];     /* of all rows, "" where they differ */
};

/* A value and its interval in one unit, as units_format_us chooses it. */
static void time_cells(const struct sample_summary *s, char *median, char *interval)
{
    static const struct {
        double us;
        const char *name;
    } units[] = {{1, "us"}, {1e3, "ms"}, {1e6, "s"}};
    if (isnan(s->median_us)) {
        snprintf(median, CELL, "-");
        snprintf(interval, CELL, "-");
        return;
    }
    int u = s->median_us < 999.5 ? 0 : s->median_us < 999.5e3 ? 1 : 2;
    double unit = units[u].us, value = s->median_us / unit, lo = s->ci95_us.lo / unit, hi = s->ci95_us.hi / unit;
    char text[UNITS_BUF], from[UNITS_BUF], to[UNITS_BUF];
    snprintf(median, CELL, "%s %s", units_format_measured(value, lo, hi, text), units[u].name);
    snprintf(interval, CELL, "[%s..%s]", units_format_measured(lo, lo, hi, from), units_format_measured(hi, lo, hi, to));
}

static void percent_cell(double share, char *cell)
{
    if (isnan(share))
        snprintf(cell, CELL, "-");
    else
        snprintf(cell, CELL, "%.*f %%", share < 0.0995 ? 1 : 0, 100 * share);
}

static void rate_cell(const struct sample *sample, const struct sample_summary *s, char *cell)
{
    struct export_rate rate = export_rate_of(sample, s);
    char text[UNITS_BUF];
    if (isnan(rate.value))
        snprintf(cell, CELL, "-");
    else
        snprintf(cell, CELL, "%s", units_format_measured(rate.value, rate.lo, rate.hi, text));
}

static void status_cell(const struct sample *sample, char *cell)
{
    if (sample->outcome == SAMPLE_OK && !isnan(sample_predicted_within(sample)))
        snprintf(cell, CELL, "predicted");
    else if (sample->outcome == SAMPLE_OK)
        snprintf(cell, CELL, "%s", sample->verified ? "ok" : "unverified");
    else
        snprintf(cell, CELL, "%s%s%s", sample_outcome_name(sample->outcome), sample->rule ? " " : "",
                 sample->rule ? rule_code(sample->rule) : "");
}

static char *cell(struct block *block, int row)
{
    return block->cells[(size_t)row * COLUMNS_MAX + (size_t)block->ncolumns];
}

static void end_column(struct block *block, const char *name, bool right, int spare)
{
    block->spare[block->ncolumns] = spare;
    block->columns[block->ncolumns++] = (struct export_column){name, right};
}

static void add_key_columns(struct block *block)
{
    for (int f = 1; f < SAMPLE_FIELDS; f++) { /* 0 is the subject */
        const struct sample_field *field = &sample_fields[f];
        if (!export_field_differs(block->samples, block->n, field))
            continue;
        for (int i = 0; i < block->n; i++)
            export_field_value(&block->samples[i]->key, field, cell(block, i));
        end_column(block, field->name, !field->text, 0);
    }
}

static void add_time_columns(struct block *block)
{
    for (int i = 0; i < block->n; i++) {
        char unused[CELL];
        time_cells(&block->rows[i].summary, cell(block, i), unused);
    }
    end_column(block, "median", true, 0);
    for (int i = 0; i < block->n; i++) {
        char unused[CELL];
        time_cells(&block->rows[i].summary, unused, cell(block, i));
    }
    end_column(block, "95 %", true, 2);
}

/* Rows of one block have one kind of rate. */
static void add_rate_columns(struct block *block)
{
    const char *name = NULL;
    bool ceiling = false;
    for (int i = 0; i < block->n; i++) {
        struct export_rate rate = export_rate_of(block->samples[i], &block->rows[i].summary);
        name = rate.name ? rate.name : name;
        ceiling |= !isnan(block->rows[i].summary.ceiling_share);
    }
    if (!name)
        return;
    for (int i = 0; i < block->n; i++)
        rate_cell(block->samples[i], &block->rows[i].summary, cell(block, i));
    end_column(block, name, true, 1);
    if (!ceiling)
        return;
    for (int i = 0; i < block->n; i++)
        percent_cell(block->rows[i].summary.ceiling_share, cell(block, i));
    end_column(block, "of ceiling", true, 3);
}

/* What all rows are stands in the title. */
static void add_status_column(struct block *block)
{
    bool differs = false;
    status_cell(block->samples[0], block->status);
    for (int i = 1; i < block->n; i++) {
        char other[CELL];
        status_cell(block->samples[i], other);
        differs |= strcmp(other, block->status) != 0;
    }
    if (!differs)
        return;
    block->status[0] = '\0';
    for (int i = 0; i < block->n; i++)
        status_cell(block->samples[i], cell(block, i));
    end_column(block, "status", false, 0);
}

/* What carried the data of all rows that had any to carry stands in the title. */
static void add_transport_column(struct block *block)
{
    bool differs = false;
    for (int i = 0; i < block->n; i++) {
        const char *transport = block->samples[i]->transport;
        if (!*transport)
            continue;
        differs |= block->transport && strcmp(block->transport, transport) != 0;
        block->transport = transport;
    }
    if (!differs)
        return;
    block->transport = NULL;
    for (int i = 0; i < block->n; i++) {
        snprintf(cell(block, i), CELL, "%s", block->samples[i]->transport);
        text_clean(cell(block, i));
    }
    end_column(block, "transport", false, 4);
}

/* Words in lines of 80 columns, continued two columns in. */
static void add_wrapped(struct text *text, size_t *column, const char *word)
{
    size_t len = strlen(word);
    if (*column && *column + 1 + len > WIDTH) {
        text_add(text, "\n ");
        *column = 1;
    }
    text_add(text, "%s%s", *column ? " " : "", word);
    *column += len + (*column > 0);
}

static void add_shared_count(struct text *text, size_t *column, const struct block *block)
{
    int n = 0;
    bool same = true;
    for (int i = 0; i < block->n; i++) {
        if (!block->samples[i]->n)
            continue;
        same &= !n || n == block->samples[i]->n;
        n = block->samples[i]->n;
    }
    char word[CELL];
    snprintf(word, sizeof word, same ? "n=%d" : "n differs", n);
    if (n)
        add_wrapped(text, column, word);
}

static void add_title(struct text *text, const struct block *block)
{
    const struct sample *first = block->samples[0];
    char value[40], word[CELL + 48];
    snprintf(value, sizeof value, "%s", first->key.subject);
    text_clean(value);
    size_t column = 0;
    add_wrapped(text, &column, value);
    for (int f = 1; f < SAMPLE_FIELDS; f++) {
        const struct sample_field *field = &sample_fields[f];
        if (!sample_field_present(&first->key, field) || export_field_differs(block->samples, block->n, field))
            continue;
        export_field_value(&first->key, field, value);
        snprintf(word, sizeof word, "%s=%s", field->name, value);
        add_wrapped(text, &column, word);
    }
    if (block->transport) {
        snprintf(word, sizeof word, "over %s", block->transport);
        text_clean(word);
        add_wrapped(text, &column, word);
    }
    add_shared_count(text, &column, block);
    if (block->status[0] && strcmp(block->status, "ok") != 0)
        add_wrapped(text, &column, block->status);
    text_add(text, "\n");
}

/* Each reason once, with the number of rows it concerns. */
static void add_reasons(struct text *text, const struct block *block)
{
    for (int i = 0; i < block->n; i++) {
        const struct sample *s = block->samples[i];
        int rows = 0, first = -1;
        for (int j = 0; j < block->n; j++) {
            const struct sample *other = block->samples[j];
            if (other->outcome == s->outcome && other->rule == s->rule && strcmp(other->why, s->why) == 0) {
                rows++;
                first = first < 0 ? j : first;
            }
        }
        if (s->outcome == SAMPLE_OK || first != i)
            continue;
        char line[sizeof s->why + 2 * (size_t)CELL], status[CELL];
        status_cell(s, status);
        if (rows > 1)
            text_print(line, sizeof line, "%s (%d rows): %s", status, rows, s->why);
        else
            text_print(line, sizeof line, "%s: %s", status, s->why);
        text_clean(line);
        size_t column = 0;
        char *save = NULL;
        for (char *word = strtok_r(line, " ", &save); word; word = strtok_r(NULL, " ", &save))
            add_wrapped(text, &column, word);
        text_add(text, "\n");
    }
}

static void remove_column(struct block *block, int column)
{
    block->ncolumns--;
    for (int c = column; c < block->ncolumns; c++) {
        block->columns[c] = block->columns[c + 1];
        block->spare[c] = block->spare[c + 1];
        for (int i = 0; i < block->n; i++)
            memcpy(block->cells[(size_t)i * COLUMNS_MAX + (size_t)c],
                   block->cells[(size_t)i * COLUMNS_MAX + (size_t)c + 1], CELL);
    }
}

/* Leave out what can be spared until the rest fits. */
static enum status print_grid(struct block *block, char **out)
{
    const char **cells = malloc((size_t)block->n * (size_t)block->ncolumns * sizeof *cells);
    if (!cells)
        return FAIL(STATUS_NOMEM, "no memory for a table of %d rows", block->n);
    for (;;) {
        int sparest = 0;
        for (int c = 0; c < block->ncolumns; c++) {
            sparest = block->spare[c] > block->spare[sparest] ? c : sparest;
            for (int i = 0; i < block->n; i++)
                cells[i * block->ncolumns + c] = block->cells[(size_t)i * COLUMNS_MAX + (size_t)c];
        }
        if (!block->spare[sparest] || export_grid_fits(block->columns, block->ncolumns, cells, block->n))
            break;
        remove_column(block, sparest);
    }
    enum status status = export_grid(block->columns, block->ncolumns, cells, block->n, out);
    free(cells);
    return status;
}

static enum status print_block(struct block *block, struct text *text)
{
    char *grid = NULL;
    add_key_columns(block);
    add_time_columns(block);
    add_rate_columns(block);
    add_transport_column(block);
    add_status_column(block);
    TRY(print_grid(block, &grid));
    if (text->len)
        text_add(text, "\n");
    add_title(text, block);
    text_add(text, "%s", grid);
    add_reasons(text, block);
    free(grid);
    return text_status(text);
}

/* In the order of the key's fields: bench measures in random order. */
static int compare_rows(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    for (int f = 1; f < SAMPLE_FIELDS; f++) {
        const struct sample_field *field = &sample_fields[f];
        int64_t ix = sample_field_int(&x->sample->key, field), iy = sample_field_int(&y->sample->key, field);
        int order = field->text ? strcmp(sample_field_text(&x->sample->key, field), sample_field_text(&y->sample->key, field))
                                : (ix > iy) - (ix < iy);
        if (order)
            return order;
    }
    return (x->sample > y->sample) - (x->sample < y->sample);
}

/* All rows of the subject of samples[first]. */
static enum status add_block(const struct sample *samples, int n, int first, struct text *text)
{
    struct block block = {0};
    enum status status = STATUS_OK;
    block.rows = calloc((size_t)n, sizeof *block.rows);
    block.samples = calloc((size_t)n, sizeof(const struct sample *));
    block.cells = calloc((size_t)n * COLUMNS_MAX, sizeof *block.cells);
    if (!block.rows || !block.samples || !block.cells)
        TRY_OUT(FAIL(STATUS_NOMEM, "no memory for a table of %d rows", n));
    for (int i = first; i < n; i++)
        if (strcmp(samples[i].key.subject, samples[first].key.subject) == 0)
            block.rows[block.n++].sample = &samples[i];
    qsort(block.rows, (size_t)block.n, sizeof *block.rows, compare_rows);
    for (int i = 0; i < block.n; i++) {
        block.samples[i] = block.rows[i].sample;
        sample_summarize(block.rows[i].sample, &block.rows[i].summary);
    }
    status = print_block(&block, text);
out:
    free(block.rows);
    free(block.samples);
    free(block.cells);
    return status;
}

enum status export_table(const struct sample *samples, int n, char **out)
{
    struct text text = {0};
    size_t len = 0;
    for (int i = 0; i < n; i++) {
        int earlier = 0;
        while (earlier < i && strcmp(samples[earlier].key.subject, samples[i].key.subject) != 0)
            earlier++;
        enum status status = earlier == i ? add_block(samples, n, i, &text) : STATUS_OK;
        if (status != STATUS_OK) {
            text_free(&text);
            return status;
        }
    }
    return export_finish(&text, out, &len);
}
