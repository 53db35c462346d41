/* tuner/search_state.h -- what a search holds while it runs; for search.c (order of things) and search_measure.c (what is timed). */
#ifndef SPTUNE_TUNER_SEARCH_STATE_H
#define SPTUNE_TUNER_SEARCH_STATE_H

#include "tuner/candidates.h"
#include "tuner/search.h"

struct search {
    const struct request *request;
    struct bench_session *session;
    struct pool pool;
    struct candidates candidates;
    enum parts_level level;
    struct parts_scale scale;
    int64_t deadline_ns;
    int measured; /* cases timed now */
};

/* Time what is missing of these parts, in interleaved calls of at most share * what is left of the budget. Waived and failed samples are
 * kept as such: the plans that need them stay estimates. */
enum status search_measure(struct search *search, const struct part *parts, int n, double share);
/* The coarse samples of every admissible candidate. */
enum status search_coarse(struct search *search);
/* Level and scale that the budget allows for the candidates marked in `which`; from the coarse prices and the request alone, so that a
 * replay decides alike. */
void search_scale(struct search *search, const bool *which);
/* The samples of the candidates marked in `which`, at the search's level and scale. */
enum status search_detail(struct search *search, const bool *which);

#endif
