/* sp/exchange.h -- the all-to-all plus the change of layout, one file per way of doing it.
 *
 *   sequence side  [B][S/P][heads][D]      every head of my S/P tokens
 *   head side      [B][S][local][D]        my heads of all tokens; token stride head_stride elements, so that a chunk of heads
 *                                          lands inside a wider buffer
 * TO_HEADS moves sequence side -> head side, TO_SEQ the other way. Rank r owns local = heads/P heads from r*heads/P on, or with P > heads the
 * one head floor(r*heads/P) of k and v, held by P/heads ranks (model_kv_local, _first, _copies).
 * TO_SEQ of a replicated tensor with `sum` adds the copies in fp32 in rank order and rounds once (the gradients of k and v).
 * Data travels in the storage dtype. Blocks of tokens arrive in rank order, which is sequence order.
 *
 * Buffers of both sides come from exchange->alloc (collective: same order and sizes on every rank), so that a way of moving data that
 * needs mapped memory can provide it.
 */
#ifndef SPTUNE_SP_EXCHANGE_H
#define SPTUNE_SP_EXCHANGE_H

#include "base/dev.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/verdict.h"
#include "comm/comm.h"

#include <stdbool.h>
#include <stdint.h>

enum exchange_direction { EXCHANGE_TO_HEADS, EXCHANGE_TO_SEQ };
enum { EXCHANGE_TENSORS_MAX = 3 }; /* q, k, v */

/* A block of a group of tokens that is contiguous on a side is sent from there, or received there, without a copy, where the
 * exchange can: see its file. seq and head of one tensor do not overlap. */
struct exchange_tensor {
    void *seq;       /* read by TO_HEADS, written by TO_SEQ */
    void *head;      /* written by TO_HEADS, read by TO_SEQ; points at local head `first` of token 0 */
    int heads;       /* all heads of this tensor */
    int first, count; /* which of the heads that each rank holds move now; count 0 moves nothing */
    int dim;         /* D elements */
    int64_t head_stride; /* elements between tokens on the head side */
    bool sum;        /* TO_SEQ with copies: add them, else take the first: what went there comes back as it was */
};

struct exchange_shape {
    int64_t batch;
    int64_t seq_local; /* S/P */
    enum dtype dtype;
    int64_t row_elems_max; /* largest sum over tensors of heads-per-peer * D in one call, for staging */
    bool beside;           /* it runs while attention does, and leaves that most of the device */
};

struct exchange {
    const char *name;
    enum dev_kind dev;
    int tensors_together; /* 1: tensors move one after another, each with its own all-to-all; 3: q, k, v in one */
    bool windows;         /* stores into, or fetches from, the memory of other ranks (comm/window.h) */
    bool host_driven;     /* run waits for its queue, also where others only enqueue: no graph and no gate can hold it */
    const char *about;    /* one line for lists */
    struct verdict (*supports)(const struct exchange_shape *shape, const struct comm *group); /* group NULL: any of `dev` */
    /* May be NULL: alloc needs room that a rank's memory does not tell of. Is there now, for n exchanges with `bytes` each on each rank of
     * the group? */
    struct verdict (*room)(const struct comm *group, int64_t bytes, int n);
    enum status (*create)(const struct exchange_shape *shape, struct comm *group, void **state); /* collective */
    void (*destroy)(void *state);
    enum status (*alloc)(void *state, size_t bytes, const char *what, void **out); /* collective */
    void (*free)(void *state, void *memory);
    int64_t (*staging_bytes)(const void *state); /* beside alloc, two copies of the widest call; NULL: none */
    enum status (*run)(void *state, enum exchange_direction direction, const struct exchange_tensor *tensors, int n,
                       struct dev_queue *queue); /* collective */
    /* What carries data; NULL: the group's transport. Ask exchange_in_use. */
    const char *(*in_use)(const void *state);
    /* Phases of the last run in microseconds: pack, transfer, unpack; 0 where a phase does not exist. */
    void (*phases)(void *state, double *pack_us, double *transfer_us, double *unpack_us);
};

extern const struct exchange *const exchanges[]; /* NULL-terminated */
const struct exchange *exchange_find(const char *name);
/* Of a device, the one that stands for all where nothing is exchanged; NULL: this build has none. */
const struct exchange *exchange_first(enum dev_kind dev);
/* What carries the data of an exchange that was created for the group, as comm_transport says it. */
const char *exchange_in_use(const struct exchange *exchange, const void *state, const struct comm *group);

/* What every exchange on `dev` asks of shape and ranks; group NULL: any. */
struct verdict exchange_can(enum dev_kind dev, const struct exchange_shape *shape, const struct comm *group);
/* STATUS_USAGE unless 1 to EXCHANGE_TENSORS_MAX tensors with heads that `size` ranks can share are asked for. */
enum status exchange_check_tensors(const struct exchange_tensor *tensors, int n, int size);
/* Do several ranks bring the same heads of this tensor in this direction? */
bool exchange_merges(const struct exchange_tensor *tensor, enum exchange_direction direction, int size);

/* Bytes of one rank's send buffer, own block included (nccl-tests' "size"), of one tensor moving `count` local heads. */
int64_t exchange_bytes(const struct exchange_shape *shape, int group_size, int count, int dim);

#endif
