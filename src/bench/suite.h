/* bench/suite.h -- named lists of rows that are measured again and again, so that two runs compare row by row.
 *
 * A line is one command: `sptune bench SUBJECT LISTS`. What it leaves out has the defaults of that command, so a line's keys change
 * when those do: lists name everything that is not meant to follow. Lines are added; changing one ends its history.
 */
#ifndef SPTUNE_BENCH_SUITE_H
#define SPTUNE_BENCH_SUITE_H

enum { SUITE_LINES_MAX = 16 };

enum suite_ranks { SUITE_ALL, SUITE_CPUS, SUITE_GPUS };
struct suite_line {
    const char *subject;
    const char *lists;      /* options and values, separated by single blanks */
    enum suite_ranks ranks; /* that it is for: exchanges and kernels have other names on GPUs */
};

struct suite {
    const char *name;
    const char *about;
    struct suite_line lines[SUITE_LINES_MAX + 1]; /* ends with a NULL subject */
};

extern const struct suite *const suites[]; /* NULL-terminated */
const struct suite *suite_find(const char *name);

#endif
