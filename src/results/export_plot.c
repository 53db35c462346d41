/* results/export_plot.c -- samples as a picture: one panel per subject, one curve per way of doing it.
 *
 * Per panel: x is the size that varies most (bytes, seq, sp, ...), y the rate when every row has one, else the time; points are
 * medians, bars their 95 % intervals; the dashed grey line is the measured ceiling. Where no size varies, bars side by side.
 */
#include "results/export_plot.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDE = 940, HIGH = 560, PANEL_WIDE = 700, PANEL_HIGH = 500 };

/* Sizes, most telling first; of two that vary equally the first is taken. */
static const char *const axes[] = {"bytes", "seq", "sp", "ranks", "m", "hidden", "heads", "batch", "chunks", "n", "k"};

/* ---- what is drawn ---- */

static int distinct_values(const struct plot_panel *panel, const struct sample_field *field)
{
    int count = 0;
    for (int i = 0; i < panel->n; i++) {
        int earlier = 0;
        while (earlier < i &&
               sample_field_int(&panel->rows[earlier]->key, field) != sample_field_int(&panel->rows[i]->key, field))
            earlier++;
        count += earlier == i && sample_field_present(&panel->rows[i]->key, field);
    }
    return count;
}

static void choose_x(struct plot_panel *panel)
{
    int most = 1;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        const struct sample_field *field = sample_field_find(axes[i]);
        int count = distinct_values(panel, field);
        for (int row = 0; row < panel->n; row++)
            if (!sample_field_present(&panel->rows[row]->key, field))
                count = 0; /* a row without a place on this axis */
        if (count > most) {
            most = count;
            panel->x = field;
        }
    }
}

static void choose_y(struct plot_panel *panel)
{
    double longest = 0;
    panel->rate = panel->n ? export_rate_of(panel->rows[0], &panel->summaries[0]).name : NULL;
    for (int i = 0; i < panel->n; i++) {
        const char *name = export_rate_of(panel->rows[i], &panel->summaries[i]).name;
        if (!name || !panel->rate || strcmp(name, panel->rate) != 0)
            panel->rate = NULL;
        longest = fmax(longest, panel->summaries[i].median_us);
    }
    panel->time_unit = longest < 1e3 ? 1 : longest < 1e6 ? 1e3 : 1e6;
    panel->time_name = longest < 1e3 ? "us" : longest < 1e6 ? "ms" : "s";
}

/* Whether x alone decides this size (bytes along seq, say), so that it tells no curves apart. */
static bool follows_x(const struct plot_panel *panel, const struct sample_field *field)
{
    if (!panel->x || field->text)
        return false;
    for (int i = 0; i < panel->n; i++)
        for (int j = 0; j < i; j++) {
            const struct sample_key *a = &panel->rows[i]->key, *b = &panel->rows[j]->key;
            if (sample_field_int(a, panel->x) == sample_field_int(b, panel->x) &&
                sample_field_int(a, field) != sample_field_int(b, field))
                return false;
        }
    return true;
}

static bool tells_apart(const struct plot_panel *panel, const struct sample_field *field)
{
    return field != panel->x && export_field_differs(panel->rows, panel->n, field) && !follows_x(panel, field);
}

static void add_part(char *label, const struct sample_key *key, const struct sample_field *field)
{
    char value[40];
    size_t len = strlen(label);
    export_field_value(key, field, value);
    if (field->text && sample_field_present(key, field))
        text_print(label + len, PLOT_LABEL - len, "%s%s", len ? " " : "", value);
    else
        text_print(label + len, PLOT_LABEL - len, "%s%s=%s", len ? " " : "", field->name, value);
}

/* What tells this row's curve from the others; for a single curve, how it was done. */
static void row_label(const struct plot_panel *panel, const bool *telling, int row, char *label)
{
    const struct sample_key *key = &panel->rows[row]->key;
    *label = '\0';
    for (int f = 1; f < SAMPLE_FIELDS; f++)
        if (telling[f])
            add_part(label, key, &sample_fields[f]);
    if (*label)
        return;
    const char *name = *key->exchange ? key->exchange : *key->attention ? key->attention : *key->op ? key->op : key->subject;
    text_print(label, PLOT_LABEL, "%s", name);
    text_clean(label);
}

static int curve_of(struct plot_panel *panel, const char *label)
{
    for (int i = 0; i < panel->curves; i++)
        if (strcmp(panel->labels[i], label) == 0)
            return i;
    if (panel->curves == PLOT_CURVES_MAX)
        return -1;
    text_print(panel->labels[panel->curves], PLOT_LABEL, "%s", label);
    return panel->curves++;
}

static struct plot_point point_of(const struct plot_panel *panel, int row, int curve)
{
    const struct sample_summary *s = &panel->summaries[row];
    struct plot_point point = {.x = panel->x ? (double)sample_field_int(&panel->rows[row]->key, panel->x) : curve,
                          .y = s->median_us / panel->time_unit,
                          .lo = s->ci95_us.lo / panel->time_unit,
                          .hi = s->ci95_us.hi / panel->time_unit,
                          .curve = curve};
    if (panel->rate) {
        struct export_rate rate = export_rate_of(panel->rows[row], s);
        point = (struct plot_point){point.x, rate.value, rate.lo, rate.hi, rate.ceiling, curve};
    }
    return point;
}

static int by_place(const void *a, const void *b)
{
    const struct plot_point *x = a, *y = b;
    return x->curve != y->curve ? (x->curve > y->curve) - (x->curve < y->curve) : (x->x > y->x) - (x->x < y->x);
}

/* One point per curve and place; a later sample replaces an earlier one. */
static void place_points(struct plot_panel *panel)
{
    bool telling[SAMPLE_FIELDS] = {false};
    char label[PLOT_LABEL];
    int placed = 0;
    for (int f = 1; f < SAMPLE_FIELDS; f++)
        telling[f] = tells_apart(panel, &sample_fields[f]);
    for (int row = 0; row < panel->n; row++) {
        row_label(panel, telling, row, label);
        int curve = curve_of(panel, label);
        if (curve < 0) {
            panel->hidden++;
            continue;
        }
        struct plot_point point = point_of(panel, row, curve);
        int at = 0;
        while (at < placed && (panel->points[at].curve != curve || panel->points[at].x < point.x ||
                               panel->points[at].x > point.x))
            at++;
        panel->points[at] = point;
        placed += at == placed;
    }
    panel->n = placed;
    qsort(panel->points, (size_t)placed, sizeof *panel->points, by_place);
}

/* What all rows share, for the line below the title. */
static void shared_text(const struct plot_panel *panel, size_t width, char *out)
{
    *out = '\0';
    for (int f = 1; f < SAMPLE_FIELDS; f++) {
        const struct sample_field *field = &sample_fields[f];
        const struct sample_key *key = &panel->rows[0]->key;
        char value[40];
        size_t len = strlen(out);
        if (field == panel->x || !sample_field_present(key, field) ||
            export_field_differs(panel->rows, panel->n, field))
            continue;
        export_field_value(key, field, value);
        if (len + strlen(field->name) + strlen(value) + 4 > width) {
            text_print(out + len, PLOT_TITLE - len, " ...");
            return;
        }
        text_print(out + len, PLOT_TITLE - len, field->text ? "%s%.0s%s" : "%s%s=%s", len ? "  " : "", field->name, value);
    }
}

/* ---- from samples to panels ---- */

static void panel_free(struct plot_panel *panel)
{
    free(panel->rows);
    free(panel->summaries);
    free(panel->points);
    free(panel->labels);
}

static bool is_drawable(const struct sample *sample)
{
    return sample->outcome == SAMPLE_OK && sample->n > 0;
}

static enum status panel_make(const struct sample *samples, int n, int first, struct plot_panel *panel)
{
    panel->rows = calloc((size_t)n, sizeof(const struct sample *));
    panel->summaries = calloc((size_t)n, sizeof *panel->summaries);
    panel->points = calloc((size_t)n + 1, sizeof *panel->points);
    panel->labels = calloc(PLOT_CURVES_MAX, sizeof *panel->labels);
    if (!panel->rows || !panel->summaries || !panel->points || !panel->labels)
        return FAIL(STATUS_NOMEM, "no memory for a picture of %d samples", n);
    for (int i = first; i < n; i++) {
        if (!is_drawable(&samples[i]) || strcmp(samples[i].key.subject, samples[first].key.subject) != 0)
            continue;
        panel->rows[panel->n] = &samples[i];
        sample_summarize(&samples[i], &panel->summaries[panel->n++]);
    }
    choose_x(panel);
    choose_y(panel);
    return STATUS_OK;
}

/* title NULL: the subject. */
static enum status draw_panel(const struct sample *samples, int n, int first, struct plot_panel *panel, const char *title,
                              struct text *script)
{
    enum status status = panel_make(samples, n, first, panel);
    double *places = malloc((size_t)n * sizeof *places);
    if (status == STATUS_OK && !places)
        status = FAIL(STATUS_NOMEM, "no memory for a picture of %d samples", n);
    if (status == STATUS_OK) {
        shared_text(panel, panel->panels > 1 ? 88 : 110, panel->shared);
        text_print(panel->title, sizeof panel->title, "%s", title ? title : samples[first].key.subject);
        text_clean(panel->title);
        place_points(panel);
        plot_add_panel(script, panel, places);
        if (panel->hidden)
            log_warn("the picture shows %d curves of '%s'; %d more samples are not drawn, export them as csv or json",
                     PLOT_CURVES_MAX, samples[first].key.subject, panel->hidden);
    }
    free(places);
    panel_free(panel);
    return status;
}

/* First samples of the subjects that can be drawn. */
static int subjects(const struct sample *samples, int n, int *first)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        int seen = 0;
        if (!is_drawable(&samples[i]))
            continue;
        while (seen < count && strcmp(samples[first[seen]].key.subject, samples[i].key.subject) != 0)
            seen++;
        if (seen == PLOT_PANELS_MAX)
            log_warn("the picture shows %d subjects; '%s' is not drawn", PLOT_PANELS_MAX, samples[i].key.subject);
        else if (seen == count)
            first[count++] = i;
    }
    return count;
}

static enum status render(const struct sample *samples, int n, const struct export_context *context, const char *terminal,
                          char **out, size_t *out_len)
{
    struct text script = {0};
    int first[PLOT_PANELS_MAX];
    int panels = subjects(samples, n, first);
    if (!panels)
        return FAIL(STATUS_NODATA, "none of %d samples can be drawn: a picture needs measured times", n);
    const char *headline = panels > 1 ? context->title : NULL;
    plot_add_style(&script, context, headline);
    enum status status = STATUS_OK;
    for (int i = 0; i < panels && status == STATUS_OK; i++) {
        struct plot_panel panel = {.number = i, .panels = panels, .headline = headline ? 0.05 : 0};
        status = draw_panel(samples, n, first[i], &panel, panels == 1 ? context->title : NULL, &script);
    }
    plot_add_end(&script);
    if (status == STATUS_OK)
        status = text_status(&script);
    int rows = (panels + 1) / 2;
    char *picture = NULL;
    size_t len = 0;
    if (status == STATUS_OK)
        status = export_gnuplot_sized(text_get(&script), terminal, panels > 1 ? 2 * PANEL_WIDE : WIDE,
                                      panels > 1 ? rows * PANEL_HIGH : HIGH, &picture, &len);
    if (status == STATUS_OK)
        status = export_about(terminal, context, &picture, &len);
    text_free(&script);
    if (status != STATUS_OK) {
        free(picture);
        return status;
    }
    *out = picture;
    *out_len = len;
    return STATUS_OK;
}

static enum status render_svg(const struct sample *samples, int n, const struct export_context *context, char **out,
                              size_t *out_len)
{
    return render(samples, n, context, "svg", out, out_len);
}

static enum status render_png(const struct sample *samples, int n, const struct export_context *context, char **out,
                              size_t *out_len)
{
    return render(samples, n, context, "png", out, out_len);
}

extern const struct export export_svg, export_png;
const struct export export_svg = {"svg", "a picture for documents, drawn by gnuplot", render_svg};
const struct export export_png = {"png", "a picture, drawn by gnuplot", render_png};
