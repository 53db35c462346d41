/* base/interrupt.h -- Ctrl-C and SIGTERM: once means finish with the best answer held, twice means stop at once. */
#ifndef SPTUNE_BASE_INTERRUPT_H
#define SPTUNE_BASE_INTERRUPT_H

#include "base/status.h"

/* The process that decides (rank 0, or a process without ranks). `ends` ("this step"): what is ended first, which can take long, so
 * the first signal is answered on stderr at once; NULL: in silence. Borrowed. */
void interrupt_setup(const char *ends);
void interrupt_ignore(void);  /* the other ranks: rank 0 decides for them */
int interrupt_pending(void);  /* 0, SIGINT or SIGTERM */
enum status interrupt_status(void); /* STATUS_OK, STATUS_INTERRUPTED or STATUS_TERMINATED */

#endif
