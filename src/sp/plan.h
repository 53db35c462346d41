/* sp/plan.h -- how a job runs a problem: sizes, exchange, kernel, and what training adds. A plain value without pointers.
 *
 * plan_check says yes or which rule forbids it; plan_enumerate visits every plan of a space with its verdict. Text form:
 * "ulysses sp=4 dp_shard=2 dp_replicate=1 tp=1 packed cpu chunks=1 zero=3 mb=1 acc=1 ckpt=full offload=none loss=plain mlp=plain".
 * "ring=2" stands behind sp in a plan of ulysses+ring. Where keys and values go round a ring alone the exchange is "sendrecv", under
 * split_gather it is "allgather".
 *
 * Rank = ((replicate * dp_shard + shard) * sp + s) * tp + t: those that share a sequence are neighbours. order[] maps ranks to devices,
 * each once, when that is not the identity.
 */
#ifndef SPTUNE_SP_PLAN_H
#define SPTUNE_SP_PLAN_H

#include "base/dev.h"
#include "base/verdict.h"
#include "sp/problem.h"

#include <stdbool.h>
#include <stdint.h>

#define PLAN_METHOD_LIST(X) X(ULYSSES, "ulysses") X(RING, "ring") X(SPLIT_GATHER, "split_gather") X(ULYSSES_RING, "ulysses+ring")
#define PLAN_CHECKPOINTING_LIST(X) X(NONE, "none") X(FULL, "full") X(OFFLOAD, "offload")
#define PLAN_OFFLOAD_LIST(X) X(NONE, "none") X(OPTIMIZER, "optimizer") X(PARAMS, "params")
#define PLAN_LOSS_LIST(X) X(PLAIN, "plain") X(TILED, "tiled") X(FUSED, "fused")
#define PLAN_MLP_LIST(X) X(PLAIN, "plain") X(TILED, "tiled")

#define PLAN_ENUM_METHOD(name, text) PLAN_METHOD_##name,
#define PLAN_ENUM_CHECKPOINTING(name, text) PLAN_CHECKPOINTING_##name,
#define PLAN_ENUM_OFFLOAD(name, text) PLAN_OFFLOAD_##name,
#define PLAN_ENUM_LOSS(name, text) PLAN_LOSS_##name,
#define PLAN_ENUM_MLP(name, text) PLAN_MLP_##name,
enum plan_method { PLAN_METHOD_LIST(PLAN_ENUM_METHOD) PLAN_METHOD_COUNT };
enum plan_checkpointing { PLAN_CHECKPOINTING_LIST(PLAN_ENUM_CHECKPOINTING) PLAN_CHECKPOINTING_COUNT };
enum plan_offload { PLAN_OFFLOAD_LIST(PLAN_ENUM_OFFLOAD) PLAN_OFFLOAD_COUNT };
enum plan_loss { PLAN_LOSS_LIST(PLAN_ENUM_LOSS) PLAN_LOSS_COUNT };
enum plan_mlp { PLAN_MLP_LIST(PLAN_ENUM_MLP) PLAN_MLP_COUNT };

#define PLAN_RING_EXCHANGE "sendrecv" /* what method ring moves data by: not one of exchanges[], nothing changes its layout */
#define PLAN_GATHER_EXCHANGE "allgather" /* and split_gather: rows are gathered, and their sums scattered */
enum { PLAN_NAME = 32, PLAN_ORDER_MAX = 256, PLAN_TEXT = 320, PLAN_LIST_MAX = 64 };

struct plan {
    enum plan_method method;
    int sp, dp_shard, dp_replicate, tp; /* product = world */
    int ring;                           /* ulysses+ring alone: ranks that pass keys and values round; sp / ring share heads */
    int order_n;                        /* 0: rank r on device r */
    int16_t order[PLAN_ORDER_MAX];
    char exchange[PLAN_NAME];  /* a name from exchanges[]; of ring PLAN_RING_EXCHANGE, of split_gather PLAN_GATHER_EXCHANGE */
    char attention[PLAN_NAME]; /* a name from attentions[], or a target's class when nothing stands in for it here */
    int chunks;                /* head groups per rank whose exchange and attention alternate; 1 = no chunking */
    int zero_stage;            /* 0..3 */
    int64_t micro_batch, accumulate; /* micro_batch: the problem's batch, which is what shapes follow */
    enum plan_checkpointing checkpointing;
    enum plan_offload offload;
    enum plan_loss loss;
    enum plan_mlp mlp;
};

const char *plan_method_name(enum plan_method method);
const char *plan_split_name(const struct plan *plan); /* for readers: "whole" at sp 1, where no method splits anything */
const char *
plan_method_exchange(enum plan_method method); /* the only one that a plan of it may name; NULL: any of exchanges[] */
const char *plan_checkpointing_name(enum plan_checkpointing checkpointing);
const char *plan_offload_name(enum plan_offload offload);
const char *plan_loss_name(enum plan_loss loss);
const char *plan_mlp_name(enum plan_mlp mlp);

void plan_default(struct plan *out); /* ulysses, all sizes 1, packed, cpu, zero 3, no memory savers */
char *plan_text(const struct plan *plan, char buf[PLAN_TEXT]);
char *plan_hash(const struct plan *plan, char buf[17]); /* of the text and the order */
enum status plan_parse(const char *text, struct plan *out);
/* Does a layer of both compute, and move, in the same way? With one rank per sequence nothing is moved. */
bool plan_same_way(const struct plan *a, const struct plan *b);
/* Ranks that share a sequence, neighbours all: sp * tp. */
int plan_sequence_ranks(const struct plan *plan);
/* Ranks, neighbours too, that cut a layer's weights and heads among them (sp/block.h): tp, under split_gather sp; 1: each has all. */
int plan_ways(const struct plan *plan);
/* Where they cut something, problem and plan become those of the ranks that have the same piece: sp of them with tp, under split_gather one.
 * Of a plan that plan_check accepts. Fails as problem_cut. */
enum status plan_cut(struct problem *problem, struct plan *plan);
/* The two factors of sp: ranks that pass keys and values round (1 of ulysses, sp of ring), and ranks among which heads are exchanged. */
int plan_ring(const struct plan *plan);
int plan_head_ranks(const struct plan *plan);
/* Contiguous local heads of `chunk`: [*first, *first + *count) of the heads / plan_head_ranks on each rank. */
void plan_chunk(const struct problem *problem, const struct plan *plan, int chunk, int *first, int *count);

/* Shape, product, kernel and exchange rules on devices of `dev`. Target rules are target_check (target.h), memory is work. */
struct verdict plan_check(const struct problem *problem, const struct plan *plan, enum dev_kind dev);
/* All of it but what its attention kernel says: of a plan whose attention is no kernel here but was timed as others have it. */
struct verdict plan_check_without_attention(const struct problem *problem, const struct plan *plan, enum dev_kind dev);
/* Its part about tp: heads, columns of the MLP and ranks that it divides. */
struct verdict plan_check_tp(const struct problem *problem, const struct plan *plan);
/* Its part about sizes: their product is the world, the rank order names every device once. */
struct verdict plan_check_sizes(const struct problem *problem, const struct plan *plan);

/* What is searched. A count of 0 means: every legal (sp) or the default (others). */
struct plan_space {
    enum dev_kind dev;
    struct plan base;                 /* values of what is not searched */
    int nmethod;                      /* of ulysses, ring and split_gather; of one rank there is ulysses alone */
    enum plan_method method[PLAN_METHOD_COUNT];
    int nsp;
    int sp[PLAN_LIST_MAX];
    int nexchange;
    char exchange[PLAN_LIST_MAX][PLAN_NAME];
    int nattention;
    char attention[PLAN_LIST_MAX][PLAN_NAME];
    int nchunks;
    int chunks[PLAN_LIST_MAX];
    int nzero;
    int zero[4];
    int ncheckpointing;
    enum plan_checkpointing checkpointing[PLAN_CHECKPOINTING_COUNT];
    int noffload;
    enum plan_offload offload[PLAN_OFFLOAD_COUNT];
    int nloss;
    enum plan_loss loss[PLAN_LOSS_COUNT];
};

/* nsp = 0: every divisor of world, illegal ones included so that they can be explained; an sp that no plan can use (heads, KV, world,
 * length) is visited once, not once per combination of the rest. dp_shard = world / sp, dp_replicate = 1, micro_batch = batch.
 * Ascending in sp as listed. Stops at the first non-OK, and returns it. */
typedef enum status (*plan_visit)(void *arg, const struct plan *plan, const struct verdict *verdict);
enum status plan_enumerate(const struct problem *problem, const struct plan_space *space, plan_visit visit, void *arg);

#endif
