/* bench/odd_device.c -- see odd_device.h. */
#include "bench/odd_device.h"

#include "base/clock.h"
#include "base/dev_ops.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 256 };
static struct block {
    char *first;
    size_t bytes;
} blocks[BLOCKS];

static bool is_device(const void *p)
{
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].first != NULL && (const char *)p >= blocks[i].first &&
            (const char *)p < blocks[i].first + blocks[i].bytes)
            return true;
    return false;
}

static enum status odd_memory(struct dev *dev, int64_t *out_free_bytes, int64_t *out_total_bytes)
{
    (void)dev;
    return mem_limits_at("", out_free_bytes, out_total_bytes);
}

static int64_t odd_cache_bytes(const struct dev *dev)
{
    (void)dev;
    return 1 << 20;
}

static enum status odd_alloc(struct dev *dev, size_t bytes, const char *what, void **out)
{
    (void)dev;
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].first == NULL) {
            TRY(mem_alloc(bytes, what, out));
            memset(*out, ODD_TURNED, bytes); /* zeroed, as the device sees it */
            blocks[i] = (struct block){.first = *out, .bytes = bytes > 0 ? bytes : 1};
            return STATUS_OK;
        }
    return FAIL(STATUS_NOMEM, "more than %d blocks", BLOCKS);
}

static void odd_free(struct dev *dev, void *memory)
{
    (void)dev;
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].first == memory)
            blocks[i].first = NULL;
    free(memory);
}

static enum status odd_queue_create(struct dev *dev, struct dev_queue **out)
{
    (void)dev;
    *out = calloc(1, sizeof **out);
    return *out != NULL ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory");
}

static bool odd_can_overlap(const struct dev *dev)
{
    (void)dev;
    return false;
}

static void odd_queue_destroy(struct dev_queue *queue)
{
    free(queue);
}

static enum status odd_call(struct dev_queue *queue, enum status (*fn)(void *arg), void *arg)
{
    (void)queue;
    return fn(arg);
}

static enum status odd_copy(struct dev_queue *queue, void *dst, const void *src, size_t bytes)
{
    (void)queue;
    unsigned char turned = is_device(dst) != is_device(src) ? ODD_TURNED : 0;
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)dst)[i] = ((const unsigned char *)src)[i] ^ turned;
    return STATUS_OK;
}

static enum status odd_fill(struct dev_queue *queue, void *dst, int byte, size_t bytes)
{
    (void)queue;
    memset(dst, byte ^ ODD_TURNED, bytes);
    return STATUS_OK;
}

static enum status odd_sync(struct dev_queue *queue, int64_t deadline_ns)
{
    (void)queue;
    (void)deadline_ns;
    return STATUS_OK;
}

struct odd_event {
    struct dev_event base;
    int64_t at_ns;
};

static enum status odd_event_create(struct dev *dev, struct dev_event **out)
{
    struct odd_event *event = calloc(1, sizeof *event);
    (void)dev;
    if (event == NULL)
        return FAIL(STATUS_NOMEM, "no memory");
    *out = &event->base;
    return STATUS_OK;
}

static void odd_event_destroy(struct dev_event *event)
{
    free(event);
}

static enum status odd_event_record(struct dev_event *event, struct dev_queue *queue)
{
    (void)queue;
    ((struct odd_event *)event)->at_ns = clock_ns();
    return STATUS_OK;
}

static enum status odd_event_wait(struct dev_queue *queue, struct dev_event *event)
{
    (void)queue;
    (void)event;
    return STATUS_OK;
}

static enum status odd_event_us(struct dev_event *from, struct dev_event *to, double *out_us)
{
    *out_us = (double)(((struct odd_event *)to)->at_ns - ((struct odd_event *)from)->at_ns) * 1e-3;
    return STATUS_OK;
}

/* Where tests that play a driver have their first GPU; nobody else asks. */
static const char *odd_place(const struct dev *dev)
{
    (void)dev;
    return "0000:10:00.0";
}

static const struct dev_ops ops = {.kind = (enum dev_kind)7,
                                   .memory = odd_memory,
                                   .place = odd_place,
                                   .cache_bytes = odd_cache_bytes,
                                   .alloc = odd_alloc,
                                   .free = odd_free,
                                   .queue_create = odd_queue_create,
                                   .queue_create_beside = odd_queue_create,
                                   .can_overlap = odd_can_overlap,
                                   .queue_destroy = odd_queue_destroy,
                                   .call = odd_call,
                                   .copy = odd_copy,
                                   .fill = odd_fill,
                                   .sync = odd_sync,
                                   .event_create = odd_event_create,
                                   .event_destroy = odd_event_destroy,
                                   .event_record = odd_event_record,
                                   .event_wait = odd_event_wait,
                                   .event_us = odd_event_us};

struct dev *odd_device(void)
{
    static struct dev dev = {.ops = &ops};
    return &dev;
}
