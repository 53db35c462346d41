/* sp/target.h -- what a runtime really executes, and its constants. One file each, one row in targets[].
 *
 * A target limits the search (methods, exchanges, ZeRO stages, memory savers) and prices it (memory constants of its software
 * stack). Where a part does not exist on the device at hand the nearest stands in and is named.
 */
#ifndef SPTUNE_SP_TARGET_H
#define SPTUNE_SP_TARGET_H

#include "base/dev.h"
#include "base/verdict.h"
#include "model/model.h"
#include "sp/plan.h"
#include "sp/problem.h"

enum { TARGET_CLASSES = 4 };

/* Coefficients of work_memory; where a number comes from stands beside it in the target's file. */
struct target_memory {
    double attention_copies;  /* c_q: live copies of s*q elements during attention forward recompute and backward;
                                 0: exactly what exec allocates */
    double class_copies[TARGET_CLASSES]; /* c_q of the class with this index in `classes`, 0: attention_copies */
    double mlp_copies;        /* c_m: live copies of s*ffn elements */
    double mlp_hidden;        /* copies of s*hidden beside them: input, output, gradient */
    double logits_bytes;      /* c_l: bytes per local token and vocabulary entry of the plain loss, 16-bit storage */
    double logits_fp32_bytes; /* the same with fp32 storage */
    double tile_bytes;        /* the same per entry of one tile of the tiled loss */
    int64_t reduce_elems[2];  /* elements of a buffer in which gradients are reduced: at sp 1, above; 0: none */
    double reduce_bytes[2];   /* alike, of an element that is sent, in ZeRO-3 of the buffer; 0: the dtype's */
    int reduce_buffers;       /* such buffers in ZeRO-1 and -2, of the dtype, while layers run backward */
    int64_t live_elems;       /* ZeRO-3: elements of gathered parameters that it keeps for reuse */
    bool units;               /* weights and gradients are whole a unit at a time, gradients fp32, and an
                                 offloaded optimizer leaves these on the device: train/params.h; else as above */
    bool grads_late;          /* ZeRO-1 and -2: no gradient is allocated before a step's first backward */
    bool master_fp32;         /* ZeRO-1 and -2 copy the parameters to fp32 even when they are fp32 */
    int64_t context_bytes;    /* device context, libraries; communicators too where comm_bytes is 0 */
    int64_t context_cpu_bytes; /* the same of a process whose device is the CPU */
    int64_t comm_bytes, sum_bytes; /* a communicator between GPUs, and what its sums take beside */
    int64_t comm_cpu_bytes;   /* of a process that is not alone */
    double host_factor;       /* pinned host memory per offloaded byte */
};

/* How often an element is read or written in the storage type, and in fp32. */
struct target_touch {
    double stored, fp32;
};

/* What is neither product nor attention does to each of its elements, forward [0] and backward [1]; counts, as this runtime has kernels. */
struct target_elementwise {
    struct target_touch norm[2];               /* of a norm's row */
    struct target_touch turn[2];               /* of q and k, by rotary positions */
    struct target_touch act[2];                /* of the MLP's inner width, by its activation */
    struct target_touch gate[2];               /* there besides, by the product with what is gated */
    struct target_touch sum[2];                /* of a residual sum's row */
    struct target_touch loss[PLAN_LOSS_COUNT]; /* of the logits, both ways */
};

struct target {
    const char *name;            /* "accelerate" */
    const char *runtime;         /* for the screen: "accelerate+deepspeed" */
    const char *const *classes;  /* attention classes it can be told: "sdpa", "flash_attention_2" ...; NULL-terminated */
    unsigned methods;            /* bit per enum plan_method */
    unsigned searched;           /* those of them that are searched when nobody names any */
    int zero_min, zero_max;
    bool zero_over_world;        /* ZeRO shards over dp x sp, whatever the dp sizes say */
    bool tiled_mlp, overlap;     /* can it? overlap: chunks > 1 */
    bool packed_sdpa;            /* may class "sdpa" run packed documents? */
    bool own_kernels;            /* its classes are kernels of ours: one of another device says nothing of this one */
    /* The exchange that is this runtime's own on `dev`, and whether it only stands in for it. */
    const char *(*exchange)(enum dev_kind dev, bool *stands_in);
    /* Exchanges that are searched on `dev` when nobody names any; NULL, or no list: that one alone. Names that this build has not are
     * passed over. NULL-terminated. */
    const char *const *(*exchanges)(enum dev_kind dev);
    struct plan defaults;        /* zero stage, checkpointing, offload, loss, mlp */
    struct target_memory memory;
    struct target_elementwise elementwise;
    double optimizer_bytes; /* that a step of the optimizer reads and writes for each element that a rank owns */
    double cleared_bytes;   /* ZeRO-1: of each element of whole gradients beside a rank's sums, once a step */
    bool sums_whole;        /* ZeRO-1 and -2: every rank has the sums of all gradients, though it needs its part */
    bool keeps_late;        /* ZeRO-3: a product keeps its input after it ran: layers run their last one again, too */
    struct verdict (*check)(const struct model *model, const struct problem *problem, const struct plan *plan);
};

extern const struct target *const targets[]; /* NULL-terminated */
const struct target *target_find(const char *name);
/* The class of `target` that an attention name of a plan means: itself when it is one, else what its kernel stands for; NULL: none. */
const char *target_class(const struct target *target, const char *attention);
/* Is it a class of any target? */
bool target_class_exists(const char *name);
/* The attention kernel of `dev` that is nearest to class; NULL when none is. */
const char *target_stand_in(const struct target *target, const char *attention_class, enum dev_kind dev);
/* Everything a target forbids; target->check adds its own rules. */
struct verdict target_check(const struct target *target, const struct model *model, const struct problem *problem,
                            const struct plan *plan);

/* The same `no` of plan_check. Where sp is more than the heads that ulysses has to split, and the target executes method ring, that is named too:
 * it splits none. */
struct verdict target_advise(const struct target *target, const struct problem *problem, const struct plan *plan,
                             struct verdict no);

/* The sizes of an Accelerate ParallelismConfig as users write them (cp too, which no plan has) on `world` processes: the rules that
 * Accelerate checks and those it should. target_check applies it; so does reading somebody's configuration. */
struct verdict target_accelerate_sizes(int world, int dp_replicate, int dp_shard, int tp, int cp, int sp);

#endif
