/* tests/train/test_oracle.c -- loss, gradients and twenty steps of AdamW of small models, against what PyTorch and transformers gave in double
 * precision (oracle/README.md): whole on one rank, under sequence parallelism with ZeRO on two and four, and with ZeRO's collectives on a
 * thread beside. */
#include "base/check.h"
#include "base/json.h"

#include "comm/ranks.h"
#include "train/checkpoint.h"
#include "train/decoder.h"
#include "train/tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 256, STEPS = 20 };

struct scene {
    const char *model, *part; /* "llama", "plain" */
    int sp, shard, zero;
    bool beside, curve;
};

/* What one rank has of it. */
struct oracle {
    json_t *document;
    const json_t *part;
    struct model model;
    struct plan plan;
    struct problem problem;
    int rows, seq, local;
    int32_t ids[TOKENS_MAX], labels[TOKENS_MAX], positions[TOKENS_MAX];
    double valid;
    struct layout layout;
    struct groups groups;
    struct params *params;
    struct decoder *decoder;
};

static char *path_of(const struct scene *scene, const char *file, char *buf, size_t size)
{
    snprintf(buf, size, "%s/%s/%s", SPTUNE_ORACLE, scene->model, file);
    return buf;
}

/* Column range [first, first + local) of a list of rows. */
static void slice(const json_t *rows, int first, int local, int32_t *out)
{
    for (size_t r = 0; r < json_array_size(rows); r++)
        for (int i = 0; i < local; i++)
            *out++ = (int32_t)json_integer_value(json_array_get(json_array_get(rows, r), (size_t)(first + i)));
}

static enum status oracle_open(const struct scene *scene, struct side *side, struct oracle *o)
{
    char path[512];
    memset(o, 0, sizeof *o);
    TRY(json_read(path_of(scene, "oracle.json", path, sizeof path), &o->document));
    TRY(model_load(path_of(scene, "config.json", path, sizeof path), &o->model));
    o->part = json_object_get(o->document, scene->part);
    const json_t *ids = json_object_get(o->part, "ids"), *documents = json_array_get(json_object_get(o->part, "documents"), 0);
    o->rows = (int)json_array_size(ids);
    o->seq = (int)json_array_size(json_array_get(ids, 0));
    o->local = o->seq / scene->sp;
    int first = o->local * (comm_rank(side->comm) % scene->sp);
    slice(ids, first, o->local, o->ids);
    slice(json_object_get(o->part, "labels"), first, o->local, o->labels);
    slice(json_object_get(o->part, "positions"), first, o->local, o->positions);
    o->valid = json_number_value(json_object_get(o->part, "valid"));
    problem_from_model(&o->model, o->seq, comm_size(side->comm), &o->problem);
    o->problem.batch = o->rows;
    o->problem.dtype = DTYPE_FP32;
    if (json_array_size(documents) > 1)
        for (size_t d = 0; d < json_array_size(documents); d++)
            o->problem.doc_len[o->problem.docs++] = json_integer_value(json_array_get(documents, d));
    plan_default(&o->plan);
    o->plan.sp = scene->sp;
    o->plan.dp_shard = scene->shard;
    o->plan.zero_stage = scene->zero;
    o->plan.micro_batch = o->rows;
    o->plan.checkpointing = PLAN_CHECKPOINTING_FULL;
    TRY(layout_create(&o->model, DTYPE_FP32, &o->layout));
    TRY(groups_create(side->comm, &o->plan, side->dev, &o->groups));
    TRY(params_create(&o->layout, scene->zero, false, &o->groups, scene->beside, side->dev, &o->params));
    TRY(checkpoint_load(path_of(scene, "model.safetensors", path, sizeof path), false, &o->layout, o->params, side->queue));
    TRY(params_refresh(o->params, side->queue));
    return decoder_create(&o->layout, o->params, &o->plan, &o->groups, side->dev, &o->decoder);
}

static void oracle_close(struct oracle *o)
{
    decoder_destroy(o->decoder);
    params_destroy(o->params);
    groups_destroy(&o->groups);
    layout_free(&o->layout);
    json_decref(o->document);
}

/* Every dp group has the same rows here, so each counts a share. *loss: this rank's part. What is beside may go on, so nothing but params
 * may communicate until its gradients are asked for: ranks of the CPU do so from one thread at a time. */
static enum status run(struct oracle *o, struct side *side, double *loss)
{
    struct decoder_batch batch = {o->ids, o->labels, o->positions};
    double share = 1 / (o->valid * o->plan.dp_shard);
    TRY(decoder_run(o->decoder, &o->problem, &batch, (float)share, true, side->queue, loss));
    *loss *= share;
    return STATUS_OK;
}

static bool close_to(double got, double want, double most, const char *what)
{
    bool good = fabs(got - want) <= most * fabs(want);
    if (!good)
        fprintf(stderr, "%s: %.9g, right would be %.9g\n", what, got, want);
    return good;
}

/* This rank's part of each tensor's gradient; |difference| / |whole|. */
static int compare(const struct scene *scene, const struct oracle *o)
{
    char path[512], file[64];
    struct tensors *truth = NULL;
    float *want = malloc(TOKENS_MAX * TOKENS_MAX * sizeof *want);
    int compared = 0;
    snprintf(file, sizeof file, "%s.safetensors", scene->part);
    RANK_CHECK(want != NULL);
    RANK_TRY(tensors_open(path_of(scene, file, path, sizeof path), &truth));
    for (int t = 0; t < o->layout.tensors; t++) {
        const struct layout_tensor *tensor = &o->layout.tensor[t];
        const struct tensors_entry *entry = tensors_find(truth, tensor->name);
        struct params_shard shard = params_shard(o->params, tensor->unit);
        double off = 0, all = 0;
        RANK_CHECK(entry != NULL && entry->elems == tensor->rows * tensor->cols && entry->elems <= TOKENS_MAX * TOKENS_MAX);
        RANK_TRY(tensors_read(truth, entry, 0, entry->elems, DTYPE_FP32, want));
        for (int64_t i = 0; i < entry->elems; i++) {
            int64_t at = tensor->offset + i - shard.first;
            all += (double)want[i] * want[i];
            if (at >= 0 && at < shard.n)
                off += pow((double)shard.grads[at] - want[i], 2);
        }
        if (sqrt(off) > 1e-5 * sqrt(all))
            fprintf(stderr, "%s %s sp %d: gradient of %s is off by %g\n", scene->model, scene->part, scene->sp, tensor->name, sqrt(off / all));
        RANK_CHECK(sqrt(off) <= 1e-5 * sqrt(all));
        compared++;
    }
    RANK_CHECK(compared == tensors_count(truth));
    tensors_close(truth);
    free(want);
    return 0;
}

static int steps(const struct scene *scene, struct oracle *o, struct side *side)
{
    const json_t *how = json_object_get(o->document, "adamw"), *curve = json_object_get(o->document, "curve");
    const json_t *losses = json_object_get(curve, "loss"), *norms = json_object_get(curve, "grad_norm");
    const json_t *betas = json_object_get(how, "betas");
    struct nn_adamw adamw = {.lr = (float)json_number_value(json_object_get(how, "lr")),
                             .beta1 = (float)json_number_value(json_array_get(betas, 0)),
                             .beta2 = (float)json_number_value(json_array_get(betas, 1)),
                             .eps = (float)json_number_value(json_object_get(how, "eps")),
                             .decay = (float)json_number_value(json_object_get(how, "decay")),
                             .grad_scale = 1};
    RANK_CHECK(json_array_size(losses) == STEPS);
    for (size_t s = 0; s < STEPS; s++) {
        double loss, norm;
        char what[96];
        adamw.step = (int64_t)s + 1;
        RANK_TRY(run(o, side, &loss));
        RANK_TRY(params_step(o->params, &adamw, json_number_value(json_object_get(how, "clip")), side->queue, &norm));
        RANK_TRY(groups_sum(&o->groups, &loss, 1, side->queue));
        snprintf(what, sizeof what, "%s sp %d zero %d, step %zu", scene->model, scene->sp, scene->zero, s + 1);
        RANK_CHECK(close_to(loss, json_number_value(json_array_get(losses, s)), 1e-4, what));
        RANK_CHECK(close_to(norm, json_number_value(json_array_get(norms, s)), 1e-3, what));
    }
    return 0;
}

static int rank_scene(const struct launch *launch, void *arg)
{
    const struct scene *scene = arg;
    struct side side;
    struct oracle o;
    double loss, norm;
    int failed = 0;
    RANK_TRY(side_open(&side, launch, NULL));
    if (scene->beside)
        RANK_TRY(dev_threads_set(side.dev, 2));
    RANK_TRY(oracle_open(scene, &side, &o));
    RANK_CHECK(decoder_logits(o.decoder, 0, side.queue, NULL) == STATUS_USAGE); /* nothing has run */
    RANK_CHECK(decoder_not_finite(o.decoder, side.queue, NULL) == STATUS_USAGE);
    status_clear();
    if (scene->curve) {
        failed = steps(scene, &o, &side);
    } else {
        RANK_TRY(run(&o, &side, &loss));
        RANK_TRY(params_finish_grads(o.params, side.queue, &norm));
        RANK_TRY(groups_sum(&o.groups, &loss, 1, side.queue));
        RANK_CHECK(close_to(loss, json_number_value(json_object_get(o.part, "loss")), 1e-5, "loss"));
        RANK_CHECK(close_to(norm, json_number_value(json_object_get(o.part, "grad_norm")), 1e-5, "norm"));
        failed = compare(scene, &o);
    }
    oracle_close(&o);
    side_close(&side);
    return failed;
}

static const char *const models[] = {"llama", "qwen2", "qwen3", "mistral"}, *const packed[] = {"llama", "mistral"};
static const struct {
    int sp, shard, zero;
    bool beside;
} splits[] = {{1, 1, 0, false}, {2, 1, 3, false}, {4, 1, 1, false},
              {2, 2, 2, false}, {1, 2, 3, true},  {1, 3, 2, true}};

static void pass(const char *model, const char *part, int split, bool curve)
{
    struct scene scene = {model, part, splits[split].sp, splits[split].shard, splits[split].zero, splits[split].beside, curve};
    ranks_pass(scene.sp * scene.shard, rank_scene, &scene);
}

static void loss_and_gradients(void **state)
{
    (void)state;
    for (int m = 0; m < CHECK_COUNT(models); m++)
        for (int s = 0; s < CHECK_COUNT(splits); s++)
            pass(models[m], "plain", s, false);
}

static void packed_documents(void **state)
{
    (void)state;
    for (int m = 0; m < CHECK_COUNT(packed); m++)
        for (int s = 0; s < CHECK_COUNT(splits); s++)
            pass(packed[m], "packed", s, false);
}

static void twenty_steps(void **state)
{
    (void)state;
    for (int m = 0; m < CHECK_COUNT(models); m++)
        for (int s = 0; s < CHECK_COUNT(splits); s++)
            pass(models[m], "plain", s, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradients),
        cmocka_unit_test(packed_documents),
        cmocka_unit_test(twenty_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
