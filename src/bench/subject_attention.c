/* bench/subject_attention.c -- the attention kernel alone, at the shape each rank has after the exchange, every rank busy. */
#include "bench/subject.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/range.h"
#include "base/text.h"
#include "bench/mirror.h"
#include "bench/spot.h"

#include <stdlib.h>

/* One copy of the tensors. */
struct buffers {
    void *q, *k, *v, *o, *d_o, *dq, *dk, *dv;
    float *lse;
};

struct subject {
    struct bench_env *env;
    struct rotation rotation;
    struct dev_queue *queue;
    const struct attention *attention;
    struct attention_shape shape;
    int64_t *cu;
    struct buffers *copies;
    void *workspace;
    uint64_t seed;
    enum problem_direction direction;
    int64_t padded, tokens; /* of one row; of all rows */
    int rank, group, head_first, kv_first; /* of the sp group, which one, heads of this rank */
    double scale;
    int verified;
    char kernel[64];
};

static struct verdict attention_verdict(const struct bench_case *c, const struct bench_env *env, struct bench_case *timed,
                                        double *scale)
{
    struct verdict verdict = subject_check_heads(c, env);
    if (!verdict_ok(&verdict))
        return verdict;
    verdict = subject_timed(c, timed, scale);
    if (!verdict_ok(&verdict))
        return verdict;
    const struct attention *attention = attention_find(c->plan.attention);
    if (attention == NULL || attention->dev != subject_dev(env))
        return verdict_no(RULE_KERNEL_CANNOT, "there is no attention kernel '%.31s' on %s", c->plan.attention,
                          dev_kind_name(subject_dev(env)));
    struct attention_shape shape;
    int64_t *cu = NULL;
    if (subject_attention_shape(&timed->problem, c->plan.sp, 0, &shape, &cu) != STATUS_OK) {
        verdict = verdict_no(RULE_KERNEL_CANNOT, "%.200s", status_last()->what);
        status_clear();
        return verdict;
    }
    verdict = attention->supports(&shape);
    free(cu);
    return verdict;
}

static struct verdict attention_check(const struct bench_case *c, const struct bench_env *env)
{
    struct bench_case timed;
    double scale;
    return attention_verdict(c, env, &timed, &scale);
}

static void attention_key(const struct bench_case *c, const struct bench_env *env, struct sample *out)
{
    struct bench_case timed;
    double scale = 1;
    struct verdict verdict = attention_verdict(c, env, &timed, &scale);
    subject_key_common(c, out);
    subject_key_heads(c, out);
    subject_key_mask(c, out);
    text_print(out->key.attention, sizeof out->key.attention, "%s", c->plan.attention);
    if (!verdict_ok(&verdict))
        return;
    struct attention_shape shape;
    int64_t *cu = NULL;
    out->scaled = scale > 1;
    out->scale = scale;
    if (subject_attention_shape(&c->problem, c->plan.sp, 0, &shape, &cu) != STATUS_OK)
        return;
    if (c->problem.direction & PROBLEM_FORWARD)
        out->flops += attention_flops(&shape, false);
    if (c->problem.direction & PROBLEM_BACKWARD)
        out->flops += attention_flops(&shape, true);
    free(cu);
}

static void attention_destroy(void *state)
{
    struct subject *s = state;
    if (s == NULL)
        return;
    for (int i = 0; s->copies != NULL && i < s->rotation.n; i++) {
        void *all[] = {s->copies[i].q,   s->copies[i].k,  s->copies[i].v,  s->copies[i].o,  s->copies[i].lse,
                       s->copies[i].d_o, s->copies[i].dq, s->copies[i].dk, s->copies[i].dv};
        for (size_t b = 0; b < sizeof all / sizeof all[0]; b++)
            dev_free(s->env->dev, all[b]);
    }
    dev_free(s->env->dev, s->workspace);
    free(s->copies);
    free(s->cu);
    dev_queue_destroy(s->queue);
    free(s);
}

static bool is_backward(const struct subject *s)
{
    return (s->direction & PROBLEM_BACKWARD) != 0;
}

static int64_t row_bytes(const struct subject *s, bool of_kv, bool of_v)
{
    const struct attention_shape *shape = &s->shape;
    return s->tokens * (of_kv ? shape->kv_heads : shape->heads) * (of_v ? shape->head_dim_v : shape->head_dim) *
           dtype_bytes(shape->dtype);
}

static int64_t lse_bytes(const struct subject *s)
{
    return s->tokens * s->shape.heads * (int64_t)sizeof(float);
}

static int64_t copy_bytes(const struct subject *s)
{
    int64_t inputs = row_bytes(s, false, false) + row_bytes(s, true, false) + row_bytes(s, true, true) + row_bytes(s, false, true);
    return inputs * (is_backward(s) ? 2 : 1) + lse_bytes(s);
}

static enum status tensor_fill(const struct subject *s, enum data_tensor tensor, bool of_kv, bool of_v, void *base)
{
    const struct attention_shape *shape = &s->shape;
    struct data_side side = {.base = base,
                             .dtype = shape->dtype,
                             .batch = s->tokens / s->padded,
                             .seq = s->padded,
                             .heads = of_kv ? shape->kv_heads : shape->heads,
                             .dim = of_v ? shape->head_dim_v : shape->head_dim,
                             .batch_first = s->group * (s->tokens / s->padded),
                             .head_first = of_kv ? s->kv_first : s->head_first};
    side.token_stride = (int64_t)side.heads * side.dim;
    return mirror_data_fill(s->env->dev, s->seed, tensor, &side);
}

static enum status copy_alloc(struct subject *s, struct buffers *b)
{
    struct dev *dev = s->env->dev;
    TRY(dev_alloc(dev, (size_t)row_bytes(s, false, false), "q", &b->q));
    TRY(dev_alloc(dev, (size_t)row_bytes(s, true, false), "k", &b->k));
    TRY(dev_alloc(dev, (size_t)row_bytes(s, true, true), "v", &b->v));
    TRY(dev_alloc(dev, (size_t)row_bytes(s, false, true), "o", &b->o));
    TRY(dev_alloc(dev, (size_t)lse_bytes(s), "softmax statistics", (void **)&b->lse));
    TRY(tensor_fill(s, DATA_Q, false, false, b->q));
    TRY(tensor_fill(s, DATA_K, true, false, b->k));
    TRY(tensor_fill(s, DATA_V, true, true, b->v));
    if (!is_backward(s))
        return STATUS_OK;
    TRY(dev_alloc(dev, (size_t)row_bytes(s, false, true), "d_o", &b->d_o));
    TRY(dev_alloc(dev, (size_t)row_bytes(s, false, false), "dq", &b->dq));
    TRY(dev_alloc(dev, (size_t)row_bytes(s, true, false), "dk", &b->dk));
    TRY(dev_alloc(dev, (size_t)row_bytes(s, true, true), "dv", &b->dv));
    return tensor_fill(s, DATA_DO, false, true, b->d_o);
}

static enum status attention_run(struct subject *s, const struct buffers *b, bool backward)
{
    struct attention_args args = {.q = b->q,
                                  .k = b->k,
                                  .v = b->v,
                                  .o = b->o,
                                  .lse = b->lse,
                                  .d_o = b->d_o,
                                  .dq = b->dq,
                                  .dk = b->dk,
                                  .dv = b->dv,
                                  .workspace = s->workspace};
    if (backward)
        return RANGE("attention backward", s->attention->backward(&s->shape, &args, s->queue));
    return RANGE("attention forward", s->attention->forward(&s->shape, &args, s->queue));
}

static enum status build(struct subject *s)
{
    const struct attention_shape *shape = &s->shape;
    size_t workspace = 0;
    attention_prepare(s->attention, &shape, 1, is_backward(s));
    for (int backward = 0; backward <= is_backward(s); backward++) {
        size_t bytes = s->attention->workspace_bytes(&s->shape, backward != 0, dev_threads(s->env->dev));
        workspace = bytes > workspace ? bytes : workspace;
    }
    TRY(dev_queue_create(s->env->dev, &s->queue));
    TRY(dev_alloc(s->env->dev, workspace, "attention workspace", &s->workspace));
    TRY(mem_alloc((size_t)s->rotation.n * sizeof *s->copies, "buffers", (void **)&s->copies));
    for (int i = 0; i < s->rotation.n; i++) {
        TRY(copy_alloc(s, &s->copies[i]));
        if (s->direction == PROBLEM_BACKWARD) /* which starts from a forward's outputs */
            TRY(attention_run(s, &s->copies[i], false));
    }
    return dev_sync(s->queue, clock_deadline(SUBJECT_SYNC_US));
}

static enum status attention_create(const struct bench_case *c, struct bench_env *env, void **state)
{
    struct subject *s = NULL;
    struct bench_case timed;
    double scale;
    int sp = c->plan.sp, rank = comm_rank(env->world) % sp;
    struct verdict verdict = attention_verdict(c, env, &timed, &scale);
    if (!verdict_ok(&verdict))
        return FAIL(STATUS_UNSUPPORTED, "%s", verdict.why);
    TRY(group_alloc(env, sizeof *s, "an attention", (void **)&s));
    *s = (struct subject){.env = env,
                          .attention = attention_find(c->plan.attention),
                          .seed = c->seed,
                          .direction = c->problem.direction,
                          .padded = problem_padded(&c->problem, sp),
                          .rank = rank,
                          .group = comm_rank(env->world) / sp,
                          .scale = scale,
                          .head_first = rank * (timed.problem.heads / sp),
                          .kv_first = model_kv_first(timed.problem.kv_heads, sp, rank)};
    s->tokens = s->padded * c->problem.batch;
    subject_kernel_name(s->attention, s->kernel);
    enum status status = group_agree(env, subject_attention_shape(&timed.problem, sp, rank, &s->shape, &s->cu));
    if (status == STATUS_OK)
        status = rotation_open(env, c->buffers, copy_bytes(s), &s->rotation);
    if (status == STATUS_OK)
        status = group_agree(env, build(s));
    if (status != STATUS_OK) {
        attention_destroy(s);
        return status;
    }
    *state = s;
    return STATUS_OK;
}

static enum status attention_enqueue(void *state, int iteration)
{
    struct subject *s = state;
    const struct buffers *b = &s->copies[rotation_pick(&s->rotation, iteration)];
    if (s->direction & PROBLEM_FORWARD)
        TRY(attention_run(s, b, false));
    if (s->direction & PROBLEM_BACKWARD)
        TRY(attention_run(s, b, true));
    return STATUS_OK;
}

static struct dev_queue *attention_queue(void *state)
{
    return ((struct subject *)state)->queue;
}

static enum status attention_iterate(void *state, int iteration)
{
    TRY(attention_enqueue(state, iteration));
    return dev_sync(attention_queue(state), clock_deadline(SUBJECT_SYNC_US));
}

/* NaN: an output that is not written cannot pass. The copy used next is touched first, so that it is the coldest. */
static enum status attention_poison(void *state)
{
    struct subject *s = state;
    for (int k = 1; k <= s->rotation.n; k++) {
        const struct buffers *b = &s->copies[(s->rotation.last + k) % s->rotation.n];
        if (s->direction & PROBLEM_FORWARD) {
            TRY(dev_fill(s->queue, b->o, 0xff, (size_t)row_bytes(s, false, true)));
            TRY(dev_fill(s->queue, b->lse, 0xff, (size_t)lse_bytes(s)));
        }
        if (s->direction & PROBLEM_BACKWARD) {
            TRY(dev_fill(s->queue, b->dq, 0xff, (size_t)row_bytes(s, false, false)));
            TRY(dev_fill(s->queue, b->dk, 0xff, (size_t)row_bytes(s, true, false)));
            TRY(dev_fill(s->queue, b->dv, 0xff, (size_t)row_bytes(s, true, true)));
        }
    }
    return dev_sync(s->queue, clock_deadline(SUBJECT_SYNC_US));
}

/* What the host has of a copy's tensors. */
enum { SEEN_Q, SEEN_K, SEEN_V, SEEN_O, SEEN_LSE, SEEN_FORWARD, SEEN_DO = SEEN_FORWARD, SEEN_DQ, SEEN_DK, SEEN_DV, SEEN };

static enum status seen_open(const struct subject *s, const struct buffers *b, struct mirror seen[SEEN])
{
    void *const device[SEEN] = {b->q, b->k, b->v, b->o, b->lse, b->d_o, b->dq, b->dk, b->dv};
    const int64_t bytes[SEEN] = {row_bytes(s, false, false), row_bytes(s, true, false),  row_bytes(s, true, true),
                                 row_bytes(s, false, true),  lse_bytes(s),               row_bytes(s, false, true),
                                 row_bytes(s, false, false), row_bytes(s, true, false),  row_bytes(s, true, true)};
    bool backward = is_backward(s); /* only its identities are of the inputs */
    for (int i = backward ? 0 : SEEN_O; i < (backward ? SEEN : SEEN_FORWARD); i++) {
        TRY(mirror_open(s->env->dev, device[i], (size_t)bytes[i], &seen[i]));
        TRY(mirror_load(&seen[i]));
    }
    return STATUS_OK;
}

static enum status attention_verify(void *state, bool *ok, char why[256])
{
    struct subject *s = state;
    struct mirror seen[SEEN] = {{0}};
    enum status status = seen_open(s, &s->copies[s->rotation.last], seen);
    struct spot spot = {.shape = &s->shape,
                        .seed = s->seed,
                        .threads = mirror_threads(s->env->dev),
                        .padded = s->padded,
                        .batch_first = s->group * (s->tokens / s->padded),
                        .head_first = s->head_first,
                        .kv_first = s->kv_first,
                        .backward = is_backward(s),
                        .q = seen[SEEN_Q].host,
                        .k = seen[SEEN_K].host,
                        .v = seen[SEEN_V].host,
                        .o = seen[SEEN_O].host,
                        .d_o = seen[SEEN_DO].host,
                        .dq = seen[SEEN_DQ].host,
                        .dk = seen[SEEN_DK].host,
                        .dv = seen[SEEN_DV].host,
                        .lse = seen[SEEN_LSE].host};
    shard_whole(s->padded, &spot.shard);
    if (status == STATUS_OK)
        status = spot_rows(&spot, (uint64_t)s->verified++, ok, why);
    if (status == STATUS_OK && *ok && spot.backward)
        status = spot_identities(s->env, &spot, NULL, ok, why);
    for (int i = 0; i < SEEN; i++)
        mirror_close(&seen[i]);
    return status;
}

static const char *attention_kernel(void *state)
{
    return ((struct subject *)state)->kernel;
}

static double attention_whole_us(void *state, double timed_us)
{
    return timed_us * ((struct subject *)state)->scale;
}

static void attention_note(void *state, json_t *conditions)
{
    rotation_note(&((struct subject *)state)->rotation, conditions);
}

const struct bench_subject subject_attention = {
    .name = "attention",
    .about = "the attention kernel at the shape each rank has after the exchange",
    .computes = true,
    .check = attention_check,
    .key = attention_key,
    .create = attention_create,
    .iterate = attention_iterate,
    .enqueue = attention_enqueue,
    .queue = attention_queue,
    .poison = attention_poison,
    .verify = attention_verify,
    .destroy = attention_destroy,
    .kernel = attention_kernel,
    .whole_us = attention_whole_us,
    .note = attention_note,
};
