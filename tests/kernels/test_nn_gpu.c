/* tests/kernels/test_nn_gpu.c -- nn on a GPU against nn on the CPU, which has been held against formulas: every call, dtype and odd shapes;
 * the same bits every time. And products that are added or narrow.
 */
#include "kernels/nn_fixture.h"

#include "base/clock.h"
#include "kernels/gemm.h"

#include <stdio.h>

static struct dev *gpu;
static struct dev_queue *queue;

/* What a call reads and writes: tensors, each with its size in fp32 roundings and in values that a result may be off. */
enum { SIDES = 8 };
struct sides {
    int n;
    enum dtype dtype[SIDES];
    int64_t elems[SIDES];
    void *host[SIDES];
    double ulps[SIDES]; /* 0: an input, or scratch */
    bool scratch[SIDES];
};

static void side(struct sides *sides, enum dtype dtype, int64_t elems, void *host, double ulps)
{
    sides->dtype[sides->n] = dtype;
    sides->elems[sides->n] = elems;
    sides->ulps[sides->n] = ulps;
    sides->host[sides->n++] = host;
}

/* Bytes that nothing is expected in. */
static void scratch(struct sides *sides, size_t bytes)
{
    sides->scratch[sides->n] = true;
    side(sides, DTYPE_FP32, (int64_t)(bytes + 3) / 4, nn_blank(DTYPE_FP32, (int64_t)(bytes + 3) / 4), 0);
}

static size_t side_bytes(const struct sides *sides, int i)
{
    return (size_t)sides->elems[i] * (size_t)dtype_bytes(sides->dtype[i]);
}

typedef enum status (*call_fn)(const void *shape, void **p, struct dev_queue *queue);

/* Every tensor goes up and down again. */
static void run_on_gpu(const struct sides *sides, call_fn call, const void *shape, void **out)
{
    void *there[SIDES] = {NULL};
    for (int i = 0; i < sides->n; i++) {
        CHECK_OK(dev_alloc(gpu, side_bytes(sides, i), "a tensor", &there[i]));
        CHECK_OK(dev_copy(queue, there[i], sides->host[i], side_bytes(sides, i)));
    }
    CHECK_OK(call(shape, there, queue));
    for (int i = 0; i < sides->n; i++) {
        out[i] = nn_blank(sides->dtype[i], sides->elems[i]);
        CHECK_OK(dev_copy(queue, out[i], there[i], side_bytes(sides, i)));
    }
    CHECK_OK(dev_sync(queue, clock_deadline(20 * 1000 * 1000)));
    for (int i = 0; i < sides->n; i++)
        dev_free(gpu, there[i]);
}

/* On the GPU twice, then on the CPU where the tensors lie; frees them. */
static void agree(const char *what, struct sides *sides, call_fn call, const void *shape)
{
    void *first[SIDES], *again[SIDES];
    run_on_gpu(sides, call, shape, first);
    run_on_gpu(sides, call, shape, again);
    CHECK_OK(call(shape, sides->host, NULL));
    for (int i = 0; i < sides->n; i++) {
        const bool compared = !sides->scratch[i] && side_bytes(sides, i) > 0;
        if (compared)
            assert_memory_equal(first[i], again[i], side_bytes(sides, i));
        if (compared && sides->ulps[i] == 0)
            assert_memory_equal(first[i], sides->host[i], side_bytes(sides, i));
        for (int64_t e = 0; compared && sides->ulps[i] > 0 && e < sides->elems[i]; e++)
            nn_near(what, sides->dtype[i], first[i], e, nn_get(sides->dtype[i], sides->host[i], e), 1,
                    sides->ulps[i] + (sides->dtype[i] == DTYPE_BF16   ? 0x1p16
                                      : sides->dtype[i] == DTYPE_FP16 ? 0x1p13
                                                                      : 0));
        free(first[i]);
        free(again[i]);
        free(sides->host[i]);
    }
}

struct shape {
    int64_t rows, dim, vocab;
    enum dtype dtype, to;
    bool add;
};

static const struct shape shapes[] = {
    {.rows = 1, .dim = 2, .vocab = 1},         {.rows = 3, .dim = 6, .vocab = 7},
    {.rows = 7, .dim = 113 * 2, .vocab = 113}, {.rows = 113, .dim = 512, .vocab = 1030},
    {.rows = 1030, .dim = 64, .vocab = 5},     {.rows = 2, .dim = 16384, .vocab = 5000},
};

static void each_shape(void (*body)(struct rng *rng, struct shape shape))
{
    struct rng rng;
    rng_seed(&rng, 1, 0);
    for (int i = 0; i < CHECK_COUNT(shapes) * DTYPE_COUNT; i++) {
        struct shape shape = shapes[i / DTYPE_COUNT];
        shape.dtype = (enum dtype)(i % DTYPE_COUNT);
        body(&rng, shape);
    }
}

static void *ids_make(struct rng *rng, int64_t rows, int64_t vocab, bool some_ignored)
{
    int32_t *out = nn_blank(DTYPE_FP32, rows);
    for (int64_t i = 0; i < rows; i++)
        out[i] = some_ignored && i % 3 == 1 ? NN_IGNORE : (int32_t)rng_below(rng, vocab);
    return out;
}

/* ---- norm ---- */

static enum status norm_call(const void *shape, void **p, struct dev_queue *on)
{
    const struct shape *s = shape;
    TRY(nn_norm_forward(s->rows, s->dim, s->dtype, p[0], p[1], 1e-5f, p[2], p[3], on));
    return nn_norm_backward(s->rows, s->dim, s->dtype, p[0], p[1], p[3], p[4], s->add, p[5], p[6], p[7], on);
}

static void norm_case(struct rng *rng, struct shape s)
{
    for (int add = 0; add < 2; add++) {
        struct sides sides = {0};
        size_t cpu = nn_norm_scratch(DEV_CPU, s.rows, s.dim), cuda = nn_norm_scratch(DEV_CUDA, s.rows, s.dim);
        s.add = add == 1;
        side(&sides, s.dtype, s.rows * s.dim, nn_random(rng, s.dtype, s.rows * s.dim, 2), 0);
        side(&sides, s.dtype, s.dim, nn_random(rng, s.dtype, s.dim, 1), 0);
        side(&sides, s.dtype, s.rows * s.dim, nn_blank(s.dtype, s.rows * s.dim), 32);
        side(&sides, DTYPE_FP32, s.rows, nn_blank(DTYPE_FP32, s.rows), 32);
        side(&sides, s.dtype, s.rows * s.dim, nn_random(rng, s.dtype, s.rows * s.dim, 1), 0);
        side(&sides, s.dtype, s.rows * s.dim, nn_random(rng, s.dtype, s.rows * s.dim, 1), 64);
        side(&sides, DTYPE_FP32, s.dim, nn_random(rng, DTYPE_FP32, s.dim, 1), 64 + 4 * sqrt((double)s.rows));
        scratch(&sides, cpu > cuda ? cpu : cuda);
        agree("norm", &sides, norm_call, &s);
    }
}

static void norm(void **state)
{
    (void)state;
    each_shape(norm_case);
}

/* ---- rope ---- */

static enum status rope_call(const void *shape, void **p, struct dev_queue *on)
{
    const struct shape *s = shape;
    return nn_rope(s->rows, 9, (int)s->dim, s->dtype, p[0], p[1], p[2], s->add, on);
}

static void rope_case(struct rng *rng, struct shape s)
{
    for (int inverse = 0; inverse < 2; inverse++) {
        struct sides sides = {0};
        int64_t n = s.rows * 9 * s.dim;
        float *freq = nn_blank(DTYPE_FP32, s.dim / 2);
        for (int64_t i = 0; i < s.dim / 2; i++)
            freq[i] = (float)pow(10000, -2.0 * (double)i / (double)s.dim);
        s.add = inverse == 1;
        side(&sides, s.dtype, n, nn_random(rng, s.dtype, n, 1), 16);
        side(&sides, DTYPE_FP32, s.rows, ids_make(rng, s.rows, 1000000, false), 0);
        side(&sides, DTYPE_FP32, s.dim / 2, freq, 0);
        agree("rope", &sides, rope_call, &s);
    }
}

static void rope(void **state)
{
    (void)state;
    each_shape(rope_case);
}

/* ---- element by element ---- */

static enum status each_call(const void *shape, void **p, struct dev_queue *on)
{
    const struct shape *s = shape;
    int64_t n = s->rows * s->dim - 1; /* odd */
    TRY(nn_swiglu_forward(n, s->dtype, p[0], p[1], p[3], on));
    TRY(nn_swiglu_backward(n, s->dtype, p[0], p[1], p[2], p[4], p[5], on));
    TRY(nn_add(n, s->dtype, p[4], p[2], on));
    return nn_convert(n, s->dtype, p[2], s->to, p[6], on);
}

static void each_case(struct rng *rng, struct shape s)
{
    for (int to = 0; to < DTYPE_COUNT; to++) {
        struct sides sides = {0};
        int64_t n = s.rows * s.dim;
        s.to = (enum dtype)to;
        for (int i = 0; i < 3; i++)
            side(&sides, s.dtype, n, nn_random(rng, s.dtype, n, i == 0 ? 6 : 1), 0);
        for (int i = 0; i < 3; i++)
            side(&sides, s.dtype, n, nn_random(rng, s.dtype, n, 1), 64);
        side(&sides, s.to, n, nn_random(rng, s.to, n, 1), 0); /* exact */
        agree("elements", &sides, each_call, &s);
    }
}

/* Not at the beginning of vectors. */
static enum status shifted_call(const void *shape, void **p, struct dev_queue *on)
{
    const struct shape *s = shape;
    size_t by = (size_t)dtype_bytes(s->dtype);
    TRY(nn_add(s->rows * s->dim - 1, s->dtype, (char *)p[0] + by, p[1], on));
    return nn_norm_forward(1, s->dim - 1, s->dtype, (char *)p[0] + by, (char *)p[1] + by, 1e-5f, (char *)p[2] + by,
                           p[3], on);
}

static void shifted_case(struct rng *rng, struct shape s)
{
    struct sides sides = {0};
    for (int i = 0; i < 3; i++)
        side(&sides, s.dtype, s.rows * s.dim, nn_random(rng, s.dtype, s.rows * s.dim, 1), i == 1 ? 0 : 32);
    side(&sides, DTYPE_FP32, 1, nn_blank(DTYPE_FP32, 1), 32);
    agree("shifted elements", &sides, shifted_call, &s);
}

static void elements(void **state)
{
    (void)state;
    each_shape(each_case);
    each_shape(shifted_case);
}

static enum status bias_call(const void *shape, void **p, struct dev_queue *on)
{
    const struct shape *s = shape;
    TRY(nn_bias_backward(s->rows, s->dim, s->dtype, p[0], p[2], on));
    return nn_bias(s->rows, s->dim, s->dtype, p[0], p[1], on);
}

static void bias_case(struct rng *rng, struct shape s)
{
    struct sides sides = {0};
    side(&sides, s.dtype, s.rows * s.dim, nn_random(rng, s.dtype, s.rows * s.dim, 1), 4);
    side(&sides, s.dtype, s.dim, nn_random(rng, s.dtype, s.dim, 1), 0);
    side(&sides, DTYPE_FP32, s.dim, nn_random(rng, DTYPE_FP32, s.dim, 1), 16 + 4 * sqrt((double)s.rows) * 8);
    agree("bias", &sides, bias_call, &s);
}

static void bias(void **state)
{
    (void)state;
    each_shape(bias_case);
}

/* ---- embedding: moved, and added in row order, so exact ---- */

static enum status embed_call(const void *shape, void **p, struct dev_queue *on)
{
    const struct shape *s = shape;
    TRY(nn_embed_forward(s->rows, s->dim, s->dtype, p[0], p[1], p[2], on));
    return nn_embed_backward(s->rows, s->vocab, s->dim, s->dtype, p[0], p[2], p[3], on);
}

static void embed_case(struct rng *rng, struct shape s)
{
    struct sides sides = {0};
    side(&sides, DTYPE_FP32, s.rows, ids_make(rng, s.rows, s.vocab, false), 0);
    side(&sides, s.dtype, s.vocab * s.dim, nn_random(rng, s.dtype, s.vocab * s.dim, 1), 0);
    side(&sides, s.dtype, s.rows * s.dim, nn_blank(s.dtype, s.rows * s.dim), 0);
    side(&sides, DTYPE_FP32, s.vocab * s.dim, nn_random(rng, DTYPE_FP32, s.vocab * s.dim, 1), 0);
    agree("embedding", &sides, embed_call, &s);
}

static void embed(void **state)
{
    (void)state;
    each_shape(embed_case);
}

/* ---- loss ---- */

static enum status loss_call(const void *shape, void **p, struct dev_queue *on)
{
    const struct shape *s = shape;
    TRY(nn_loss(s->rows, s->vocab, s->dim, p[0], p[1], 0.37f, false, p[2], on));
    return nn_loss(s->rows, s->vocab, s->dim, p[0], p[1], 0.37f, true, p[3], on);
}

static void loss(void **state)
{
    (void)state;
    static const int pads[] = {0, 1, 2, 3, 9};
    struct rng rng;
    rng_seed(&rng, 2, 0);
    for (int i = 0; i < CHECK_COUNT(shapes) * CHECK_COUNT(pads); i++) {
        struct shape s = shapes[i / CHECK_COUNT(pads)];
        struct sides sides = {0};
        s.rows = s.rows < 113 ? s.rows : 113;
        s.dim = s.vocab + pads[i % CHECK_COUNT(pads)]; /* the stride */
        float *logits = nn_random(&rng, DTYPE_FP32, s.rows * s.dim, 5);
        for (int64_t at = 0; at < s.dim && s.rows > 3; at++) {
            logits[at] += 1e4f;
            logits[2 * s.dim + at] = at % 2 == 0 ? -INFINITY : logits[2 * s.dim + at];
        }
        int32_t *labels = ids_make(&rng, s.rows, s.vocab, true);
        if (s.rows > 3)
            labels[2] = s.vocab > 1 ? 1 : NN_IGNORE;
        side(&sides, DTYPE_FP32, s.rows * s.dim, logits, 128);
        side(&sides, DTYPE_FP32, s.rows, labels, 0);
        side(&sides, DTYPE_FP32, s.rows, nn_blank(DTYPE_FP32, s.rows), 64);
        side(&sides, DTYPE_FP32, s.rows, nn_blank(DTYPE_FP32, s.rows), 64);
        agree("loss", &sides, loss_call, &s);
    }
}

/* ---- optimizer ---- */

static enum status adamw_call(const void *shape, void **p, struct dev_queue *on)
{
    const struct shape *s = shape;
    struct nn_adamw at = {.lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .grad_scale = 0.5f};
    for (at.step = 1; at.step <= 3; at.step++)
        TRY(nn_adamw(s->rows * s->dim - 1, &at, s->dtype, p[0], p[1], p[2], p[3], s->add ? p[0] : p[4], on));
    TRY(nn_sum(s->rows * s->dim, p[3], true, p[5], p[6], on));
    return nn_sum(0, NULL, false, (double *)p[5] + 1, NULL, on);
}

static void adamw_case(struct rng *rng, struct shape s)
{
    int64_t n = s.rows * s.dim;
    for (int in_place = 0; in_place <= (s.dtype == DTYPE_FP32); in_place++) {
        struct sides sides = {0};
        s.add = in_place == 1;
        side(&sides, DTYPE_FP32, n, nn_random(rng, DTYPE_FP32, n, 1), 32);
        side(&sides, DTYPE_FP32, n, nn_random(rng, DTYPE_FP32, n, 0), 32);
        side(&sides, DTYPE_FP32, n, nn_random(rng, DTYPE_FP32, n, 0), 32);
        side(&sides, DTYPE_FP32, n, nn_random(rng, DTYPE_FP32, n, 1), 0);
        side(&sides, s.dtype, n, nn_random(rng, s.dtype, n, 1), 32);
        scratch(&sides, 16); /* two doubles: compared below */
        scratch(&sides, nn_sum_scratch(n));
        agree("adamw", &sides, adamw_call, &s);
    }
}

static void sums_agree(struct rng *rng, struct shape s)
{
    int64_t n = s.rows * s.dim * 3 + 1;
    float *x = nn_random(rng, DTYPE_FP32, n, 1e20);
    double here[2], there[2], *out = NULL;
    void *room = malloc(nn_sum_scratch(n)), *on_x = NULL, *on_room = NULL;
    CHECK_OK(dev_alloc(gpu, (size_t)n * sizeof *x, "a tensor", &on_x));
    CHECK_OK(dev_alloc(gpu, nn_sum_scratch(n), "scratch", &on_room));
    CHECK_OK(dev_alloc(gpu, sizeof there, "sums", (void **)&out));
    CHECK_OK(dev_copy(queue, on_x, x, (size_t)n * sizeof *x));
    for (int squares = 0; squares < 2; squares++) {
        CHECK_OK(nn_sum(n, x, squares == 1, &here[squares], room, NULL));
        CHECK_OK(nn_sum(n, on_x, squares == 1, &out[squares], on_room, queue));
    }
    CHECK_OK(dev_copy(queue, there, out, sizeof there));
    CHECK_OK(dev_sync(queue, clock_deadline(20 * 1000 * 1000)));
    assert_true(fabs(here[0] - there[0]) <= 1e-13 * (double)n * 1e20);
    assert_true(here[1] > 0 && fabs(here[1] - there[1]) <= 1e-12 * here[1]);
    dev_free(gpu, out);
    dev_free(gpu, on_room);
    dev_free(gpu, on_x);
    free(room);
    free(x);
}

static void optimizer(void **state)
{
    (void)state;
    each_shape(adamw_case);
    each_shape(sums_agree);
}

/* ---- products ---- */

static enum status product_call(const void *shape, void **p, struct dev_queue *on)
{
    enum dev_kind kind = on == NULL ? DEV_CPU : DEV_CUDA;
    return gemm_run(kind, shape, p[0], p[1], p[2], p[3], on);
}

static void products(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{16, 24, 600}, {128, 64, 96}, {8, 8, 0}, {256, 512, 64}};
    struct rng rng;
    rng_seed(&rng, 3, 0);
    if (gemm_ready(DEV_CUDA) != STATUS_OK) {
        print_message("skipped: %s\n", status_last()->what);
        skip();
    }
    for (int i = 0; i < CHECK_COUNT(sizes) * 16 * DTYPE_COUNT; i++) {
        const int64_t *size = sizes[i / (16 * DTYPE_COUNT)];
        struct sides sides = {0};
        struct gemm_shape g = {.m = size[0],
                               .n = size[1],
                               .k = size[2],
                               .dtype = (enum dtype)(i % DTYPE_COUNT),
                               .trans_a = i / DTYPE_COUNT % 2 == 1,
                               .trans_b = i / DTYPE_COUNT / 2 % 2 == 1,
                               .add = i / DTYPE_COUNT / 4 % 2 == 1,
                               .narrow = i / DTYPE_COUNT / 8 % 2 == 1};
        enum dtype type = g.narrow ? g.dtype : DTYPE_FP32;
        size_t cpu = gemm_workspace(DEV_CPU, &g), cuda = gemm_workspace(DEV_CUDA, &g);
        side(&sides, g.dtype, g.m * g.k, nn_random(&rng, g.dtype, g.m * g.k, 0.2), 0);
        side(&sides, g.dtype, g.n * g.k, nn_random(&rng, g.dtype, g.n * g.k, 0.2), 0);
        side(&sides, type, g.m * g.n, nn_random(&rng, type, g.m * g.n, 1), 4 * (double)(g.k + 1));
        scratch(&sides, cpu > cuda ? cpu : cuda);
        agree("a product", &sides, product_call, &g);
    }
}

static int open_gpu(void **state)
{
    (void)state;
    CHECK_OK(dev_queue_create(gpu, &queue));
    return 0;
}

static int close_gpu(void **state)
{
    (void)state;
    dev_queue_destroy(queue);
    dev_close(gpu);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm),  cmocka_unit_test(rope), cmocka_unit_test(elements),  cmocka_unit_test(bias),
        cmocka_unit_test(embed), cmocka_unit_test(loss), cmocka_unit_test(optimizer), cmocka_unit_test(products),
    };
    if (dev_open(DEV_CUDA, 0, &gpu) != STATUS_OK) {
        printf("skipped: %s\n", status_last()->what);
        return 77;
    }
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
