/* bench/use.c -- one byte of every cache line: the caches know lines alone. */
#include "bench/use.h"

enum { LINE = 64, SLICE = 64 << 10 /* less is not worth a thread's waking */ };

struct lines {
    volatile char *base;
    int64_t bytes;
    int n; /* slices */
    bool write;
};

static void line_use(volatile char *at, bool write)
{
    char held = *at;
    if (write)
        *at = held;
}

static void slice_use(void *arg, int64_t slice, int thread)
{
    const struct lines *lines = arg;
    int64_t first = lines->bytes / LINE * slice / lines->n * LINE;
    int64_t end = slice == lines->n - 1 ? lines->bytes : lines->bytes / LINE * (slice + 1) / lines->n * LINE;
    (void)thread;
    for (int64_t at = first; at < end; at += LINE)
        line_use(lines->base + at, lines->write);
    if (first < end)
        line_use(lines->base + end - 1, lines->write); /* of memory that begins inside a line */
}

static void lines_use(struct dev_queue *queue, struct lines *lines)
{
    int threads = dev_queue_threads(queue);
    lines->n = lines->bytes / SLICE < threads ? (int)(lines->bytes / SLICE) : threads;
    if (lines->n > 1) {
        dev_parallel(queue, lines->n, slice_use, lines);
    } else {
        lines->n = 1;
        slice_use(lines, 0, 0);
    }
}

void use_read(struct dev_queue *queue, const void *from, int64_t bytes)
{
    struct lines lines = {.base = (char *)from, .bytes = bytes}; /* not written */
    lines_use(queue, &lines);
}

void use_write(struct dev_queue *queue, void *to, int64_t bytes)
{
    struct lines lines = {.base = to, .bytes = bytes, .write = true};
    lines_use(queue, &lines);
}
