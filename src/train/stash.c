/* train/stash.c -- activations between layers, and their way to host memory and back. */
#include "train/stash.h"

#include "base/mem.h"

#include <stdlib.h>

enum { SLOTS = 2 };

/* A copy on a queue; valid until it has run. */
struct move {
    struct dev_queue *queue;
    void *to;
    const void *from;
    size_t bytes;
};

struct slot {
    struct dev_event *moved; /* its last copy, whichever way */
    struct move move;
};

struct stash {
    struct dev *dev;
    struct dev_room room, away; /* x and host */
    int layers;
    size_t bytes, used; /* of an x at most, and of those that are here now */
    bool offloaded;
    int n;       /* on the device: SLOTS, else layers + 1 */
    void **x;    /* [n] */
    void **host; /* [layers - 1] */
    struct slot slot[SLOTS];
    struct dev_event *ready;  /* what the caller has put on its queue before a copy */
    struct dev_queue *beside; /* NULL: copies go on the caller's */
};

static enum status offload_open(struct stash *stash)
{
    int away = stash->layers - 1;
    TRY(mem_alloc((size_t)(away + 1) * sizeof *stash->host, "offloaded activations", (void **)&stash->host));
    for (int l = 0; l < away; l++)
        TRY(dev_room_take(&stash->away, (int64_t)stash->bytes, "offloaded activations", &stash->host[l]));
    for (int s = 0; s < SLOTS; s++)
        TRY(dev_event_create(stash->dev, &stash->slot[s].moved));
    TRY(dev_event_create(stash->dev, &stash->ready));
    return dev_can_overlap(stash->dev) ? dev_queue_create_beside(stash->dev, &stash->beside) : STATUS_OK;
}

static enum status build(struct stash *stash)
{
    TRY(mem_alloc((size_t)stash->n * sizeof *stash->x, "activations between layers", (void **)&stash->x));
    for (int i = 0; i < stash->n; i++)
        TRY(dev_room_take(&stash->room, (int64_t)stash->bytes, "activations between layers", &stash->x[i]));
    return stash->offloaded ? offload_open(stash) : STATUS_OK;
}

void stash_need(int layers, bool offloaded, int64_t bytes, int64_t *out_bytes, int64_t *out_host_bytes)
{
    *out_bytes = bytes * (offloaded ? SLOTS : layers + 1);
    *out_host_bytes = offloaded ? bytes * (layers - 1) : 0;
}

enum status stash_create(int layers, bool offloaded, size_t bytes, struct dev *dev, struct stash **out)
{
    struct stash *stash = NULL;
    TRY(mem_alloc(sizeof *stash, "activations", (void **)&stash));
    stash->dev = dev;
    stash->room.dev = stash->away.dev = dev;
    stash->away.host = true;
    stash->layers = layers;
    stash->bytes = stash->used = bytes;
    stash->offloaded = offloaded;
    stash->n = offloaded ? SLOTS : layers + 1;
    enum status status = build(stash);
    if (status != STATUS_OK) {
        stash_destroy(stash);
        return status;
    }
    *out = stash;
    return STATUS_OK;
}

void stash_destroy(struct stash *stash)
{
    if (stash == NULL)
        return;
    dev_queue_destroy(stash->beside);
    dev_event_destroy(stash->ready);
    for (int s = 0; s < SLOTS; s++)
        dev_event_destroy(stash->slot[s].moved);
    dev_room_free(&stash->room);
    dev_room_free(&stash->away);
    free(stash->x);
    free(stash->host);
    free(stash);
}

bool stash_use(struct stash *stash, size_t bytes)
{
    if (bytes > stash->bytes)
        return false;
    stash->used = bytes;
    return true;
}

int64_t stash_bytes(const struct stash *stash)
{
    return stash->room.bytes;
}

int64_t stash_host_bytes(const struct stash *stash)
{
    return stash->away.bytes;
}

static enum status move(void *arg)
{
    const struct move *m = arg;
    return dev_copy(m->queue, m->to, m->from, m->bytes);
}

/* x of a slot out to host memory, or in from there, after what is on `queue` now. */
static enum status start(struct stash *stash, int slot, void *to, const void *from, struct dev_queue *queue)
{
    struct slot *s = &stash->slot[slot];
    struct dev_queue *copies = stash->beside != NULL ? stash->beside : queue;
    s->move = (struct move){copies, to, from, stash->used};
    TRY(dev_event_record(stash->ready, queue));
    TRY(dev_event_wait(copies, stash->ready));
    TRY(dev_call(copies, move, &s->move));
    return dev_event_record(s->moved, copies);
}

enum status stash_forward(struct stash *stash, int layer, struct dev_queue *queue, const void **x, void **y)
{
    int here = layer % SLOTS, next = (layer + 1) % SLOTS;
    *x = stash->x[stash->offloaded ? here : layer];
    *y = stash->x[stash->offloaded ? next : layer + 1];
    if (!stash->offloaded)
        return STATUS_OK;
    if (layer < stash->layers - 1)
        TRY(start(stash, here, stash->host[layer], stash->x[here], queue));
    return layer > 0 ? dev_event_wait(queue, stash->slot[next].moved) : STATUS_OK;
}

enum status stash_backward(struct stash *stash, int layer, struct dev_queue *queue, const void **x)
{
    int here = layer % SLOTS, next = (layer + 1) % SLOTS;
    *x = stash->x[stash->offloaded ? here : layer];
    if (!stash->offloaded)
        return STATUS_OK;
    if (layer < stash->layers - 1)
        TRY(dev_event_wait(queue, stash->slot[here].moved));
    return layer > 0 ? start(stash, next, stash->x[next], stash->host[layer - 1], queue) : STATUS_OK;
}

void *stash_first(const struct stash *stash)
{
    return stash->x[0];
}

const void *stash_at(const struct stash *stash, int layer)
{
    if (!stash->offloaded)
        return stash->x[layer];
    return layer < stash->layers - 1 ? stash->host[layer] : stash->x[layer % SLOTS];
}
