/* base/log.h -- the log on stderr, and the warnings that a JSON document repeats.
 *
 * stdout is data, stderr is log. Only the speaking rank (rank 0, or a process without ranks) prints; the others keep
 * warnings and failures for the bootstrap to carry. Lines are plain: "sptune: warning: ...".
 */
#ifndef SPTUNE_BASE_LOG_H
#define SPTUNE_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_QUIET, LOG_NORMAL, LOG_VERBOSE };

void log_setup(enum log_level level, bool speaking);
void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));    /* shown from LOG_NORMAL on */
void log_verbose(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* shown under -v */
void log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));    /* always shown; the same text once */

/* Warnings so far, in order, for `warnings` in JSON documents. Borrowed. */
int log_warning_count(void);
const char *log_warning(int index);
void log_reset(void); /* forget warnings and settings (tests) */

#endif
