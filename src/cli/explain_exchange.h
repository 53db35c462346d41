/* cli/explain_exchange.h -- `sptune explain exchange`: the real exchange on labelled cells, who holds which before and
 * after. */
#ifndef SPTUNE_CLI_EXPLAIN_EXCHANGE_H
#define SPTUNE_CLI_EXPLAIN_EXCHANGE_H

#include "bench/bench.h"
#include "cli/cli.h"

extern const struct opt explain_exchange_options[];
enum status explain_exchange(struct cli *cli);
/* Serve-loop side; mode name "explain". */
enum status explain_exchange_serve(struct bench_env *env, const void *data, size_t bytes);

#endif
