/* tests/train/test_trainer.c -- a step under every split equals the step of one rank: loss, every gradient, and what the optimizer makes
 * of them. Groups are cut anew within one launch of eight ranks. */
#include "base/check.h"

#include "comm/ranks.h"
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char llama[] =
    "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"intermediate_size\":48,\"vocab_size\":256,\"max_position_embeddings\":4096,"
    "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
    "\"original_max_position_embeddings\":64}}";
static const char qwen2[] =
    "{\"model_type\":\"qwen2\",\"num_hidden_layers\":1,\"hidden_size\":32,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":4,\"intermediate_size\":64,\"vocab_size\":256,\"tie_word_embeddings\":true}";
static const char qwen3[] =
    "{\"model_type\":\"qwen3\",\"num_hidden_layers\":2,\"hidden_size\":24,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":1,\"head_dim\":16,\"intermediate_size\":40,\"vocab_size\":256}";
static const char window[] =
    "{\"model_type\":\"mistral\",\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":4,\"intermediate_size\":32,\"vocab_size\":256,\"sliding_window\":9}";

static char path[] = "/tmp/sptune-test-XXXXXX";

/* Lines of uneven length, so that ranks have different numbers of valid labels when they are packed. */
static void file_make(void)
{
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    char text[6000];
    for (int i = 0; i < (int)sizeof text; i++)
        text[i] = (char)(i % 7 == 0 && i / 7 % 5 < 2 ? '\n' : 'a' + (i * i + i / 11) % 26);
    assert_int_equal(write(fd, text, sizeof text), (ssize_t)sizeof text);
    close(fd);
}

static struct trainer_options options_of(const char *config, int sp, int shard, int replicate, int zero, bool packed)
{
    struct trainer_options o;
    memset(&o, 0, sizeof o);
    CHECK_OK(model_parse(config, strlen(config), "test", &o.model));
    plan_default(&o.plan);
    o.plan.sp = sp;
    o.plan.dp_shard = shard;
    o.plan.dp_replicate = replicate;
    o.plan.zero_stage = zero;
    o.plan.accumulate = 2;
    o.plan.micro_batch = packed ? 1 : 2;
    o.plan.loss = PLAN_LOSS_TILED;
    o.plan.checkpointing = zero % 2 == 0 ? PLAN_CHECKPOINTING_FULL : PLAN_CHECKPOINTING_NONE;
    o.dtype = DTYPE_FP32;
    snprintf(o.data, sizeof o.data, "%s", path);
    o.n_seqs = 1;
    o.seqs[0] = 29; /* padded for sp 2 and 4 */
    o.epochs = 10;
    o.separator = (struct data_separator){.n = packed ? 1 : 0, .token = {'\n'}};
    o.lr = 1e-2;
    o.min_lr = 1e-3;
    o.warmup = 2;
    o.clip = 1;
    o.beta1 = 0.9;
    o.beta2 = 0.95;
    o.eps = 1e-8;
    o.decay = 0.1;
    o.seed = 3;
    return o;
}

static const struct {
    int sp, shard, replicate;
} splits[] = {{1, 1, 1}, {2, 1, 1}, {4, 1, 1}, {1, 2, 1}, {2, 2, 1}, {4, 2, 1}, {2, 2, 2}, {1, 1, 2}};

/* Which of three methods. */
static void method_set(struct plan *plan, int way)
{
    plan->method = way == 0 ? PLAN_METHOD_ULYSSES : way == 1 ? PLAN_METHOD_RING : PLAN_METHOD_ULYSSES_RING;
    plan->ring = way == 2 ? 2 : 1;
    if (way == 1)
        snprintf(plan->exchange, sizeof plan->exchange, "%s", PLAN_RING_EXCHANGE);
}

/* With one rank all are one; with two, ulysses+ring is ring; a ring has no windows. */
static bool method_differs(const struct trainer_options *o)
{
    return o->plan.method == PLAN_METHOD_ULYSSES ||
           (o->plan.sp > (o->plan.method == PLAN_METHOD_RING ? 1 : 2) && o->model.window_layers == 0);
}

static int verify(struct side *side, struct comm *world, const struct trainer_options *o, const char *what)
{
    struct trainer *trainer = NULL;
    struct trainer_verdict verdict;
    RANK_TRY(trainer_create(o, world, side->dev, &trainer));
    RANK_TRY(trainer_verify(trainer, &verdict));
    bool good = verdict.loss > 1 && verdict.loss_error < 1e-6 && verdict.worst < 1e-5 && verdict.norm_error < 1e-6 &&
                verdict.tensors > 10;
    char plan[PLAN_TEXT];
    if (!good)
        fprintf(stderr, "%s, %s: loss %g of %g, gradient of %s off by %g\n", what, plan_text(&o->plan, plan),
                verdict.loss, verdict.whole_loss, trainer_tensor_name(trainer, verdict.worst_tensor), verdict.worst);
    trainer_destroy(trainer);
    RANK_CHECK(good);
    return 0;
}

/* Every split x ZeRO stage x dense or packed. Sizes below eight run side by side. */
static int rank_verify(const struct launch *launch, void *arg)
{
    struct side side;
    const char *config = *(const char *const *)arg;
    int failed = 0;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int s = 0; s < CHECK_COUNT(splits) && !failed; s++) {
        int n = splits[s].sp * splits[s].shard * splits[s].replicate;
        struct comm *world = NULL;
        if (n > launch->size)
            continue;
        RANK_TRY(comm_split(side.comm, launch->rank / n, launch->rank, &world));
        for (int zero = 0; zero <= 3 && !failed; zero++)
            for (int way = 0; way < 6 && !failed; way++) { /* a method, dense or packed */
                bool packed = way % 2 != 0;
                struct trainer_options o =
                    options_of(config, splits[s].sp, splits[s].shard, splits[s].replicate, zero, packed);
                method_set(&o.plan, way / 2);
                if (method_differs(&o))
                    failed = verify(&side, world, &o, packed ? "packed" : "dense");
            }
        comm_close(world);
    }
    side_close(&side);
    return failed;
}

static void every_split_has_the_gradients_of_the_whole(void **state)
{
    (void)state;
    const char *config = llama;
    ranks_pass(8, rank_verify, &config);
}

static void other_decoders(void **state)
{
    (void)state;
    static const char *const configs[] = {qwen2, qwen3, window};
    for (int c = 0; c < CHECK_COUNT(configs); c++) {
        const char *config = configs[c];
        ranks_pass(4, rank_verify, &config);
    }
}

/* Four steps; *loss of the last. */
static int steps_run(struct side *side, struct comm *world, const struct trainer_options *o, double *loss, double *norm)
{
    struct trainer *trainer = NULL;
    struct trainer_report report = {0};
    RANK_TRY(trainer_create(o, world, side->dev, &trainer));
    for (int64_t step = 0; step < 4; step++)
        RANK_TRY(trainer_step(trainer, step, &report));
    trainer_destroy(trainer);
    *loss = report.loss;
    *norm = report.grad_norm;
    return 0;
}

/* Rows per step are the same for both: 1 group of 8 accumulated, or 2 and 4 groups of fewer. */
static int rank_steps(const struct launch *launch, void *arg)
{
    struct side side;
    struct comm *alone = NULL;
    double loss, norm, whole_loss, whole_norm;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_split(side.comm, launch->rank, 0, &alone));
    struct trainer_options o = options_of(llama, 1, 1, 1, 0, false);
    o.plan.accumulate = 4;
    int failed = steps_run(&side, alone, &o, &whole_loss, &whole_norm);
    for (int zero = 0; zero <= 3 && !failed; zero++)
        for (int sp = 1; sp <= 4 && !failed; sp *= 2) {
            o = options_of(llama, sp, 4 / sp, 1, zero, false);
            o.plan.accumulate = sp;
            failed = steps_run(&side, side.comm, &o, &loss, &norm);
            RANK_CHECK(failed || (whole_loss > 1 && fabs(loss - whole_loss) < 2e-5 * whole_loss));
            RANK_CHECK(failed || fabs(norm - whole_norm) < 2e-4 * whole_norm);
        }
    comm_close(alone);
    side_close(&side);
    return failed;
}

static void every_split_takes_the_same_steps(void **state)
{
    (void)state;
    ranks_pass(4, rank_steps, NULL);
}

/* Packed rows of one token of "x\n": the newline is the last of its document. Some steps have nothing but such rows. */
static int rank_nothing_valid(const struct launch *launch, void *arg)
{
    struct side side;
    struct trainer *trainer = NULL;
    struct trainer_report report;
    int found = 0;
    RANK_TRY(side_open(&side, launch, NULL));
    struct trainer_options o = options_of(llama, 2, 1, 1, 3, true);
    o.seqs[0] = 1;
    snprintf(o.data, sizeof o.data, "%s", (const char *)arg);
    RANK_TRY(trainer_create(&o, side.comm, side.dev, &trainer));
    for (int64_t step = 0; step < 24; step++) {
        RANK_TRY(trainer_step(trainer, step, &report));
        found += report.valid == 0;
        RANK_CHECK(report.valid > 0 ? report.loss > 0 && report.grad_norm > 0
                                    : report.loss == 0 && report.grad_norm == 0);
    }
    RANK_CHECK(found > 0 && found < 24);
    trainer_destroy(trainer);
    side_close(&side);
    return 0;
}

static void c04_no_label_of_any_rank_is_valid(void **state)
{
    (void)state;
    char name[] = "/tmp/sptune-test-XXXXXX", text[400];
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    for (int i = 0; i < (int)sizeof text; i++)
        text[i] = i % 2 == 0 ? 'x' : '\n';
    assert_int_equal(write(fd, text, sizeof text), (ssize_t)sizeof text);
    close(fd);
    ranks_pass(2, rank_nothing_valid, name);
    unlink(name);
}

static void the_rate_warms_up_and_falls(void **state)
{
    (void)state;
    struct trainer_options o = options_of(llama, 1, 1, 1, 0, false);
    o.warmup = 4;
    assert_true(fabs(trainer_lr(&o, 20, 0) - o.lr / 4) < 1e-12);
    assert_true(fabs(trainer_lr(&o, 20, 4) - o.lr) < 1e-12);
    assert_true(fabs(trainer_lr(&o, 20, 12) - (o.lr + o.min_lr) / 2) < 1e-12);
    assert_true(trainer_lr(&o, 20, 19) < o.lr * 0.2 && trainer_lr(&o, 20, 19) > o.min_lr);
}

static int setup(void **state)
{
    (void)state;
    file_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rate_warms_up_and_falls),
        cmocka_unit_test(every_split_has_the_gradients_of_the_whole),
        cmocka_unit_test(other_decoders),
        cmocka_unit_test(every_split_takes_the_same_steps),
        cmocka_unit_test(c04_no_label_of_any_rank_is_valid),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
