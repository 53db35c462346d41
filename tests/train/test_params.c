/* tests/train/test_params.c -- collectives of units beside what computes, and in line: the same weights are read, the same sums come out.
 *
 * On the CPU a thread carries them, far behind the walk over the units, which computes little: what does not wait is seen. The walk itself
 * never communicates while they run, as a process of the CPU may not from two threads.
 */
#include "base/check.h"

#include "comm/ranks.h"
#include "sp/problem.h"
#include "sp/target.h"
#include "sp/work.h"
#include "train/params.h"

#include <string.h>

static const char llama[] =
    "{\"model_type\":\"llama\",\"num_hidden_layers\":5,\"hidden_size\":32,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"intermediate_size\":48,\"vocab_size\":256}";
static const char tied[] =
    "{\"model_type\":\"qwen2\",\"num_hidden_layers\":1,\"hidden_size\":32,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":4,\"intermediate_size\":64,\"vocab_size\":256,\"tie_word_embeddings\":true}";
static const char copies[] =
    "{\"model_type\":\"qwen2\",\"num_hidden_layers\":4,\"hidden_size\":32,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"intermediate_size\":40,\"vocab_size\":256}";

static const char wide[] = /* padding is little of it */
    "{\"model_type\":\"llama\",\"num_hidden_layers\":3,\"hidden_size\":128,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"intermediate_size\":384,\"vocab_size\":2048}";

enum { STEPS = 3, MICROS = 2 };

struct scene {
    const char *config;
    enum plan_method method;
    int sp, shard, replicate, tp;
    enum dtype dtype;
};

struct job {
    struct model model;
    struct plan plan;
    struct layout layout;
    struct groups groups;
};

/* What came out of a run, on this rank. */
struct outcome {
    uint64_t read;  /* of all weights that were looked at */
    uint64_t shard; /* of fp32 weights at the end */
    double norm[STEPS];
    int64_t bytes;
};

static enum status job_open(const struct scene *scene, struct side *side, struct job *job)
{
    memset(job, 0, sizeof *job);
    TRY(model_parse(scene->config, strlen(scene->config), "test", &job->model));
    plan_default(&job->plan);
    job->plan.method = scene->method;
    job->plan.sp = scene->sp;
    job->plan.dp_shard = scene->shard;
    job->plan.dp_replicate = scene->replicate;
    job->plan.tp = scene->tp;
    int ways = plan_ways(&job->plan);
    TRY(layout_create_cut(&job->model, scene->dtype, ways, comm_rank(side->comm) % ways, &job->layout));
    return groups_create(side->comm, &job->plan, side->dev, &job->groups);
}

static void job_close(struct job *job)
{
    groups_destroy(&job->groups);
    layout_free(&job->layout);
}

/* As a layer would: reads all weights of the unit, and from the second walk on adds gradients that depend on them. */
static enum status compute(struct params *params, const struct job *job, int unit, const void *weights, int salt,
                           struct dev_queue *queue, uint64_t *read)
{
    enum dtype dtype = job->layout.block.dtype;
    int64_t n = job->layout.unit[unit].elems;
    float *grads = NULL;
    if (salt > 0)
        TRY(params_grads(params, unit, queue, &grads));
    for (int64_t i = 0; i < n; i++) {
        float value = dtype_get(dtype, weights, i);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        *read = (*read ^ bits) * UINT64_C(0x100000001b3);
        if (grads != NULL)
            grads[i] += value * (float)salt + (float)(i % 7) * 0.01f;
    }
    return grads != NULL ? params_reduce(params, unit, queue) : STATUS_OK;
}

/* Forward and backward of a micro-step, in the order of a decoder. */
static enum status walk(struct params *params, const struct job *job, int salt, struct dev_queue *queue, uint64_t *read)
{
    int units = job->layout.units;
    for (int i = 0; i < 2 * units; i++) {
        bool backward = i >= units;
        int unit = backward ? 2 * units - 1 - i : i, next = backward ? unit - 1 : unit + 1;
        const void *weights;
        TRY(params_weights(params, unit, queue, &weights));
        if (next >= 0 && next < units)
            TRY(params_prefetch(params, next, queue));
        TRY(compute(params, job, unit, weights, backward ? salt : 0, queue, read));
    }
    return STATUS_OK;
}

static enum status run(const struct job *job, int zero, bool beside, struct side *side, struct outcome *out)
{
    struct params *params = NULL;
    struct nn_adamw adamw = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 1};
    enum status status;
    memset(out, 0, sizeof *out);
    TRY(params_create(&job->layout, zero, false, &job->groups, beside, side->dev, &params));
    TRY_OUT(params_init(params, 7, side->queue));
    for (int s = 0; s < STEPS; s++) {
        for (int m = 0; m < MICROS; m++)
            TRY_OUT(walk(params, job, 1 + comm_rank(side->comm) + 10 * m, side->queue, &out->read));
        adamw.step = s + 1;
        TRY_OUT(params_step(params, &adamw, 1, side->queue, &out->norm[s]));
    }
    for (int u = 0; u < job->layout.units; u++) {
        struct params_shard shard = params_shard(params, u);
        for (int64_t i = 0; i < shard.n; i++) {
            uint32_t bits;
            memcpy(&bits, &shard.master[i], sizeof bits);
            out->shard = (out->shard ^ bits) * UINT64_C(0x100000001b3);
        }
    }
    out->bytes = params_bytes(params);
out:
    params_destroy(params);
    return status;
}

/* Elements of the widest layer, whole and padded. */
static int64_t layer_elems(const struct job *job, int parts)
{
    int64_t step = (int64_t)parts * LAYOUT_ALIGN, most = 0;
    for (int u = 1; u < job->layout.units - 1; u++) {
        int64_t padded = (job->layout.unit[u].elems + step - 1) / step * step;
        most = padded > most ? padded : most;
    }
    return most;
}

static int rank_both(const struct launch *launch, void *arg)
{
    const struct scene *scene = arg;
    struct side side;
    struct job job;
    RANK_TRY(side_open(&side, launch, NULL));
    RANK_TRY(dev_threads_set(side.dev, 2)); /* else the CPU has nothing beside */
    RANK_TRY(job_open(scene, &side, &job));
    for (int zero = 1; zero <= 3; zero++) {
        struct outcome inline_, beside;
        RANK_TRY(run(&job, zero, false, &side, &inline_));
        RANK_TRY(run(&job, zero, true, &side, &beside));
        RANK_CHECK(inline_.norm[0] > 0 && inline_.read == beside.read && inline_.shard == beside.shard);
        RANK_CHECK(memcmp(inline_.norm, beside.norm, sizeof beside.norm) == 0);
        int64_t more = zero >= 2 ? layer_elems(&job, comm_size(job.groups.layers)) * (int64_t)sizeof(float) : 0;
        RANK_CHECK(beside.bytes - inline_.bytes == more);
    }
    job_close(&job);
    side_close(&side);
    return 0;
}

static void both(const struct scene *scene)
{
    struct scene copy = *scene;
    ranks_pass(scene->sp * scene->shard * scene->replicate * scene->tp, rank_both, &copy);
}

static void beside_is_as_in_line(void **state)
{
    (void)state;
    both(&(struct scene){llama, PLAN_METHOD_ULYSSES, 1, 2, 1, 1, DTYPE_FP32});
    both(&(struct scene){llama, PLAN_METHOD_ULYSSES, 2, 1, 2, 1, DTYPE_BF16});
    both(&(struct scene){tied, PLAN_METHOD_ULYSSES, 1, 3, 1, 1, DTYPE_BF16});
}

/* What ranks that cut a layer have in common is summed beside as well. */
static void cut_layers_too(void **state)
{
    (void)state;
    both(&(struct scene){llama, PLAN_METHOD_SPLIT_GATHER, 2, 1, 1, 1, DTYPE_FP32});
    both(&(struct scene){copies, PLAN_METHOD_SPLIT_GATHER, 4, 1, 1, 1, DTYPE_FP32});
    both(&(struct scene){copies, PLAN_METHOD_SPLIT_GATHER, 2, 2, 1, 1, DTYPE_BF16});
    both(&(struct scene){copies, PLAN_METHOD_ULYSSES, 2, 1, 1, 2, DTYPE_FP32});
    both(&(struct scene){copies, PLAN_METHOD_ULYSSES, 1, 1, 1, 4, DTYPE_BF16});
}

/* Terms of work_memory that are params': all beside activations and what a process takes anyhow. */
static int64_t predicted(const struct job *job, enum dtype dtype, int world)
{
    static const char *const names[] = {"params", "grads", "states", "gather", "buckets"};
    struct problem problem;
    struct work_memory memory;
    int64_t bytes = 0;
    problem_from_model(&job->model, 64, world, &problem);
    problem.dtype = dtype;
    work_memory_on(&job->model, &problem, &job->plan, target_find("sptune"), DEV_CPU, 1, &memory);
    for (int i = 0; i < memory.n; i++)
        for (int k = 0; k < CHECK_COUNT(names); k++)
            if (strcmp(memory.term[i].name, names[k]) == 0)
                bytes += memory.term[i].bytes;
    return bytes;
}

static int rank_bytes(const struct launch *launch, void *arg)
{
    struct scene *scene = arg;
    struct side side;
    struct job job;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int i = 0; i < 8; i++) {
        struct params *params = NULL;
        int zero = i % 4;
        scene->dtype = i < 4 ? DTYPE_FP32 : DTYPE_BF16;
        RANK_TRY(job_open(scene, &side, &job));
        job.plan.zero_stage = zero;
        RANK_TRY(params_create(&job.layout, zero, false, &job.groups, false, side.dev, &params));
        double ratio = (double)params_bytes(params) / (double)predicted(&job, scene->dtype, launch->size);
        if (ratio < 0.99 || ratio > 1.01)
            fprintf(stderr, "ZeRO %d, %s: %g times what the model says\n", zero, dtype_name(scene->dtype), ratio);
        RANK_CHECK(ratio > 0.99 && ratio < 1.01);
        params_destroy(params);
        job_close(&job);
    }
    side_close(&side);
    return 0;
}

static void the_memory_model_counts_the_same(void **state)
{
    (void)state;
    struct scene alone = {wide, PLAN_METHOD_ULYSSES, 1, 1, 1, 1, DTYPE_FP32};
    struct scene shared = {wide, PLAN_METHOD_ULYSSES, 2, 2, 1, 1, DTYPE_FP32};
    struct scene cut = {wide, PLAN_METHOD_SPLIT_GATHER, 2, 2, 1, 1, DTYPE_FP32};
    struct scene cut_alone = {wide, PLAN_METHOD_SPLIT_GATHER, 4, 1, 1, 1, DTYPE_FP32};
    ranks_pass(1, rank_bytes, &alone);
    ranks_pass(4, rank_bytes, &shared);
    ranks_pass(4, rank_bytes, &cut);
    ranks_pass(4, rank_bytes, &cut_alone);
}

/* What cannot be beside is refused, by every rank, before any waits for another. */
static int rank_refuses(const struct launch *launch, void *arg)
{
    struct scene scene = {llama, PLAN_METHOD_ULYSSES, 1, 2, 1, 1, DTYPE_FP32};
    struct side side, half;
    struct job job;
    struct params *params = NULL;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    half = side;
    RANK_TRY(comm_split(side.comm, launch->rank / 2, launch->rank, &half.comm));
    RANK_TRY(job_open(&scene, &half, &job));
    RANK_TRY(dev_threads_set(side.dev, 2));
    RANK_CHECK(params_create(&job.layout, 3, false, &job.groups, true, side.dev, &params) == STATUS_USAGE);
    RANK_CHECK(strstr(status_last()->what, "of a part of the job") != NULL);
    RANK_TRY(dev_threads_set(side.dev, 1));
    RANK_CHECK(params_create(&job.layout, 3, false, &job.groups, true, side.dev, &params) == STATUS_USAGE);
    RANK_CHECK(strstr(status_last()->what, "one thing at a time") != NULL);
    RANK_TRY(params_create(&job.layout, 1, false, &job.groups, true, side.dev, &params)); /* nothing of it is beside */
    status_clear();
    params_destroy(params);
    job_close(&job);
    comm_close(half.comm);
    side_close(&side);
    return 0;
}

static void what_cannot_be_beside_is_refused(void **state)
{
    (void)state;
    ranks_pass(4, rank_refuses, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beside_is_as_in_line),
        cmocka_unit_test(cut_layers_too),
        cmocka_unit_test(the_memory_model_counts_the_same),
        cmocka_unit_test(what_cannot_be_beside_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
