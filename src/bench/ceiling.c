/* bench/ceiling.c -- the fastest of a few copies.
 *
 * The fastest counts, of either kind of store: a ceiling is what the machine can do, not what it usually does. As in rows, a copy takes
 * as long as its slowest rank.
 */
#include "bench/ceiling.h"

#include "base/mem.h"
#include "base/text.h"
#include "bench/group.h"
#include "bench/timing.h"

#include <math.h>
#include <stdlib.h>

enum { BYTES_MAX = 64 << 20, TAKE_MAX = 8, ENOUGH = 200 /* samples, after which one at a time will do */ };
static const double sample_us = 5; /* shorter copies are timed several in a row, for the clock's sake */
static const double take_us = 4e3; /* of each kind, each time */
static const double hot_us = 2e3;  /* a longer copy does not fit the caches anyway */

struct ceiling {
    struct bench_env *env;
    struct traffic *traffic;
    struct timing *timing;
    enum bench_traffic asked, kind; /* kind: what stands in for it */
    enum bench_buffers buffers;
    int sp;
    int64_t asked_bytes, bytes; /* of the row; really copied */
    int iteration, loops, samples;
    double each_us[TRAFFIC_STORES], best_us[TRAFFIC_STORES]; /* 0: not known */
};

bool ceiling_is_of(const struct ceiling *ceiling, const struct bench_case *c, enum bench_traffic traffic, int64_t bytes)
{
    return ceiling->asked == traffic && ceiling->asked_bytes == bytes && ceiling->sp == c->plan.sp &&
           ceiling->buffers == c->buffers;
}

/* Beyond the caches a rate no longer depends on the size. */
static int64_t bytes_capped(const struct bench_env *env, int64_t bytes)
{
    int64_t most = 2 * dev_cache_bytes(env->dev);
    if (dev_kind_of(env->dev) != DEV_CPU)
        return bytes; /* copies between devices have a start that only size hides */
    most = most > BYTES_MAX ? most : BYTES_MAX;
    return bytes < most ? bytes : most;
}

static enum status open_traffic(struct ceiling *ceiling)
{
    enum status status =
        traffic_open(ceiling->env, ceiling->kind, ceiling->sp, ceiling->bytes, ceiling->buffers, &ceiling->traffic);
    if (status != STATUS_UNSUPPORTED || ceiling->kind == TRAFFIC_LOCAL)
        return status;
    status_clear();
    ceiling->kind = TRAFFIC_LOCAL;
    return traffic_open(ceiling->env, ceiling->kind, ceiling->sp, ceiling->bytes, ceiling->buffers, &ceiling->traffic);
}

enum status ceiling_open(struct bench_env *env, const struct bench_case *c, enum bench_traffic traffic, int64_t bytes,
                         struct ceiling **out)
{
    struct ceiling *ceiling = NULL;
    int64_t others = bytes / c->plan.sp * (c->plan.sp - 1); /* own block left out */
    enum status status = group_agree(env, mem_alloc(sizeof *ceiling, "a ceiling", (void **)&ceiling));
    *out = NULL;
    if (status == STATUS_OK) {
        *ceiling = (struct ceiling){
            .env = env, .asked = traffic, .buffers = c->buffers, .sp = c->plan.sp, .asked_bytes = bytes};
        ceiling->kind = traffic == TRAFFIC_PEERS && others < 1 ? TRAFFIC_LOCAL : traffic;
        ceiling->bytes = bytes_capped(env, ceiling->kind == TRAFFIC_PEERS ? others : bytes);
        status = open_traffic(ceiling);
    }
    if (status == STATUS_OK)
        status = timing_open(env, &ceiling->timing);
    if (status == STATUS_OK) {
        *out = ceiling;
        return STATUS_OK;
    }
    ceiling_close(ceiling);
    if (status != STATUS_NOMEM)
        return status;
    status_clear(); /* no ceiling then, but the row stands */
    return STATUS_OK;
}

void ceiling_close(struct ceiling *ceiling)
{
    if (ceiling != NULL) {
        timing_close(ceiling->timing);
        traffic_close(ceiling->traffic);
    }
    free(ceiling);
}

/* One sample of this rank: copies after each other, microseconds of one. */
static enum status copies_time(struct ceiling *ceiling, enum traffic_store store, enum timing_how how, int loops,
                               struct dev_queue *queue, double *out_us)
{
    enum status status = STATUS_OK;
    double us = 0;
    if (ceiling->buffers == BENCH_USED) {
        TRY(comm_barrier(ceiling->env->world, queue));
        traffic_use(ceiling->traffic);
    }
    TRY(timing_begin(ceiling->timing, how, traffic_behind(ceiling->traffic) ? traffic_queue(ceiling->traffic) : queue));
    for (int i = 0; i < loops && status == STATUS_OK; i++)
        status = traffic_put(ceiling->traffic, ceiling->iteration++, store);
    if (group_is_over(status)) {
        timing_leave(ceiling->timing);
        return status;
    }
    TRY(timing_end(ceiling->timing, &us));
    *out_us = us / loops;
    return status;
}

static void result_add(struct ceiling *ceiling, enum traffic_store store, double us)
{
    double *best = &ceiling->best_us[store];
    if (us > 0 && (*best <= 0 || us < *best))
        *best = us;
    ceiling->samples++;
}

/* How long a copy takes, before the first one counts: all ranks know it then. */
static enum status warm(struct ceiling *ceiling, struct dev_queue *queue)
{
    double us[TRAFFIC_STORES];
    int stores = traffic_stores(ceiling->traffic);
    for (int s = 0; s < stores; s++) {
        TRY(copies_time(ceiling, (enum traffic_store)s, TIMING_OPEN, 1, queue, &us[s]));
        TRY(copies_time(ceiling, (enum traffic_store)s, TIMING_OPEN, 1, queue, &us[s]));
    }
    TRY(comm_max(ceiling->env->world, us, stores));
    for (int s = 0; s < stores; s++)
        ceiling->each_us[s] = fmax(us[s], 1e-3);
    return STATUS_OK;
}

/* The first copy of a take that is not cold is not counted: it finds what rows left in the caches. */
static enum status take(struct ceiling *ceiling, enum traffic_store store, struct dev_queue *queue)
{
    double us[TAKE_MAX + 1], each_us = ceiling->each_us[store];
    int loops = each_us >= sample_us || ceiling->buffers == BENCH_USED ? 1 : (int)fmin(sample_us / each_us + 1, 100);
    int n = ceiling->samples < ENOUGH ? (int)fmax(1, fmin(take_us / (each_us * loops), TAKE_MAX)) : 1;
    int first = ceiling->buffers != BENCH_COLD && each_us < hot_us ? 1 : 0;
    for (int i = 0; i < n + first; i++)
        TRY(copies_time(ceiling, store, TIMING_GATED, loops, queue, &us[i]));
    TRY(comm_max(ceiling->env->world, us, n + first));
    for (int i = first; i < n + first; i++)
        result_add(ceiling, store, us[i]);
    return STATUS_OK;
}

enum status ceiling_take(struct ceiling *ceiling, struct dev_queue *queue)
{
    if (ceiling->each_us[TRAFFIC_PLAIN] <= 0)
        TRY(warm(ceiling, queue));
    for (int s = 0; s < traffic_stores(ceiling->traffic); s++)
        TRY(take(ceiling, (enum traffic_store)s, queue));
    return STATUS_OK;
}

void ceiling_restart(struct ceiling *ceiling)
{
    ceiling->samples = 0;
    for (int s = 0; s < TRAFFIC_STORES; s++)
        ceiling->best_us[s] = 0;
}

struct ceiling_result ceiling_result(const struct ceiling *ceiling)
{
    static const char *const kinds[] = {[TRAFFIC_LOCAL] = "copies within ranks",
                                        [TRAFFIC_PEERS] = "stores to peers",
                                        [TRAFFIC_ALL] = "stores to all ranks"};
    struct ceiling_result result = {.samples = ceiling->samples};
    int best = TRAFFIC_PLAIN;
    for (int s = 0; s < TRAFFIC_STORES; s++)
        if (ceiling->best_us[s] > 0 && (ceiling->best_us[best] <= 0 || ceiling->best_us[s] < ceiling->best_us[best]))
            best = s;
    if (ceiling->best_us[best] > 0)
        result.GBps = (double)ceiling->bytes / ceiling->best_us[best] * 1e-3;
    text_print(result.by, sizeof result.by, "%s, %s", kinds[ceiling->kind],
               traffic_store_name(ceiling->traffic, (enum traffic_store)best));
    return result;
}

double ceiling_tflops(const struct bench_env *env)
{
    return env->memo.fma_best * 1e-6;
}
