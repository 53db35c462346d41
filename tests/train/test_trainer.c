/* tests/train/test_trainer.c -- a step under every split equals the step of one rank: loss, every gradient, and what the optimizer makes
 * of them. Groups are cut anew within one launch of eight ranks. */
#include "train/trainer_test.h"

#include "comm/ranks.h"
#include "train/trainer.h"

#include <math.h>

static const char llama[] =
    "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"intermediate_size\":48,\"vocab_size\":256,\"max_position_embeddings\":4096,"
    "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
    "\"original_max_position_embeddings\":64}}";
static const char qwen2[] =
    "{\"model_type\":\"qwen2\",\"num_hidden_layers\":1,\"hidden_size\":32,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":4,\"intermediate_size\":64,\"vocab_size\":256,\"tie_word_embeddings\":true}";
static const char qwen3[] = /* more layers than are gathered at a time */
    "{\"model_type\":\"qwen3\",\"num_hidden_layers\":3,\"hidden_size\":24,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":1,\"head_dim\":16,\"intermediate_size\":40,\"vocab_size\":256}";
static const char copies[] = /* of kv heads, with their biases, on 4 ranks that cut a layer */
    "{\"model_type\":\"qwen2\",\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"intermediate_size\":40,\"vocab_size\":256}";
static const char window[] =
    "{\"model_type\":\"mistral\",\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":4,\"intermediate_size\":32,\"vocab_size\":256,\"sliding_window\":9}";

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
    snprintf(o.data, sizeof o.data, "%s", text_path);
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

static void split_gather(struct plan *plan)
{
    plan->method = PLAN_METHOD_SPLIT_GATHER;
    snprintf(plan->exchange, sizeof plan->exchange, "%s", PLAN_GATHER_EXCHANGE);
}

static const struct {
    int sp, shard, replicate, tp;
} splits[] = {{1, 1, 1, 1}, {2, 1, 1, 1}, {4, 1, 1, 1}, {1, 2, 1, 1}, {2, 2, 1, 1}, {4, 2, 1, 1}, {2, 2, 2, 1},
              {1, 1, 2, 1}, {1, 1, 2, 2}, {1, 1, 1, 2}, {2, 1, 1, 2}, {1, 1, 1, 4}, {2, 2, 1, 2}, {4, 1, 1, 2}};

static const enum plan_method methods[] = {PLAN_METHOD_ULYSSES, PLAN_METHOD_RING, PLAN_METHOD_ULYSSES_RING,
                                           PLAN_METHOD_SPLIT_GATHER};
enum { METHODS = sizeof methods / sizeof *methods };

static void method_set(struct plan *plan, enum plan_method method)
{
    plan->method = method;
    plan->ring = method == PLAN_METHOD_ULYSSES_RING ? 2 : 1;
    if (method == PLAN_METHOD_RING)
        snprintf(plan->exchange, sizeof plan->exchange, "%s", PLAN_RING_EXCHANGE);
    if (method == PLAN_METHOD_SPLIT_GATHER)
        split_gather(plan);
}

/* With one rank all are one; a ring has no windows. With tp split_gather has nothing to cut, and ulysses may have too few heads. */
static bool method_differs(const struct trainer_options *o)
{
    bool ring = o->plan.method == PLAN_METHOD_RING || o->plan.method == PLAN_METHOD_ULYSSES_RING;
    int least = o->plan.method == PLAN_METHOD_ULYSSES ? 1 : 2;
    if (o->plan.tp > 1 &&
        (o->plan.method == PLAN_METHOD_SPLIT_GATHER || plan_head_ranks(&o->plan) * o->plan.tp > o->model.heads))
        return false;
    return o->plan.sp >= least && !(ring && o->model.window_layers > 0);
}

static int verify(struct side *side, struct comm *world, const struct trainer_options *o, const char *what)
{
    struct trainer *trainer = NULL;
    struct trainer_verdict verdict;
    RANK_TRY(trainer_create(o, world, side->dev, &trainer));
    RANK_TRY(trainer_verify(trainer, &verdict));
    bool good = verdict.loss > 1 && verdict.loss_error < 1e-6 && verdict.worst <= verdict.allowed &&
                verdict.allowed == 1e-5 && verdict.norm_error < 1e-6 && verdict.tensors > 10;
    char plan[PLAN_TEXT];
    if (!good)
        fprintf(stderr, "%s, %s: loss %g of %g, gradient of %s off by %g\n", what, plan_text(&o->plan, plan),
                verdict.loss, verdict.whole_loss, trainer_tensor_name(trainer, verdict.worst_tensor), verdict.worst);
    trainer_destroy(trainer);
    RANK_CHECK(good);
    return 0;
}

struct matrix {
    const char *config;
    int half; /* of the stages for a split and a method: the odd or the even ones, in turn; -1: all */
};

static bool in_matrix(const struct matrix *matrix, int split, int way, int zero)
{
    return (matrix->half < 0 || (zero + split + way / 2 + matrix->half) % 2 == 0) &&
           (zero % 3 == 0 || !CHECK_SANITIZED);
}

/* Every split x ZeRO stage x dense or packed x method, of the stages 0 and 3 alone under sanitizers. Sizes below eight run side by side. */
static int rank_verify(const struct launch *launch, void *arg)
{
    struct side side;
    const struct matrix *matrix = arg;
    int failed = 0;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int s = 0; s < CHECK_COUNT(splits) && !failed; s++) {
        int n = splits[s].sp * splits[s].shard * splits[s].replicate * splits[s].tp;
        struct comm *world = NULL;
        if (n > launch->size)
            continue;
        RANK_TRY(comm_split(side.comm, launch->rank / n, launch->rank, &world));
        for (int zero = 0; zero <= 3 && !failed; zero++)
            for (int way = 0; way < 2 * METHODS && !failed; way++) { /* a method, dense or packed */
                bool packed = way % 2 != 0;
                struct trainer_options o =
                    options_of(matrix->config, splits[s].sp, splits[s].shard, splits[s].replicate, zero, packed);
                o.plan.tp = splits[s].tp;
                method_set(&o.plan, methods[way / 2]);
                if (in_matrix(matrix, s, way, zero) && method_differs(&o))
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
    struct matrix matrix = {llama, -1};
    ranks_pass(8, rank_verify, &matrix);
}

/* What is wrong on one rank of two is seen, whatever the type: an angle of its tokens, or how much they count. */
static int rank_wrong(const struct launch *launch, void *arg)
{
    static const enum dtype dtypes[] = {DTYPE_FP32, DTYPE_BF16};
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int way = 0; way < 4; way++) {
        struct trainer *trainer = NULL;
        struct trainer_verdict verdict;
        bool angle = way < 2;
        struct trainer_options o = options_of(llama, angle ? 2 : 1, angle ? 1 : 2, 1, 3, true);
        o.dtype = dtypes[way % 2];
        if (launch->rank == 1 && angle)
            o.model.rope.theta *= 0.5;
        if (launch->rank == 1 && !angle)
            o.norm = LOSS_GROUP;
        RANK_TRY(trainer_create(&o, side.comm, side.dev, &trainer));
        RANK_TRY(trainer_verify(trainer, &verdict));
        trainer_destroy(trainer);
        RANK_CHECK(verdict.worst > verdict.allowed);
        RANK_CHECK(angle || verdict.loss_error > verdict.loss_allowed);
    }
    side_close(&side);
    return 0;
}

static void a_rank_that_computes_something_else_is_seen(void **state)
{
    (void)state;
    ranks_pass(2, rank_wrong, NULL);
}

static void other_decoders(void **state)
{
    (void)state;
    static const char *const configs[] = {qwen2, qwen3, copies, window};
    for (int c = 0; c < CHECK_COUNT(configs); c++) {
        struct matrix matrix = {configs[c], c % 2};
        ranks_pass(4, rank_verify, &matrix);
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
    static const struct {
        int sp, tp, replicate;
        bool cut; /* by split_gather */
    } ways[] = {{1, 1, 1, false}, {2, 1, 1, false}, {4, 1, 1, false}, {2, 1, 1, true}, {4, 1, 1, true},
                {1, 2, 1, false}, {2, 2, 1, false}, {1, 1, 4, false}, {2, 1, 2, false}};
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
        for (int way = 0; way < CHECK_COUNT(ways) && !failed; way++) {
            int ranks = ways[way].sp * ways[way].tp;
            o = options_of(llama, ways[way].sp, 4 / ranks / ways[way].replicate, ways[way].replicate, zero, false);
            o.plan.tp = ways[way].tp;
            o.plan.accumulate = ranks;
            if (ways[way].cut)
                split_gather(&o.plan);
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

/* What one split wrote another reads, and would write the same: step-`from` becomes step-`to`. */
static int write_again(struct side *side, struct comm *world, const struct trainer_options *base, int sp, int tp,
                       int zero, bool cut, int to)
{
    struct trainer *trainer = NULL;
    struct trainer_options o = *base;
    o.plan.sp = sp;
    o.plan.tp = tp;
    o.plan.dp_shard = comm_size(world) / (sp * tp);
    o.plan.zero_stage = zero;
    o.seed = 99; /* nothing of it stays */
    o.resume = true;
    if (cut)
        split_gather(&o.plan);
    RANK_TRY(trainer_create(&o, world, side->dev, &trainer));
    RANK_CHECK(trainer_first(trainer) == to - 1);
    RANK_TRY(trainer_save(trainer, to));
    trainer_destroy(trainer);
    return 0;
}

/* From a step of one rank through all ways of cutting it. */
static int rank_checkpoints(const struct launch *launch, void *arg)
{
    static const struct {
        int sp, tp, zero;
        bool cut;
    } ways[] = {{4, 1, 0, true},  {2, 1, 3, false}, {2, 2, 3, false}, {2, 1, 1, true}, {1, 4, 1, false},
                {1, 1, 2, false}, {4, 1, 3, true},  {1, 2, 2, false}, {2, 1, 2, true}};
    struct side side;
    struct comm *alone = NULL;
    struct trainer *trainer = NULL;
    struct trainer_report report;
    int failed = 0, step = 2;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(comm_split(side.comm, launch->rank, 0, &alone));
    struct trainer_options o = options_of(copies, 1, 1, 1, 0, false);
    snprintf(o.save, sizeof o.save, "%s", (const char *)arg);
    if (launch->rank == 0) {
        RANK_TRY(trainer_create(&o, alone, side.dev, &trainer));
        RANK_TRY(trainer_step(trainer, 0, &report));
        RANK_TRY(trainer_step(trainer, 1, &report));
        RANK_TRY(trainer_save(trainer, 2));
        trainer_destroy(trainer);
    }
    RANK_TRY(comm_barrier(side.comm, side.queue));
    for (int w = 0; w < CHECK_COUNT(ways) && !failed; w++, step++)
        failed = write_again(&side, side.comm, &o, ways[w].sp, ways[w].tp, ways[w].zero, ways[w].cut, step + 1);
    for (int s = 3; s <= step && launch->rank == 0 && !failed; s++)
        RANK_CHECK(checkpoint_same(o.save, 2, o.save, s));
    comm_close(alone);
    side_close(&side);
    return failed;
}

static void every_split_reads_and_writes_the_same_checkpoint(void **state)
{
    (void)state;
    char dir[] = "/tmp/sptune-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    ranks_pass(4, rank_checkpoints, dir);
    for (int step = 2; step <= 11; step++)
        checkpoint_remove(dir, step);
    assert_int_equal(rmdir(dir), 0);
}

static int rank_refuses(const struct launch *launch, void *arg)
{
    struct side side;
    struct trainer *trainer = NULL;
    struct trainer_options o = options_of(llama, 2, 1, 1, 3, false);
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    split_gather(&o.plan);
    o.model.ffn = 47;
    RANK_CHECK(trainer_create(&o, side.comm, side.dev, &trainer) == STATUS_USAGE && trainer == NULL);
    RANK_CHECK(strstr(status_last()->what, "47 columns of the MLP leave 1 over") != NULL);
    side_close(&side);
    return 0;
}

static void layers_that_cannot_be_cut_are_refused(void **state)
{
    (void)state;
    ranks_pass(2, rank_refuses, NULL);
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

/* Rows of an evaluation are those of no step: it is named by the steps before it. */
static int rank_not_finite(const struct launch *launch, void *arg)
{
    struct side side;
    struct trainer *trainer = NULL;
    struct trainer_report report;
    struct trainer_options o = options_of(llama, 2, 1, 1, 3, false);
    double loss;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    o.model.norm_eps = NAN;
    RANK_TRY(trainer_create(&o, side.comm, side.dev, &trainer));
    RANK_CHECK(trainer_evaluate(trainer, 5, &loss) == STATUS_CHECK);
    RANK_CHECK(strncmp(status_last()->what, "evaluation after step 0: the loss is ", 37) == 0);
    RANK_CHECK(strstr(status_last()->what, "by what layer 0 of rank 0 gives") != NULL);
    RANK_CHECK(trainer_step(trainer, 0, &report) == STATUS_CHECK);
    RANK_CHECK(strncmp(status_last()->what, "step 1: the loss is ", 20) == 0);
    status_clear();
    trainer_destroy(trainer);
    side_close(&side);
    return 0;
}

static void what_is_not_finite_is_named(void **state)
{
    (void)state;
    ranks_pass(2, rank_not_finite, NULL);
}

static void the_rate_warms_up_and_falls(void **state)
{
    (void)state;
    struct trainer_options o = options_of(llama, 1, 1, 1, 0, false);
    o.warmup = -1; /* 2 of 20 steps */
    assert_true(fabs(trainer_lr(&o, 20, 0) - o.lr / 2) < 1e-12);
    assert_true(fabs(trainer_lr(&o, 20, 2) - o.lr) < 1e-12);
    assert_true(fabs(trainer_lr(&o, 9, 0) - o.lr) < 1e-12);
    o.warmup = 4;
    assert_true(fabs(trainer_lr(&o, 20, 0) - o.lr / 4) < 1e-12);
    assert_true(fabs(trainer_lr(&o, 20, 4) - o.lr) < 1e-12);
    assert_true(fabs(trainer_lr(&o, 20, 12) - (o.lr + o.min_lr) / 2) < 1e-12);
    assert_true(trainer_lr(&o, 20, 19) < o.lr * 0.2 && trainer_lr(&o, 20, 19) > o.min_lr);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rate_warms_up_and_falls),
        cmocka_unit_test(what_is_not_finite_is_named),
        cmocka_unit_test(every_split_has_the_gradients_of_the_whole),
        cmocka_unit_test(a_rank_that_computes_something_else_is_seen),
        cmocka_unit_test(other_decoders),
        cmocka_unit_test(every_split_takes_the_same_steps),
        cmocka_unit_test(every_split_reads_and_writes_the_same_checkpoint),
        cmocka_unit_test(layers_that_cannot_be_cut_are_refused),
        cmocka_unit_test(c04_no_label_of_any_rank_is_valid),
    };
    return cmocka_run_group_tests(tests, text_make, text_remove);
}
