/* bench/subject_gemm.c -- one matrix product per rank, every rank busy. */
#include "bench/subject.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/mirror.h"
#include "kernels/gemm.h"

#include <math.h>
#include <stdlib.h>

enum { SPOTS = 16, SLICE = 256 };

struct subject {
    struct bench_env *env;
    struct rotation rotation;
    struct dev_queue *queue;
    struct gemm_shape shape;
    uint64_t seed;
    int rank, verified;
    void **a, **b; /* [rotation.n] */
    float **c;
    void *workspace;
};

static struct gemm_shape shape_of(const struct bench_case *c)
{
    return (struct gemm_shape){.m = c->m, .n = c->n, .k = c->k, .dtype = c->problem.dtype};
}

static struct verdict gemm_check(const struct bench_case *c, const struct bench_env *env)
{
    int64_t side = (int64_t)1 << 30, bytes;
    struct bench_case whole = *c;
    whole.plan.sp = 1;
    struct verdict verdict = subject_check_world(&whole, env);
    if (!verdict_ok(&verdict))
        return verdict;
    if (gemm_ready(subject_dev(env)) != STATUS_OK) {
        verdict = verdict_no(RULE_ABSENT, "%.220s", status_last()->what);
        status_clear();
        return verdict;
    }
    if (c->m < 1 || c->n < 1 || c->k < 1 || c->m > side || c->n > side || c->k > side)
        return verdict_no(RULE_INDEX, "a product of %lld x %lld x %lld: sides of 1 to 2^30", (long long)c->m, (long long)c->n,
                          (long long)c->k);
    if (mem_mul(c->m * c->k, 4, "a", &bytes) != STATUS_OK || mem_mul(c->n * c->k, 4, "b", &bytes) != STATUS_OK ||
        mem_mul(c->m * c->n, 4, "c", &bytes) != STATUS_OK) {
        status_clear();
        return verdict_no(RULE_INDEX, "a product of %lld x %lld x %lld is beyond any machine", (long long)c->m, (long long)c->n,
                          (long long)c->k);
    }
    return VERDICT_YES;
}

static void gemm_key(const struct bench_case *c, const struct bench_env *env, struct sample *out)
{
    (void)env;
    subject_key_common(c, out);
    out->key.m = c->m;
    out->key.n = c->n;
    out->key.k = c->k;
    out->flops = 2.0 * (double)c->m * (double)c->n * (double)c->k;
}

static void gemm_destroy(void *state)
{
    struct subject *s = state;
    if (s == NULL)
        return;
    for (int i = 0; i < s->rotation.n; i++) {
        if (s->a != NULL)
            dev_free(s->env->dev, s->a[i]);
        if (s->b != NULL)
            dev_free(s->env->dev, s->b[i]);
        if (s->c != NULL)
            dev_free(s->env->dev, s->c[i]);
    }
    free(s->a);
    free(s->b);
    free(s->c);
    dev_free(s->env->dev, s->workspace);
    dev_queue_destroy(s->queue);
    free(s);
}

static int64_t bytes_of(const struct subject *s, int64_t elems)
{
    return elems * dtype_bytes(s->shape.dtype);
}

/* Row r of a ([m][k]) or of b ([k][n]), in slices of lanes so that any element can be made again. */
static enum status matrix_fill(const struct subject *s, enum data_tensor tensor, int64_t rows, int64_t cols, void *device)
{
    float lanes[SLICE];
    struct mirror seen = {0};
    enum status status = mirror_open(s->env->dev, device, (size_t)bytes_of(s, rows * cols), &seen);
    if (status != STATUS_OK) {
        mirror_close(&seen);
        return status;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t at = 0; at < cols; at += SLICE) {
            int n = (int)(cols - at < SLICE ? cols - at : SLICE);
            data_row(s->seed, tensor, s->rank, r, (int)(at / SLICE), 0, s->shape.dtype, n, lanes);
            dtype_store(s->shape.dtype, lanes, (char *)seen.host + bytes_of(s, r * cols + at), n);
        }
    status = mirror_store(&seen);
    mirror_close(&seen);
    return status;
}

static double element(const struct subject *s, enum data_tensor tensor, int64_t row, int64_t col)
{
    float lanes[SLICE];
    data_row(s->seed, tensor, s->rank, row, (int)(col / SLICE), 0, s->shape.dtype, (int)(col % SLICE) + 1, lanes);
    return (double)lanes[col % SLICE];
}

static enum status build(struct subject *s)
{
    struct dev *dev = s->env->dev;
    const struct gemm_shape *g = &s->shape;
    TRY(dev_queue_create(dev, &s->queue));
    TRY(dev_alloc(dev, gemm_workspace(dev_kind_of(dev), g), "gemm workspace", &s->workspace));
    TRY(mem_alloc((size_t)s->rotation.n * sizeof *s->a, "buffers", (void **)&s->a));
    TRY(mem_alloc((size_t)s->rotation.n * sizeof *s->b, "buffers", (void **)&s->b));
    TRY(mem_alloc((size_t)s->rotation.n * sizeof *s->c, "buffers", (void **)&s->c));
    for (int i = 0; i < s->rotation.n; i++) {
        TRY(dev_alloc(dev, (size_t)bytes_of(s, g->m * g->k), "a", &s->a[i]));
        TRY(dev_alloc(dev, (size_t)bytes_of(s, g->k * g->n), "b", &s->b[i]));
        TRY(dev_alloc(dev, (size_t)(g->m * g->n) * sizeof(float), "c", (void **)&s->c[i]));
        TRY(matrix_fill(s, DATA_A, g->m, g->k, s->a[i]));
        TRY(matrix_fill(s, DATA_B, g->k, g->n, s->b[i]));
    }
    return STATUS_OK;
}

static enum status gemm_create(const struct bench_case *c, struct bench_env *env, void **state)
{
    struct subject *s = NULL;
    TRY(group_alloc(env, sizeof *s, "a gemm", (void **)&s));
    *s = (struct subject){.env = env, .seed = c->seed, .rank = comm_rank(env->world), .shape = shape_of(c)};
    enum status status = rotation_open(env, c->buffers, bytes_of(s, c->m * c->k + c->k * c->n) + c->m * c->n * 4, &s->rotation);
    if (status == STATUS_OK)
        status = group_agree(env, build(s));
    if (status != STATUS_OK) {
        gemm_destroy(s);
        return status;
    }
    *state = s;
    return STATUS_OK;
}

static enum status gemm_enqueue(void *state, int iteration)
{
    struct subject *s = state;
    int i = rotation_pick(&s->rotation, iteration);
    return gemm_run(dev_kind_of(s->env->dev), &s->shape, s->a[i], s->b[i], s->c[i], s->workspace, s->queue);
}

static struct dev_queue *gemm_queue(void *state)
{
    return ((struct subject *)state)->queue;
}

static enum status gemm_iterate(void *state, int iteration)
{
    TRY(gemm_enqueue(state, iteration));
    return dev_sync(gemm_queue(state), clock_deadline(SUBJECT_SYNC_US));
}

static enum status gemm_poison(void *state)
{
    struct subject *s = state;
    for (int k = 1; k <= s->rotation.n; k++)
        TRY(dev_fill(s->queue, s->c[(s->rotation.last + k) % s->rotation.n], 0xff, (size_t)(s->shape.m * s->shape.n) * sizeof(float)));
    return dev_sync(s->queue, clock_deadline(SUBJECT_SYNC_US));
}

/* The bound that holds for any order of summing in fp32: k roundings of the sum of magnitudes. */
static enum status gemm_verify(void *state, bool *ok, char why[256])
{
    struct subject *s = state;
    const struct gemm_shape *g = &s->shape;
    struct rng rng;
    rng_seed(&rng, s->seed, (uint64_t)s->verified++);
    *ok = true;
    for (int spot = 0; spot < SPOTS && *ok; spot++) {
        int64_t row = spot == 0 ? 0 : spot == 1 ? g->m - 1 : rng_below(&rng, g->m);
        int64_t col = spot == 0 ? 0 : spot == 1 ? g->n - 1 : rng_below(&rng, g->n);
        double want = 0, size = 0;
        float got;
        TRY(dev_copy_now(s->queue, &got, &s->c[s->rotation.last][row * g->n + col], sizeof got,
                         clock_deadline(SUBJECT_SYNC_US)));
        for (int64_t i = 0; i < g->k; i++) {
            double term = element(s, DATA_A, row, i) * element(s, DATA_B, i, col);
            want += term;
            size += fabs(term);
        }
        double allowed = (double)(g->k + 1) * 0x1p-24 * size;
        *ok = fabs((double)got - want) <= allowed;
        if (!*ok)
            text_print(why, 256, "c[%lld][%lld] is %.9g, not %.9g within %.3g", (long long)row, (long long)col, (double)got, want,
                       allowed);
    }
    return STATUS_OK;
}

static const char *kernel(void *state)
{
    return gemm_name(dev_kind_of(((struct subject *)state)->env->dev));
}

static void gemm_note(void *state, json_t *conditions)
{
    rotation_note(&((struct subject *)state)->rotation, conditions);
}

const struct bench_subject subject_gemm = {
    .name = "gemm",
    .about = "one matrix product per rank",
    .computes = true,
    .check = gemm_check,
    .key = gemm_key,
    .create = gemm_create,
    .iterate = gemm_iterate,
    .enqueue = gemm_enqueue,
    .queue = gemm_queue,
    .poison = gemm_poison,
    .verify = gemm_verify,
    .destroy = gemm_destroy,
    .kernel = kernel,
    .note = gemm_note,
};
