/* bench/bench.h -- what can be timed, and checked, honestly.
 *
 * A case is a plain value (it is broadcast to the ranks as bytes); a subject is one file exporting one const struct bench_subject and
 * one row in bench_subjects[]. Every rank calls bench_run with the same cases; rank 0 gets the samples. Method (docs/measurement.md):
 * correctness first; warm-up, of what computes on GPUs before each block; ranks aligned before each sample; time is the maximum
 * over ranks; the cases of one call are interleaved in random order; hot, cold or used buffers; receive buffers poisoned before and verified
 * after timed iterations; raw times kept; stop when the 95 % interval of the median is narrow or the budget ends; conditions watched, tainted
 * blocks repeated, then waived.
 *
 * Rank 0 drives through a session: it looks a case up in the store, else puts the other ranks to work and commits each sample.
 */
#ifndef SPTUNE_BENCH_BENCH_H
#define SPTUNE_BENCH_BENCH_H

#include "base/dev.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/verdict.h"
#include "comm/comm.h"
#include "results/sample.h"
#include "results/store.h"
#include "sp/plan.h"
#include "sp/problem.h"

#include <stdbool.h>
#include <stdint.h>

enum bench_buffers { BENCH_HOT, BENCH_COLD, BENCH_USED };
enum bench_timing { BENCH_STREAM, BENCH_GRAPH, BENCH_LOOP };
enum bench_span { BENCH_SPAN_ATTENTION, BENCH_SPAN_BLOCK };
/* The copies that a subject's bytes are compared with (bench/traffic.h). */
enum bench_traffic { TRAFFIC_NONE, TRAFFIC_LOCAL, TRAFFIC_ONE, TRAFFIC_PEERS, TRAFFIC_ALL };

struct bench_case {
    char subject[SAMPLE_NAME]; /* "link" "collective" "exchange" "attention" "gemm" "layer" */
    char op[SAMPLE_NAME];      /* link: memcpy memcpy_one peer; collective: alltoall allgather reduce_scatter allreduce sendrecv;
                                * exchange: whole in out one */
    int64_t bytes;             /* link: what a rank copies; collective: send bytes of one rank, own block included (nccl-tests' size) */
    int64_t m, n, k;           /* gemm */
    struct problem problem;    /* direction, dtype, docs ...; world: the ranks that measure */
    struct plan plan;          /* sp, exchange, attention, chunks */
    enum bench_span span;      /* layer: what of it; the problem's hidden and ffn are a block's */
    enum bench_timing timing;
    enum bench_buffers buffers;
    int heads_timed;           /* attention and layer: q heads per rank really timed (beyond one GQA group rounded down to whole
                                * ones), times scaled to all; 0: all */
    uint64_t seed;
};
void bench_case_init(struct bench_case *out);

struct bench_options {
    int warmup;             /* at least 1 per case */
    int samples_min, samples_max;
    double ci_target;       /* stop when (hi - lo) / median is below this */
    int64_t budget_us;      /* for the whole call; < 0: none */
    int64_t timeout_us;     /* per operation */
    bool oversubscribed;    /* marked in conditions; the state of the CPUs is then recorded but never judged */
    int repeats;            /* how often a block outside the CPUs' state is repeated; < 0: states are recorded, never judged */
};
void bench_options_effort(const char *effort, struct bench_options *out); /* quick normal full */

/* What was found out once about an env: zero-initialise. */
struct bench_memo {
    double fma_best;   /* FLOP per microsecond of the slowest rank, all ranks busy: the best seen */
    double state_rate; /* of the state that rows are measured in; 0: none yet */
    bool warned;       /* of a lasting slower state */
};

struct bench_env {
    struct comm *world; /* the whole job; NULL: `check` says what holds on any ranks of this device */
    struct dev *dev;
    char machine[33];      /* fingerprint */
    char transport[48];
    int usable_cpus;
    struct bench_memo memo; /* bench's own */
};

struct bench_subject {
    const char *name;
    const char *about;
    bool layout_included;   /* busbw is null */
    enum bench_traffic traffic; /* the ceiling of its bytes per second; NONE: it has none */
    bool computes; /* most of its time; a GPU's clocks then depend on for how long it has, so it is timed under load */
    /* Pure: is this cell legal, and its key, bytes and FLOPs per rank and iteration. */
    struct verdict (*check)(const struct bench_case *c, const struct bench_env *env);
    void (*key)(const struct bench_case *c, const struct bench_env *env, struct sample *out);
    /* Collective over env->world. create allocates, fills with index-encoded or random data and warms nothing. */
    enum status (*create)(const struct bench_case *c, struct bench_env *env, void **state);
    enum status (*iterate)(void *state, int iteration); /* one timed operation, complete when it returns */
    /* The same where a device runs behind its caller, not waited for, and the queue that it is put on. NULL: the CPU's alone. */
    enum status (*enqueue)(void *state, int iteration);
    struct dev_queue *(*queue)(void *state);
    /* May be NULL: one iteration was enqueued with marks on, before those that are timed, and is complete, but for one that failed on this
     * rank (!ran). Phases can be read. Collective. */
    enum status (*timed)(void *state, bool ran);
    enum status (*poison)(void *state);                 /* before the timed iterations whose output is verified */
    /* This rank's outputs of the last iteration. Collective. */
    enum status (*verify)(void *state, bool *ok, char why[256]);
    /* Before each iteration of buffers `used`, when no peer stores here any more: read what was received, write what is sent (bench/use.h).
     * NULL: there are no such rows. */
    void (*use)(void *state);
    void (*destroy)(void *state);
    const char *(*kernel)(void *state);                 /* what computed, "" when nothing did */
    const char *(*transport)(void *state);              /* what carried data; NULL: nothing moved */
    /* May be NULL: the time of the whole problem from that of the heads timed; what else to record, on rank 0. */
    double (*whole_us)(void *state, double timed_us);
    void (*note)(void *state, json_t *conditions);
};
extern const struct bench_subject *const bench_subjects[]; /* NULL-terminated */
const struct bench_subject *bench_subject_find(const char *name);
/* What times a case, its span included; NULL: there is no such subject. */
const struct bench_subject *bench_subject_of(const struct bench_case *c);

/* What computes is timed under load where a device runs behind its host: how many iterations of `us` microseconds run untimed before each
 * block of samples (120 ms of them, at least one; none where one takes 1.2 s), how many, back to back, are a sample (5 ms of them, at most
 * 16), and how many samples a block then has (60 ms of them). */
int bench_load(double us);
int bench_loaded_loop(double us);
int bench_load_samples(double us);
double bench_loaded_us(double us, int samples); /* of `samples` and their loads */

enum { BENCH_CASES_MAX = 32 };
/* Collective. out[n] samples on rank 0 (initialised there; NULL elsewhere). An illegal case is a waived sample, wrong data or an
 * error of one case a failed one: the others still run. A status other than OK means the job is over. */
enum status bench_run(struct bench_env *env, const struct bench_case *cases, int n, const struct bench_options *options,
                      struct sample *out);

/* Rank 0's side. `tell` puts the other ranks to work on (mode, data); see cli/serve.h. */
struct bench_session {
    struct bench_env *env;       /* NULL under replay: nothing is ever measured */
    struct store *store;         /* NULL: nothing is kept or looked up */
    int64_t run;
    enum status (*tell)(void *arg, const char *mode, const void *data, size_t bytes);
    void *tell_arg;
    bool reuse;                  /* take ok samples of this machine and versions from the store */
    int64_t reuse_run;           /* > 0: of this run only, and with samples_min samples (--resume); else of any run */
    bool checked;                /* correctness was checked for what will be timed */
    char machine[33];            /* whose samples are looked up when env is NULL; "": those of the newest one with the key */
    char *versions;              /* JSON text recorded with each sample; owned by the caller */
};
/* Look up, else measure the missing ones interleaved, commit each. out[n] initialised by the callee; under replay an unknown case is
 * STATUS_NODATA naming its key, and one that was never measured well comes back as it was waived. *measured (may be NULL) counts the cases really timed now. */
enum status bench_measure(struct bench_session *session, const struct bench_case *cases, int n,
                          const struct bench_options *options, struct sample *out, int *measured);
/* How many of the cases bench_measure would measure. */
enum status bench_missing(const struct bench_session *session, const struct bench_case *cases, int n,
                          const struct bench_options *options, int *out);
/* The serve-loop side of bench_measure: data as told. Mode name "bench". */
enum status bench_serve(struct bench_env *env, const void *data, size_t bytes);
char *bench_versions(struct bench_env *env); /* JSON object text: sptune build, ucx, openblas, kernel release, allowed environment */

/* Can the ranks of this job run `layers` exchanges beside each other, with `bytes` of buffers each on each? As this rank sees it; not
 * collective. */
struct verdict bench_exchange_verdict(const struct bench_env *env, const char *name, int64_t bytes, int layers);

#endif
