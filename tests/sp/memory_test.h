/* tests/sp/memory_test.h -- models, plans and terms that the tests of the memory model share. */
#ifndef SPTUNE_TESTS_SP_MEMORY_TEST_H
#define SPTUNE_TESTS_SP_MEMORY_TEST_H

#include "sp/sp_test.h"

#include "sp/work.h"

static inline struct model dense(int layers, int64_t hidden, int heads, int kv_heads, int64_t ffn, int64_t vocab, bool tied,
                          int64_t params)
{
    struct model model = {.layers = layers,
                          .hidden = hidden,
                          .heads = heads,
                          .kv_heads = kv_heads,
                          .head_dim = 128,
                          .head_dim_v = 128,
                          .ffn = ffn,
                          .gated = true,
                          .vocab = vocab,
                          .tied = tied,
                          .params = params};
    int64_t q = (int64_t)heads * 128, kv = (int64_t)kv_heads * 128;
    model.params_layer = 2 * hidden * q + 2 * hidden * kv + 3 * hidden * ffn + 2 * hidden;
    model.params_embedding = vocab * hidden;
    return model;
}

static inline struct model llama_8b(void)
{
    return dense(32, 4096, 32, 8, 14336, 128256, false, 8030261248);
}

static inline struct model llama_70b(void)
{
    return dense(80, 8192, 64, 8, 28672, 128256, false, 70553706496);
}

static inline struct model qwen3_32b(void)
{
    return dense(64, 5120, 64, 8, 25600, 151936, false, 32762123264);
}

static inline struct model qwen3_4b(void)
{
    return dense(36, 2560, 32, 8, 9728, 151936, true, 4022468096);
}

/* A plan on GPUs: no exchange of this build, so that the context is CUDA's. */
static inline struct plan gpu_plan(int sp, int world, const char *attention)
{
    struct plan plan = small_plan(sp, world);
    strcpy(plan.exchange, "torch");
    strcpy(plan.attention, attention);
    plan.checkpointing = PLAN_CHECKPOINTING_FULL;
    return plan;
}

static inline struct work_memory memory_in(const struct model *model, int64_t seq, const struct plan *plan,
                                    const struct target *target)
{
    struct problem problem;
    struct work_memory memory;
    problem_from_model(model, seq, plan->sp * plan->dp_shard, &problem);
    work_memory(model, &problem, plan, target, &memory);
    return memory;
}

static inline struct work_memory memory_of(const struct model *model, int64_t seq, const struct plan *plan, const char *target)
{
    return memory_in(model, seq, plan, target_find(target));
}

/* accelerate with DeepSpeed's own bucket of 5e8 elements where sequences are split, too. */
static inline struct target default_bucket(void)
{
    struct target target = *target_find("accelerate");
    target.memory.reduce_elems[1] = target.memory.reduce_elems[0];
    return target;
}

static inline const struct work_term *term(const struct work_memory *memory, const char *name)
{
    static const struct work_term none = {.bytes = 0};
    for (int i = 0; i < memory->n; i++)
        if (strcmp(memory->term[i].name, name) == 0)
            return &memory->term[i];
    return &none;
}

#endif
