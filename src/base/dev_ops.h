/* base/dev_ops.h -- what one kind of device provides. Included by dev.c and dev_*.c alone.
 *
 * A kind exports one const struct dev_ops and has one row in dev.c's table. Its handles begin with the structs below,
 * so that dev.c finds the row from any handle; the rest of a handle belongs to the kind.
 */
#ifndef SPTUNE_BASE_DEV_OPS_H
#define SPTUNE_BASE_DEV_OPS_H

#include "base/dev.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dev_ops;

struct dev {
    const struct dev_ops *ops;
    enum status (*look)(void *arg); /* dev_watch; NULL: none */
    void *look_arg;
};
struct dev_queue {
    struct dev *dev;
    bool unmarked; /* dev_queue_marks */
};
struct dev_event {
    struct dev *dev;
};
struct dev_graph {
    struct dev *dev;
};

/* Semantics as in dev.h. Handles passed in are never NULL; `create` and `open` need not set the fields above. */
struct dev_ops {
    enum dev_kind kind;
    enum status (*open)(int index, struct dev **out);
    void (*close)(struct dev *dev);
    enum status (*count)(int *out); /* NULL: 1 */
    enum status (*total)(int index, int64_t *out_bytes); /* NULL: it has no memory of its own */
    bool (*has_driver)(void);       /* NULL: it needs none */
    const char *(*place)(const struct dev *dev); /* NULL: nowhere on PCI */
    int64_t (*cache_bytes)(const struct dev *dev);
    enum status (*memory)(struct dev *dev, int64_t *out_free_bytes, int64_t *out_total_bytes);
    void (*give_up)(struct dev *dev); /* NULL: nothing is ever under way */
    enum status (*alloc)(struct dev *dev, size_t bytes, const char *what, void **out);
    void (*free)(struct dev *dev, void *memory);
    /* Both NULL: its memory is the host's. */
    enum status (*alloc_host)(struct dev *dev, size_t bytes, const char *what, void **out);
    void (*free_host)(struct dev *dev, void *memory);
    enum status (*queue_create)(struct dev *dev, struct dev_queue **out);
    enum status (*queue_create_beside)(struct dev *dev, struct dev_queue **out);
    bool (*can_overlap)(const struct dev *dev);
    void (*queue_destroy)(struct dev_queue *queue);
    enum status (*call)(struct dev_queue *queue, enum status (*fn)(void *arg), void *arg);
    enum status (*copy)(struct dev_queue *queue, void *dst, const void *src, size_t bytes);
    enum status (*fill)(struct dev_queue *queue, void *dst, int byte, size_t bytes);
    enum status (*sync)(struct dev_queue *queue, int64_t deadline_ns);
    /* NULL: one thread. threads_set is only asked for legal counts. */
    int (*threads)(const struct dev *dev);
    void (*threads_set)(struct dev *dev, int n);
    int (*queue_threads)(const struct dev_queue *queue);
    void (*parallel)(struct dev_queue *queue, int64_t tasks, void (*fn)(void *arg, int64_t task, int thread), void *arg);
    enum status (*event_create)(struct dev *dev, struct dev_event **out);
    void (*event_destroy)(struct dev_event *event);
    enum status (*event_record)(struct dev_event *event, struct dev_queue *queue);
    enum status (*event_wait)(struct dev_queue *queue, struct dev_event *event);
    enum status (*event_us)(struct dev_event *from, struct dev_event *to, double *out_us);
    /* All three NULL: none. */
    enum status (*graph_create)(struct dev_queue *queue, enum status (*fn)(void *arg), void *arg, struct dev_graph **out);
    enum status (*graph_run)(struct dev_graph *graph, struct dev_queue *queue);
    void (*graph_destroy)(struct dev_graph *graph);
};

extern const struct dev_ops dev_cpu;
extern const struct dev_ops dev_cuda; /* where SPTUNE_CUDA */

#ifdef __cplusplus
}
#endif
#endif
