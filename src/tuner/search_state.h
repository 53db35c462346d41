/* tuner/search_state.h -- what a search holds while it runs. For search*.c, flips.c and native.c.
 *
 * Time: checks first (remembered from run to run), then the coarse samples of every candidate, then the candidates that
 * could win in detail, then what our own harness would reach. Each phase has a deadline; what it leaves is the next
 * one's.
 */
#ifndef SPTUNE_TUNER_SEARCH_STATE_H
#define SPTUNE_TUNER_SEARCH_STATE_H

#include "tuner/candidates.h"
#include "tuner/search.h"

struct search {
    const struct request *request;
    struct bench_session *session;
    struct pool pool;
    struct candidates candidates;
    enum parts_level level; /* of what is measured in detail */
    struct parts_scale scale;
    int64_t deadline_ns; /* of the whole */
    int64_t phase_ns;    /* of the phase */
    double room_bytes;   /* what measuring may take in memory */
    int measured;        /* cases timed now */
    int checked, check_total, check_remembered;
    struct sample replayed; /* the first one that a replay took, without its times */
    bool mixed;             /* another one differs from it */
    /* RULE_OK, or why estimates had to do with few samples: RULE_TAINTED, a busy machine, or RULE_BUDGET. */
    enum rule rough;
};

/* An estimate takes this long when the budget allows less, and up to twice as long again for what got no sample then. */
enum { COARSE_FLOOR_US = 3 * 1000 * 1000 };

/* ---- search_measure.c: what is timed, in which order, within a phase ---- */
/* The phase may take this share of what is left of the whole, and never less than floor_us: without a few samples there
 * is no answer. */
void search_phase(struct search *search, double share, int64_t floor_us);
/* Each distinct way of computing that will be timed for the admissible candidates, checked unless it was before. */
enum status search_check(struct search *search, const struct candidates *candidates);
/* The coarse samples of every admissible candidate; those of the candidates marked in `which` at the search's level and
 * scale. Of any candidates of the search's request, the target aside. roughly: there is no answer without, so what got no sample in its
 * time gets a few all the same. */
enum status search_coarse(struct search *search, const struct request *request, const struct candidates *candidates,
                          bool roughly);
enum status search_detail(struct search *search, const struct request *request, const struct candidates *candidates,
                          const bool *which);

/* Why parts that can be timed have no sample yet: RULE_TAINTED before RULE_BUDGET; RULE_OK where all have. All others are done. */
enum rule search_rough(const struct pool *pool, const struct parts *parts, bool *done);

/* What spoilt samples on such a device, as a subject: "other work on these CPUs". */
const char *search_disturber(enum dev_kind dev);

/* ---- search_scale.c: how much of a layer the budget lets us time ---- */
/* Sets level and scale: the most detailed at which ten iterations of what is marked fit in the budget and in memory.
 * From the coarse samples and the request alone, so that a replay decides alike. *fits false when nothing does. */
enum status search_scale(struct search *search, const bool *which, bool *fits);
/* The scale below this one; false when there is none. Starts at PARTS_LAYER. */
bool search_scale_next(const struct request *request, enum parts_level *level, struct parts_scale *scale);
/* Bytes that a case holds on this host while it is timed. */
double search_case_bytes(const struct request *request, const struct part *part);

/* ---- native.c ---- */
/* What our own harness would reach with the chosen sizes; checks and times it in what is left of the budget. */
enum status native_find(struct search *search, struct recommendation *out);

#endif
