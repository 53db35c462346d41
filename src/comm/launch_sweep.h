/* comm/launch_sweep.h -- shared memory that killed ranks had no time to mark for removal. */
#ifndef SPTUNE_COMM_LAUNCH_SWEEP_H
#define SPTUNE_COMM_LAUNCH_SWEEP_H

#include <sys/types.h>
#include <time.h>

/* After all `n` processes have ended: remove what they made since `since` and nobody uses. */
void launch_sweep(const pid_t *pids, int n, time_t since);

#endif
