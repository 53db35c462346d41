/* comm/launch.h -- which rank this process is, and who started it.
 *
 * Without a launcher, launch_fork starts n ranks on this host and supervises them: the parent holds no CUDA, UCX or
 * SQLite; ranks die with it; when a rank dies the others get a grace period, then SIGKILL. A launcher is one file
 * exporting one const struct launcher and one row in launchers[] (launch.c), which fills struct launch.
 */
#ifndef SPTUNE_COMM_LAUNCH_H
#define SPTUNE_COMM_LAUNCH_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct launch_notes; /* what supervisor and ranks tell each other */

struct launch {
    int rank, size;
    int local_rank, local_size;
    char node[96];        /* the launcher's node id, "" when it has none */
    char root[128];       /* host:port where rank 0 listens */
    int listen_fd;        /* rank 0 under fork: already listening, boot_open takes it over; else -1 */
    bool root_listening;  /* root accepted connections before any rank started: a refused one means that rank 0 ended */
    char token[33];       /* per-job secret, 32 hex digits */
    char rule[96];        /* which rule fired: "fork of 2 ranks" */
    const struct launch_notes *notes; /* under fork; else NULL */
};

struct launcher {
    const char *name;
    /* STATUS_OK with *found = false when this launcher is not the one around. */
    enum status (*detect)(struct launch *out, bool *found);
};
extern const struct launcher *const launchers[]; /* NULL-terminated, in order of precedence; fork is not among them */

/* The launcher around this process, if any. */
enum status launch_detect(struct launch *out, bool *found);

struct launch_report {
    int exit_code;       /* of the job: 4 when a rank died, else rank 0's own (or the first other one that is not 0) */
    int failed_rank;     /* first rank that died of a signal or left without being told, -1 none */
    int signal;          /* its signal, 0 when it exited; with failed_rank -1 the SIGINT or SIGTERM that stopped the job */
    bool ours;           /* that signal came from the supervisor, which ended the job */
    bool stopped;        /* failed_rank was stopped (SIGSTOP) for LAUNCH_STOPPED_US: the supervisor ended the job */
    bool root_spoke;     /* rank 0 ended by itself (it has printed); false: the parent must print the error */
};

/* Fork n ranks that run rank_main(launch, arg) and exit with its result. cpus[r]: CPU list to bind rank r to, NULL or ""
 * for no binding; cpus may be NULL. Returns in the parent only, when every rank has ended and been reaped; no process,
 * socket or shared memory stays. SIGINT and SIGTERM go to rank 0 (it decides; twice means kill and exit code 128 + signal;
 * two within 100 ms are one). The others get 5 s, then SIGKILL, once rank 0 has ended, or a rank died, exited without
 * returning from rank_main, or returned anything but 0. A rank that is stopped (SIGSTOP) is named after 10 s; SIGINT or
 * SIGTERM then ends the job at once, for rank 0 could not answer; after LAUNCH_STOPPED_US, which is longer than the
 * deadlines of what ranks do together, the job is over. Other threads of the caller do not exist in the ranks. */
enum {
    LAUNCH_RANKS_MAX = 4096,
    LAUNCH_GRACE_US = 5 * 1000 * 1000,
    LAUNCH_STOPPED_SAID_US = 10 * 1000 * 1000,
    LAUNCH_STOPPED_US = 70 * 1000 * 1000,
};

typedef int (*launch_rank_main)(const struct launch *launch, void *arg);
/* In a rank under fork: has `rank` ended, and of which signal that the supervisor did not send (0: none)? Its supervisor
 * may learn it a moment later than this rank does: waits for that up to wait_ms. False when it runs, or nobody knows. */
bool launch_fate(const struct launch *launch, int rank, int wait_ms, int *out_signal);
enum status launch_fork(int n, char *const *cpus, launch_rank_main rank_main, void *arg, struct launch_report *out);

#endif
