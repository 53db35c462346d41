/* cli/samples.h -- a growing list of samples, and how the verbs show and export it. */
#ifndef SPTUNE_CLI_SAMPLES_H
#define SPTUNE_CLI_SAMPLES_H

#include "cli/cli.h"
#include "results/sample.h"
#include "results/store.h"

struct samples {
    struct sample *rows; /* owned */
    int n;
    size_t cap;
};

enum status samples_add(struct samples *samples, const struct sample *sample); /* copies */
void samples_free(struct samples *samples);
/* Every sample of a run, in order; appends. None are left when it fails. */
enum status samples_of_run(struct store *store, int64_t run, struct samples *out);
/* Rows as `bench --jsonl` prints them: one object per line. */
enum status samples_read_lines(const char *path, struct samples *out); /* appends */
/* --json: the document; else the table; then samples_export. */
enum status samples_show(struct cli *cli, const struct samples *samples, const char *title);
/* Are all --export values FORMAT=FILE with a known format and a place that can be written? Said before anything is
 * measured.
 * `--export list` prints the formats: nothing else is then to be done. */
enum status samples_check_exports(struct cli *cli, bool *listed);
/* Every --export FORMAT=FILE. */
enum status samples_export(struct cli *cli, const struct samples *samples, const char *title);

#endif
