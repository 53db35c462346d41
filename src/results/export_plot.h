/* results/export_plot.h -- a picture's panels: chosen by export_plot.c, put into gnuplot's words by export_plot_script.c. */
#ifndef SPTUNE_RESULTS_EXPORT_PLOT_H
#define SPTUNE_RESULTS_EXPORT_PLOT_H

#include "results/export_private.h"

enum { PLOT_PANELS_MAX = 4, PLOT_CURVES_MAX = 10, PLOT_LABEL = 160, PLOT_TITLE = 200 };

/* A median and its 95 % interval at x; bars have their curve's number for x. */
struct plot_point {
    double x, y, lo, hi, ceiling;
    int curve;
};

struct plot_panel {
    const struct sample **rows; /* ok rows of one subject */
    struct sample_summary *summaries;
    struct plot_point *points;
    char (*labels)[PLOT_LABEL]; /* by curve */
    int n;                      /* rows; points once they are placed */
    int curves, hidden;
    const struct sample_field *x; /* NULL: one bar per curve */
    const char *rate;             /* NULL: y is time */
    double time_unit;
    const char *time_name;
    int number, panels; /* this one's place among how many */
    double headline;    /* share of the picture's height that its title takes */
    char title[PLOT_TITLE], shared[PLOT_TITLE];
};

/* headline NULL: the only panel carries the title. */
void plot_add_style(struct text *script, const struct export_context *context, const char *headline);
void plot_add_panel(struct text *script, const struct plot_panel *panel, double *places); /* places: room for panel->n */
void plot_add_end(struct text *script);

#endif
