/* comm/launch_keeper.h -- a process that outlives a killed supervisor for as long as it takes to sweep up after it. */
#ifndef SPTUNE_COMM_LAUNCH_KEEPER_H
#define SPTUNE_COMM_LAUNCH_KEEPER_H

#include <sys/types.h>
#include <time.h>

struct launch_keeper {
    pid_t pid;    /* 0: none */
    int write_fd; /* its end says that the supervisor has died */
};

/* Fork it, when all n ranks run: they must not inherit write_fd. Without one (no process, no descriptor) a job runs as
 * well; only what ranks leave behind when their supervisor is killed then stays. */
void launch_keeper_start(const pid_t *ranks, int n, time_t since, struct launch_keeper *out);
/* The supervisor sweeps up itself: dismiss the keeper and reap it. */
void launch_keeper_end(struct launch_keeper *keeper);

#endif
