/* bench/timing.c -- aligned, then timed. */
#include "bench/timing.h"

#include "base/clock.h"
#include "bench/group.h"
#include "comm/window.h"
#if SPTUNE_CUDA
#include "kernels/copy_peers.h"
#include "kernels/gate.h"
#endif

#include <stdlib.h>

enum { SYNC_US = 600 * 1000 * 1000 };

struct timing {
    struct bench_env *env;
    struct dev_queue *queue; /* between begin and end */
    enum timing_how how;
    int64_t from_ns;
    int ungated;
#if SPTUNE_CUDA
    struct gate *gate; /* these are NULL on the CPU */
    struct dev_event *begins, *ends;
    struct window *flags; /* NULL: ranks meet through the transport */
    struct copy_peers *peers;
#endif
};

#if SPTUNE_CUDA

enum { GATE_US = 200 * 1000, MEET_US = 10 * 1000 * 1000 };

static bool on_gpu(const struct timing *t)
{
    return dev_kind_of(t->env->dev) == DEV_CUDA;
}

static enum status gpu_prepare(struct timing *t)
{
    TRY(gate_create(&t->gate));
    TRY(dev_event_create(t->env->dev, &t->begins));
    return dev_event_create(t->env->dev, &t->ends);
}

static enum status peers_open(struct timing *t)
{
    void *flags[COPY_PEERS_RANKS];
    int size = comm_size(t->env->world);
    for (int r = 0; r < size; r++)
        flags[r] = window_peer(t->flags, r);
    return copy_peers_open(t->env->dev, comm_rank(t->env->world), size, flags, MEET_US, &t->peers);
}

static enum status gpu_open(struct timing *t)
{
    struct comm *world = t->env->world;
    struct verdict verdict = window_verdict(world);
    TRY(group_agree(t->env, gpu_prepare(t)));
    if (comm_size(world) == 1 || comm_size(world) > COPY_PEERS_RANKS || !verdict_ok(&verdict))
        return STATUS_OK;
    enum status status = window_create(world, copy_peers_flag_bytes(comm_size(world)), "flags of a meeting", &t->flags);
    if (status == STATUS_UNSUPPORTED || status == STATUS_NOMEM) {
        status_clear();
        return STATUS_OK;
    }
    TRY(status);
    return group_agree(t->env, peers_open(t));
}

static void gpu_close(struct timing *t)
{
    copy_peers_close(t->peers);
    window_destroy(t->flags);
    dev_event_destroy(t->ends);
    dev_event_destroy(t->begins);
    gate_destroy(t->gate);
}

static enum status gpu_meet(struct timing *t)
{
    if (comm_size(t->env->world) == 1)
        return STATUS_OK;
    return t->peers != NULL ? copy_peers_meet(t->peers, t->queue) : comm_barrier(t->env->world, t->queue);
}

static enum status gpu_begin(struct timing *t)
{
    if (t->how == TIMING_GATED)
        TRY(gate_shut(t->gate, GATE_US, t->queue));
    enum status status = gpu_meet(t);
    if (status == STATUS_OK && t->how == TIMING_HOST)
        return dev_sync(t->queue, clock_deadline(SYNC_US));
    if (status == STATUS_OK)
        status = dev_event_record(t->begins, t->queue);
    if (status != STATUS_OK)
        gate_open(t->gate);
    return status;
}

static enum status gpu_end(struct timing *t, double *out_us)
{
    enum status status = t->how == TIMING_HOST ? STATUS_OK : dev_event_record(t->ends, t->queue);
    gate_open(t->gate);
    TRY(status);
    TRY(dev_sync(t->queue, clock_deadline(SYNC_US)));
    if (t->how == TIMING_HOST) {
        *out_us = (double)(clock_ns() - t->from_ns) * 1e-3;
        return STATUS_OK;
    }
    t->ungated += t->how == TIMING_GATED && gate_missed(t->gate);
    return dev_event_us(t->begins, t->ends, out_us);
}

static void gpu_leave(struct timing *t)
{
    gate_open(t->gate);
}

#else

static bool on_gpu(const struct timing *t)
{
    (void)t;
    return false;
}

static enum status gpu_open(struct timing *t)
{
    (void)t;
    return STATUS_OK;
}

static void gpu_close(struct timing *t)
{
    (void)t;
}

static enum status gpu_begin(struct timing *t)
{
    (void)t;
    return STATUS_OK;
}

static enum status gpu_end(struct timing *t, double *out_us)
{
    (void)t;
    *out_us = 0;
    return STATUS_OK;
}

static void gpu_leave(struct timing *t)
{
    (void)t;
}

#endif

enum status timing_open(struct bench_env *env, struct timing **out)
{
    struct timing *t = NULL;
    TRY(group_alloc(env, sizeof *t, "a clock", (void **)&t));
    *t = (struct timing){.env = env};
    enum status status = on_gpu(t) ? gpu_open(t) : STATUS_OK;
    if (status != STATUS_OK) {
        timing_close(t);
        return status;
    }
    *out = t;
    return STATUS_OK;
}

void timing_close(struct timing *t)
{
    if (t != NULL && on_gpu(t))
        gpu_close(t);
    free(t);
}

enum status timing_begin(struct timing *t, enum timing_how how, struct dev_queue *queue)
{
    t->how = how;
    t->queue = queue;
    TRY(on_gpu(t) ? gpu_begin(t) : comm_barrier(t->env->world, queue));
    t->from_ns = clock_ns();
    return STATUS_OK;
}

enum status timing_end(struct timing *t, double *out_us)
{
    if (on_gpu(t))
        return gpu_end(t, out_us);
    *out_us = (double)(clock_ns() - t->from_ns) * 1e-3;
    return STATUS_OK;
}

void timing_leave(struct timing *t)
{
    if (on_gpu(t))
        gpu_leave(t);
}

int timing_ungated(const struct timing *t)
{
    return t->ungated;
}
