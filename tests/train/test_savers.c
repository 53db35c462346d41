/* tests/train/test_savers.c -- what saves memory changes no number: losses and norms of steps with and without it, to the bit where the
 * same is computed in the same order. */
#include "train/trainer_test.h"

#include "comm/ranks.h"
#include "train/trainer.h"

#include <math.h>

static const char deep[] = /* enough layers that every buffer is used again */
    "{\"model_type\":\"qwen3\",\"num_hidden_layers\":5,\"hidden_size\":16,\"num_attention_heads\":2,"
    "\"num_key_value_heads\":2,\"head_dim\":8,\"intermediate_size\":24,\"vocab_size\":256}";

enum { STEPS = 3, HIDDEN = 16, FFN = 24, LAYERS = 5 };

static struct trainer_options options_of(int sp, int shard, int zero, bool packed, enum dtype dtype)
{
    struct trainer_options o;
    memset(&o, 0, sizeof o);
    CHECK_OK(model_parse(deep, strlen(deep), "test", &o.model));
    plan_default(&o.plan);
    o.plan.sp = sp;
    o.plan.dp_shard = shard;
    o.plan.zero_stage = zero;
    o.plan.accumulate = 2;
    o.plan.micro_batch = packed ? 1 : 2;
    o.plan.loss = PLAN_LOSS_TILED;
    o.plan.checkpointing = PLAN_CHECKPOINTING_FULL;
    o.dtype = dtype;
    snprintf(o.data, sizeof o.data, "%s", text_path);
    o.n_seqs = 2; /* steps of two lengths */
    o.seqs[0] = 29;
    o.seqs[1] = 44;
    o.epochs = 10;
    o.separator = (struct data_separator){.n = packed ? 1 : 0, .token = {'\n'}};
    o.lr = o.min_lr = 1e-2;
    o.clip = 1;
    o.beta1 = 0.9;
    o.beta2 = 0.95;
    o.eps = 1e-8;
    o.decay = 0.1;
    o.seed = 3;
    return o;
}

/* Layers cut over the sp group. */
static void cut(struct plan *plan)
{
    plan->method = PLAN_METHOD_SPLIT_GATHER;
    snprintf(plan->exchange, sizeof plan->exchange, "%s", PLAN_GATHER_EXCHANGE);
}

/* Of a run of a few steps. */
struct run {
    double loss[STEPS], norm[STEPS];
    int64_t bytes, host_bytes;
};

static int steps_run(struct side *side, const struct trainer_options *o, struct run *out)
{
    struct trainer *trainer = NULL;
    struct trainer_report report;
    memset(out, 0, sizeof *out);
    RANK_TRY(trainer_create(o, side->comm, side->dev, &trainer));
    for (int64_t step = trainer_first(trainer); step < STEPS; step++) {
        RANK_TRY(trainer_step(trainer, step, &report));
        out->loss[step] = report.loss;
        out->norm[step] = report.grad_norm;
    }
    out->bytes = trainer_bytes(trainer);
    out->host_bytes = trainer_host_bytes(trainer);
    trainer_destroy(trainer);
    return 0;
}

static bool same(const struct run *a, const struct run *b, const struct plan *plan)
{
    char text[PLAN_TEXT];
    bool good = a->loss[0] > 1 && a->norm[0] > 0 && memcmp(a->loss, b->loss, sizeof a->loss) == 0 &&
                memcmp(a->norm, b->norm, sizeof a->norm) == 0;
    for (int s = 0; s < STEPS && !good; s++)
        fprintf(stderr, "%s, step %d: loss %.9g, without %.9g; norm %.9g, without %.9g\n", plan_text(plan, text), s + 1,
                b->loss[s], a->loss[s], b->norm[s], a->norm[s]);
    return good;
}

/* ---- checkpoints in host memory ---- */

static int rank_checkpoints_offloaded(const struct launch *launch, void *arg)
{
    struct side side;
    int failed = 0;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int way = 0; way < 16 && !failed; way++) { /* stages, dense or packed, copies beside or in turn */
        int sp = way / 4 % 2 == 0 ? launch->size : 1;
        bool packed = way / 8 != 0;
        struct trainer_options o = options_of(sp, launch->size / sp, way % 4, packed, DTYPE_FP32);
        struct run full, offloaded;
        RANK_TRY(dev_threads_set(side.dev, way % 3 == 0 ? 1 : 2));
        failed = steps_run(&side, &o, &full);
        o.plan.checkpointing = PLAN_CHECKPOINTING_OFFLOAD;
        failed = failed ? failed : steps_run(&side, &o, &offloaded);
        RANK_CHECK(failed || same(&full, &offloaded, &o.plan));
        int64_t x = o.plan.micro_batch * 44 / sp * HIDDEN * 4; /* of the longest step */
        RANK_CHECK(full.host_bytes == 0 && (offloaded.host_bytes == (LAYERS - 1) * x));
        RANK_CHECK(full.bytes - offloaded.bytes == (LAYERS + 1 - 2) * x);
    }
    side_close(&side);
    return failed;
}

static void offloaded_checkpoints_come_back(void **state)
{
    (void)state;
    ranks_pass(2, rank_checkpoints_offloaded, NULL);
}

/* ---- the MLP in tiles of rows ---- */

static bool near(const struct run *a, const struct run *b, double tolerance)
{
    bool good = true;
    for (int s = 0; s < STEPS; s++)
        good = good && a->loss[s] > 1 && fabs(a->loss[s] - b->loss[s]) <= tolerance * a->loss[s] &&
               fabs(a->norm[s] - b->norm[s]) <= 10 * tolerance * a->norm[s];
    return good;
}

/* Sums over rows are of tiles: another order. Kept or made again, a tile is the same. */
static int rank_tiled(const struct launch *launch, void *arg)
{
    struct side side;
    int failed = 0;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int way = 0; way < 8 && !failed; way++) {
        int sp = way % 2 == 0 ? launch->size : 1;
        struct trainer_options o = options_of(sp, launch->size / sp, way % 4, way / 4 != 0, DTYPE_FP32);
        struct run plain, tiled, kept, offloaded;
        o.n_seqs = 1;
        o.seqs[0] = 44;
        failed = steps_run(&side, &o, &plain);
        o.plan.mlp = PLAN_MLP_TILED;
        failed = failed ? failed : steps_run(&side, &o, &tiled);
        o.plan.checkpointing = PLAN_CHECKPOINTING_NONE;
        failed = failed ? failed : steps_run(&side, &o, &kept);
        o.plan.checkpointing = PLAN_CHECKPOINTING_OFFLOAD;
        failed = failed ? failed : steps_run(&side, &o, &offloaded);
        RANK_CHECK(failed || near(&plain, &tiled, 1e-5));
        RANK_CHECK(failed || same(&tiled, &kept, &o.plan));
        RANK_CHECK(failed || same(&tiled, &offloaded, &o.plan));
        int64_t rows = o.plan.micro_batch * 44 / sp;
        RANK_CHECK(plain.bytes - tiled.bytes == 3 * (rows - HIDDEN) * FFN * 4); /* gate, up, their product */
    }
    side_close(&side);
    return failed;
}

static void tiled_rows_are_those_of_the_whole(void **state)
{
    (void)state;
    ranks_pass(2, rank_tiled, NULL);
}

/* ---- logits in tiles of rows ---- */

static int rank_logits(const struct launch *launch, void *arg)
{
    static const char wide[] = /* a row of logits is 256 KiB, so 64 MiB hold 256 */
        "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":16,\"num_attention_heads\":2,"
        "\"num_key_value_heads\":2,\"intermediate_size\":24,\"vocab_size\":65536}";
    enum { VOCAB = 65536, SEQ = 1100, TILES = 3 };
    struct trainer_options o = options_of(launch->size, 1, 3, false, DTYPE_FP32);
    struct run plain, tiled;
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(model_parse(wide, strlen(wide), "test", &o.model));
    o.plan.accumulate = o.plan.micro_batch = 1;
    o.n_seqs = 1;
    o.seqs[0] = SEQ;
    int failed = steps_run(&side, &o, &tiled);
    o.plan.loss = PLAN_LOSS_PLAIN;
    failed = failed ? failed : steps_run(&side, &o, &plain);
    RANK_CHECK(failed || near(&plain, &tiled, 1e-5));
    int64_t rows = SEQ / launch->size, tile = (rows + TILES - 1) / TILES;
    RANK_CHECK(failed || plain.bytes - tiled.bytes == (rows - tile) * VOCAB * 4);
    side_close(&side);
    return failed;
}

static void tiled_logits_are_those_of_the_whole(void **state)
{
    (void)state;
    ranks_pass(2, rank_logits, NULL);
}

/* ---- the optimizer in host memory ---- */

static int rank_optimizer(const struct launch *launch, void *arg)
{
    struct side side;
    int failed = 0;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int way = 0; way < 16 && !failed; way++) { /* stages, splits, types; copies beside or in turn */
        int sp = way / 4 % 2 == 0 ? launch->size : 1;
        struct trainer_options o =
            options_of(sp, launch->size / sp, way % 4, way % 3 == 0, way / 8 == 0 ? DTYPE_FP32 : DTYPE_BF16);
        struct run stays, offloaded, all;
        RANK_TRY(dev_threads_set(side.dev, way % 5 == 0 ? 1 : 2));
        if (way % 7 == 0)
            cut(&o.plan);
        failed = steps_run(&side, &o, &stays);
        o.plan.offload = PLAN_OFFLOAD_OPTIMIZER;
        failed = failed ? failed : steps_run(&side, &o, &offloaded);
        o.plan.checkpointing = PLAN_CHECKPOINTING_OFFLOAD;
        failed = failed ? failed : steps_run(&side, &o, &all);
        RANK_CHECK(failed || same(&stays, &offloaded, &o.plan));
        RANK_CHECK(failed || same(&stays, &all, &o.plan));
        int64_t states = way / 8 == 0 ? 8 : 12; /* fp32 weights stay where they are the weights */
        RANK_CHECK(way % 4 > 0 || o.plan.method != PLAN_METHOD_ULYSSES ||
                   offloaded.host_bytes >= states * o.model.params);
        RANK_CHECK(stays.host_bytes == 0 && offloaded.host_bytes > 0 && all.host_bytes > offloaded.host_bytes);
        RANK_CHECK(offloaded.bytes < stays.bytes && all.bytes < offloaded.bytes);
    }
    side_close(&side);
    return failed;
}

static void an_offloaded_optimizer_takes_the_same_steps(void **state)
{
    (void)state;
    ranks_pass(2, rank_optimizer, NULL);
}

static int save_second(struct side *side, const struct trainer_options *o)
{
    struct trainer *trainer = NULL;
    struct trainer_report report;
    RANK_TRY(trainer_create(o, side->comm, side->dev, &trainer));
    RANK_TRY(trainer_step(trainer, 0, &report));
    RANK_TRY(trainer_step(trainer, 1, &report));
    RANK_TRY(trainer_save(trainer, 2));
    trainer_destroy(trainer);
    return 0;
}

/* dirs: of a run without, of one with. The third step after the second's checkpoint is that of a run that went on. */
static int rank_resumes(const struct launch *launch, void *arg)
{
    const char *const *dirs = arg;
    struct side side;
    struct run whole, rest;
    RANK_TRY(side_open(&side, launch, NULL));
    struct trainer_options o = options_of(1, launch->size, 2, false, DTYPE_BF16);
    int failed = steps_run(&side, &o, &whole);
    snprintf(o.save, sizeof o.save, "%s", dirs[0]);
    failed = failed ? failed : save_second(&side, &o);
    snprintf(o.save, sizeof o.save, "%s", dirs[1]);
    o.plan.offload = PLAN_OFFLOAD_OPTIMIZER;
    failed = failed ? failed : save_second(&side, &o);
    RANK_CHECK(failed || launch->rank != 0 || checkpoint_same(dirs[0], 2, dirs[1], 2));
    o.resume = true;
    failed = failed ? failed : steps_run(&side, &o, &rest);
    RANK_CHECK(failed || (rest.loss[0] == 0 && rest.loss[2] == whole.loss[2] && rest.norm[2] == whole.norm[2]));
    side_close(&side);
    return failed;
}

static void its_checkpoints_are_the_same(void **state)
{
    (void)state;
    char a[] = "/tmp/sptune-test-XXXXXX", b[] = "/tmp/sptune-test-XXXXXX";
    char *dirs[] = {mkdtemp(a), mkdtemp(b)};
    assert_true(dirs[0] != NULL && dirs[1] != NULL);
    ranks_pass(2, rank_resumes, dirs);
    for (int d = 0; d < 2; d++) {
        checkpoint_remove(dirs[d], 2);
        assert_int_equal(rmdir(dirs[d]), 0);
    }
}

/* ---- all of it against one rank without any ---- */

static int rank_verify(const struct launch *launch, void *arg)
{
    struct side side;
    struct trainer *trainer = NULL;
    struct trainer_verdict verdict;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int way = 0; way < 8; way++) { /* a stage, dense or packed */
        struct trainer_options o = options_of(2, 1, way % 4, way / 4 != 0, DTYPE_FP32);
        o.plan.checkpointing = PLAN_CHECKPOINTING_OFFLOAD;
        o.plan.mlp = PLAN_MLP_TILED;
        o.plan.offload = PLAN_OFFLOAD_OPTIMIZER;
        if (way % 3 == 0)
            cut(&o.plan);
        RANK_TRY(trainer_create(&o, side.comm, side.dev, &trainer));
        RANK_TRY(trainer_verify(trainer, &verdict));
        RANK_CHECK(verdict.loss > 1 && verdict.loss_error < 1e-6 && verdict.worst <= verdict.allowed &&
                   verdict.allowed == 1e-5 && verdict.tensors > 10);
        trainer_destroy(trainer);
    }
    side_close(&side);
    return 0;
}

static void gradients_are_those_of_the_whole(void **state)
{
    (void)state;
    ranks_pass(2, rank_verify, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offloaded_checkpoints_come_back),
        cmocka_unit_test(tiled_rows_are_those_of_the_whole),
        cmocka_unit_test(tiled_logits_are_those_of_the_whole),
        cmocka_unit_test(an_offloaded_optimizer_takes_the_same_steps),
        cmocka_unit_test(its_checkpoints_are_the_same),
        cmocka_unit_test(gradients_are_those_of_the_whole),
    };
    return cmocka_run_group_tests(tests, text_make, text_remove);
}
