/* cli/prove.h -- `tune --prove`: four steps of the winner and of the runner-up by this project's own harness, beside what was predicted. */
#ifndef SPTUNE_CLI_PROVE_H
#define SPTUNE_CLI_PROVE_H

#include "cli/ranks.h"
#include "tuner/recommend.h"

/* On rank 0, the others waiting in the serve loop. Fills rec->proofs; what the harness cannot run is said there, not a failure. */
enum status prove_run(struct ranks *ranks, struct recommendation *rec);

#endif
