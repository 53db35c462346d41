/* sp/exec_state.h -- what an exec holds; for exec.c (life), exec_layer.c (its parts), exec_step.c (a chunk's
 * parts) and exec_run.c (their order).
 *
 *   sequence side (exec_tensors)     q k v  -- exchange in -->  q k v   head side [B][S][local heads][D]
 *                                    o      <- exchange out --  o
 *   backward, mirrored               d_o    -- exchange in -->  d_o
 *                                    dq dk dv <- exchange out - dq dk dv
 *
 * Where a single rank has all heads both sides are the same layout, so the head side is the sequence side and nothing is exchanged.
 * The ranks of the group are places of a ring x ranks that share a place and exchange heads; rank = place * head_ranks + head_rank:
 *
 *     ulysses   1 x sp         ring   sp x 1         ulysses+ring   ring x (sp / ring)
 *
 * Each token of the head side is one of the place's; with one place they are all.
 */
#ifndef SPTUNE_SP_EXEC_STATE_H
#define SPTUNE_SP_EXEC_STATE_H

#include "kernels/attention.h"
#include "sp/exec.h"
#include "sp/exec_chunk.h"
#include "sp/ring.h"

enum { EXEC_SIDE = 16 /* 8 tensors by sequence, 8 by heads */ };
enum { EXEC_IN = 1, EXEC_ATTENTION = 2, EXEC_OUT = 4, EXEC_ALL = 7 }; /* parts of a run */

enum exec_mark {
    EXEC_IN_BEGINS,
    EXEC_IN_ENDS,
    EXEC_ATTENTION_BEGINS,
    EXEC_ATTENTION_ENDS,
    EXEC_OUT_BEGINS,
    EXEC_OUT_ENDS,
    EXEC_MARKS
};

/* One chunk: its heads, its call of the kernel, its share of the softmax statistics, marks of its last run. */
struct exec_step {
    struct exec *exec; /* back, for a queue that calls */
    struct exec_chunk heads;
    struct attention_shape shape;
    float *lse; /* [batch][count][seq] */
    struct dev_event *mark[EXEC_MARKS];
};

struct exec {
    struct problem given; /* as the caller has it */
    struct plan given_plan;
    struct problem problem; /* of the ranks that cut a layer as this one does */
    struct plan plan;
    struct comm *group;
    struct dev *dev;
    int rank, sp;
    int head_ranks, head_rank, places, place;
    struct comm *head_group, *ring_group; /* of the ranks that share the place, and of those with the same heads */
    bool groups_owned;                    /* both; else one is `group` and the other is not there */
    int heads, kv_heads;                  /* local */
    int head_first, kv_first;             /* of all */
    int64_t tokens;                       /* of a row on the head side */
    int dim, dim_v;
    int elem_bytes;
    const struct attention *attention;
    const struct exchange *exchange; /* NULL when a rank has all heads */
    void *exchange_state;
    struct ring *ring;                        /* NULL: one place */
    struct exec_tensors tensors;              /* sequence side */
    char *q, *k, *v, *o, *d_o, *dq, *dk, *dv; /* head side */
    bool shared;                              /* some kv head is read by several chunks: */
    float *dk_sum, *dv_sum;                   /* fp32, as dk and dv */
    float *lse;
    void *workspace; /* of the kernel, a ring's too */
    int64_t workspace_bytes;
    int64_t *cu; /* documents, NULL when not packed */
    int docs;
    struct exec_step *steps;      /* [plan.chunks] */
    bool together;                /* beside attention all chunks but the first come in as one: */
    struct exec_chunk rest;
    struct dev_queue *beside;     /* carries the exchanges while the caller's computes; NULL: one queue carries all */
    struct dev_event *arrived[2]; /* of the two ways in that are in flight; then of the end */
    struct dev_event *begins, *ends; /* of the last run */
    bool backward;                   /* which way it goes */
    unsigned ran;                    /* parts of the last run */
    bool has_forward;                /* lse and o are there */
    struct exec_times times;
    struct dev_room room;
    void *side[EXEC_SIDE]; /* the exchange's memory */
    int nside;
    int64_t exchange_bytes; /* of it and of its staging */
};

enum status exec_layer_prepare(struct exec *exec); /* what can fail on this rank alone; problem and plan were checked */
enum status exec_layer_build(struct exec *exec);   /* collective over the group */
enum status exec_layer_documents(struct exec *exec); /* problem has others; fails on this rank alone */
void exec_layer_destroy(struct exec *exec);        /* also of what is half-built; not the exec itself */

enum status exec_step_in(struct exec *exec, bool backward, const struct exec_chunk *heads, int chunk, struct dev_queue *queue);
enum status exec_step_attention(struct exec *exec, bool backward, int chunk, struct dev_queue *queue);
enum status exec_step_out(struct exec *exec, bool backward, const struct exec_step *step, struct dev_queue *queue);

/* Parts of the way that exec->backward says: EXEC_ALL, or one of them alone. */
enum status exec_run(struct exec *exec, unsigned parts, struct dev_queue *queue);
void exec_run_times(const struct exec *exec, struct exec_times *out); /* all but exposed_us */

#endif
