/* bench/measure.h -- inside bench_run: rows (one per case), blocks (a few samples of a row in a row), and what all ranks agree on.
 *
 *   bench_run          waves of rows that fit in memory together
 *     rounds           one block of each row that is not done, in random order, after a few copies of its ceiling
 *       block          of what computes on a GPU: load; [align, iterate] x k, poison before and verify after the last one, probe
 *         agree        one comm_max over times, elapsed time, probe, conditions, flags: the only input of every decision
 *
 * Whatever decides what happens next is computed on every rank from agreed numbers, so that all ranks do the same.
 */
#ifndef SPTUNE_BENCH_MEASURE_H
#define SPTUNE_BENCH_MEASURE_H

#include "base/rng.h"
#include "bench/bench.h"
#include "bench/ceiling.h"
#include "bench/conditions.h"
#include "bench/conditions_gpu.h"
#include "bench/timing.h"

enum { BLOCK_SAMPLES_MAX = 32, MEASURE_PATIENCE = 4 /* blocks that may use up their repeats */, MEASURE_FEW = 10 /* fewer samples than this is said */ };

struct row {
    const struct bench_case *c;
    const struct bench_subject *subject; /* NULL: unknown */
    void *state;
    bool settled;               /* an outcome is there: done, waived or failed */
    enum sample_outcome outcome;
    enum rule rule;
    char why[256];
    const char *ended;          /* "interval" "samples" "budget" "interrupt" "tainted" */
    double *times_us;
    size_t cap;
    int n;
    double real_us;             /* agreed: what one sample takes, by the last block */
    int iteration, loop;        /* iterations so far; per sample */
    struct dev_graph *graph;    /* of `loop` iterations, when they are timed as one */
    int warmups, blocks, repeated, tainted, verified;
    int repeats_left, repeats_total; /* of the next block; of the row */
    double verify_us, block_us; /* of the last one that did */
    double load_us;             /* the shortest load before a block that was kept, on this rank */
    double state_sum, state_min, steal_max, wait_max, throttled;
    double gpu[CONDITIONS_GPU];
    int wave;
    struct ceiling *ceiling;      /* borrowed; NULL: none */
    struct ceiling_result limit;  /* of it, when the wave ended */
};

struct run {
    struct bench_env *env;
    const struct bench_options *options;
    const struct bench_subject *const *subjects;
    struct row *rows;
    int n;
    struct dev_queue *queue;
    struct timing *timing; /* of rows that run behind the host */
    struct gpu_watch *watch; /* of this rank's GPU; NULL: it has none, or nobody can be asked */
    struct rng rng;
    int64_t start_ns;
    double elapsed_us; /* agreed */
    bool interrupted;  /* agreed */
    double rate;       /* agreed: last probe, FLOP per microsecond of the slowest rank */
    double recent[3];  /* probes outside the state, in a row */
    int nrecent, restarts;
    double align_us;   /* agreed: a barrier of aligned ranks */
    int wave, nwave;   /* rows of this wave */
    struct ceiling *ceilings[BENCH_CASES_MAX];
    int nceilings;     /* of this wave */
};

/* ---- measure.c ---- */
/* bench_run with a table of subjects of its own; tests have some that fail. */
enum status measure_run(struct bench_env *env, const struct bench_subject *const *subjects, const struct bench_case *cases, int n,
                        const struct bench_options *options, struct sample *out);

bool run_behind(const struct run *run); /* does the device run behind the host? */

/* ---- block.c ---- */
enum status block_warm(struct run *run, struct row *row);
double block_load_us(const struct run *run, const struct row *row); /* of the next block: untimed, before its samples */
/* Adds samples to the row, or repeats, or settles it as failed. */
enum status block_run(struct run *run, struct row *row);
/* Elapsed time and interrupts, between blocks. */
enum status block_sync(struct run *run);
/* Before the first block: the probe, the state, the cost of aligning. */
enum status block_prepare(struct run *run);

/* ---- state.c: is this block in the state that the rows of this run are measured in? ---- */
bool state_judged(const struct run *run);
/* A probe at the start: takes the state of the CPUs as it is when it lasts. */
void state_begin(struct run *run, const double *rates, int n);
enum state_verdict { STATE_SAME, STATE_OUTSIDE, STATE_CHANGED };
/* before, after: rates. lost: the share of CPU time that went elsewhere. CHANGED: a new lasting state; all of this run starts over. */
enum state_verdict state_judge(struct run *run, double before, double after, double lost, double throttled);

/* ---- row.c ---- */
void row_waive(struct row *row, enum rule rule, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void row_fail(struct row *row, const char *why);
void row_check(const struct run *run, struct row *row);
/* Creates; a failure settles the row, but NOMEM beside open rows leaves it for the next wave. */
enum status row_open(struct run *run, struct row *row, bool others_open);
void row_close(struct row *row);
void row_restart(struct row *row);
void row_stop(const struct run *run, struct row *row); /* done? */
/* Everything but ceilings and versions; on rank 0. */
enum status row_sample(const struct run *run, const struct row *row, struct sample *out);
/* Collective: the ceiling of an open row, shared with rows of equal traffic. */
enum status row_ceiling_open(struct run *run, struct row *row);
/* Rank 0: what the row is compared with. */
void row_ceilings(const struct run *run, const struct row *row, struct sample *out);

#endif
