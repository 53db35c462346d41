/* base/lane.c -- a ring of jobs under one mutex. Jobs are whole exchanges, milliseconds each, so a wake-up is small beside them;
 * a short spin before each sleep keeps it out of the common case. */
#include "base/lane.h"

#include "base/mem.h"
#include "base/thread.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SPINS = 2000 }; /* some 20 us */

struct job {
    lane_job *run;
    void *arg;
};

struct lane {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t put_changed, done_changed;
    bool closing;
    _Atomic uint64_t put, done; /* jobs so far; written under the mutex, also read by the spins */
    struct job ring[LANE_JOBS];
    enum status failed;         /* not seen by the owner yet */
    uint64_t failed_at, resume; /* its job; the first one that runs again */
    struct status_message message;
};

/* Until *counter reaches `least`, or for a short while. */
static void spin(const _Atomic uint64_t *counter, uint64_t least)
{
    for (int i = 0; i < SPINS && atomic_load_explicit(counter, memory_order_relaxed) < least; i++)
        thread_pause();
}

static void *serve(void *arg)
{
    struct lane *lane = arg;
    for (;;) {
        uint64_t next = atomic_load_explicit(&lane->done, memory_order_relaxed) + 1;
        spin(&lane->put, next);
        pthread_mutex_lock(&lane->mutex);
        while (lane->put < next && !lane->closing)
            pthread_cond_wait(&lane->put_changed, &lane->mutex);
        if (lane->put < next) {
            pthread_mutex_unlock(&lane->mutex);
            return NULL;
        }
        struct job job = lane->ring[next % LANE_JOBS];
        bool skip = lane->failed != STATUS_OK || next < lane->resume;
        pthread_mutex_unlock(&lane->mutex);
        enum status status = skip ? STATUS_OK : job.run(job.arg);
        pthread_mutex_lock(&lane->mutex);
        if (status != STATUS_OK) {
            lane->failed = status;
            lane->failed_at = next;
            lane->message = *status_last();
        }
        lane->done = next;
        pthread_cond_broadcast(&lane->done_changed);
        pthread_mutex_unlock(&lane->mutex);
    }
}

enum status lane_open(struct lane **out)
{
    struct lane *lane = NULL;
    TRY(mem_alloc(sizeof *lane, "a lane", (void **)&lane));
    pthread_mutex_init(&lane->mutex, NULL);
    pthread_cond_init(&lane->put_changed, NULL);
    pthread_cond_init(&lane->done_changed, NULL);
    int error = thread_start(&lane->thread, serve, lane);
    if (error != 0) {
        free(lane);
        return HINT(FAIL(STATUS_MACHINE, "a second thread for the exchanges could not be started: %s", strerror(error)),
                    "ulimit -u limits processes and threads");
    }
    *out = lane;
    return STATUS_OK;
}

void lane_close(struct lane *lane)
{
    if (lane == NULL)
        return;
    pthread_mutex_lock(&lane->mutex);
    lane->closing = true;
    pthread_cond_signal(&lane->put_changed);
    pthread_mutex_unlock(&lane->mutex);
    pthread_join(lane->thread, NULL);
    pthread_cond_destroy(&lane->done_changed);
    pthread_cond_destroy(&lane->put_changed);
    pthread_mutex_destroy(&lane->mutex);
    free(lane);
}

uint64_t lane_put(struct lane *lane, lane_job *job, void *arg)
{
    pthread_mutex_lock(&lane->mutex);
    while (lane->put - lane->done == LANE_JOBS)
        pthread_cond_wait(&lane->done_changed, &lane->mutex);
    uint64_t ticket = lane->put + 1;
    lane->ring[ticket % LANE_JOBS] = (struct job){job, arg};
    lane->put = ticket;
    pthread_cond_signal(&lane->put_changed);
    pthread_mutex_unlock(&lane->mutex);
    return ticket;
}

bool lane_inside(const struct lane *lane)
{
    return pthread_equal(lane->thread, pthread_self()) != 0;
}

enum status lane_wait(struct lane *lane, uint64_t ticket)
{
    spin(&lane->done, ticket);
    pthread_mutex_lock(&lane->mutex);
    while (lane->done < ticket)
        pthread_cond_wait(&lane->done_changed, &lane->mutex);
    enum status failed = lane->failed_at <= ticket ? lane->failed : STATUS_OK;
    if (failed != STATUS_OK) { /* what was put before the owner knew is skipped still */
        status_restore(&lane->message);
        lane->failed = STATUS_OK;
        lane->resume = lane->put + 1;
    }
    pthread_mutex_unlock(&lane->mutex);
    return failed;
}
