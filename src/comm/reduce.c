/* comm/reduce.c -- sums on the host, in pieces that stay in the first-level cache; other devices' memory is copied in
 * and out. */
#include "comm/reduce.h"
#include "base/clock.h"

#include <stdbool.h>

enum { PIECE = 2048, PIECE_BYTES_MAX = PIECE * 4, COPY_US = 30 * 1000 * 1000 };

struct sum {
    bool on_host;
    struct dev_queue *queue;
    enum dtype dtype;
    char staged[PIECE_BYTES_MAX];
    float total[PIECE], part[PIECE];
};

/* Where `bytes` at `device` can be read by the host. */
static enum status stage_in(struct sum *sum, const char *device, size_t bytes, const void **out)
{
    *out = device;
    if (sum->on_host)
        return STATUS_OK;
    *out = sum->staged;
    return dev_copy_now(sum->queue, sum->staged, device, bytes, clock_deadline(COPY_US));
}

static enum status stage_out(struct sum *sum, char *device, int64_t n, size_t bytes)
{
    if (sum->on_host) {
        dtype_store(sum->dtype, sum->total, device, n);
        return STATUS_OK;
    }
    dtype_store(sum->dtype, sum->total, sum->staged, n);
    return dev_copy_now(sum->queue, device, sum->staged, bytes, clock_deadline(COPY_US));
}

static enum status add_piece(struct sum *sum, const char *device, int64_t n, size_t bytes, bool first)
{
    const void *host;
    TRY(stage_in(sum, device, bytes, &host));
    dtype_load(sum->dtype, host, first ? sum->total : sum->part, n);
    for (int64_t i = 0; i < n && !first; i++)
        sum->total[i] += sum->part[i];
    return STATUS_OK;
}

enum status reduce_sum(struct dev *dev, struct dev_queue *queue, enum dtype dtype, const void *const *sources, int n,
                       void *out, int64_t elems)
{
    struct sum sum;
    sum.on_host = dev_kind_of(dev) == DEV_CPU;
    sum.queue = queue;
    sum.dtype = dtype;
    const size_t width = (size_t)dtype_bytes(dtype);
    for (int64_t at = 0; at < elems; at += PIECE) {
        const int64_t piece = elems - at < PIECE ? elems - at : PIECE;
        const size_t offset = (size_t)at * width, bytes = (size_t)piece * width;
        for (int s = 0; s < n; s++)
            TRY(add_piece(&sum, (const char *)sources[s] + offset, piece, bytes, s == 0));
        TRY(stage_out(&sum, (char *)out + offset, piece, bytes));
    }
    return STATUS_OK;
}
