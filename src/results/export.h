/* results/export.h -- samples as documents and tables: JSON, CSV, a terminal table, a gnuplot picture. One row per format in
 * exports[]; `--export FORMAT=FILE` and `results export` use it.
 */
#ifndef SPTUNE_RESULTS_EXPORT_H
#define SPTUNE_RESULTS_EXPORT_H

#include "base/json.h"
#include "base/status.h"
#include "results/sample.h"

struct export_context {
    struct json_envelope envelope;
    const char *title; /* for pictures */
};

struct export {
    const char *name;   /* "json", "csv", "jsonl", "svg", "png" */
    const char *about;
    /* The whole document into *out (malloc'ed, *out_len bytes). */
    enum status (*render)(const struct sample *samples, int n, const struct export_context *context, char **out,
                          size_t *out_len);
};
extern const struct export *const exports[]; /* NULL-terminated */
const struct export *export_find(const char *name);

/* One row of the jsonl form, as `--jsonl` streams it: the sample with its document's schema, version, command, started, seed. NULL
 * when memory ran out. */
json_t *export_row(const struct sample *sample, const struct json_envelope *envelope);

/* Only the columns that differ between rows or matter for the subject; statistics with honest digits; 80 columns wide. */
enum status export_table(const struct sample *samples, int n, char **out);
/* Run gnuplot on a script that draws one picture (size and terminal are set for it: 960 x 600); `terminal` svg or png; the picture's bytes. STATUS_ABSENT when gnuplot is not installed. */
enum status export_gnuplot(const char *script, const char *terminal, char **out, size_t *out_len);
/* A small general table for the verbs: header row and cells, 80 columns, ASCII when the locale is not UTF-8. Cells are row by row;
 * NULL and "" print as "-"; text that does not fit is wrapped at blanks. Ends with a newline. */
struct export_column {
    const char *name;
    bool right; /* numbers */
};
enum status export_grid(const struct export_column *columns, int ncolumns, const char *const *cells, int nrows, char **out);

#endif
