/* base/team.c -- one call at a time under one mutex; tasks are taken from an atomic counter.
 *
 *   caller    open the call, wake the others | take tasks until none is left | close the call, wait for those inside
 *   others    look for a new call, then sleep | join it if it is still open   | take tasks, leave
 *
 * A call costs a few microseconds when the others are still looking and some 50 us when they have to be woken (virtual CPUs: measured),
 * so what is given to a team should take longer than that.
 */
#include "base/team.h"

#include "base/mem.h"
#include "base/thread.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPINS = 1000 }; /* some 20 us */

struct member {
    struct team *team;
    pthread_t thread;
    int index;
};

struct team {
    pthread_mutex_t mutex;
    pthread_cond_t opened, left;
    team_fn *fn; /* of the open call */
    void *arg;
    int64_t tasks;
    bool open, closing;
    _Atomic uint64_t calls; /* so far; written under the mutex, also read by the spins */
    _Atomic int inside;     /* others that have joined the call; likewise */
    _Atomic int64_t next;   /* task */
    atomic_flag busy;
    pid_t owner;
    int threads;
    struct member members[]; /* [threads - 1]: thread 1 and so on */
};

static void take_tasks(struct team *team, team_fn *fn, void *arg, int64_t tasks, int thread)
{
    for (;;) {
        int64_t task = atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed);
        if (task >= tasks)
            return;
        fn(arg, task, thread);
    }
}

static void *serve(void *arg)
{
    struct member *member = arg;
    struct team *team = member->team;
    uint64_t seen = 0;
    for (;;) {
        for (int i = 0; i < SPINS && atomic_load_explicit(&team->calls, memory_order_relaxed) == seen; i++)
            thread_pause();
        pthread_mutex_lock(&team->mutex);
        while (team->calls == seen && !team->closing)
            pthread_cond_wait(&team->opened, &team->mutex);
        if (team->closing)
            break;
        seen = team->calls;
        bool joins = team->open;
        team_fn *fn = team->fn;
        void *fn_arg = team->arg;
        int64_t tasks = team->tasks;
        team->inside += joins;
        pthread_mutex_unlock(&team->mutex);
        if (!joins)
            continue;
        take_tasks(team, fn, fn_arg, tasks, member->index);
        pthread_mutex_lock(&team->mutex);
        if (--team->inside == 0)
            pthread_cond_signal(&team->left);
        pthread_mutex_unlock(&team->mutex);
    }
    pthread_mutex_unlock(&team->mutex);
    return NULL;
}

/* Ends the first `n` of the others and releases everything. */
static void team_end(struct team *team, int n)
{
    pthread_mutex_lock(&team->mutex);
    team->closing = true;
    pthread_cond_broadcast(&team->opened);
    pthread_mutex_unlock(&team->mutex);
    for (int i = 0; i < n; i++)
        pthread_join(team->members[i].thread, NULL);
    pthread_cond_destroy(&team->left);
    pthread_cond_destroy(&team->opened);
    pthread_mutex_destroy(&team->mutex);
    free(team);
}

enum status team_create(int threads, struct team **out)
{
    struct team *team = NULL;
    int n = 0, error = 0;
    if (threads < 1 || threads > TEAM_THREADS_MAX)
        return FAIL(STATUS_USAGE, "a team of %d threads: 1 to %d", threads, TEAM_THREADS_MAX);
    TRY(mem_alloc(sizeof *team + (size_t)(threads - 1) * sizeof *team->members, "a team of threads", (void **)&team));
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->opened, NULL);
    pthread_cond_init(&team->left, NULL);
    atomic_flag_clear(&team->busy);
    team->owner = getpid();
    team->threads = threads;
    for (; n < threads - 1 && error == 0; n += error == 0) {
        team->members[n] = (struct member){.team = team, .index = n + 1};
        error = thread_start(&team->members[n].thread, serve, &team->members[n]);
    }
    if (error != 0) {
        team_end(team, n);
        return HINT(FAIL(STATUS_MACHINE, "thread %d of %d could not be started: %s", n + 2, threads, strerror(error)),
                    "ulimit -u limits processes and threads");
    }
    *out = team;
    return STATUS_OK;
}

struct team *team_or_alone(int threads)
{
    struct team *team = NULL;
    if (threads > 1 && team_create(threads, &team) != STATUS_OK)
        status_clear();
    return team;
}

void team_destroy(struct team *team)
{
    if (team == NULL)
        return;
    if (team->owner == getpid())
        team_end(team, team->threads - 1);
    else
        free(team); /* a forked child: the threads, and whoever held the mutex, are the parent's */
}

int team_threads(const struct team *team)
{
    return team != NULL ? team->threads : 1;
}

/* In every build: two calls at once would share tasks and each thread's scratch memory, and give wrong results. */
static void misused(const char *how)
{
    fprintf(stderr, "sptune: a team of threads was given tasks %s: a fault in sptune\n", how);
    abort();
}

void team_run(struct team *team, int64_t tasks, team_fn *fn, void *arg)
{
    if (team == NULL) {
        for (int64_t task = 0; task < tasks; task++)
            fn(arg, task, 0);
        return;
    }
    if (team->owner != getpid())
        misused("in a forked process");
    if (atomic_flag_test_and_set_explicit(&team->busy, memory_order_acquire))
        misused("while it had some");
    pthread_mutex_lock(&team->mutex);
    atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    team->fn = fn;
    team->arg = arg;
    team->tasks = tasks;
    team->open = true;
    team->calls++;
    pthread_cond_broadcast(&team->opened);
    pthread_mutex_unlock(&team->mutex);
    take_tasks(team, fn, arg, tasks, 0);
    for (int i = 0; i < SPINS && atomic_load_explicit(&team->inside, memory_order_relaxed) > 0; i++)
        thread_pause();
    pthread_mutex_lock(&team->mutex);
    team->open = false;
    while (team->inside > 0)
        pthread_cond_wait(&team->left, &team->mutex);
    pthread_mutex_unlock(&team->mutex);
    atomic_flag_clear_explicit(&team->busy, memory_order_release);
}

int team_spare(int most)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) / 2 : 1;
    return n < 1 ? 1 : n > most ? most : n;
}
