/* train/stream.c -- optimizer states on their way through the device. */
#include "train/stream.h"

#include "base/mem.h"

#include <stdlib.h>

enum { SLOTS = 2, KINDS = 3 /* m, v, masters */ };

/* Copies one way; valid until they have run. */
struct move {
    struct dev_queue *queue;
    int n;
    float *to[KINDS], *from[KINDS];
    size_t bytes; /* of each */
};

struct slot {
    float *state[KINDS]; /* [piece] */
    struct move in, out;
    struct dev_event *arrived, *updated, *left;
};

struct stream {
    struct dev *dev;
    int64_t piece;
    int kinds; /* that pass */
    int next;  /* slot */
    struct slot slot[SLOTS];
    struct dev_event *begun;
    struct dev_queue *in, *out; /* NULL: copies go on the caller's */
};

int64_t stream_need_bytes(int64_t piece, bool masters)
{
    return SLOTS * (masters ? KINDS : KINDS - 1) * piece * (int64_t)sizeof(float);
}

static enum status slot_open(struct stream *stream, struct slot *slot)
{
    size_t bytes = (size_t)stream->piece * sizeof(float);
    for (int k = 0; k < stream->kinds; k++)
        TRY(dev_alloc(stream->dev, bytes, "optimizer state on its way", (void **)&slot->state[k]));
    TRY(dev_event_create(stream->dev, &slot->arrived));
    TRY(dev_event_create(stream->dev, &slot->updated));
    return dev_event_create(stream->dev, &slot->left);
}

static enum status build(struct stream *stream)
{
    for (int s = 0; s < SLOTS; s++)
        TRY(slot_open(stream, &stream->slot[s]));
    TRY(dev_event_create(stream->dev, &stream->begun));
    if (!dev_can_overlap(stream->dev))
        return STATUS_OK;
    TRY(dev_queue_create_beside(stream->dev, &stream->in));
    return dev_queue_create_beside(stream->dev, &stream->out);
}

enum status stream_create(int64_t piece, bool masters, struct dev *dev, struct stream **out)
{
    struct stream *stream = NULL;
    TRY(mem_alloc(sizeof *stream, "an optimizer", (void **)&stream));
    stream->dev = dev;
    stream->piece = piece;
    stream->kinds = masters ? KINDS : KINDS - 1;
    enum status status = build(stream);
    if (status != STATUS_OK) {
        stream_destroy(stream);
        return status;
    }
    *out = stream;
    return STATUS_OK;
}

void stream_destroy(struct stream *stream)
{
    if (stream == NULL)
        return;
    dev_queue_destroy(stream->in);
    dev_queue_destroy(stream->out);
    dev_event_destroy(stream->begun);
    for (int s = 0; s < SLOTS; s++) {
        struct slot *slot = &stream->slot[s];
        dev_event_destroy(slot->arrived);
        dev_event_destroy(slot->updated);
        dev_event_destroy(slot->left);
        for (int k = 0; k < KINDS; k++)
            dev_free(stream->dev, slot->state[k]);
    }
    free(stream);
}

static enum status move(void *arg)
{
    const struct move *m = arg;
    for (int k = 0; k < m->n; k++)
        TRY(dev_copy(m->queue, m->to[k], m->from[k], m->bytes));
    return STATUS_OK;
}

/* What the caller has put on its queue may be about the states. */
enum status stream_begin(struct stream *stream, struct dev_queue *queue)
{
    TRY(dev_event_record(stream->begun, queue));
    return stream->in != NULL ? dev_event_wait(stream->in, stream->begun) : STATUS_OK;
}

static void moves_fill(const struct stream *stream, struct slot *slot, float *const host[KINDS], int64_t n,
                       struct dev_queue *queue)
{
    slot->in =
        (struct move){stream->in != NULL ? stream->in : queue, stream->kinds, {0}, {0}, (size_t)n * sizeof(float)};
    slot->out = slot->in;
    slot->out.queue = stream->out != NULL ? stream->out : queue;
    for (int k = 0; k < stream->kinds; k++) {
        slot->in.from[k] = slot->out.to[k] = host[k];
        slot->in.to[k] = slot->out.from[k] = slot->state[k];
    }
}

/* One piece: in, updated, out. */
static enum status pass(struct stream *stream, int64_t n, const struct nn_adamw *adamw, enum dtype dtype,
                        float *const host[KINDS], const float *grad, void *weight, struct dev_queue *queue)
{
    struct slot *slot = &stream->slot[stream->next];
    float *master = stream->kinds == KINDS ? slot->state[2] : host[2];
    stream->next = (stream->next + 1) % SLOTS;
    TRY(dev_event_wait(stream->in != NULL ? stream->in : queue, slot->left));
    moves_fill(stream, slot, host, n, queue);
    TRY(dev_call(slot->in.queue, move, &slot->in));
    TRY(dev_event_record(slot->arrived, slot->in.queue));
    TRY(dev_event_wait(queue, slot->arrived));
    TRY(nn_adamw(n, adamw, dtype, master, slot->state[0], slot->state[1], grad, weight, queue));
    TRY(dev_event_record(slot->updated, queue));
    TRY(dev_event_wait(slot->out.queue, slot->updated));
    TRY(dev_call(slot->out.queue, move, &slot->out));
    return dev_event_record(slot->left, slot->out.queue);
}

enum status stream_adamw(struct stream *stream, int64_t n, const struct nn_adamw *adamw, enum dtype dtype,
                         float *master, float *m, float *v, const float *grad, void *weight, struct dev_queue *queue)
{
    for (int64_t at = 0; at < n; at += stream->piece) {
        int64_t some = n - at < stream->piece ? n - at : stream->piece;
        float *const host[KINDS] = {m + at, v + at, master + at};
        TRY(pass(stream, some, adamw, dtype, host, grad + at, (char *)weight + at * dtype_bytes(dtype), queue));
    }
    return STATUS_OK;
}

enum status stream_end(struct stream *stream, struct dev_queue *queue)
{
    for (int s = 0; s < SLOTS; s++)
        TRY(dev_event_wait(queue, stream->slot[s].left));
    return STATUS_OK;
}
