/* cli/apart.h -- ask something in a process of its own, which ends with the answer.
 *
 * What a library keeps once it was asked (a driver's handles, locks, threads) ends there too, so that the ranks, which are forked
 * later, inherit none of it. Only for a process without threads of its own.
 *
 *     static enum status ask(void *arg, void *out);       // as if it were called here; its log is not shown
 *     enum status status = apart_ask(ask, arg, &out, sizeof out, limit_ms);
 */
#ifndef SPTUNE_CLI_APART_H
#define SPTUNE_CLI_APART_H

#include "base/status.h"

#include <stddef.h>

enum { APART_BYTES = 64 };
typedef enum status apart_fn(void *arg, void *out);

/* The status and message of fn, and when that is OK the `bytes` (up to APART_BYTES) that it set. STATUS_TIMEOUT: the process ended, or was
 * ended after limit_ms, without an answer. STATUS_MACHINE: there can be no process. */
enum status apart_ask(apart_fn *fn, void *arg, void *out, size_t bytes, int limit_ms);

#endif
