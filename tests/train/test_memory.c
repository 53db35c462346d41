/* tests/train/test_memory.c -- the memory model of target sptune against what the trainer allocates, under each method. */
#include "base/check.h"

#include "comm/ranks.h"
#include "sp/work.h"
#include "train/fit.h"
#include "train/layout.h"
#include "train/trainer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Layers of a usual shape, large enough that padding and statistics are nothing. */
static const char config[] =
    "{\"model_type\":\"llama\",\"num_hidden_layers\":4,\"hidden_size\":128,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"head_dim\":16,\"intermediate_size\":448,\"vocab_size\":256}";

static const char normed_config[] =
    "{\"model_type\":\"qwen3\",\"num_hidden_layers\":4,\"hidden_size\":128,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"head_dim\":16,\"intermediate_size\":448,\"vocab_size\":256}";

static char path[] = "/tmp/sptune-test-XXXXXX";

enum { SEQ = 512, WORLD = 4 };

static struct trainer_options options_of(enum plan_method method, int sp, int zero)
{
    struct trainer_options o;
    memset(&o, 0, sizeof o);
    CHECK_OK(model_parse(config, strlen(config), "test", &o.model));
    plan_default(&o.plan);
    o.plan.method = method;
    if (plan_method_exchange(method) != NULL)
        snprintf(o.plan.exchange, sizeof o.plan.exchange, "%s", plan_method_exchange(method));
    o.plan.sp = sp;
    o.plan.dp_shard = WORLD / sp;
    o.plan.zero_stage = zero;
    o.plan.checkpointing = PLAN_CHECKPOINTING_FULL;
    o.dtype = DTYPE_FP32;
    snprintf(o.data, sizeof o.data, "%s", path);
    o.n_seqs = 1;
    o.seqs[0] = SEQ;
    o.epochs = 10;
    o.lr = o.min_lr = 1e-3;
    o.beta1 = 0.9;
    o.beta2 = 0.95;
    o.eps = 1e-8;
    o.seed = 3;
    return o;
}

/* What the trainer itself takes: terms that are neither a process's nor pages of windows. */
static double modelled(const struct trainer_options *o, int threads, int64_t *host)
{
    static const char *const others[] = {"context", "communicators", "windows"};
    struct problem problem;
    struct work_memory memory;
    problem_from_model(&o->model, o->seqs[0], WORLD, &problem);
    problem.dtype = o->dtype;
    work_memory_on(&o->model, &problem, &o->plan, target_find("sptune"), DEV_CPU, threads, &memory);
    int64_t bytes = memory.peak_bytes;
    *host = memory.host_bytes;
    for (int i = 0; i < memory.n; i++)
        for (int k = 0; k < CHECK_COUNT(others); k++)
            bytes -= strcmp(memory.term[i].name, others[k]) == 0 ? memory.term[i].bytes : 0;
    return (double)bytes;
}

/* What is asked for before anything is taken. */
static int counted(struct side *side, const struct trainer_options *o, double *out)
{
    struct problem problem;
    struct layout layout;
    struct groups groups;
    struct fit_need need;
    int ways = plan_ways(&o->plan);
    problem_from_model(&o->model, o->seqs[0], WORLD, &problem);
    problem.dtype = o->dtype;
    RANK_TRY(layout_create_cut(&o->model, o->dtype, ways, comm_rank(side->comm) % ways, &layout));
    RANK_TRY(groups_create(side->comm, &o->plan, side->dev, &groups));
    RANK_TRY(fit_need(&layout, &o->plan, &problem, &groups, false, false, side->dev, &need));
    *out = (double)fit_bytes(&need);
    groups_destroy(&groups);
    layout_free(&layout);
    return 0;
}

/* Within 1.5 % of what is allocated on the device: positions, statistics of rows and what aligns tensors are not in it. Of the host to the byte. */
static int judge(struct side *side, const struct trainer_options *o)
{
    struct trainer *trainer = NULL;
    struct trainer_report report;
    char plan[PLAN_TEXT];
    int64_t host;
    RANK_TRY(trainer_create(o, side->comm, side->dev, &trainer));
    RANK_TRY(trainer_step(trainer, 0, &report));
    double said = modelled(o, dev_threads(side->dev), &host), allocated = (double)trainer_bytes(trainer);
    int64_t host_allocated = trainer_host_bytes(trainer);
    trainer_destroy(trainer);
    bool good = said > 0.985 * allocated && said < 1.015 * allocated && host == host_allocated;
    if (!good)
        fprintf(stderr, "%s, %s: %.0f bytes and %lld of the host, said to be %.0f and %lld\n",
                plan_text(&o->plan, plan), dtype_name(o->dtype), allocated, (long long)host_allocated, said,
                (long long)host);
    RANK_CHECK(good);
    return 0;
}

enum saver { NOTHING, CHECKPOINTS, MLP, MOMENTS, ALL_KEPT, LOSS, SAVERS };

static void save(enum saver saver, struct plan *plan)
{
    plan->checkpointing = saver == CHECKPOINTS ? PLAN_CHECKPOINTING_OFFLOAD
                          : saver == ALL_KEPT  ? PLAN_CHECKPOINTING_NONE
                                               : PLAN_CHECKPOINTING_FULL;
    plan->mlp = saver == MLP ? PLAN_MLP_TILED : PLAN_MLP_PLAIN;
    plan->offload = saver == MOMENTS ? PLAN_OFFLOAD_OPTIMIZER : PLAN_OFFLOAD_NONE;
    plan->loss = saver == LOSS ? PLAN_LOSS_TILED : PLAN_LOSS_PLAIN;
}

/* Each way to share a sequence under each stage, with one saver after the other, in both types. */
static int each_way(struct side *side)
{
    static const struct {
        enum plan_method method;
        int sp, tp, ring;
        const char *exchange;
    } ways[] = {{PLAN_METHOD_ULYSSES, 2, 1, 1, "packed"},         {PLAN_METHOD_ULYSSES, 4, 1, 1, "direct"},
                {PLAN_METHOD_RING, 2, 1, 1, "sendrecv"},          {PLAN_METHOD_ULYSSES_RING, 4, 1, 2, "direct"},
                {PLAN_METHOD_SPLIT_GATHER, 2, 1, 1, "allgather"}, {PLAN_METHOD_SPLIT_GATHER, 4, 1, 1, "allgather"},
                {PLAN_METHOD_ULYSSES, 1, 2, 1, "packed"},         {PLAN_METHOD_ULYSSES, 1, 4, 1, "packed"},
                {PLAN_METHOD_ULYSSES, 2, 2, 1, "direct"},         {PLAN_METHOD_RING, 2, 2, 1, "sendrecv"}};
    for (int w = 0; w < CHECK_COUNT(ways); w++)
        for (int zero = 0; zero < 4; zero++) {
            struct trainer_options o = options_of(ways[w].method, ways[w].sp, zero);
            o.plan.tp = ways[w].tp;
            o.plan.ring = ways[w].ring;
            o.plan.dp_shard = WORLD / ways[w].sp / ways[w].tp;
            snprintf(o.plan.exchange, sizeof o.plan.exchange, "%s", ways[w].exchange);
            o.dtype = (w / 2 + zero) % 2 == 0 ? DTYPE_FP32 : DTYPE_BF16;
            save((enum saver)((w + zero) % SAVERS), &o.plan);
            int failed = judge(side, &o);
            if (failed)
                return failed;
        }
    return 0;
}

/* Norms of q and k keep what was before them. */
static int normed(struct side *side)
{
    struct trainer_options o = options_of(PLAN_METHOD_ULYSSES, 2, 3);
    CHECK_OK(model_parse(normed_config, strlen(normed_config), "test", &o.model));
    o.plan.checkpointing = PLAN_CHECKPOINTING_NONE;
    return judge(side, &o);
}

/* To half a per cent: ends of windows are not in it. */
static int rank_count(const struct launch *launch, void *arg)
{
    static const struct {
        int sp, tp, zero;
        enum plan_method method;
        enum plan_checkpointing checkpointing;
        enum plan_mlp mlp;
    } cases[] = {{2, 1, 3, PLAN_METHOD_ULYSSES, PLAN_CHECKPOINTING_NONE, PLAN_MLP_PLAIN},
                 {4, 1, 0, PLAN_METHOD_ULYSSES, PLAN_CHECKPOINTING_FULL, PLAN_MLP_TILED},
                 {2, 1, 2, PLAN_METHOD_RING, PLAN_CHECKPOINTING_OFFLOAD, PLAN_MLP_PLAIN},
                 {4, 1, 3, PLAN_METHOD_SPLIT_GATHER, PLAN_CHECKPOINTING_FULL, PLAN_MLP_PLAIN},
                 {2, 2, 1, PLAN_METHOD_ULYSSES, PLAN_CHECKPOINTING_NONE, PLAN_MLP_TILED}};
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int c = 0; c < CHECK_COUNT(cases); c++) {
        struct trainer_options o = options_of(cases[c].method, cases[c].sp, cases[c].zero);
        struct trainer *trainer = NULL;
        struct trainer_report report;
        double asked;
        o.plan.tp = cases[c].tp;
        o.plan.dp_shard = WORLD / cases[c].sp / cases[c].tp;
        o.plan.checkpointing = cases[c].checkpointing;
        o.plan.mlp = cases[c].mlp;
        int failed = counted(&side, &o, &asked);
        if (failed != 0)
            return failed;
        RANK_TRY(trainer_create(&o, side.comm, side.dev, &trainer));
        RANK_TRY(trainer_step(trainer, 0, &report));
        double allocated = (double)trainer_bytes(trainer);
        bool right = asked <= allocated && asked > 0.995 * allocated;
        if (!right)
            fprintf(stderr, "case %d: %.0f bytes asked for, %.0f taken\n", c, asked, allocated);
        RANK_CHECK(right);
        trainer_destroy(trainer);
    }
    side_close(&side);
    return 0;
}

static void what_is_asked_for_is_what_is_taken(void **state)
{
    (void)state;
    ranks_pass(WORLD, rank_count, NULL);
}

/* Ranks of one host share what is free there. */
static int rank_fit(const struct launch *launch, void *arg)
{
    struct trainer_options o = options_of(PLAN_METHOD_ULYSSES, 2, 3);
    struct fit_need need = {0};
    struct side side;
    int64_t free_bytes, total_bytes;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(dev_memory(side.dev, &free_bytes, &total_bytes));
    need.params = free_bytes / 2; /* less than there is, four times more than there is */
    RANK_TRY(fit_check(&need, &o.plan, NULL, side.dev));
    RANK_CHECK(fit_check(&need, &o.plan, side.comm, side.dev) == STATUS_NOMEM);
    RANK_CHECK(strstr(status_last()->what, "optimizer state need") != NULL);
    RANK_CHECK(strstr(status_last()->what, "on each of the 4 ranks of this host") != NULL);
    RANK_CHECK(strstr(status_last()->hint, "--zero 3") == NULL);
    need.params = 1 << 20;
    RANK_TRY(fit_check(&need, &o.plan, side.comm, side.dev));
    need.saving_host = free_bytes; /* of rank 0's */
    RANK_CHECK(fit_check(&need, &o.plan, side.comm, side.dev) == STATUS_NOMEM);
    RANK_CHECK(strstr(status_last()->what, "units of a checkpoint need") != NULL);
    need.saving_host = 0;
    need.decoder.logits = free_bytes;
    need.decoder.mlp = free_bytes / 2;
    RANK_CHECK(fit_check(&need, &o.plan, side.comm, side.dev) == STATUS_NOMEM);
    RANK_CHECK(strstr(status_last()->what, "logits need") != NULL);
    RANK_CHECK(strncmp(status_last()->hint, "--mlp tiled, --loss tiled, a shorter --seq", 42) == 0);
    status_clear();
    side_close(&side);
    return 0;
}

static void ranks_of_a_host_count_together(void **state)
{
    (void)state;
    ranks_pass(WORLD, rank_fit, NULL);
}

/* A GPU by its bus id, three quarters of whose memory are free; two are in the job. */
enum { GPU_BYTES = 1 << 30, GPU_FREE = GPU_BYTES / 4 * 3 };
static struct {
    char bus[16];
} gpu;

static bool is_gpu(const struct dev *dev)
{
    return (const void *)dev == (const void *)&gpu;
}

enum dev_kind __real_dev_kind_of(const struct dev *dev);
enum dev_kind __wrap_dev_kind_of(const struct dev *dev);
const char *__real_dev_place(const struct dev *dev);
const char *__wrap_dev_place(const struct dev *dev);
enum status __real_dev_memory(struct dev *dev, int64_t *free_bytes, int64_t *total_bytes);
enum status __wrap_dev_memory(struct dev *dev, int64_t *free_bytes, int64_t *total_bytes);

enum dev_kind __wrap_dev_kind_of(const struct dev *dev)
{
    return is_gpu(dev) ? DEV_CUDA : __real_dev_kind_of(dev);
}

const char *__wrap_dev_place(const struct dev *dev)
{
    return is_gpu(dev) ? gpu.bus : __real_dev_place(dev);
}

enum status __wrap_dev_memory(struct dev *dev, int64_t *free_bytes, int64_t *total_bytes)
{
    if (!is_gpu(dev))
        return __real_dev_memory(dev, free_bytes, total_bytes);
    *free_bytes = GPU_FREE;
    *total_bytes = GPU_BYTES;
    return STATUS_OK;
}

/* Ranks of the job go round `gpus` of them. */
static enum status ask_gpus(struct side *side, int gpus, int64_t params)
{
    struct trainer_options o = options_of(PLAN_METHOD_ULYSSES, 2, 3);
    struct fit_need need = {.params = params};
    struct dev *dev;
    void *of = &gpu;
    memcpy(&dev, &of, sizeof dev);
    snprintf(gpu.bus, sizeof gpu.bus, "0000:%02x:00.0", 16 + comm_rank(side->comm) % gpus);
    return fit_check(&need, &o.plan, side->comm, dev);
}

static int rank_share(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(ask_gpus(&side, WORLD, GPU_FREE));
    RANK_TRY(ask_gpus(&side, 1, GPU_FREE / WORLD));
    RANK_CHECK(ask_gpus(&side, 2, GPU_FREE) == STATUS_NOMEM);
    RANK_CHECK(strstr(status_last()->what, "on each of the 2 ranks of this GPU") != NULL);
    RANK_CHECK(strstr(status_last()->hint, "ranks on more GPUs") != NULL);
    RANK_CHECK(ask_gpus(&side, 1, GPU_FREE / WORLD + 1) == STATUS_NOMEM);
    RANK_CHECK(strstr(status_last()->what, "on each of the 4 ranks of this GPU") != NULL);
    status_clear();
    side_close(&side);
    return 0;
}

static void ranks_of_a_gpu_count_together(void **state)
{
    (void)state;
    ranks_pass(WORLD, rank_share, NULL);
}

static int rank_compare(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    int failed = each_way(&side);
    failed = failed ? failed : normed(&side);
    side_close(&side);
    return failed;
}

static void the_model_says_what_the_trainer_allocates(void **state)
{
    (void)state;
    ranks_pass(WORLD, rank_compare, NULL);
}

/* Elements of a rank's layout, but for what aligns its tensors: cut by tp as by split_gather, shared among the ranks with the same pieces. */
static void pieces_are_those_of_the_layout(void **state)
{
    (void)state;
    for (int ways = 1; ways <= 8; ways *= 2)
        for (int tp = 0; tp < 2; tp++) {
            struct trainer_options o = options_of(PLAN_METHOD_SPLIT_GATHER, WORLD, 0);
            struct problem problem;
            struct work_params params;
            struct layout layout;
            double elems = 0;
            problem_from_model(&o.model, SEQ, 2 * ways, &problem);
            o.plan.method = tp ? PLAN_METHOD_ULYSSES : PLAN_METHOD_SPLIT_GATHER;
            o.plan.sp = tp ? 2 : ways;
            o.plan.tp = tp ? ways : 1;
            o.plan.dp_shard = tp ? 1 : 2;
            work_params(&o.model, &problem, &o.plan, target_find("sptune"), &params);
            CHECK_OK(layout_create_cut(&o.model, o.dtype, ways, 0, &layout));
            for (int t = 0; t < layout.tensors; t++)
                elems += (double)layout.tensor[t].rows * (double)layout.tensor[t].cols;
            layout_free(&layout);
            assert_true(params.whole + params.cut == elems);
            assert_true((params.cut > 0) == (ways > 1));
            assert_int_equal(params.whole_group, 2 * ways);
            assert_true(ways == 1 || params.cut_group == 2);
        }
}

static int setup(void **state)
{
    static char text[64 << 10];
    (void)state;
    int fd = mkstemp(path);
    memset(text, 'a', sizeof text);
    return fd < 0 || write(fd, text, sizeof text) != (ssize_t)sizeof text || close(fd) != 0;
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_those_of_the_layout),
        cmocka_unit_test(the_model_says_what_the_trainer_allocates),
        cmocka_unit_test(what_is_asked_for_is_what_is_taken),
        cmocka_unit_test(ranks_of_a_host_count_together),
        cmocka_unit_test(ranks_of_a_gpu_count_together),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
