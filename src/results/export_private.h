/* results/export_private.h -- what the writers share. */
#ifndef SPTUNE_RESULTS_EXPORT_PRIVATE_H
#define SPTUNE_RESULTS_EXPORT_PRIVATE_H

#include "base/text.h"
#include "results/export.h"

#include <stdbool.h>
#include <stddef.h>

/* Significant digits, a '.' in every locale; nothing for NAN. */
void export_number(struct text *text, double value, int digits);
/* Hand the text over as a document, or free it and say that memory ran out. */
enum status export_finish(struct text *text, char **out, size_t *out_len);

/* The rate that matters for a sample (collective: busbw, exchange: effective, link: algbw, else tflops) and its interval; NAN
 * and NULL when it has none. *name is its column, *ceiling what it is compared with (0: not measured). */
struct export_rate {
    const char *name;
    double value, lo, hi, ceiling;
};
struct export_rate export_rate_of(const struct sample *sample, const struct sample_summary *summary);

/* Whether the rows differ in this field. */
bool export_field_differs(const struct sample *const *samples, int n, const struct sample_field *field);
/* "131,072" or the name; "-" when absent. */
void export_field_value(const struct sample_key *key, const struct sample_field *field, char buf[40]);

/* Whether export_grid can print these within 80 columns without breaking a number or a word. */
bool export_grid_fits(const struct export_column *columns, int ncolumns, const char *const *cells, int nrows);
/* export_gnuplot with the picture's size in points. */
enum status export_gnuplot_sized(const char *script, const char *terminal, int width, int height, char **out,
                                 size_t *out_len);
/* Put title, command, seed, date and machine into the metadata of a picture of this terminal (svg or png); *picture is
 * replaced. One of another shape stays as it is. */
enum status export_about(const char *terminal, const struct export_context *context, char **picture, size_t *len);

#endif
