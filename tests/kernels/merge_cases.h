/* tests/kernels/merge_cases.h -- attention over parts of the keys, merged, against the same sums in double; on any device. */
#ifndef SPTUNE_TESTS_KERNELS_MERGE_CASES_H
#define SPTUNE_TESTS_KERNELS_MERGE_CASES_H

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "kernels/merge.h"

#include <math.h>
#include <stdlib.h>

enum { MERGE_PARTS = 4, MERGE_SYNC_US = 60 * 1000 * 1000 };

struct merge_case {
    int64_t tokens;
    int heads, dim;
    int64_t gap; /* between the statistics of two heads of the sums, beyond the tokens */
    enum dtype dtype;
};

static const struct merge_case merge_cases[] = {
    {1, 1, 1, 0, DTYPE_FP32},    {5, 3, 8, 0, DTYPE_FP32},   {7, 2, 33, 5, DTYPE_BF16},
    {64, 4, 128, 0, DTYPE_BF16}, {9, 1, 256, 1, DTYPE_FP16}, {700, 3, 64, 3, DTYPE_FP32}, /* several tasks of threads */
};

struct merge_memory { /* on the device */
    void *o;
    float *lse, *o_sum, *lse_sum;
};

/* Values as a kernel could give them: rounded to the type; every fifth row of a part saw nothing, row 0 in none of them. */
static void merge_draw(const struct merge_case *c, int index, void *o, float *lse)
{
    struct rng rng;
    rng_seed(&rng, 7, (uint64_t)index);
    for (int64_t row = 0; row < c->tokens * c->heads; row++) {
        int64_t token = row / c->heads, head = row % c->heads;
        bool nothing = row == 0 || (row + index) % 5 == 0;
        lse[head * c->tokens + token] = nothing ? -INFINITY : (float)(rng_below(&rng, 2000) - 1000) / 50.0f;
        for (int i = 0; i < c->dim; i++)
            dtype_set(c->dtype, o, row * c->dim + i, nothing ? 0 : (float)(rng_below(&rng, 2001) - 1000) / 500.0f);
    }
}

/* What came out against sum of exp(lse) O over all parts. */
static void merge_compare(const struct merge_case *c, const float *o_sum, const float *lse_sum)
{
    int64_t rows = c->tokens * c->heads, each = rows * c->dim;
    void *o[MERGE_PARTS];
    float *lse[MERGE_PARTS];
    for (int p = 0; p < MERGE_PARTS; p++) {
        o[p] = malloc((size_t)(each * dtype_bytes(c->dtype)));
        lse[p] = malloc((size_t)rows * sizeof(float));
        assert_true(o[p] != NULL && lse[p] != NULL);
        merge_draw(c, p, o[p], lse[p]);
    }
    for (int64_t row = 0; row < rows; row++) {
        int64_t token = row / c->heads, head = row % c->heads;
        double most = -INFINITY, total = 0;
        for (int p = 0; p < MERGE_PARTS; p++)
            most = fmax(most, (double)lse[p][head * c->tokens + token]);
        for (int p = 0; p < MERGE_PARTS && most > -INFINITY; p++)
            total += exp((double)lse[p][head * c->tokens + token] - most);
        double got_lse = (double)lse_sum[head * (c->tokens + c->gap) + token];
        if (most > -INFINITY)
            assert_true(fabs(got_lse - (most + log(total))) <= 1e-5 * (1 + fabs(most)));
        else
            assert_true(got_lse == -INFINITY);
        for (int i = 0; i < c->dim; i++) {
            double want = 0;
            for (int p = 0; p < MERGE_PARTS && most > -INFINITY; p++)
                want += exp((double)lse[p][head * c->tokens + token] - most) / total *
                        (double)dtype_get(c->dtype, o[p], row * c->dim + i);
            assert_true(fabs((double)o_sum[row * c->dim + i] - want) <= 1e-5);
        }
    }
    for (int p = 0; p < MERGE_PARTS; p++) {
        free(o[p]);
        free(lse[p]);
    }
}

static void merge_put(struct dev_queue *queue, void *to, const void *from, size_t bytes)
{
    CHECK_OK(dev_copy(queue, to, from, bytes));
    CHECK_OK(dev_sync(queue, clock_deadline(MERGE_SYNC_US)));
}

/* One case: parts one after another into sums that hold NaN at first; then gradients added. */
static void merge_one(struct dev *dev, struct dev_queue *queue, const struct merge_case *c)
{
    int64_t rows = c->tokens * c->heads, each = rows * c->dim, stats = c->heads * (c->tokens + c->gap);
    size_t o_bytes = (size_t)(each * dtype_bytes(c->dtype));
    struct merge_memory m = {0};
    void *o = malloc(o_bytes);
    float *lse = malloc((size_t)rows * sizeof *lse), *o_sum = malloc((size_t)each * sizeof *o_sum);
    float *lse_sum = malloc((size_t)stats * sizeof *lse_sum);
    assert_true(o != NULL && lse != NULL && o_sum != NULL && lse_sum != NULL);
    CHECK_OK(dev_alloc(dev, o_bytes, "a test", &m.o));
    CHECK_OK(dev_alloc(dev, (size_t)rows * sizeof(float), "a test", (void **)&m.lse));
    CHECK_OK(dev_alloc(dev, (size_t)each * sizeof(float), "a test", (void **)&m.o_sum));
    CHECK_OK(dev_alloc(dev, (size_t)stats * sizeof(float), "a test", (void **)&m.lse_sum));
    CHECK_OK(dev_fill(queue, m.o_sum, 0xff, (size_t)each * sizeof(float)));
    CHECK_OK(dev_fill(queue, m.lse_sum, 0xff, (size_t)stats * sizeof(float)));
    for (int p = 0; p < MERGE_PARTS; p++) {
        merge_draw(c, p, o, lse);
        merge_put(queue, m.o, o, o_bytes);
        merge_put(queue, m.lse, lse, (size_t)rows * sizeof *lse);
        struct merge_part part = {.tokens = c->tokens,
                                  .heads = c->heads,
                                  .dim = c->dim,
                                  .dtype = c->dtype,
                                  .o = m.o,
                                  .lse = m.lse,
                                  .o_sum = m.o_sum,
                                  .lse_sum = m.lse_sum,
                                  .lse_stride = c->tokens + c->gap,
                                  .first = p == 0};
        CHECK_OK(merge_out(dev_kind_of(dev), &part, queue));
    }
    merge_put(queue, o_sum, m.o_sum, (size_t)each * sizeof *o_sum);
    merge_put(queue, lse_sum, m.lse_sum, (size_t)stats * sizeof *lse_sum);
    merge_compare(c, o_sum, lse_sum);
    for (int p = 0; p < 3; p++)
        CHECK_OK(merge_add(dev_kind_of(dev), c->dtype, m.o, m.o_sum, each, p == 0, queue));
    merge_put(queue, o_sum, m.o_sum, (size_t)each * sizeof *o_sum);
    for (int64_t i = 0; i < each; i++) { /* o is the last part still */
        float value = dtype_get(c->dtype, o, i);
        assert_true(o_sum[i] == value + value + value);
    }
    dev_free(dev, m.lse_sum);
    dev_free(dev, m.o_sum);
    dev_free(dev, m.lse);
    dev_free(dev, m.o);
    free(lse_sum);
    free(o_sum);
    free(lse);
    free(o);
}

static void merge_all(enum dev_kind kind)
{
    struct dev *dev = NULL;
    struct dev_queue *queue = NULL;
    CHECK_OK(dev_open(kind, 0, &dev));
    CHECK_OK(dev_queue_create(dev, &queue));
    for (int i = 0; i < CHECK_COUNT(merge_cases); i++)
        merge_one(dev, queue, &merge_cases[i]);
    dev_queue_destroy(queue);
    dev_close(dev);
}

#endif
