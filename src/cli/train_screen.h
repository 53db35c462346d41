/* cli/train_screen.h -- what `train` says while it runs and in the end: lines, rows, one document, a curve. */
#ifndef SPTUNE_CLI_TRAIN_SCREEN_H
#define SPTUNE_CLI_TRAIN_SCREEN_H

#include "base/json.h"
#include "base/text.h"
#include "cli/cli.h"
#include "train/run.h"

struct train_screen {
    struct cli *cli;
    const struct run_options *options;
    int ranks;
    enum dev_kind dev;
    double fma_flops;  /* per second: multiply-adds of one rank's threads while all ranks are busy; 0: not known */
    double peak_flops; /* the same as --peak has it, which then counts; 0: not given */
    int64_t steps;     /* that the run will have */
    int64_t tokens;    /* of the steps done, */
    double seconds, flops, first_loss;
    struct train_point *points; /* [n_points] of the curve */
    int64_t n_points, cap_points;
    json_t *rows;   /* --json: of the document */
    json_t *sample; /* NULL: there is none */
};

/* Zero-initialised but for the first six; rows are made here. */
enum status train_screen_open(struct train_screen *screen, struct run_sink *out);
void train_screen_close(struct train_screen *screen);
enum status train_screen_end(const struct train_screen *screen, const struct run_result *result);
/* `label`, then words in lines of at most 80 columns, those after the first `indent` columns in. */
void train_screen_line(struct text *out, const char *label, int indent, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* --jsonl: one line. Takes the reference. */
enum status train_screen_row(json_t *row);
/* FLOPs that the model asks of a step of all ranks: 3 times the forward pass (docs/training.md). */
double train_screen_flops(const struct run_options *options, int ranks, int64_t tokens);
/* Per second and rank; mfu, the share of peak_flops, else of fma_flops, < 0: neither is known. */
void train_screen_rate(const struct train_screen *screen, double *flops, double *mfu);
/* The curve as a picture. train_plot_check: can it be drawn and written, before hours are spent? */
enum status train_plot_check(const char *path);
enum status train_plot(const struct train_screen *screen, const char *path);

struct train_point {
    double loss, eval; /* eval NaN: there is none */
    int64_t step;
};

#endif
