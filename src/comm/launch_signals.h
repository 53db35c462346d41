/* comm/launch_signals.h -- signals of the supervisor, one at a time, whichever thread of the process they hit. */
#ifndef SPTUNE_COMM_LAUNCH_SIGNALS_H
#define SPTUNE_COMM_LAUNCH_SIGNALS_H

#include "base/status.h"

#include <signal.h>

enum { LAUNCH_SIGNALS = 4 };

struct launch_signals {
    int read_fd, write_fd; /* -1 before launch_signals_take */
    struct sigaction old[LAUNCH_SIGNALS];
    sigset_t watched, mask;
};

/* From here on SIGCHLD, SIGINT, SIGTERM and SIGTSTP come out of launch_signals_wait, except those that the caller
 * ignores. */
enum status launch_signals_take(struct launch_signals *signals);
void launch_signals_give_back(struct launch_signals *signals);
/* The next signal, 0 when none came within `ms`. */
int launch_signals_wait(const struct launch_signals *signals, int ms);
/* Around a fork, so that the new process has none of the supervisor's handlers when the first signal hits it. */
void launch_signals_hold(struct launch_signals *signals);
void launch_signals_release(const struct launch_signals *signals);
void launch_signals_leave(const struct launch_signals *signals); /* in the new process */
/* Stop this process as SIGTSTP does by default; returns when it goes on. */
void launch_signals_stop(void);

#endif
