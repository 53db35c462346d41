/* tuner/flips.h -- what would change the answer: one opened option at a time, decided again from the samples already
 * held. */
#ifndef SPTUNE_TUNER_FLIPS_H
#define SPTUNE_TUNER_FLIPS_H

#include "tuner/search_state.h"

/* Fills flips, next_measurement and fits_if; measures nothing. */
enum status flips_find(struct search *search, struct recommendation *out);

#endif
