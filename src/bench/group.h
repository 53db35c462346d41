/* bench/group.h -- the sp groups of a job: consecutive ranks, all of them busy. */
#ifndef SPTUNE_BENCH_GROUP_H
#define SPTUNE_BENCH_GROUP_H

#include "bench/bench.h"

struct group {
    struct comm *comm;
    bool owned;       /* split off; else it is the whole job */
    int index, count; /* which group this rank is in, of how many */
    int rank, size;   /* within it */
};

/* Collective over env->world. sp divides its size. */
enum status group_open(struct bench_env *env, int sp, struct group *out);
void group_close(struct group *group);

/* The worst status of all ranks, on every rank. */
enum status group_agree(struct bench_env *env, enum status mine);
/* The same between parts of what takes long, with rank 0's interrupt as its status when it has no other. */
enum status group_hear(struct bench_env *env, enum status mine);
bool group_is_interrupt(enum status status);
/* mem_alloc on every rank, or on none. Collective over env->world. */
enum status group_alloc(struct bench_env *env, size_t bytes, const char *what, void **out);
/* The job cannot go on after this one: a rank is gone or late. */
bool group_is_over(enum status status);
/* The smallest of all ranks' values, on every rank. */
enum status group_min(struct bench_env *env, int64_t mine, int64_t *out);

#endif
