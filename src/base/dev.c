/* base/dev.c -- the table of device kinds, and the calls that go through it. */
#include "base/clock.h"
#include "base/dev_ops.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static const struct dev_ops *const table[] = {
    &dev_cpu,
#if SPTUNE_CUDA
    &dev_cuda,
#endif
};

const char *dev_kind_name(enum dev_kind kind)
{
    switch (kind) {
    case DEV_CPU:
        return "cpu";
    case DEV_CUDA:
        return "cuda";
    }
    return "unknown";
}

static enum status find(enum dev_kind kind, const struct dev_ops **out)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        *out = table[i];
        if (table[i]->kind == kind)
            return STATUS_OK;
    }
    return HINT(FAIL(STATUS_ABSENT, "this build has no support for %s devices", dev_kind_name(kind)),
                "use --device cpu, or a build made where the %s libraries are installed", dev_kind_name(kind));
}

enum status dev_open(enum dev_kind kind, int index, struct dev **out)
{
    const struct dev_ops *ops;
    TRY(find(kind, &ops));
    TRY(ops->open(index, out));
    (*out)->ops = ops;
    return STATUS_OK;
}

enum status dev_count(enum dev_kind kind, int *out)
{
    const struct dev_ops *ops;
    TRY(find(kind, &ops));
    if (ops->count != NULL)
        return ops->count(out);
    *out = 1;
    return STATUS_OK;
}

enum status dev_total(enum dev_kind kind, int index, int64_t *out_bytes)
{
    const struct dev_ops *ops;
    TRY(find(kind, &ops));
    if (ops->total != NULL)
        return ops->total(index, out_bytes);
    return FAIL(STATUS_UNSUPPORTED, "%s devices have no memory of their own", dev_kind_name(kind));
}

const char *dev_place(const struct dev *dev)
{
    return dev->ops->place != NULL ? dev->ops->place(dev) : "";
}

bool dev_has_driver(enum dev_kind kind)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i]->kind == kind)
            return table[i]->has_driver == NULL || table[i]->has_driver();
    return false;
}

int64_t dev_cache_bytes(const struct dev *dev)
{
    return dev->ops->cache_bytes(dev);
}

void dev_close(struct dev *dev)
{
    if (dev)
        dev->ops->close(dev);
}

enum dev_kind dev_kind_of(const struct dev *dev)
{
    return dev->ops->kind;
}

enum status dev_memory(struct dev *dev, int64_t *out_free_bytes, int64_t *out_total_bytes)
{
    return dev->ops->memory(dev, out_free_bytes, out_total_bytes);
}

enum status dev_alloc(struct dev *dev, size_t bytes, const char *what, void **out)
{
    return dev->ops->alloc(dev, bytes, what, out);
}

void dev_free(struct dev *dev, void *memory)
{
    if (dev && memory)
        dev->ops->free(dev, memory);
}

enum status dev_alloc_host(struct dev *dev, size_t bytes, const char *what, void **out)
{
    return dev->ops->alloc_host != NULL ? dev->ops->alloc_host(dev, bytes, what, out)
                                        : dev_alloc(dev, bytes, what, out);
}

void dev_free_host(struct dev *dev, void *memory)
{
    if (dev && memory && dev->ops->free_host != NULL)
        dev->ops->free_host(dev, memory);
    else
        dev_free(dev, memory);
}

enum status dev_room_take(struct dev_room *room, int64_t bytes, const char *what, void *out)
{
    void *memory = NULL;
    if (room->counts) {
        room->bytes += bytes;
        return STATUS_OK;
    }
    TRY(mem_grow((void **)&room->taken, &room->cap, room->n + 1, sizeof *room->taken));
    if (room->host)
        TRY(dev_alloc_host(room->dev, (size_t)bytes, what, &memory));
    else
        TRY(dev_alloc(room->dev, (size_t)bytes, what, &memory));
    room->taken[room->n++] = memory;
    room->bytes += bytes;
    memcpy(out, &memory, sizeof memory);
    return STATUS_OK;
}

void dev_room_free(struct dev_room *room)
{
    for (; room->n > 0; room->n--) {
        void *memory = room->taken[room->n - 1];
        if (room->host)
            dev_free_host(room->dev, memory);
        else
            dev_free(room->dev, memory);
    }
    free(room->taken);
    *room = (struct dev_room){.dev = room->dev, .host = room->host};
}

enum status dev_queue_create(struct dev *dev, struct dev_queue **out)
{
    TRY(dev->ops->queue_create(dev, out));
    (*out)->dev = dev;
    (*out)->unmarked = false;
    return STATUS_OK;
}

enum status dev_queue_create_beside(struct dev *dev, struct dev_queue **out)
{
    TRY(dev->ops->queue_create_beside(dev, out));
    (*out)->dev = dev;
    (*out)->unmarked = false;
    return STATUS_OK;
}

bool dev_can_overlap(const struct dev *dev)
{
    return dev->ops->can_overlap(dev);
}

struct dev *dev_queue_dev(const struct dev_queue *queue)
{
    return queue->dev;
}

enum status dev_call(struct dev_queue *queue, enum status (*fn)(void *arg), void *arg)
{
    return queue->dev->ops->call(queue, fn, arg);
}

void dev_queue_destroy(struct dev_queue *queue)
{
    if (queue)
        queue->dev->ops->queue_destroy(queue);
}

enum status dev_copy(struct dev_queue *queue, void *dst, const void *src, size_t bytes)
{
    return bytes ? queue->dev->ops->copy(queue, dst, src, bytes) : STATUS_OK;
}

enum status dev_fill(struct dev_queue *queue, void *dst, int byte, size_t bytes)
{
    return bytes ? queue->dev->ops->fill(queue, dst, byte, bytes) : STATUS_OK;
}

enum status dev_sync(struct dev_queue *queue, int64_t deadline_ns)
{
    return queue->dev->ops->sync(queue, deadline_ns);
}

enum status dev_copy_now(struct dev_queue *queue, void *dst, const void *src, size_t bytes, int64_t deadline_ns)
{
    TRY(dev_sync(queue, deadline_ns));
    TRY(dev_copy(queue, dst, src, bytes));
    return dev_sync(queue, deadline_ns);
}

/* Exchanges have deadlines of their own, all shorter; a GPU that is given up frees nothing. */
enum { DRAIN_US = 60 * 1000 * 1000 };

enum status dev_queue_drain(struct dev_queue *queue, enum status failed)
{
    const struct status_message message = *status_last();
    dev_sync(queue, clock_deadline(DRAIN_US));
    status_restore(&message);
    return failed;
}

void dev_give_up(struct dev *dev)
{
    if (dev->ops->give_up != NULL)
        dev->ops->give_up(dev);
}

void dev_watch(struct dev *dev, enum status (*look)(void *arg), void *arg)
{
    dev->look = look;
    dev->look_arg = arg;
}

int dev_threads(const struct dev *dev)
{
    return dev->ops->threads != NULL ? dev->ops->threads(dev) : 1;
}

enum status dev_threads_set(struct dev *dev, int n)
{
    if (n < 1 || n > DEV_THREADS_MAX)
        return FAIL(STATUS_USAGE, "%d threads: 1 to %d", n, DEV_THREADS_MAX);
    if (dev->ops->threads_set != NULL)
        dev->ops->threads_set(dev, n);
    return STATUS_OK;
}

int dev_queue_threads(const struct dev_queue *queue)
{
    return queue != NULL && queue->dev->ops->queue_threads != NULL ? queue->dev->ops->queue_threads(queue) : 1;
}

void dev_parallel(struct dev_queue *queue, int64_t tasks, void (*fn)(void *arg, int64_t task, int thread), void *arg)
{
    if (tasks > 1 && dev_queue_threads(queue) > 1) {
        queue->dev->ops->parallel(queue, tasks, fn, arg);
        return;
    }
    for (int64_t task = 0; task < tasks; task++)
        fn(arg, task, 0);
}

enum status dev_event_create(struct dev *dev, struct dev_event **out)
{
    TRY(dev->ops->event_create(dev, out));
    (*out)->dev = dev;
    return STATUS_OK;
}

void dev_event_destroy(struct dev_event *event)
{
    if (event)
        event->dev->ops->event_destroy(event);
}

enum status dev_event_record(struct dev_event *event, struct dev_queue *queue)
{
    return queue->dev->ops->event_record(event, queue);
}

enum status dev_mark(struct dev_event *event, struct dev_queue *queue)
{
    return queue->unmarked ? STATUS_OK : dev_event_record(event, queue);
}

void dev_queue_marks(struct dev_queue *queue, bool on)
{
    queue->unmarked = !on;
}

bool dev_queue_marks_on(const struct dev_queue *queue)
{
    return !queue->unmarked;
}

enum status dev_event_wait(struct dev_queue *queue, struct dev_event *event)
{
    return queue->dev->ops->event_wait(queue, event);
}

enum status dev_event_us(struct dev_event *from, struct dev_event *to, double *out_us)
{
    return from->dev->ops->event_us(from, to, out_us);
}

enum status dev_graph_create(struct dev_queue *queue, enum status (*fn)(void *arg), void *arg, struct dev_graph **out)
{
    const struct dev_ops *ops = queue->dev->ops;
    if (ops->graph_create == NULL)
        return FAIL(STATUS_UNSUPPORTED, "the %s keeps no graphs of work", dev_kind_name(ops->kind));
    TRY(ops->graph_create(queue, fn, arg, out));
    (*out)->dev = queue->dev;
    return STATUS_OK;
}

enum status dev_graph_run(struct dev_graph *graph, struct dev_queue *queue)
{
    return graph->dev->ops->graph_run(graph, queue);
}

void dev_graph_destroy(struct dev_graph *graph)
{
    if (graph)
        graph->dev->ops->graph_destroy(graph);
}
