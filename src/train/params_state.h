/* train/params_state.h -- what parameters hold, and how their collectives are carried; for params*.c.
 *
 * What is gathered and reduced unit by unit is called on a carrier: a queue beside the caller's, or the caller's. Forward and backward:
 *
 *     caller  | l-1    | l          | l+1        |       caller  | l+1        | l          | l-1        |
 *     beside           | gather l+1 |                    beside               | reduce l+1 | reduce l   |
 *                                                                             | gather l-1 | gather l-2 |
 *
 * Each call starts after what the caller had put on its own queue when it asked (`reached`), and whoever needs what it leaves waits for the
 * end of it (`done` of its slot). Units l and l +- 2 have one slot, so:
 *
 *   - gather l+1 is asked for before anything of l is put: the last readers of its slot, those of l-1, are in front of `reached`, and
 *     nothing else of the slot is put before its `done` was waited for. The same towards l-1.
 *   - reduce l+1 is asked for behind the last kernel that adds to its slot. The next that does is one of l-1, after its `done`; a slot
 *     alone, as in line, is waited for by l.
 *   - an update writes what gathers read, and sums over all units share the workspace of reductions: both come after all of the carrier.
 *
 * Calls of a carrier keep their order, the same on all ranks; its groups have a connection of their own. */
#ifndef SPTUNE_TRAIN_PARAMS_STATE_H
#define SPTUNE_TRAIN_PARAMS_STATE_H

#include "train/params.h"
#include "train/stream.h"

enum { PARAMS_SLOTS = 2 }; /* layers at a time: gathered; and reduced, where they are reduced beside */

/* Memory for a whole unit, lent to one unit at a time. */
struct slot {
    struct params *params; /* back, for a queue that calls */
    void *memory;
    int unit;               /* of weights: whose it holds or will when `done`, -1 nobody's */
    int called;             /* of the last call */
    struct dev_event *done; /* its end */
};

/* Groups as those of the same name, on one connection. */
struct links {
    struct comm *shard, *layers, *cut;
    struct comm *copies; /* of `cut`, ranks with the same kv heads; NULL where there are none, or all have them */
};

struct carrier {
    struct dev_queue *beside; /* NULL: the caller's carries */
    struct dev_queue *queue;  /* that carries, the one or the other */
    struct comm *job;         /* its connection; NULL: links are the caller's */
    struct links links;
    struct dev_event *reached; /* on one queue by the other */
};

struct unit {
    struct comm *group;    /* that shards it; NULL in stage 0 */
    int part;              /* which is this rank's */
    int64_t padded, per;   /* elements of all ranks of the group, and of each */
    void *weights;         /* whole, of the storage dtype; NULL where they are gathered into a slot */
    void *narrow;          /* this rank's part of them, to be gathered; in fp32 that is `master` */
    float *master, *m, *v; /* [per]; m and v, and masters that are no weights, may be in host memory */
    float *grads;          /* whole; NULL where they are lent a slot */
    float *sums;           /* [per] summed over ranks; of stage 0 this is `grads` */
};

struct params {
    const struct layout *layout;
    int stage;
    const struct groups *groups;
    struct links links;
    struct carrier carrier;
    bool beside; /* it is to have a queue */
    struct dev *dev;
    enum dtype dtype;
    int elem_bytes;
    struct dev_room room, host;
    bool offload;                      /* optimizer states */
    struct stream *stream;             /* their way through the device */
    struct unit *unit;                 /* [layout->units] */
    struct slot weights[PARAMS_SLOTS]; /* of layers, stage 3 */
    struct slot first, last;           /* of the embedding's and the last unit, stage 3 */
    struct slot grads[PARAMS_SLOTS];   /* of layers, stages 2 and 3: 0 whenever nobody has one; in line there is one */
    struct slot grads_first, grads_last; /* stages 2 and 3 */
    float *sum;                          /* [largest per] of one reduce, stages 2 and 3 */
    void *scratch;                       /* of collectives and norms */
    double *squares;                     /* device: [units], then room for a sum over ranks */
};

static inline bool params_is_layer(const struct params *params, int unit)
{
    return unit > 0 && unit < params->layout->units - 1;
}

static inline int params_grad_slots(const struct params *params)
{
    return params->beside ? PARAMS_SLOTS : 1;
}

/* Whose sums of squares make the norm; NULL: this rank has them all. */
static inline struct comm *params_norm_group(const struct params *params)
{
    return params->stage > 0 ? params->groups->shard : params->layout->ways > 1 ? params->groups->cut : NULL;
}

static inline struct comm *params_group(const struct params *params, const struct links *links, int unit)
{
    return params_is_layer(params, unit) ? links->layers : links->shard;
}

/* On the carrier, after what the caller has put on its queue. */
enum status params_carry(struct slot *slot, int index, enum status (*fn)(void *arg), struct dev_queue *queue);
/* The caller's queue goes on after all that is carried. */
enum status params_carried(struct params *params, struct dev_queue *queue);
/* Whole weights again from what ranks have: those of stages 1 and 2 now, those of stage 3 when they are asked for. */
enum status params_spread(struct params *params, struct dev_queue *queue);

#endif
