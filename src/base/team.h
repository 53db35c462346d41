/* base/team.h -- a few threads that share the tasks of one call: the caller and threads - 1 others.
 *
 * Tasks 0, 1, ... are taken in that order by whichever thread is free, so a task may wait for a lower one that it depends on. A call
 * ends when every task has run; what the tasks wrote is then seen by the caller. A thread that wakes up late misses a call instead of
 * holding it up. Between calls the others look for work for some 20 us and then sleep. They take no signals and have the CPU binding of
 * the thread that created the team.
 *
 * One call at a time: a task, or another thread, that calls team_run meanwhile ends the program, in every build. A forked child has no
 * such threads: it may only destroy the team.
 *
 *     TRY(team_create(4, &team));
 *     team_run(team, tasks, task_run, &arg);   // task_run(&arg, task, thread), thread 0 .. 3, 0 being the caller
 *     team_destroy(team);
 */
#ifndef SPTUNE_BASE_TEAM_H
#define SPTUNE_BASE_TEAM_H

#include "base/status.h"

#include <stdint.h>

struct team; /* owned */
typedef void team_fn(void *arg, int64_t task, int thread);

enum { TEAM_THREADS_MAX = 1024 };

/* 1 to TEAM_THREADS_MAX threads, the caller among them. STATUS_MACHINE when the system gives no more threads. */
enum status team_create(int threads, struct team **out);
void team_destroy(struct team *team); /* accepts NULL; not during a call */
int team_threads(const struct team *team); /* NULL: 1 */
/* For host work beside a device: half of the CPUs of the caller's binding, as drivers want some; 1 to `most`. */
int team_spare(int most);
/* NULL, the caller alone: for one thread, and where the system gives no more; slower then. */
struct team *team_or_alone(int threads);
/* team NULL: the caller, one after the other. */
void team_run(struct team *team, int64_t tasks, team_fn *fn, void *arg);

#endif
