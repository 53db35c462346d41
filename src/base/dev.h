/* base/dev.h -- a device: memory, queues, events. What is above runs on any, and asks for its kind where sizes, defaults or orders differ.
 *
 * A queue runs what is put on it in order (a CUDA stream; on the CPU each call completes before it returns). An event
 * marks a point of a queue; the difference of two is device time. One file per kind (dev_cpu.c), each
 * exporting one const struct dev_ops; dev.c holds the table.
 *
 * A queue beside runs while its caller computes: a stream of its own; on the CPU a thread. There dev_call gives it work, a function
 * that puts everything on the queue it is called for:
 *
 *     TRY(dev_event_wait(beside, earlier));      // after what the caller put on its own queue
 *     TRY(dev_call(beside, exchange_one, &job)); // job stays valid until it has run
 *     TRY(dev_event_record(done, beside));
 *     ...compute on queue...
 *     TRY(dev_event_wait(queue, done));          // a failure of the call ends here
 */
#ifndef SPTUNE_BASE_DEV_H
#define SPTUNE_BASE_DEV_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dev_kind { DEV_CPU, DEV_CUDA };

struct dev;       /* owned handle */
struct dev_queue; /* belongs to a dev, destroyed before it */
struct dev_event;

/* index: which device of that kind this process uses (0 on the CPU). An absent kind is STATUS_ABSENT. */
enum status dev_open(enum dev_kind kind, int index, struct dev **out);
void dev_close(struct dev *dev);
enum dev_kind dev_kind_of(const struct dev *dev);
const char *dev_kind_name(enum dev_kind kind); /* "cpu" */
/* Devices of a kind that this process could open; none is a failure as that of dev_open. A process that has asked for CUDA devices
 * cannot give them to processes that it forks afterwards. */
enum status dev_count(enum dev_kind kind, int *out);
/* Memory of the index-th of them, without opening it. STATUS_UNSUPPORTED where that is not a device's own. */
enum status dev_total(enum dev_kind kind, int index, int64_t *out_bytes);
/* Is there a driver for it at all? Asks it nothing: the process may still fork. */
bool dev_has_driver(enum dev_kind kind);
int64_t dev_cache_bytes(const struct dev *dev); /* of its last-level cache */
const char *dev_place(const struct dev *dev);   /* PCI bus id, "0000:17:00.0"; "" of what is not on that bus */
enum status dev_memory(struct dev *dev, int64_t *out_free_bytes, int64_t *out_total_bytes);

enum status dev_alloc(struct dev *dev, size_t bytes, const char *what, void **out); /* MEM_ALIGN aligned, zeroed */
void dev_free(struct dev *dev, void *memory);
/* Memory of the host that a queue copies from and to while its caller goes on (page-locked), zeroed; kernels of the device reach it too,
 * at the rate of the bus. */
enum status dev_alloc_host(struct dev *dev, size_t bytes, const char *what, void **out);
void dev_free_host(struct dev *dev, void *memory);
/* Memory that is taken piece by piece, counted, and freed as one. Starts as {.dev = dev}. */
struct dev_room {
    struct dev *dev;
    bool host;   /* by dev_alloc_host */
    bool counts; /* nothing is taken, bytes alone */
    int64_t bytes;
    void **taken;
    size_t n, cap;
};
/* out: the address of a pointer of any type; where nothing is taken it stays. */
enum status dev_room_take(struct dev_room *room, int64_t bytes, const char *what, void *out);
void dev_room_free(struct dev_room *room); /* it may start again */

enum status dev_queue_create(struct dev *dev, struct dev_queue **out);
/* Where dev_can_overlap says so. One thread uses it. */
enum status dev_queue_create_beside(struct dev *dev, struct dev_queue **out);
bool dev_can_overlap(const struct dev *dev); /* is there hardware for two queues at once? */
void dev_queue_destroy(struct dev_queue *queue);
struct dev *dev_queue_dev(const struct dev_queue *queue);
/* fn(arg) in the order of the queue: at once by the caller, but on a queue beside of the CPU by its thread. */
enum status dev_call(struct dev_queue *queue, enum status (*fn)(void *arg), void *arg);
/* dst and src may each be host or device memory. With memory of the host that is not from dev_alloc_host a GPU's queue is waited for first,
 * as by dev_sync without a deadline. */
enum status dev_copy(struct dev_queue *queue, void *dst, const void *src, size_t bytes);
/* The same, done on return; what is on the queue is waited for until the deadline. */
enum status dev_copy_now(struct dev_queue *queue, void *dst, const void *src, size_t bytes, int64_t deadline_ns);
enum status dev_fill(struct dev_queue *queue, void *dst, int byte, size_t bytes);
/* Until what is on the queue is done, or the deadline. What waits for a rank that is dead never is, so whoever knows of ranks gives a
 * look: it is asked, by the thread that waits, every so often, and its failure ends the wait. Not where calls complete before they return. */
enum status dev_sync(struct dev_queue *queue, int64_t deadline_ns);
void dev_watch(struct dev *dev, enum status (*look)(void *arg), void *arg); /* look NULL: nobody is asked any more */
/* status_last() says why this device is not used any more: nothing that would wait for its work is called from now on, freeing and the runtime's
 * own exit included. Where calls complete before they return: nothing. */
void dev_give_up(struct dev *dev);
/* After a failure, before memory is released that the queue may still use: it is waited for, a minute at most. Returns `failed`, whose
 * message stays the last. */
enum status dev_queue_drain(struct dev_queue *queue, enum status failed);

/* Threads that a kernel may use at a time: of a CPU by default those of the process's binding, at most its control group's quota; 1
 * of what brings its own parallelism. Set it (1 to DEV_THREADS_MAX, else STATUS_USAGE) while nothing computes. */
enum { DEV_THREADS_MAX = 1024 };
int dev_threads(const struct dev *dev);
enum status dev_threads_set(struct dev *dev, int n);
/* For kernels: threads that dev_parallel uses on this queue. 1 for NULL and on a queue beside, whose thread works alone. */
int dev_queue_threads(const struct dev_queue *queue);
/* fn(arg, task, thread) for 0 <= task < tasks, 0 <= thread < dev_queue_threads(queue), in any order but so that a task may wait for a
 * lower one; complete on return. Where threads cannot be had the caller does all. */
void dev_parallel(struct dev_queue *queue, int64_t tasks, void (*fn)(void *arg, int64_t task, int thread), void *arg);

enum status dev_event_create(struct dev *dev, struct dev_event **out);
void dev_event_destroy(struct dev_event *event);
enum status dev_event_record(struct dev_event *event, struct dev_queue *queue);
/* The queue waits for the event; so does the caller where calls complete before they return. */
enum status dev_event_wait(struct dev_queue *queue, struct dev_event *event);
enum status dev_event_us(struct dev_event *from, struct dev_event *to, double *out_us);
/* An event that is recorded only to tell time. Each costs a device that runs behind its host a microsecond or two between kernels, so
 * whoever times the whole switches the marks of a queue off meanwhile; they then keep what they had. On at first. */
enum status dev_mark(struct dev_event *event, struct dev_queue *queue);
void dev_queue_marks(struct dev_queue *queue, bool on);
bool dev_queue_marks_on(const struct dev_queue *queue);

/* Work that is kept instead of run, and then put on the queue as one: what fn(arg) puts there, the same every time; it waits for nothing.
 * STATUS_UNSUPPORTED where calls complete before they return. */
struct dev_graph;
enum status dev_graph_create(struct dev_queue *queue, enum status (*fn)(void *arg), void *arg, struct dev_graph **out);
enum status dev_graph_run(struct dev_graph *graph, struct dev_queue *queue);
void dev_graph_destroy(struct dev_graph *graph); /* accepts NULL; after the queue was synchronised */

#ifdef __cplusplus
}
#endif
#endif
