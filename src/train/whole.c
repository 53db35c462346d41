/* train/whole.c -- shards gathered into a rank's unit, and units of the ranks that cut a layer beside each other. */
#include "train/whole.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

struct whole {
    const struct layout *layout;
    struct params *params;
    const struct groups *groups;
    struct dev *dev;
    float *part;    /* device: this rank's shard of a unit; NULL where it is there already */
    float *unit;    /* device: all shards of a unit */
    float *pieces;  /* device: that of every rank that layers are cut among; NULL where they are not */
    float *host;    /* of what was gathered; NULL: another rank keeps it */
    int64_t padded; /* elements of each rank's unit */
};

static bool is_cut(const struct whole *whole, int unit)
{
    return whole->layout->ways > 1 && unit > 0 && unit < whole->layout->units - 1;
}

static int64_t padded_of(const struct whole *whole, int unit)
{
    struct params_shard shard = params_shard(whole->params, unit);
    return shard.n * (shard.group != NULL ? comm_size(shard.group) : 1);
}

static enum status build(struct whole *whole, bool keeps)
{
    int64_t unit = 0, pieces = 0, part = 0;
    for (int u = 0; u < whole->layout->units; u++) {
        int64_t padded = padded_of(whole, u), all = is_cut(whole, u) ? padded * whole->layout->ways : 0;
        unit = padded > unit ? padded : unit;
        pieces = all > pieces ? all : pieces;
        struct params_shard shard = params_shard(whole->params, u);
        part = shard.offloaded && shard.n > part ? shard.n : part;
    }
    if (part > 0)
        TRY(dev_alloc(whole->dev, (size_t)part * sizeof(float), "a part of a unit", (void **)&whole->part));
    TRY(dev_alloc(whole->dev, (size_t)unit * sizeof(float), "a whole unit", (void **)&whole->unit));
    if (pieces > 0)
        TRY(dev_alloc(whole->dev, (size_t)pieces * sizeof(float), "pieces of a layer", (void **)&whole->pieces));
    size_t bytes = (size_t)(unit > pieces ? unit : pieces) * sizeof(float);
    return keeps ? mem_alloc(bytes, "a whole unit", (void **)&whole->host) : STATUS_OK;
}

enum status whole_create(const struct layout *layout, struct params *params, const struct groups *groups,
                         struct dev *dev, bool keeps, struct whole **out)
{
    struct whole *whole = NULL;
    TRY(mem_alloc(sizeof *whole, "whole tensors", (void **)&whole));
    whole->layout = layout;
    whole->params = params;
    whole->groups = groups;
    whole->dev = dev;
    enum status status = build(whole, keeps);
    if (status != STATUS_OK) {
        whole_destroy(whole);
        return status;
    }
    *out = whole;
    return STATUS_OK;
}

void whole_destroy(struct whole *whole)
{
    if (whole == NULL)
        return;
    free(whole->host);
    dev_free(whole->dev, whole->pieces);
    dev_free(whole->dev, whole->unit);
    dev_free(whole->dev, whole->part);
    free(whole);
}

enum status whole_gather(struct whole *whole, int unit, const float *part, struct dev_queue *queue)
{
    struct params_shard shard = params_shard(whole->params, unit);
    const float *all = part;
    size_t bytes = (size_t)padded_of(whole, unit) * sizeof *part;
    whole->padded = padded_of(whole, unit);
    if (whole->part != NULL) {
        TRY(dev_copy(queue, whole->part, part, (size_t)shard.n * sizeof *part));
        all = part = whole->part;
    }
    if (shard.group != NULL && comm_size(shard.group) > 1) {
        TRY(comm_allgather(shard.group, part, whole->unit, (size_t)shard.n * sizeof *part, queue));
        all = whole->unit;
    }
    if (is_cut(whole, unit)) {
        TRY(comm_allgather(whole->groups->cut, all, whole->pieces, bytes, queue));
        all = whole->pieces;
        bytes *= (size_t)whole->layout->ways;
    }
    if (whole->host == NULL)
        return STATUS_OK;
    TRY(dev_copy(queue, whole->host, all, bytes));
    return dev_sync(queue, INT64_MAX);
}

void whole_read(const struct whole *whole, const struct layout_tensor *tensor, int64_t first, int64_t count, float *out)
{
    for (int64_t done = 0; done < count;) {
        int64_t at;
        int place;
        int64_t run = layout_piece(tensor, first + done, count - done, &place, &at);
        memcpy(out + done, whole->host + place * whole->padded + tensor->offset + at, (size_t)run * sizeof *out);
        done += run;
    }
}
