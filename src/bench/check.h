/* bench/check.h -- correctness of every kernel, transport, exchange and enumerable plan, on small problems against the reference.
 *
 * Collective over the job. Moved data carries its origin and must match exactly, the middle layout included; attention error is at most
 * twice that of the plain same-precision computation. A checker is one file and one row in checks[]. What cannot run here is waived
 * with its rule and reason; nothing is silently skipped.
 */
#ifndef SPTUNE_BENCH_CHECK_H
#define SPTUNE_BENCH_CHECK_H

#include "bench/bench.h"

enum check_outcome { CHECK_PASSED, CHECK_FAILED, CHECK_WAIVED };

struct check_row {
    char area[16];   /* "kernel" "transport" "exchange" "plan" ... */
    char what[192];  /* what was checked */
    enum check_outcome outcome;
    enum rule rule;
    char why[256];
    int cases;       /* problems behind this row */
};

struct check_report {
    struct check_row *rows; /* owned; rank 0 only */
    int nrows, cap;
    int cases, passed, failed, waived; /* rows */
    int remembered;                    /* rows that passed when the store remembers the check: it is not run again */
    void (*begins)(const char *area, const char *what,
                   int rows); /* NULL, or told of each row before it is run; rows: there are so far */
};
void check_report_free(struct check_report *report);

/* The same on every rank; it is broadcast as bytes, so start with a memset. */
struct check_order {
    uint64_t seed;
    unsigned areas;   /* a bit for each of checks[]; 0: all */
    int has_only;     /* only this plan's exchange, attention, sp and chunks: what bench and tune are about to time */
    struct plan only;
    char rows[64]; /* only rows whose text contains this; "": all */
};

struct check {
    const char *area;
    enum status (*run)(struct bench_env *env, const struct check_order *order, struct check_report *report);
};
extern const struct check *const checks[]; /* NULL-terminated */

/* Of `report` it keeps `begins` alone. A failed check is a row, not a status; an interrupt between parts is the status of all ranks. Every rank
 * calls it; mode name "check" for the serve loop. */
enum status check_run(struct bench_env *env, const struct check_order *order, struct check_report *report);
enum status check_serve(struct bench_env *env, const void *data, size_t bytes);
/* Rank 0: run (telling the others) unless the store remembers that it passed for this build and machine. STATUS_CHECK when a row
 * failed, naming it. */
enum status check_before(struct bench_session *session, uint64_t seed, const struct plan *only, struct check_report *report);

#endif
