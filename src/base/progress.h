/* base/progress.h -- one line on stderr: what runs, how far, time left.
 *
 * auto: a line redrawn in place on a terminal, else plain lines at most every 10 s; plain: lines; none: silence. */
#ifndef SPTUNE_BASE_PROGRESS_H
#define SPTUNE_BASE_PROGRESS_H

#include <stdint.h>

enum progress_mode { PROGRESS_AUTO, PROGRESS_PLAIN, PROGRESS_NONE };

void progress_setup(enum progress_mode mode);
void progress_begin(const char *what, int total); /* total 0: unknown */
/* done of total; left_us < 0: estimate from the pace so far. */
void progress_step(int done, const char *label, int64_t left_us);
/* The same of what may not end: mode plain shows each, so that the last line is what was at work; auto without a terminal none before 10 s. */
void progress_at(int done, const char *label);
void progress_end(void);
void progress_clear(void); /* take a redrawn line away, so that another line can be printed; the next step redraws it */

#endif
