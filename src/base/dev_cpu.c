/* base/dev_cpu.c -- the CPU as a device: every call completes before it returns, so queues need no state. */
#include "base/clock.h"
#include "base/dev_ops.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

struct cpu_event {
    struct dev_event base;
    int64_t at_ns; /* 0: not recorded */
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
    struct dev_queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return FAIL(STATUS_NOMEM, "no memory for a queue handle");
    *out = queue;
    return STATUS_OK;
}

static void cpu_queue_destroy(struct dev_queue *queue)
{
    free(queue);
}

static enum status cpu_copy(struct dev_queue *queue, void *dst, const void *src, size_t bytes)
{
    (void)queue;
    memcpy(dst, src, bytes);
    return STATUS_OK;
}

static enum status cpu_fill(struct dev_queue *queue, void *dst, int byte, size_t bytes)
{
    (void)queue;
    memset(dst, byte, bytes);
    return STATUS_OK;
}

static enum status cpu_sync(struct dev_queue *queue, int64_t deadline_ns)
{
    (void)queue;
    (void)deadline_ns;
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

static enum status cpu_event_record(struct dev_event *event, struct dev_queue *queue)
{
    (void)queue;
    ((struct cpu_event *)event)->at_ns = clock_ns();
    return STATUS_OK;
}

static enum status cpu_event_wait(struct dev_queue *queue, struct dev_event *event)
{
    (void)queue;
    (void)event;
    return STATUS_OK;
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
    .queue_destroy = cpu_queue_destroy,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .sync = cpu_sync,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_us = cpu_event_us,
};
