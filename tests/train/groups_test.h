/* tests/train/groups_test.h -- for tests: ways to cut a job into groups that sum, and a small run under each. */
#ifndef SPTUNE_TESTS_TRAIN_GROUPS_TEST_H
#define SPTUNE_TESTS_TRAIN_GROUPS_TEST_H

#include "train/trainer.h"
#include "train/trainer_test.h"

struct way {
    int sp, shard, replicate, tp, zero;
    bool cut; /* by split_gather */
};

static const char groups_llama[] = /* 4 that cut a layer share a kv head two by two */
    "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"intermediate_size\":128,\"vocab_size\":256,\"max_position_embeddings\":4096}";

static inline struct trainer_options groups_options(const struct way *way, const char *attention, const char *exchange)
{
    struct trainer_options o;
    memset(&o, 0, sizeof o);
    CHECK_OK(model_parse(groups_llama, strlen(groups_llama), "test", &o.model));
    plan_default(&o.plan);
    o.plan.sp = way->sp;
    o.plan.dp_shard = way->shard;
    o.plan.dp_replicate = way->replicate;
    o.plan.tp = way->tp;
    o.plan.zero_stage = way->zero;
    o.plan.accumulate = 2;
    o.plan.micro_batch = 2;
    if (way->cut)
        o.plan.method = PLAN_METHOD_SPLIT_GATHER;
    snprintf(o.plan.attention, sizeof o.plan.attention, "%s", attention);
    snprintf(o.plan.exchange, sizeof o.plan.exchange, "%s", way->cut ? PLAN_GATHER_EXCHANGE : exchange);
    o.dtype = DTYPE_FP32;
    snprintf(o.data, sizeof o.data, "%s", text_path);
    o.n_seqs = 1;
    o.seqs[0] = 64;
    o.epochs = 1;
    o.lr = 1e-3;
    o.min_lr = 1e-4;
    o.clip = 1;
    o.beta1 = 0.9;
    o.beta2 = 0.95;
    o.eps = 1e-8;
    o.seed = 3;
    return o;
}

#endif
