/* results/export_plot_script.c -- a panel in gnuplot's words.
 *
 * Names reach gnuplot inside single quotes only, where it expands nothing.
 */
#include "results/export_plot.h"

#include "base/units.h"
#include "base/version.h"

#include <math.h>
#include <string.h>

enum { TICKS_MAX = 9 };

static const char *const colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
                                      "#56B4E9", "#6A3D9A", "#8C564B", "#000000", "#999933"};

/* ---- gnuplot's words ---- */

/* gnuplot 5.4 misreads a doubled quote at the start of a string, so an apostrophe becomes the typographic one. */
static void add_quoted(struct text *script, const char *value)
{
    text_add(script, "'");
    for (; *value; value++)
        text_add(script, *value == '\'' ? "\xe2\x80\x99" : "%c", *value);
    text_add(script, "'");
}

static bool is_bytes(const struct plot_panel *panel)
{
    return panel->x && strcmp(panel->x->name, "bytes") == 0;
}

static const char *axis_title(const struct plot_panel *panel)
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

static const char *value_title(const struct plot_panel *panel)
{
    if (!panel->rate)
        return "time";
    if (strcmp(panel->rate, "busbw_GBps") == 0)
        return "bus bandwidth, GB/s";
    if (strcmp(panel->rate, "effective_GBps") == 0)
        return "effective GB/s, layout change included";
    return strcmp(panel->rate, "tflops") == 0 ? "TFLOP/s" : "bandwidth, GB/s";
}

static void add_tick_label(struct text *script, const struct plot_panel *panel, double x)
{
    char value[UNITS_BUF];
    if (is_bytes(panel))
        units_format_bytes(x, value);
    else
        units_format_short((int64_t)x, value);
    add_quoted(script, value);
}

/* The places of all points, each once, in order. */
static int places(const struct plot_panel *panel, double *out)
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

static void add_range(struct text *script, const char *axis, double from, double to)
{
    text_add(script, "set %s [", axis);
    export_number(script, from, 10);
    text_add(script, ":");
    export_number(script, to, 10);
    text_add(script, "]\n");
}

static void add_x_axis(struct text *script, const struct plot_panel *panel, const double *x, int n)
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
        add_range(script, "xrange", -0.7, n - 0.3);
    } else if (log_scale) {
        text_add(script, "set logscale x 2\n");
        add_range(script, "xrange", x[0] / 1.25, x[n - 1] * 1.25);
    } else {
        double margin = n > 1 ? (x[n - 1] - x[0]) * 0.06 : 0.5;
        add_range(script, "xrange", x[0] - margin, x[n - 1] + margin);
    }
}

static void add_y_axis(struct text *script, const struct plot_panel *panel)
{
    double low = INFINITY, high = 0;
    for (int i = 0; i < panel->n; i++) {
        const struct plot_point *p = &panel->points[i];
        low = fmin(low, p->y);
        high = fmax(high, fmax(p->ceiling, isfinite(p->hi) ? p->hi : p->y));
    }
    text_add(script, "set ylabel ");
    char title[80];
    text_print(title, sizeof title, panel->rate ? "%s" : "%s, %s", value_title(panel), panel->time_name);
    add_quoted(script, title);
    text_add(script, "\nset format y '%%g'\n");
    if (panel->x && low > 0 && high / low > 12) {
        text_add(script, "set logscale y 10\n");
        add_range(script, "yrange", low / 1.3, high * 1.3);
    } else {
        add_range(script, "yrange", 0, high > 0 ? high * 1.08 : 1);
    }
}

static void add_points(struct text *script, const struct plot_panel *panel, int curve)
{
    text_add(script, "$p%dc%d << EOD\n", panel->number, curve);
    for (int i = 0; i < panel->n; i++) {
        const struct plot_point *p = &panel->points[i];
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

static void add_ceiling(struct text *script, const struct plot_panel *panel, double x, double ceiling)
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
static double highest_ceiling(const struct plot_panel *panel, double x, bool *agree)
{
    double low = INFINITY, high = 0;
    for (int i = 0; i < panel->n; i++) {
        const struct plot_point *p = &panel->points[i];
        if (p->x < x || p->x > x || !(p->ceiling > 0))
            continue;
        low = fmin(low, p->ceiling);
        high = fmax(high, p->ceiling);
    }
    *agree &= !(high > 1.05 * low);
    return high;
}

/* One line where the curves agree on their ceiling, else one per curve. */
static bool add_ceilings(struct text *script, const struct plot_panel *panel, const double *x, int n)
{
    bool any = false, agree = true;
    for (int i = 0; i < n; i++)
        any |= highest_ceiling(panel, x[i], &agree) > 0;
    text_add(script, "$p%dceiling << EOD\n", panel->number);
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

static void add_plot(struct text *script, const struct plot_panel *panel, const double *x, int n)
{
    for (int c = 0; c < panel->curves; c++)
        add_points(script, panel, c);
    bool ceiling = add_ceilings(script, panel, x, n);
    text_add(script, "set key %s\nplot ", panel->x || ceiling ? "on" : "off");
    if (ceiling)
        text_add(script, "$p%dceiling using 1:2 with lines dt (8,6) lw 2 lc rgb '#8a8a8a' title '%s', ", panel->number,
                 panel->rate && strcmp(panel->rate, "tflops") == 0 ? "ceiling: measured GEMM" : "ceiling: measured copy");
    for (int c = 0; c < panel->curves; c++) {
        text_add(script, "%s$p%dc%d using 1:2:3:4", c ? ", " : "", panel->number, c);
        if (panel->x) {
            text_add(script, " with yerrorlines lw 2 ps 1.1 pt %d lc rgb '%s' title ", c % 2 ? 9 : 7, colours[c]);
            add_quoted(script, panel->labels[c]);
        } else {
            text_add(script, ":(0.6) with boxerrorbars fs solid 0.75 border lw 1.5 lc rgb '%s' notitle", colours[c]);
        }
    }
    text_add(script, "\n");
}

/* Panels two by two from the top left, above the strip of the footer. */
static void add_place(struct text *script, const struct plot_panel *panel)
{
    const double footer = 0.035, high = 1 - footer - panel->headline;
    int number = panel->number, across = panel->panels > 1 ? 2 : 1, down = (panel->panels + 1) / 2, row = number / across;
    text_add(script, "set size ");
    export_number(script, 1.0 / across, 6);
    text_add(script, ",");
    export_number(script, high / down, 6);
    text_add(script, "\nset origin ");
    export_number(script, (double)(number % across) / across, 6);
    text_add(script, ",");
    export_number(script, footer + high * (down - 1 - row) / down, 6);
    text_add(script, "\n");
}

void plot_add_panel(struct text *script, const struct plot_panel *panel, double *x)
{
    int n = places(panel, x);
    add_place(script, panel);
    text_add(script, "set title ");
    add_quoted(script, panel->title);
    text_add(script, " noenhanced font ',15' offset 0,0.9\nset label 1 ");
    add_quoted(script, panel->shared);
    text_add(script, " noenhanced at graph 0.5,1.05 center font ',10' tc rgb '#555555'\n");
    add_x_axis(script, panel, x, n);
    add_y_axis(script, panel);
    add_plot(script, panel, x, n);
    if (panel->number == 0) /* what stands on the whole picture is written once */
        text_add(script, panel->headline > 0 ? "unset label 8\nunset label 9\n" : "unset label 9\n");
}

void plot_add_style(struct text *script, const struct export_context *context, const char *headline)
{
    char footer[PLOT_TITLE];
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
    if (!headline)
        return;
    char title[PLOT_TITLE];
    text_print(title, sizeof title, "%s", headline);
    text_clean(title);
    text_add(script, "set label 8 ");
    add_quoted(script, title);
    text_add(script, " noenhanced at screen 0.5,0.965 center font ',18'\n");
}

void plot_add_end(struct text *script)
{
    text_add(script, "unset multiplot\n");
}
