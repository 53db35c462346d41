/* tuner/recommend_list.c -- the table of many answers: the best plan per (heads, seq), and the lengths where it
 * changes. */
#include "tuner/recommend.h"

#include "base/text.h"
#include "base/units.h"
#include "results/export.h"
#include "tuner/explain_document.h"

#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 8 };

static const char *const verdict_words[] = {"fits", "measure first", "does not fit"};

static const struct recommend_candidate *chosen_of(const struct recommendation *answer)
{
    return &answer->candidates[answer->chosen];
}

static void cells_fill(const struct recommendation *a, char cells[COLUMNS][UNITS_BUF])
{
    const struct recommend_candidate *c = chosen_of(a);
    text_print(cells[0], UNITS_BUF, "%d/%d", a->request.model.heads, a->request.model.kv_heads);
    units_format_count(a->request.problem.seq, cells[1]);
    bool ulysses = c->plan.method == PLAN_METHOD_ULYSSES;
    text_print(cells[2], UNITS_BUF, "%d%s%s", c->plan.sp, ulysses ? "" : " ",
               ulysses ? "" : plan_method_name(c->plan.method));
    text_print(cells[3], UNITS_BUF, "%s", c->attention_class);
    units_format_measured(c->tokens_per_s_per_device, c->lo, c->hi, cells[4]);
    units_format_bytes((double)c->memory.peak_bytes, cells[5]);
    text_print(cells[6], UNITS_BUF, "%s", verdict_words[a->verdict]);
    text_print(cells[7], UNITS_BUF, "%c", recommend_source_letter(c->time.source));
}

static bool same_heads(const struct recommendation *a, const struct recommendation *b)
{
    return a->request.model.heads == b->request.model.heads && a->request.model.kv_heads == b->request.model.kv_heads;
}

/* The next longer answer for the same heads, in whatever order they were asked for. */
static const struct recommendation *next_longer(const struct recommendation *const *answers, int n,
                                                const struct recommendation *a)
{
    const struct recommendation *next = NULL;
    for (int i = 0; i < n; i++)
        if (same_heads(answers[i], a) && answers[i]->request.problem.seq > a->request.problem.seq &&
            (next == NULL || answers[i]->request.problem.seq < next->request.problem.seq))
            next = answers[i];
    return next;
}

/* Lengths between which the answer changes, per heads. */
static void crossovers(const struct recommendation *const *answers, int n, struct text *out)
{
    for (int i = 0; i < n; i++) {
        const struct recommendation *a = answers[i], *b = next_longer(answers, n, a);
        char from[UNITS_BUF], to[UNITS_BUF];
        if (b == NULL)
            continue;
        const struct recommend_candidate *before = chosen_of(a), *after = chosen_of(b);
        units_format_count(a->request.problem.seq, from);
        units_format_count(b->request.problem.seq, to);
        if (a->verdict != b->verdict)
            text_add(out, "heads %d/%d: %s -> %s between %s and %s tokens\n", a->request.model.heads,
                     a->request.model.kv_heads, verdict_words[a->verdict], verdict_words[b->verdict], from, to);
        if (before->plan.sp != after->plan.sp)
            text_add(out, "heads %d/%d: sp %d -> %d between %s and %s tokens\n", a->request.model.heads,
                     a->request.model.kv_heads, before->plan.sp, after->plan.sp, from, to);
        else if (before->plan.method != after->plan.method)
            text_add(out, "heads %d/%d: %s -> %s between %s and %s tokens\n", a->request.model.heads,
                     a->request.model.kv_heads, plan_method_name(before->plan.method),
                     plan_method_name(after->plan.method), from, to);
        else if (strcmp(before->attention_class, after->attention_class) != 0)
            text_add(out, "heads %d/%d: %s -> %s\n     between %s and %s tokens\n", a->request.model.heads,
                     a->request.model.kv_heads, before->attention_class, after->attention_class, from, to);
    }
}

static enum status grid_of(const struct recommendation *const *answers, int n, char **grid)
{
    static const struct export_column columns[COLUMNS] = {{"heads", true},      {"seq", true},       {"sp", true},
                                                          {"attention", false}, {"tok/s/dev", true}, {"peak", true},
                                                          {"memory", false},    {"by", false}};
    char(*text)[COLUMNS][UNITS_BUF] = calloc((size_t)n + 1, sizeof *text);
    const char **cells = calloc((size_t)n * COLUMNS + 1, sizeof *cells);
    enum status status = text != NULL && cells != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for %d answers", n);
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        cells_fill(answers[i], text[i]);
        for (int c = 0; c < COLUMNS; c++)
            cells[i * COLUMNS + c] = text[i][c];
    }
    if (status == STATUS_OK)
        status = export_grid(columns, COLUMNS, cells, n, grid);
    free(cells);
    free(text);
    return status;
}

enum status recommend_list_screen(const struct recommendation *const *answers, int n, char **out)
{
    char *grid = NULL;
    struct text all = {0};
    TRY(grid_of(answers, n, &grid));
    text_add(&all, "%s", grid);
    free(grid);
    crossovers(answers, n, &all);
    const char *note = request_speed_note(answers[0]->request.dev, answers[0]->request.planned);
    if (note != NULL)
        explain_say(&all, 5, "NOTE %s", note);
    enum status status = text_status(&all);
    if (status != STATUS_OK) {
        text_free(&all);
        return status;
    }
    *out = all.s;
    return STATUS_OK;
}
