/* base/clock.h -- one monotonic clock, deadlines, wall time for stamps. */
#ifndef SPTUNE_BASE_CLOCK_H
#define SPTUNE_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

int64_t clock_ns(void);                    /* CLOCK_MONOTONIC: a stepping wall clock never changes a sample */
int64_t clock_deadline(int64_t after_us);  /* absolute ns; INT64_MAX when after_us < 0 */
bool clock_passed(int64_t deadline_ns);
void clock_iso(char buf[32]);              /* now, 2026-11-29T18:30:00Z */
int64_t clock_resolution_ns(void);         /* measured once: smallest positive step seen */

#ifdef __cplusplus
}
#endif
#endif
