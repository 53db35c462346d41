/* tuner/recommend.h -- the answer: chosen plan, its time and memory, every other candidate with the reason it lost, and
 * what would change the answer. `sptune.recommendation/1` is its document; the screen is design section 4's.
 */
#ifndef SPTUNE_TUNER_RECOMMEND_H
#define SPTUNE_TUNER_RECOMMEND_H

#include "base/json.h"
#include "sp/work.h"
#include "tuner/request.h"

enum recommend_source {
    RECOMMEND_MEASURED,
    RECOMMEND_INTERPOLATED,
    RECOMMEND_EXTRAPOLATED,
    RECOMMEND_PUBLISHED,
    RECOMMEND_ASSUMED
};
const char *recommend_source_name(enum recommend_source source); /* "measured" */
char recommend_source_letter(enum recommend_source source);      /* 'M' */

/* Microseconds of one optimizer step of one rank. */
struct recommend_time {
    double step_us, lo_us, hi_us;                                               /* 95 % */
    double exchange_in, attention, exchange_out, gemm, zero, optimizer, logits, elementwise; /* sum to step_us */
    double exposed;               /* of the exchanges, what nothing hides */
    enum recommend_source source; /* the weakest of the parts that matter (together 5 % of the step or more) */
    char composed_of[160];
};

struct recommend_candidate {
    struct plan plan;
    char attention_class[PLAN_NAME]; /* what the target is told; plan.attention is the kernel that was timed */
    struct verdict verdict;          /* RULE_OK, or why it is rejected before pricing */
    struct recommend_time time;      /* when priced */
    bool priced, timed;              /* timed: its own layer was measured */
    struct verdict untimed; /* of one that is not: why a sample of it was waived, or failed; RULE_OK: none was */
    struct work_memory memory;
    enum work_fit fit;
    double tokens_per_s_per_device, lo, hi;
    double loses_by;           /* cost over that of the chosen one, minus 1; negative: faster, but see `lost` */
    double loses_lo, loses_hi; /* its 95 % interval, shared errors cancelled */
    struct verdict lost; /* RULE_OK for the chosen one; slower, tied, memory, measure_first, ...; why it has no price */
    bool tied;           /* with the best one: lost by the tie rule */
};

struct recommend_flip {
    char condition[96]; /* "--loss fused" */
    struct plan then_plan;
    char attention_class[PLAN_NAME];
    double gain; /* speed then over speed now, minus 1 */
    int64_t peak_bytes;
    enum work_fit fit;
    enum recommend_source source;
};
enum { RECOMMEND_FLIPS = 8, RECOMMEND_FILES = 12 };

struct recommend_file {
    char path[256], kind[24], sha256[65];
};

/* Steps that were taken (tune --prove), beside the candidate's prediction. */
struct recommend_proof {
    int candidate;
    double step_us; /* measured; 0 with `why` */
    int64_t bytes;  /* on the largest rank, of parameters, states and activations; of a GPU all that was in use after the steps */
    char why[160];  /* why no step was taken, "" */
};

struct recommendation {
    struct request request;
    int n;
    struct recommend_candidate *candidates; /* owned; the chosen first, then by time, rejected last */
    int chosen;                             /* index, -1 when nothing is legal */
    enum work_fit verdict;                  /* fits, measure_first, does_not_fit */
    int native_best;                        /* best of our own harness when target differs, -1 */
    struct recommend_candidate native;      /* valid when native_best >= 0 */
    int nflips;
    struct recommend_flip flips[RECOMMEND_FLIPS]; /* those that fit best first, then by gain */
    char next_measurement[256];                   /* what single measurement would sharpen the answer, "" none */
    char fits_if[160];                            /* does_not_fit: what would make it fit */
    int checked, check_total; /* rows that passed, and all: those that an earlier run of this build passed count */
    int check_remembered;     /* how many those are */
    double wall_s, budget_s;
    bool interrupted, budget_ended;
    int nproofs;
    struct recommend_proof proofs[2]; /* of the chosen one and the runner-up */
    int measured; /* cases timed now; the others came from the store */
    int nfiles;
    struct recommend_file files[RECOMMEND_FILES];
};
void recommend_free(struct recommendation *recommendation);

json_t *recommend_to_json(const struct recommendation *recommendation, const struct json_envelope *envelope);
/* sptune.plans/1 of several answers. */
json_t *recommend_list_to_json(const struct recommendation *const *answers, int n,
                               const struct json_envelope *envelope);
enum status recommend_screen(const struct recommendation *recommendation, char **out); /* 80 columns; free() */
/* The table of lists: best plan per (heads, seq) with the lengths where the answer changes. */
enum status recommend_list_screen(const struct recommendation *const *answers, int n, char **out);

#endif
