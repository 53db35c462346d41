/* bench/ceiling.c -- copies by all ranks at once.
 *
 * Whatever moves data between processes of one host reads and writes each byte at least once, which is what a copy does. The best of a
 * few repetitions counts: a ceiling is what the machine can do, not what it usually does.
 */
#include "bench/ceiling.h"

#include "base/clock.h"
#include "bench/group.h"
#include "bench/rotation.h"

#include <stdlib.h>

enum { REPEATS = 12, COPY_MAX = 64 << 20, SAMPLE_US = 5, SYNC_US = 60 * 1000 * 1000 };

struct copy {
    struct bench_env *env;
    struct dev_queue *queue;
    struct rotation rotation;
    int64_t bytes;
    char *from, *to; /* rotation.n copies each */
};

static void copy_close(struct copy *copy)
{
    dev_free(copy->env->dev, copy->from);
    dev_free(copy->env->dev, copy->to);
    dev_queue_destroy(copy->queue);
}

static enum status copy_open(struct copy *copy)
{
    struct dev *dev = copy->env->dev;
    size_t all = (size_t)(copy->bytes * copy->rotation.n);
    TRY(dev_queue_create(dev, &copy->queue));
    TRY(dev_alloc(dev, all, "copy ceiling", (void **)&copy->from));
    TRY(dev_alloc(dev, all, "copy ceiling", (void **)&copy->to));
    TRY(dev_fill(copy->queue, copy->from, 1, all));
    TRY(dev_fill(copy->queue, copy->to, 2, all));
    return dev_sync(copy->queue, clock_deadline(SYNC_US));
}

/* `loops` copies after each other, microseconds of one. */
static enum status copy_time(struct copy *copy, int first, int loops, double *out_us)
{
    TRY(comm_barrier(copy->env->world, copy->queue));
    int64_t from = clock_ns();
    for (int i = 0; i < loops; i++) {
        int64_t at = rotation_pick(&copy->rotation, first + i) * copy->bytes;
        TRY(dev_copy(copy->queue, copy->to + at, copy->from + at, (size_t)copy->bytes));
    }
    TRY(dev_sync(copy->queue, clock_deadline(SYNC_US)));
    *out_us = (double)(clock_ns() - from) * 1e-3 / loops;
    return STATUS_OK;
}

static enum status copy_best(struct copy *copy, double *best_us)
{
    double us;
    int at = 0;
    TRY(copy_time(copy, at++, 1, &us)); /* warm-up, and how many of them the clock resolves */
    TRY(copy_time(copy, at++, 1, &us));
    TRY(comm_max(copy->env->world, &us, 1));
    int loops = us >= SAMPLE_US ? 1 : us > 0.05 ? (int)(SAMPLE_US / us) + 1 : 100;
    *best_us = 0;
    for (int i = 0; i < REPEATS; i++, at += loops) {
        TRY(copy_time(copy, at, loops, &us));
        TRY(comm_max(copy->env->world, &us, 1));
        if (us > 0 && (*best_us == 0 || us < *best_us))
            *best_us = us;
    }
    return STATUS_OK;
}

static double *remembered(struct bench_memo *memo, int64_t bytes, bool cold)
{
    for (int i = 0; i < memo->nceilings; i++)
        if (memo->ceilings[i].bytes == bytes && memo->ceilings[i].cold == cold)
            return &memo->ceilings[i].GBps;
    return NULL;
}

static void remember(struct bench_memo *memo, int64_t bytes, bool cold, double GBps)
{
    int at = memo->next_ceiling;
    memo->next_ceiling = (at + 1) % BENCH_CEILINGS;
    if (memo->nceilings < BENCH_CEILINGS)
        memo->nceilings++;
    memo->ceilings[at].bytes = bytes;
    memo->ceilings[at].cold = cold;
    memo->ceilings[at].GBps = GBps;
}

enum status ceiling_copy(struct bench_env *env, int64_t bytes, enum bench_buffers buffers, double *out_GBps)
{
    bool cold = buffers == BENCH_COLD;
    struct copy copy = {.env = env, .bytes = bytes < COPY_MAX ? bytes : COPY_MAX};
    double best_us = 0, *known = remembered(&env->memo, copy.bytes, cold);
    *out_GBps = known != NULL ? *known : 0;
    if (known != NULL || bytes < 1)
        return STATUS_OK;
    TRY(rotation_open(env, buffers, 2 * copy.bytes, &copy.rotation));
    enum status status = group_agree(env, copy_open(&copy));
    if (status == STATUS_OK)
        status = copy_best(&copy, &best_us);
    copy_close(&copy);
    if (status == STATUS_NOMEM) { /* no ceiling then, but the row stands */
        status_clear();
        return STATUS_OK;
    }
    TRY(status);
    *out_GBps = best_us > 0 ? (double)copy.bytes / best_us * 1e-3 : 0;
    remember(&env->memo, copy.bytes, cold, *out_GBps);
    return STATUS_OK;
}

double ceiling_tflops(const struct bench_env *env)
{
    return env->memo.fma_best * 1e-6;
}
