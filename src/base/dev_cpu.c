/* base/dev_cpu.c -- the CPU as a device: every call completes before it returns, so an ordinary queue needs no state.
 *
 * A queue beside has a lane. What its own jobs put on it happens at once; what others put on it waits for its turn.
 *
 * The threads that kernels share (dev_parallel) start with the first call that needs them, so that a device which only moves bytes, or
 * runs on one CPU, has none.
 */
#include "base/cache.h"
#include "base/cgroup.h"
#include "base/clock.h"
#include "base/dev_ops.h"
#include "base/lane.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/team.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

struct cpu_dev {
    struct dev base;
    int threads;
    struct team *team; /* NULL until it is needed, and when the system gave no threads */
    bool refused;      /* it did not: said once */
};

struct cpu_queue {
    struct dev_queue base;
    struct lane *lane; /* NULL: an ordinary queue */
    uint64_t last;     /* ticket of what was put last */
};

struct cpu_event {
    struct dev_event base;
    int64_t at_ns;     /* 0: not recorded */
    struct lane *lane; /* records it when it comes to `ticket`; NULL: it is recorded */
    uint64_t ticket;
};

/* CPUs of this thread's binding; 1 when it cannot be read. */
static int bound_cpus(void)
{
    enum { CPUS_MAX = 16384 };
    cpu_set_t set[CPUS_MAX / 8 / sizeof(cpu_set_t)];
    if (sched_getaffinity(0, sizeof set, set) != 0)
        return 1;
    int n = CPU_COUNT_S(sizeof set, set);
    return n < 1 ? 1 : n > DEV_THREADS_MAX ? DEV_THREADS_MAX : n;
}

static enum status cpu_open(int index, struct dev **out)
{
    if (index != 0)
        return HINT(FAIL(STATUS_USAGE, "there is no cpu device %d", index), "the CPU is one device, number 0");
    struct cpu_dev *dev = calloc(1, sizeof *dev);
    if (!dev)
        return FAIL(STATUS_NOMEM, "no memory for a device handle");
    double quota = cgroup_cpus("", NULL);
    dev->threads = bound_cpus();
    if (quota >= 0 && quota < dev->threads)
        dev->threads = quota < 1 ? 1 : (int)quota;
    *out = &dev->base;
    return STATUS_OK;
}

static void cpu_close(struct dev *dev)
{
    team_destroy(((struct cpu_dev *)dev)->team);
    free(dev);
}

static int64_t cpu_cache_bytes(const struct dev *dev)
{
    (void)dev;
    return cache_bytes();
}

static int cpu_threads(const struct dev *dev)
{
    return ((const struct cpu_dev *)dev)->threads;
}

static void cpu_threads_set(struct dev *handle, int n)
{
    struct cpu_dev *dev = (struct cpu_dev *)handle;
    if (dev->team != NULL && team_threads(dev->team) != n) {
        team_destroy(dev->team);
        dev->team = NULL;
    }
    dev->threads = n;
}

static int cpu_queue_threads(const struct dev_queue *queue)
{
    return ((const struct cpu_queue *)queue)->lane != NULL ? 1 : cpu_threads(queue->dev);
}

static void cpu_parallel(struct dev_queue *queue, int64_t tasks, void (*fn)(void *arg, int64_t task, int thread), void *arg)
{
    struct cpu_dev *dev = (struct cpu_dev *)queue->dev;
    if (dev->team == NULL && !dev->refused && team_create(dev->threads, &dev->team) != STATUS_OK) {
        log_warn("%s: one thread computes alone", status_last()->what);
        status_clear();
        dev->refused = true;
    }
    if (dev->team != NULL) {
        team_run(dev->team, tasks, fn, arg);
        return;
    }
    for (int64_t task = 0; task < tasks; task++)
        fn(arg, task, 0);
}

static enum status cpu_memory(struct dev *dev, int64_t *out_free_bytes, int64_t *out_total_bytes)
{
    (void)dev;
    return mem_limits_at("", out_free_bytes, out_total_bytes);
}

static enum status cpu_alloc(struct dev *dev, size_t bytes, const char *what, void **out)
{
    (void)dev;
    return mem_alloc(bytes, what, out);
}

static void cpu_free(struct dev *dev, void *memory)
{
    (void)dev;
    free(memory);
}

static enum status cpu_queue_create(struct dev *dev, struct dev_queue **out)
{
    (void)dev;
    struct cpu_queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return FAIL(STATUS_NOMEM, "no memory for a queue handle");
    *out = &queue->base;
    return STATUS_OK;
}

static enum status cpu_queue_create_beside(struct dev *dev, struct dev_queue **out)
{
    struct dev_queue *queue = NULL;
    TRY(cpu_queue_create(dev, &queue));
    enum status status = lane_open(&((struct cpu_queue *)queue)->lane);
    if (status != STATUS_OK) {
        free(queue);
        return status;
    }
    *out = queue;
    return STATUS_OK;
}

static bool cpu_can_overlap(const struct dev *dev)
{
    return cpu_threads(dev) > 1;
}

static void cpu_queue_destroy(struct dev_queue *queue)
{
    lane_close(((struct cpu_queue *)queue)->lane);
    free(queue);
}

/* The lane that the caller would have to wait for. */
static struct lane *lane_of(const struct dev_queue *queue)
{
    struct lane *lane = ((const struct cpu_queue *)queue)->lane;
    return lane != NULL && !lane_inside(lane) ? lane : NULL;
}

static enum status cpu_sync(struct dev_queue *queue, int64_t deadline_ns)
{
    struct lane *lane = lane_of(queue);
    (void)deadline_ns; /* jobs wait for others with deadlines of their own */
    return lane != NULL ? lane_wait(lane, ((struct cpu_queue *)queue)->last) : STATUS_OK;
}

static enum status cpu_call(struct dev_queue *queue, enum status (*fn)(void *arg), void *arg)
{
    struct lane *lane = lane_of(queue);
    if (lane == NULL)
        return fn(arg);
    ((struct cpu_queue *)queue)->last = lane_put(lane, fn, arg);
    return STATUS_OK;
}

static enum status cpu_copy(struct dev_queue *queue, void *dst, const void *src, size_t bytes)
{
    TRY(cpu_sync(queue, INT64_MAX));
    memcpy(dst, src, bytes);
    return STATUS_OK;
}

static enum status cpu_fill(struct dev_queue *queue, void *dst, int byte, size_t bytes)
{
    TRY(cpu_sync(queue, INT64_MAX));
    memset(dst, byte, bytes);
    return STATUS_OK;
}

static enum status cpu_event_create(struct dev *dev, struct dev_event **out)
{
    (void)dev;
    struct cpu_event *event = calloc(1, sizeof *event);
    if (!event)
        return FAIL(STATUS_NOMEM, "no memory for an event handle");
    *out = &event->base;
    return STATUS_OK;
}

static void cpu_event_destroy(struct dev_event *event)
{
    free(event);
}

static enum status event_mark(void *arg)
{
    ((struct cpu_event *)arg)->at_ns = clock_ns();
    return STATUS_OK;
}

static enum status cpu_event_record(struct dev_event *handle, struct dev_queue *queue)
{
    struct cpu_event *event = (struct cpu_event *)handle;
    event->lane = lane_of(queue);
    if (event->lane == NULL)
        return event_mark(event);
    ((struct cpu_queue *)queue)->last = event->ticket = lane_put(event->lane, event_mark, event);
    return STATUS_OK;
}

static enum status cpu_event_wait(struct dev_queue *queue, struct dev_event *handle)
{
    const struct cpu_event *event = (const struct cpu_event *)handle;
    if (event->lane == NULL || event->lane == ((struct cpu_queue *)queue)->lane)
        return STATUS_OK;
    return lane_wait(event->lane, event->ticket);
}

static enum status cpu_event_us(struct dev_event *from, struct dev_event *to, double *out_us)
{
    int64_t from_ns = ((struct cpu_event *)from)->at_ns, to_ns = ((struct cpu_event *)to)->at_ns;
    if (!from_ns || !to_ns)
        return FAIL(STATUS_USAGE, "an event was read before it was recorded");
    *out_us = (double)(to_ns - from_ns) / 1e3;
    return STATUS_OK;
}

const struct dev_ops dev_cpu = {
    .kind = DEV_CPU,
    .open = cpu_open,
    .close = cpu_close,
    .cache_bytes = cpu_cache_bytes,
    .memory = cpu_memory,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .queue_create = cpu_queue_create,
    .queue_create_beside = cpu_queue_create_beside,
    .can_overlap = cpu_can_overlap,
    .queue_destroy = cpu_queue_destroy,
    .call = cpu_call,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .sync = cpu_sync,
    .threads = cpu_threads,
    .threads_set = cpu_threads_set,
    .queue_threads = cpu_queue_threads,
    .parallel = cpu_parallel,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_us = cpu_event_us,
};
