/* cli/sweep.h -- the product of `bench`'s lists: axes in one table, cells by odometer.
 *
 * Outer axes make cells; the variant axes (method, ring, exchange, attention, chunks) make the cases of one cell, which are measured
 * interleaved.
 */
#ifndef SPTUNE_CLI_SWEEP_H
#define SPTUNE_CLI_SWEEP_H

#include "bench/bench.h"
#include "cli/cli.h"

enum { SWEEP_AXES = 27 };

struct sweep_axis;
struct sweep {
    struct bench_case base;
    int naxes, nvariants; /* axes[0 .. naxes - nvariants) are outer, the rest variants */
    const struct sweep_axis *axes[SWEEP_AXES];
    int count[SWEEP_AXES];
    int64_t *numbers[SWEEP_AXES]; /* owned, for number axes */
    const char *words[SWEEP_AXES][32];
    char *storage[SWEEP_AXES];
    int cells, variants;
    int *cell, *variant; /* owned: where these are in the product of the axes, in which some are there more than once */
    const char *docs; /* --docs, NULL when not given */
    const char *replaced; /* the exchange whose place a method's own way to move data takes; NULL: none */
};

/* Reads the axis options of `subject` from the command line; options of other subjects are refused. */
enum status sweep_open(struct cli *cli, const char *subject, int ranks, struct sweep *out);
void sweep_close(struct sweep *sweep);
/* The cases of cell i (0 .. cells-1): sweep->variants of them. STATUS_USAGE for sizes that make no problem at all. */
enum status sweep_cell(const struct sweep *sweep, int i, struct bench_case *out);

/* May some case of some cell run on CPUs? Judged without ranks. */
enum status sweep_legal(const struct sweep *sweep, bool *out);

/* What tells cell i from the others, for progress: "seq=4096 dtype=bf16". Returns buf. */
const char *sweep_label(const struct sweep *sweep, int i, char buf[96]);

extern const struct opt sweep_options[];

#endif
