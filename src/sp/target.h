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

/* Coefficients of work_memory; where a number comes from stands beside it in the target's file. */
struct target_memory {
    double attention_copies;  /* c_q: live copies of s*q elements during attention forward recompute and backward */
    double mlp_copies;        /* c_m: live copies of s*ffn elements */
    double logits_bytes;      /* c_l: bytes per local token and vocabulary entry of the plain loss */
    int64_t bucket_bytes;     /* reduce and prefetch buckets */
    int64_t context_bytes;    /* device context, communicators, allocator */
    double gather_units;      /* ZeRO-3: largest gathered unit times this, in parameters' dtype bytes */
    double host_factor;       /* pinned host memory per offloaded byte */
};

struct target {
    const char *name;            /* "accelerate" */
    const char *runtime;         /* for the screen: "accelerate+deepspeed" */
    const char *const *classes;  /* attention classes it can be told: "sdpa", "flash_attention_2" ...; NULL-terminated */
    unsigned methods;            /* bit per enum plan_method */
    int zero_min, zero_max;
    bool zero_over_world;        /* ZeRO shards over dp x sp, whatever the dp sizes say */
    bool tiled_mlp, overlap;     /* can it? overlap: chunks > 1 */
    bool packed_sdpa;            /* may class "sdpa" run packed documents? */
    /* The exchange that is this runtime's own on `dev`, and whether it only stands in for it. */
    const char *(*exchange)(enum dev_kind dev, bool *stands_in);
    struct plan defaults;        /* zero stage, checkpointing, offload, loss, mlp */
    struct target_memory memory;
    struct verdict (*check)(const struct model *model, const struct problem *problem, const struct plan *plan);
};

extern const struct target *const targets[]; /* NULL-terminated */
const struct target *target_find(const char *name);
/* The attention kernel of `dev` that is nearest to class; NULL when none is. */
const char *target_stand_in(const struct target *target, const char *attention_class, enum dev_kind dev);
/* Everything a target forbids; target->check adds its own rules. */
struct verdict target_check(const struct target *target, const struct model *model, const struct problem *problem,
                            const struct plan *plan);

#endif
