/* base/dev_cpu.c -- the CPU as a device: every call completes before it returns, so an ordinary queue needs no state.
 *
 * A queue beside has a lane. What its own jobs put on it happens at once; what others put on it waits for its turn.
 */
#include "base/clock.h"
#include "base/dev_ops.h"
#include "base/lane.h"
#include "base/mem.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

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

static enum status cpu_open(int index, struct dev **out)
{
    if (index != 0)
        return HINT(FAIL(STATUS_USAGE, "there is no cpu device %d", index), "the CPU is one device, number 0");
    struct dev *dev = calloc(1, sizeof *dev);
    if (!dev)
        return FAIL(STATUS_NOMEM, "no memory for a device handle");
    *out = dev;
    return STATUS_OK;
}

static void cpu_close(struct dev *dev)
{
    free(dev);
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
    cpu_set_t cpus;
    (void)dev;
    return sched_getaffinity(0, sizeof cpus, &cpus) != 0 || CPU_COUNT(&cpus) > 1;
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
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_us = cpu_event_us,
};
