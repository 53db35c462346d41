/* cli/session.h -- what a measuring verb needs on rank 0: the store, a run in it, versions, and the machine's measuring
 * lock. */
#ifndef SPTUNE_CLI_SESSION_H
#define SPTUNE_CLI_SESSION_H

#include "bench/bench.h"
#include "cli/ranks.h"

/* Opens the store for writing and begins (or, with run > 0, continues) a run. The caller closes. */
enum status session_open(struct ranks *ranks, const char *verb, int64_t run, struct bench_session *out);
void session_close(struct bench_session *session);

/* Can that be opened, and a run be named so? The same refusals as session_open, but nothing is created, and no handle
 * stays open. Not for verbs without --store. */
enum status session_check(struct cli *cli);
/* The same in a process of its own: for the one that forks ranks afterwards, which has no SQLite in it. */
enum status session_check_apart(struct cli *cli);

/* `--resume`: the unfinished run of the same work, 0 when there is none. The same work is the same subject and options,
 * whatever they say about output, time and place. session_remember notes the session's run under the work that this
 * command asks for. */
enum status session_remember(struct cli *cli, struct bench_session *session);
enum status session_resumable(struct cli *cli, int64_t *out_run);

/* Only one sptune measures on a machine at a time. Waits up to wait_us, then STATUS_BUSY; a signal ends the wait.
 * Nothing stays behind: the lock is an abstract socket that the kernel takes back with the process. */
enum status session_lock(int64_t wait_us, int *out_fd);
void session_unlock(int fd);

#endif
