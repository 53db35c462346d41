/* tests/sp/layers.h -- exchanges of small layers give the bits of exchange packed on the CPUs of the same ranks: there, back with copies of kv
 * heads summed, and on GPUs captured in a graph as well where the host does not drive them. All that is received into is poisoned before, gaps included.
 */
#ifndef SPTUNE_TESTS_SP_LAYERS_H
#define SPTUNE_TESTS_SP_LAYERS_H

#include "sp/exchange.h"

/* In a rank. Every exchange of `list` (NULL-terminated) for the device of `comm` against packed over `host`, a group of the same ranks on
 * CPUs. Those that refuse are named with their reason. 0, or what the rank returns. *moved grows by one per layer and exchange. */
int layers_same_bits(const struct exchange *const *list, struct comm *comm, struct dev_queue *queue, struct comm *host,
                     struct dev_queue *host_queue, int *moved);
int layers_cases(enum dev_kind kind); /* their number on such a device */

#endif
