/* results/export_plot.c -- samples as a picture: one panel per subject, one curve per way of doing it.
 *
 * Per panel: x is the size that varies most (bytes, seq, sp, ...), y the rate when every row has one, else the time; points are
 * medians, bars their 95 % intervals; the dashed grey line is the measured ceiling. Where no size varies, bars side by side.
 * Names reach gnuplot inside single quotes only, where it expands nothing.
 */
#include "results/export_private.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/units.h"
#include "base/version.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PANELS_MAX = 4, CURVES_MAX = 10, TICKS_MAX = 9, LABEL = 160, TITLE = 200 };
enum { WIDE = 940, HIGH = 560, PANEL_WIDE = 700, PANEL_HIGH = 500 };

struct point {
    double x, y, lo, hi, ceiling;
    int curve;
};

struct panel {
    const struct sample **rows; /* ok rows of one subject */
    struct sample_summary *summaries;
    struct point *points;
    char (*labels)[LABEL]; /* by curve */
    int n, curves, hidden;
    const struct sample_field *x; /* NULL: one bar per curve */
    const char *rate;             /* NULL: y is time */
    double time_unit;
    const char *time_name;
};

/* Sizes, most telling first; of two that vary equally the first is taken. */
static const char *const axes[] = {"bytes", "seq", "sp", "ranks", "m", "hidden", "heads", "batch", "chunks", "n", "k"};

static const char *const colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
                                      "#56B4E9", "#6A3D9A", "#8C564B", "#000000", "#999933"};

/* ---- what is drawn ---- */

static int distinct_values(const struct panel *panel, const struct sample_field *field)
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

static void choose_x(struct panel *panel)
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

static void choose_y(struct panel *panel)
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
static bool follows_x(const struct panel *panel, const struct sample_field *field)
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

static bool tells_apart(const struct panel *panel, const struct sample_field *field)
{
    return field != panel->x && export_field_differs(panel->rows, panel->n, field) && !follows_x(panel, field);
}

static void add_part(char *label, const struct sample_key *key, const struct sample_field *field)
{
    char value[40];
    size_t len = strlen(label);
    export_field_value(key, field, value);
    if (field->text && sample_field_present(key, field))
        text_print(label + len, LABEL - len, "%s%s", len ? " " : "", value);
    else
        text_print(label + len, LABEL - len, "%s%s=%s", len ? " " : "", field->name, value);
}

/* What tells this row's curve from the others; for a single curve, how it was done. */
static void row_label(const struct panel *panel, const bool *telling, int row, char *label)
{
    const struct sample_key *key = &panel->rows[row]->key;
    *label = '\0';
    for (int f = 1; f < SAMPLE_FIELDS; f++)
        if (telling[f])
            add_part(label, key, &sample_fields[f]);
    if (*label)
        return;
    const char *name = *key->exchange ? key->exchange : *key->attention ? key->attention : *key->op ? key->op : key->subject;
    text_print(label, LABEL, "%s", name);
    text_clean(label);
}

static int curve_of(struct panel *panel, const char *label)
{
    for (int i = 0; i < panel->curves; i++)
        if (strcmp(panel->labels[i], label) == 0)
            return i;
    if (panel->curves == CURVES_MAX)
        return -1;
    text_print(panel->labels[panel->curves], LABEL, "%s", label);
    return panel->curves++;
}

static struct point point_of(const struct panel *panel, int row, int curve)
{
    const struct sample_summary *s = &panel->summaries[row];
    struct point point = {.x = panel->x ? (double)sample_field_int(&panel->rows[row]->key, panel->x) : curve,
                          .y = s->median_us / panel->time_unit,
                          .lo = s->ci95_us.lo / panel->time_unit,
                          .hi = s->ci95_us.hi / panel->time_unit,
                          .curve = curve};
    if (panel->rate) {
        struct export_rate rate = export_rate_of(panel->rows[row], s);
        point = (struct point){point.x, rate.value, rate.lo, rate.hi, rate.ceiling, curve};
    }
    return point;
}

static int by_place(const void *a, const void *b)
{
    const struct point *x = a, *y = b;
    return x->curve != y->curve ? (x->curve > y->curve) - (x->curve < y->curve) : (x->x > y->x) - (x->x < y->x);
}

/* One point per curve and place; a later sample replaces an earlier one. */
static void place_points(struct panel *panel)
{
    bool telling[SAMPLE_FIELDS] = {false};
    char label[LABEL];
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
        struct point point = point_of(panel, row, curve);
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

/* ---- gnuplot's words ---- */

/* gnuplot 5.4 misreads a doubled quote at the start of a string, so an apostrophe becomes the typographic one. */
static void add_quoted(struct text *script, const char *value)
{
    text_add(script, "'");
    for (; *value; value++)
        text_add(script, *value == '\'' ? "\xe2\x80\x99" : "%c", *value);
    text_add(script, "'");
}

static bool is_bytes(const struct panel *panel)
{
    return panel->x && strcmp(panel->x->name, "bytes") == 0;
}

static const char *axis_title(const struct panel *panel)
{
    static const struct {
        const char *field, *title;
    } titles[] = {{"bytes", "message per rank"},   {"seq", "sequence length, tokens"}, {"sp", "sp_size, ranks"},
                  {"ranks", "ranks"},              {"heads", "heads"},                 {"batch", "sequences"},
                  {"hidden", "hidden size"},       {"chunks", "chunks"}};
    for (size_t i = 0; panel->x && i < sizeof titles / sizeof *titles; i++)
        if (strcmp(panel->x->name, titles[i].field) == 0)
            return titles[i].title;
    return panel->x ? panel->x->name : "";
}

static const char *value_title(const struct panel *panel)
{
    if (!panel->rate)
        return "time";
    if (strcmp(panel->rate, "busbw_GBps") == 0)
        return "bus bandwidth, GB/s";
    if (strcmp(panel->rate, "effective_GBps") == 0)
        return "effective GB/s, layout change included";
    return strcmp(panel->rate, "tflops") == 0 ? "TFLOP/s" : "bandwidth, GB/s";
}

static void add_tick_label(struct text *script, const struct panel *panel, double x)
{
    char value[UNITS_BUF];
    if (is_bytes(panel))
        units_format_bytes(x, value);
    else
        units_format_short((int64_t)x, value);
    add_quoted(script, value);
}

/* The places of all points, each once, in order. */
static int places(const struct panel *panel, double *out)
{
    int n = 0;
    for (int i = 0; i < panel->n; i++) {
        int at = 0;
        while (at < n && out[at] < panel->points[i].x)
            at++;
        if (at < n && out[at] <= panel->points[i].x)
            continue;
        memmove(out + at + 1, out + at, (size_t)(n - at) * sizeof *out);
        out[at] = panel->points[i].x;
        n++;
    }
    return n;
}

static void add_x_axis(struct text *script, const struct panel *panel, const double *x, int n)
{
    bool log_scale = panel->x && x[0] > 0 && x[n - 1] / x[0] >= 4;
    int step = (n + TICKS_MAX - 1) / TICKS_MAX;
    text_add(script, "unset logscale\nset xlabel ");
    add_quoted(script, axis_title(panel));
    text_add(script, "\nset xtics (");
    for (int i = 0; i < n; i += panel->x ? step : 1) {
        text_add(script, "%s", i ? ", " : "");
        if (panel->x)
            add_tick_label(script, panel, x[i]);
        else
            add_quoted(script, panel->labels[(int)x[i]]);
        text_add(script, " ");
        export_number(script, x[i], 15);
    }
    text_add(script, ") nomirror out\n");
    if (!panel->x) {
        text_add(script, "set xrange [-0.7:%d.7]\n", n - 1);
    } else if (log_scale) {
        text_add(script, "set logscale x 2\nset xrange [%.10g/1.25:%.10g*1.25]\n", x[0], x[n - 1]);
    } else {
        double margin = n > 1 ? (x[n - 1] - x[0]) * 0.06 : 0.5;
        text_add(script, "set xrange [%.10g:%.10g]\n", x[0] - margin, x[n - 1] + margin);
    }
}

static void add_y_axis(struct text *script, const struct panel *panel)
{
    double low = INFINITY, high = 0;
    for (int i = 0; i < panel->n; i++) {
        const struct point *p = &panel->points[i];
        low = fmin(low, p->y);
        high = fmax(high, fmax(p->ceiling, isfinite(p->hi) ? p->hi : p->y));
    }
    text_add(script, "set ylabel ");
    char title[80];
    text_print(title, sizeof title, panel->rate ? "%s" : "%s, %s", value_title(panel), panel->time_name);
    add_quoted(script, title);
    if (panel->x && low > 0 && high / low > 12)
        text_add(script, "\nset logscale y 10\nset yrange [%.10g/1.3:%.10g*1.3]\nset format y '%%g'\n", low, high);
    else
        text_add(script, "\nset yrange [0:%.10g*1.08]\nset format y '%%g'\n", high > 0 ? high : 1);
}

static void add_points(struct text *script, const struct panel *panel, int number, int curve)
{
    text_add(script, "$p%dc%d << EOD\n", number, curve);
    for (int i = 0; i < panel->n; i++) {
        const struct point *p = &panel->points[i];
        if (p->curve != curve)
            continue;
        const double values[] = {p->x, p->y, isfinite(p->lo) ? p->lo : p->y, isfinite(p->hi) ? p->hi : p->y};
        for (int v = 0; v < 4; v++) {
            export_number(script, values[v], 10);
            text_add(script, v < 3 ? " " : "\n");
        }
    }
    text_add(script, "EOD\n");
}

static void add_ceiling(struct text *script, const struct panel *panel, double x, double ceiling)
{
    const double half = panel->x ? 0 : 0.45; /* a bar's ceiling spans the bar */
    for (int end = 0; end < (panel->x ? 1 : 2); end++) {
        export_number(script, end ? x + half : x - half, 10);
        text_add(script, " ");
        export_number(script, ceiling, 10);
        text_add(script, "\n");
    }
}

/* The highest ceiling at x; *agree becomes false when the curves' ceilings there are more than 5 % apart. */
static double highest_ceiling(const struct panel *panel, double x, bool *agree)
{
    double low = INFINITY, high = 0;
    for (int i = 0; i < panel->n; i++) {
        const struct point *p = &panel->points[i];
        if (p->x < x || p->x > x || !(p->ceiling > 0))
            continue;
        low = fmin(low, p->ceiling);
        high = fmax(high, p->ceiling);
    }
    *agree &= !(high > 1.05 * low);
    return high;
}

/* One line where the curves agree on their ceiling, else one per curve. */
static bool add_ceilings(struct text *script, const struct panel *panel, int number, const double *x, int n)
{
    bool any = false, agree = true;
    for (int i = 0; i < n; i++)
        any |= highest_ceiling(panel, x[i], &agree) > 0;
    text_add(script, "$p%dceiling << EOD\n", number);
    for (int i = 0; agree && i < n; i++) {
        double ceiling = highest_ceiling(panel, x[i], &agree);
        if (ceiling > 0)
            add_ceiling(script, panel, x[i], ceiling);
    }
    for (int i = 0; !agree && i < panel->n; i++) {
        if (i && panel->points[i].curve != panel->points[i - 1].curve)
            text_add(script, "\n"); /* a blank line lifts the pen */
        if (panel->points[i].ceiling > 0)
            add_ceiling(script, panel, panel->points[i].x, panel->points[i].ceiling);
    }
    text_add(script, "EOD\n");
    return any;
}

static void add_plot(struct text *script, const struct panel *panel, int number, const double *x, int n)
{
    for (int c = 0; c < panel->curves; c++)
        add_points(script, panel, number, c);
    bool ceiling = add_ceilings(script, panel, number, x, n);
    text_add(script, "set key %s\nplot ", panel->x || ceiling ? "on" : "off");
    if (ceiling)
        text_add(script, "$p%dceiling using 1:2 with lines dt (8,6) lw 2 lc rgb '#8a8a8a' title '%s', ", number,
                 panel->rate && strcmp(panel->rate, "tflops") == 0 ? "ceiling: measured GEMM" : "ceiling: measured copy");
    for (int c = 0; c < panel->curves; c++) {
        text_add(script, "%s$p%dc%d using 1:2:3:4", c ? ", " : "", number, c);
        if (panel->x) {
            text_add(script, " with yerrorlines lw 2 ps 1.1 pt %d lc rgb '%s' title ", c % 2 ? 9 : 7, colours[c]);
            add_quoted(script, panel->labels[c]);
        } else {
            text_add(script, ":(0.6) with boxerrorbars fs solid 0.75 border lw 1.5 lc rgb '%s' notitle", colours[c]);
        }
    }
    text_add(script, "\n");
}

/* What all rows share, for the line below the title. */
static void shared_text(const struct panel *panel, size_t width, char *out)
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
            text_print(out + len, TITLE - len, " ...");
            return;
        }
        text_print(out + len, TITLE - len, field->text ? "%s%.0s%s" : "%s%s=%s", len ? "  " : "", field->name, value);
    }
}

/* Panels two by two from the top left, above the strip of the footer. */
static void add_place(struct text *script, int number, int panels)
{
    const double footer = 0.035;
    int across = panels > 1 ? 2 : 1, down = (panels + 1) / 2;
    text_add(script, "set size %.4f,%.4f\nset origin %.4f,%.4f\n", 1.0 / across, (1 - footer) / down,
             (double)(number % across) / across, footer + (1 - footer) * (down - 1 - number / across) / down);
}

static void add_panel(struct text *script, const struct panel *panel, const char *title, const char *shared, int number,
                      const double *x, int n)
{
    text_add(script, "set title ");
    add_quoted(script, title);
    text_add(script, " noenhanced font ',15' offset 0,0.9\nset label 1 ");
    add_quoted(script, shared);
    text_add(script, " noenhanced at graph 0.5,1.05 center font ',10' tc rgb '#555555'\n");
    add_x_axis(script, panel, x, n);
    add_y_axis(script, panel);
    add_plot(script, panel, number, x, n);
}

static void add_style(struct text *script, const struct export_context *context)
{
    char footer[TITLE];
    const struct json_envelope *e = &context->envelope;
    text_print(footer, sizeof footer, "sptune %s   %s%s   %s   seed %lld", SPTUNE_VERSION,
               e->machine && *e->machine ? "machine " : "", e->machine ? e->machine : "", e->started ? e->started : "",
               (long long)e->seed);
    text_clean(footer);
    text_add(script, "set border 3 lc rgb '#404040'\nset grid y lt 1 lc rgb '#e4e4e4' lw 1\nset tics nomirror out\n"
                     "set key below horizontal Left reverse maxrows 5 noenhanced samplen 2.5 spacing 1.2 width 2 height 1\n"
                     "set tmargin 5\nset rmargin 4\nset lmargin 10\n"
                     "set bars 0.6\nset xlabel noenhanced\nset ylabel noenhanced offset -0.5,0\n"
                     "set xtics noenhanced\nset multiplot\n");
    text_add(script, "set label 9 ");
    add_quoted(script, footer);
    text_add(script, " noenhanced at screen 0.99,0.018 right font ',8' tc rgb '#8a8a8a'\n");
}

/* ---- from samples to panels ---- */

static void panel_free(struct panel *panel)
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

static enum status panel_make(const struct sample *samples, int n, int first, struct panel *panel)
{
    *panel = (struct panel){.rows = calloc((size_t)n, sizeof *panel->rows),
                            .summaries = calloc((size_t)n, sizeof *panel->summaries),
                            .points = calloc((size_t)n + 1, sizeof *panel->points),
                            .labels = calloc(CURVES_MAX, sizeof *panel->labels)};
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

static enum status draw_panel(const struct sample *samples, int n, int first, int number, int panels, const char *title,
                              struct text *script)
{
    struct panel panel = {0};
    char shared[TITLE], name[TITLE];
    double *x = malloc((size_t)n * sizeof *x);
    enum status status = x ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for a picture of %d samples", n);
    if (status == STATUS_OK)
        status = panel_make(samples, n, first, &panel);
    if (status == STATUS_OK) {
        shared_text(&panel, panels > 1 ? 88 : 110, shared);
        place_points(&panel);
        text_print(name, sizeof name, "%s", title ? title : samples[first].key.subject);
        text_clean(name);
        add_place(script, number, panels);
        add_panel(script, &panel, name, shared, number, x, places(&panel, x));
        if (panel.hidden)
            log_warn("the picture shows %d curves of '%s'; %d more samples are not drawn, export them as csv or json",
                     CURVES_MAX, samples[first].key.subject, panel.hidden);
    }
    free(x);
    panel_free(&panel);
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
        if (seen == PANELS_MAX)
            log_warn("the picture shows %d subjects; '%s' is not drawn", PANELS_MAX, samples[i].key.subject);
        else if (seen == count)
            first[count++] = i;
    }
    return count;
}

static enum status render(const struct sample *samples, int n, const struct export_context *context, const char *terminal,
                          char **out, size_t *out_len)
{
    struct text script = {0};
    int first[PANELS_MAX];
    int panels = subjects(samples, n, first);
    if (!panels)
        return FAIL(STATUS_NODATA, "none of %d samples can be drawn: a picture needs measured times", n);
    add_style(&script, context);
    enum status status = STATUS_OK;
    for (int i = 0; i < panels && status == STATUS_OK; i++)
        status = draw_panel(samples, n, first[i], i, panels, panels == 1 ? context->title : NULL, &script);
    if (status == STATUS_OK)
        status = text_status(&script);
    text_add(&script, "unset multiplot\n");
    int rows = (panels + 1) / 2;
    if (status == STATUS_OK)
        status = export_gnuplot_sized(text_get(&script), terminal, panels > 1 ? 2 * PANEL_WIDE : WIDE,
                                      panels > 1 ? rows * PANEL_HIGH : HIGH, out, out_len);
    text_free(&script);
    return status;
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
