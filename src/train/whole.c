/* train/whole.c -- shards gathered into a rank's unit, and units of a tensor-parallel group beside each other. */
#include "train/whole.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { GATHERED = 4 << 20 /* elements that are gathered at a time, of all ranks together: 16 MiB */ };

struct whole {
    const struct layout *layout;
    struct params *params;
    const struct groups *groups;
    struct dev *dev;
    float *part;   /* device: a piece of this rank's shard; NULL where that is on the device already */
    float *shards; /* device: a piece of every shard, one behind the other; NULL where there is one */
    float *cuts;   /* device: the same of every rank of the tensor-parallel group; NULL where there is none */
    float *host;   /* [ways][elements of a unit here] of what was gathered; NULL: another rank keeps it */
    int64_t padded;
};

/* How a unit is gathered. */
struct way {
    int shards, cuts; /* ranks that share out what is here, and that have a piece of the whole; 1: none */
    int64_t n, piece; /* elements of a shard; of those at a time */
};

static struct way way_of(const struct layout *layout, bool sharded, const struct groups *groups, int unit)
{
    bool layer = unit > 0 && unit < layout->units - 1;
    struct way way = {.shards = sharded ? comm_size(layer ? groups->layers : groups->shard) : 1,
                      .cuts = layer ? layout->ways : 1};
    int64_t piece = GATHERED / (way.shards * way.cuts) / LAYOUT_ALIGN * LAYOUT_ALIGN;
    way.n = params_per(layout, unit, way.shards);
    piece = piece > LAYOUT_ALIGN ? piece : LAYOUT_ALIGN;
    way.piece = way.n < piece ? way.n : piece;
    return way;
}

/* Elements of each of whole's buffers. */
struct sizes {
    int64_t part, shards, cuts, host;
};

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static struct sizes sizes_of(const struct layout *layout, bool sharded, bool offloaded, const struct groups *groups,
                             bool keeps)
{
    struct sizes sizes = {0};
    for (int u = 0; u < layout->units; u++) {
        struct way way = way_of(layout, sharded, groups, u);
        int64_t shards = way.shards * way.piece;
        if (way.shards * way.cuts > 1)
            sizes.part = most(sizes.part, offloaded ? way.piece : 0);
        sizes.shards = most(sizes.shards, way.shards > 1 ? shards : 0);
        sizes.cuts = most(sizes.cuts, way.cuts > 1 ? way.cuts * shards : 0);
        sizes.host = most(sizes.host, keeps ? way.cuts * way.shards * way.n : 0);
    }
    return sizes;
}

void whole_need(const struct layout *layout, bool sharded, bool offloaded, const struct groups *groups, bool keeps,
                int64_t *out_bytes, int64_t *out_host_bytes)
{
    struct sizes sizes = sizes_of(layout, sharded, offloaded, groups, keeps);
    *out_bytes = (sizes.part + sizes.shards + sizes.cuts) * (int64_t)sizeof(float);
    *out_host_bytes = sizes.host * (int64_t)sizeof(float);
}

static enum status buffer(struct dev *dev, int64_t elems, const char *what, float **out)
{
    return elems > 0 ? dev_alloc(dev, (size_t)elems * sizeof(float), what, (void **)out) : STATUS_OK;
}

static enum status build(struct whole *whole, bool keeps)
{
    struct params_shard shard = params_shard(whole->params, 0);
    struct sizes sizes = sizes_of(whole->layout, shard.group != NULL, shard.offloaded, whole->groups, keeps);
    TRY(buffer(whole->dev, sizes.part, "a piece of a shard", &whole->part));
    TRY(buffer(whole->dev, sizes.shards, "pieces of shards", &whole->shards));
    TRY(buffer(whole->dev, sizes.cuts, "pieces of a layer", &whole->cuts));
    return keeps ? mem_alloc((size_t)sizes.host * sizeof(float), "a whole unit", (void **)&whole->host) : STATUS_OK;
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
    dev_free(whole->dev, whole->cuts);
    dev_free(whole->dev, whole->shards);
    dev_free(whole->dev, whole->part);
    free(whole);
}

/* Elements [at, at + n) of every shard, each where it belongs in the unit. */
static enum status keep(const struct whole *whole, const struct way *way, const float *all, int64_t at, int64_t n,
                        struct dev_queue *queue)
{
    for (int s = 0; s < way->cuts * way->shards && whole->host != NULL; s++)
        TRY(dev_copy_now(queue, whole->host + s * way->n + at, all + s * n, (size_t)n * sizeof *all, INT64_MAX));
    return STATUS_OK;
}

/* All there is of those elements, one shard behind the other. */
static enum status gather_piece(const struct whole *whole, const struct way *way, struct comm *group, const float *part,
                                int64_t n, const float **out, struct dev_queue *queue)
{
    size_t bytes = (size_t)n * sizeof *part;
    *out = part;
    if (way->shards * way->cuts > 1 && whole->part != NULL) {
        TRY(dev_copy(queue, whole->part, part, bytes));
        *out = whole->part;
    }
    if (way->shards > 1) {
        TRY(comm_allgather(group, *out, whole->shards, bytes, queue));
        *out = whole->shards;
        bytes *= (size_t)way->shards;
    }
    if (way->cuts > 1) {
        TRY(comm_allgather(whole->groups->cut, *out, whole->cuts, bytes, queue));
        *out = whole->cuts;
    }
    return STATUS_OK;
}

enum status whole_gather(struct whole *whole, int unit, const float *part, struct dev_queue *queue)
{
    struct params_shard shard = params_shard(whole->params, unit);
    struct way way = way_of(whole->layout, shard.group != NULL, whole->groups, unit);
    whole->padded = way.shards * way.n;
    for (int64_t at = 0; at < way.n; at += way.piece) {
        int64_t n = way.n - at < way.piece ? way.n - at : way.piece;
        const float *all;
        TRY(gather_piece(whole, &way, shard.group, part + at, n, &all, queue));
        TRY(keep(whole, &way, all, at, n, queue));
    }
    return STATUS_OK;
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
