/* tuner/search.h -- enumerate, refuse by rule, estimate, measure what could win, choose; always holds a finished
 * answer. */
#ifndef SPTUNE_TUNER_SEARCH_H
#define SPTUNE_TUNER_SEARCH_H

#include "bench/bench.h"
#include "tuner/recommend.h"
#include "tuner/request.h"

/* session->env NULL (replay, or effort estimate without a machine): only stored samples. Interrupt, budget end:
 * STATUS_OK with the best answer held, marked. STATUS_USAGE when no plan is legal (the reasons are in the message),
 * STATUS_NOFIT with *out complete and verdict WORK_DOES_NOT_FIT when nothing fits, STATUS_NODATA under replay without
 * samples, STATUS_CHECK when a check failed. */
enum status search_run(const struct request *request, struct bench_session *session, struct recommendation *out);
/* What search_run refuses by rule alone: STATUS_USAGE when no plan is legal. Nothing is measured or opened. */
enum status search_refuse(const struct request *request);

#endif
