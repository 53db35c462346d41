/* sp/work_memory_state.h -- what the terms of work_memory are made of, and the list that they go to; for work_memory*.c. */
#ifndef SPTUNE_SP_WORK_MEMORY_STATE_H
#define SPTUNE_SP_WORK_MEMORY_STATE_H

#include "sp/work.h"

/* When a term is there: ALWAYS in all of a step. */
enum phase { ATTENTION, MLP, LOSS, STEP, ALWAYS, OUTSIDE_STEP, AFTER_LOSS, LAYERS, HOST };

/* Everything the terms are made of. */
struct sizes {
    const struct model *model;
    const struct problem *problem;
    const struct plan *plan;
    const struct target_memory *coef;
    double b, s, q;        /* bytes of the dtype; local tokens; heads * head_dim */
    double ways;           /* ranks that cut a layer's weights among them, 1: none do */
    double h, f, vocab;    /* hidden; ffn of the experts that a token visits, or of a wider dense layer; vocabulary */
    double layers, params; /* params: of the whole model */
    struct work_params held;
    double layer;      /* elements of one, or of a rank's piece of it */
    double group;      /* G: ranks that share what is not cut, 1 where nothing is sharded */
    double kv_sent;    /* kv heads each rank's tokens travel with: max(kv_heads, ranks that exchange heads) */
    const char *class; /* of the attention, NULL: none */
    int class_index;
    enum dev_kind dev;
    int threads;       /* of a rank's kernels */
};

struct build {
    struct work_memory *out;
    enum phase phase[WORK_TERMS];
};

/* Elements of one kind on this rank, and in words: "8030261248 parameters / 8". */
struct elems {
    double n;
    char text[96];
};

struct elems memory_elems(const struct sizes *sizes, bool sharded);
void memory_add(struct build *build, enum phase phase, const char *name, double bytes, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Of a harness that goes by units: what parameters take beside their states, and all that depends on tokens. */
void memory_unit_params(struct build *build, const struct sizes *sizes);
void memory_unit_activations(struct build *build, const struct sizes *sizes);

#endif
