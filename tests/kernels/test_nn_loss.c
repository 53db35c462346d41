/* tests/kernels/test_nn_loss.c -- embedding and cross-entropy against loops in double, and the loss's gradient against finite differences.
 */
#include "kernels/nn_fixture.h"

static int32_t *labels_make(struct rng *rng, int64_t rows, int64_t vocab, double ignored)
{
    int32_t *out = nn_blank(DTYPE_FP32, rows);
    for (int64_t i = 0; i < rows; i++)
        out[i] = rng_uniform(rng) < ignored ? NN_IGNORE : (int32_t)rng_below(rng, vocab);
    return out;
}

/* ---- embedding ---- */

static void embed_case(struct rng *rng, enum dtype dtype, int64_t rows, int64_t vocab, int64_t dim)
{
    int32_t *ids = labels_make(rng, rows, vocab, 0);
    void *table = nn_random(rng, dtype, vocab * dim, 1), *out = nn_blank(dtype, rows * dim);
    float *dtable = nn_random(rng, DTYPE_FP32, vocab * dim, 1), *right = nn_copy(dtable, DTYPE_FP32, vocab * dim);
    CHECK_OK(nn_embed_forward(rows, dim, dtype, ids, table, out, NULL));
    CHECK_OK(nn_embed_backward(rows, vocab, dim, dtype, ids, out, dtable, NULL));
    for (int64_t i = 0; i < rows * dim; i++) {
        int64_t from = ids[i / dim] * dim + i % dim;
        assert_true(dtype_get(dtype, out, i) == dtype_get(dtype, table, from));
        right[from] += dtype_get(dtype, out, i); /* in row order, as it is promised */
    }
    if (vocab * dim > 0)
        assert_memory_equal(dtable, right, (size_t)(vocab * dim) * sizeof *right);
    free(ids);
    free(table);
    free(out);
    free(dtable);
    free(right);
}

static void embed_shapes(struct rng *rng, enum dtype dtype)
{
    static const int64_t rows[] = {0, 1, 3, 113}, dims[] = {0, 1, 7, 113, 600};
    for (int i = 0; i < CHECK_COUNT(rows) * CHECK_COUNT(dims); i++)
        embed_case(rng, dtype, rows[i / CHECK_COUNT(dims)], 1 + i % 2 * 12, dims[i % CHECK_COUNT(dims)]);
}

static void embed(void **state)
{
    (void)state;
    nn_everywhere(embed_shapes);
    int32_t id = 0;
    float x[1] = {1};
    CHECK_FAILS(STATUS_USAGE, "vocabulary of 0", nn_embed_backward(1, 0, 1, DTYPE_FP32, &id, x, x, NULL));
    CHECK_FAILS(STATUS_USAGE, "-3 rows", nn_embed_forward(-3, 1, DTYPE_FP32, &id, x, x, NULL));
}

/* ---- loss ---- */

/* Loss of a row. Far from 0 the logarithm is nothing beside a logit, so differences of logits come first. */
static double loss_of_row(const float *logits, int64_t vocab, int32_t label)
{
    double sum = 0, most = -INFINITY;
    for (int64_t i = 0; i < vocab; i++)
        most = fmax(most, (double)logits[i]);
    for (int64_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - most);
    return log(sum) + (most - (double)logits[label]);
}

static const float scale = 0.37f;

/* Padding holds NaN. */
static float *logits_make(struct rng *rng, int64_t rows, int64_t vocab, int64_t stride, double size)
{
    float *out = nn_blank(DTYPE_FP32, rows * stride);
    for (int64_t i = 0; i < rows * vocab; i++)
        out[i / vocab * stride + i % vocab] = (float)(size * rng_normal(rng));
    return out;
}

static void row_is_right(const float *logits, int64_t vocab, int64_t stride, int32_t label, float loss,
                         const float *grad)
{
    double right = label == NN_IGNORE ? 0 : loss_of_row(logits, vocab, label);
    if (label == NN_IGNORE)
        assert_true(loss == 0);
    else
        nn_near("loss", DTYPE_FP32, &loss, 0, right, 1, 4);
    for (int64_t i = 0; i < stride; i++) {
        if (label == NN_IGNORE || i >= vocab) {
            assert_true(grad[i] == 0);
            continue;
        }
        double p = exp((double)logits[i] - (double)logits[label] - right);
        nn_near("d logits", DTYPE_FP32, grad, i, (double)scale * (p - (i == label)), (i == label), //
                8 + 4 * fabs(log(p + 1e-30)));
    }
}

static void loss_case(struct rng *rng, int64_t rows, int64_t vocab, int64_t stride, double size, double ignored)
{
    float *logits = logits_make(rng, rows, vocab, stride, size), *grad = nn_copy(logits, DTYPE_FP32, rows * stride);
    float *loss = nn_blank(DTYPE_FP32, rows), *alone = nn_blank(DTYPE_FP32, rows);
    int32_t *labels = labels_make(rng, rows, vocab, ignored);
    CHECK_OK(nn_loss(rows, vocab, stride, grad, labels, scale, false, alone, NULL));
    if (rows > 0)
        assert_memory_equal(grad, logits, (size_t)(rows * stride) * sizeof *grad); /* they stay */
    CHECK_OK(nn_loss(rows, vocab, stride, grad, labels, scale, true, loss, NULL));
    for (int64_t row = 0; row < rows; row++)
        row_is_right(logits + row * stride, vocab, stride, labels[row], loss[row], grad + row * stride);
    if (rows > 0)
        assert_memory_equal(loss, alone, (size_t)rows * sizeof *loss);
    free(logits);
    free(grad);
    free(loss);
    free(alone);
    free(labels);
}

static void loss_shapes(struct rng *rng, enum dtype dtype)
{
    static const int64_t rows[] = {0, 1, 3, 7}, vocabs[] = {1, 3, 7, 113, 2047, 5001};
    if (dtype != DTYPE_FP32)
        return;
    for (int i = 0; i < CHECK_COUNT(rows) * CHECK_COUNT(vocabs); i++) {
        int64_t vocab = vocabs[i % CHECK_COUNT(vocabs)], n = rows[i / CHECK_COUNT(vocabs)];
        loss_case(rng, n, vocab, vocab, 1, 0.3);
        loss_case(rng, n, vocab, vocab + 5, 10, 0.3);
        loss_case(rng, n, vocab, vocab + 1, 1, 1); /* all ignored */
    }
}

static void loss(void **state)
{
    (void)state;
    nn_everywhere(loss_shapes);
}

/* Rows far from 0, with one column far above or below, and with columns that are excluded (-infinity), a whole chunk of them first. */
static void large_logits(struct rng *rng, enum dtype dtype)
{
    enum { VOCAB = 5003, ROWS = 5 };
    static const int32_t labels[ROWS] = {0, 5002, 17, 5002, 4000};
    float *logits = logits_make(rng, ROWS, VOCAB, VOCAB, 3), loss_of[ROWS];
    if (dtype != DTYPE_FP32) {
        free(logits);
        return;
    }
    for (int i = 0; i < VOCAB; i++) {
        logits[i] += 3e4f;
        logits[VOCAB + i] -= 1e30f;
        logits[3 * VOCAB + i] = i < 4500 ? -INFINITY : logits[3 * VOCAB + i];
    }
    logits[2 * VOCAB + 4001] = 3e38f;
    logits[4 * VOCAB + 4000] = 1e20f;
    float *grad = nn_copy(logits, DTYPE_FP32, ROWS * VOCAB);
    CHECK_OK(nn_loss(ROWS, VOCAB, VOCAB, grad, labels, scale, true, loss_of, NULL));
    for (int row = 0; row < ROWS; row++)
        row_is_right(logits + row * VOCAB, VOCAB, VOCAB, labels[row], loss_of[row], grad + row * VOCAB);
    assert_true(loss_of[4] == 0 && loss_of[2] > 2.9e38f);
    free(logits);
    free(grad);
}

static void large(void **state)
{
    (void)state;
    nn_everywhere(large_logits);
}

static void loss_finite_differences(void **state)
{
    (void)state;
    enum { VOCAB = 11 };
    const double h =
        1e-2; /* exact steps of fp32 at this size are what is divided by; the error is that of the third derivative */
    struct rng rng;
    rng_seed(&rng, 2, 0);
    float *logits = logits_make(&rng, 1, VOCAB, VOCAB, 2), *grad = nn_copy(logits, DTYPE_FP32, VOCAB), loss_of;
    int32_t label = 4;
    CHECK_OK(nn_loss(1, VOCAB, VOCAB, grad, &label, scale, true, &loss_of, NULL));
    for (int i = 0; i < VOCAB; i++) {
        float at = logits[i], above = at + (float)h, below = at - (float)h;
        logits[i] = above;
        double more = loss_of_row(logits, VOCAB, label);
        logits[i] = below;
        double less = loss_of_row(logits, VOCAB, label);
        logits[i] = at;
        assert_true(fabs((double)scale * (more - less) / ((double)above - (double)below) - (double)grad[i]) < 1e-5);
    }
    free(logits);
    free(grad);
}

/* ---- threads ---- */

struct shape {
    int64_t rows, vocab, stride;
    const int32_t *labels;
    const float *x;
};

static void loss_on(void *arg, void *out, struct dev_queue *queue)
{
    const struct shape *s = arg;
    float *logits = out;
    CHECK_OK(
        nn_loss(s->rows, s->vocab, s->stride, logits, s->labels, scale, true, logits + s->rows * s->stride, queue));
}

static void embed_on(void *arg, void *out, struct dev_queue *queue)
{
    const struct shape *s = arg;
    CHECK_OK(nn_embed_backward(s->rows, s->vocab, s->stride, DTYPE_FP32, s->labels, s->x, out, queue));
    CHECK_OK(nn_embed_forward(s->rows, s->stride, DTYPE_FP32, s->labels, s->x, out, queue));
}

static void threads_change_no_bits(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 3, 0);
    struct shape s = {.rows = 171, .vocab = 1000, .stride = 1003};
    int32_t *labels = labels_make(&rng, s.rows, s.vocab, 0.2), *ids = labels_make(&rng, s.rows, 21, 0);
    float *start = nn_random(&rng, DTYPE_FP32, s.rows * s.stride + s.rows, 1),
          *x = nn_random(&rng, DTYPE_FP32, s.rows * s.stride, 1);
    s.labels = labels;
    nn_same_on_threads(loss_on, &s, start, (size_t)(s.rows * s.stride + s.rows) * sizeof *start);
    s.labels = ids;
    s.x = x;
    nn_same_on_threads(embed_on, &s, start, (size_t)(s.rows * s.stride) * sizeof *start);
    free(labels);
    free(ids);
    free(start);
    free(x);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    float x[4] = {0}, out[1];
    int32_t label = 0;
    CHECK_FAILS(STATUS_USAGE, "lie 3 apart", nn_loss(1, 4, 3, x, &label, 1, true, out, NULL));
    CHECK_FAILS(STATUS_USAGE, "-4 columns", nn_loss(1, -4, 3, x, &label, 1, true, out, NULL));
    CHECK_FAILS(STATUS_USAGE, "missing", nn_loss(1, 4, 4, x, NULL, 1, true, out, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed),
        cmocka_unit_test(loss),
        cmocka_unit_test(large),
        cmocka_unit_test(loss_finite_differences),
        cmocka_unit_test(threads_change_no_bits),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
