/* tests/train/test_stream.c -- AdamW on states that pass through buffers, piece by piece: the bits of nn_adamw on all at once. */
#include "base/check.h"

#include "base/mem.h"
#include "base/rng.h"
#include "train/stream.h"

#include <stdlib.h>
#include <string.h>

enum { N = 1003, STEPS = 3 };

/* Everything of one optimizer. */
struct side {
    float master[N], m[N], v[N];
    unsigned char weight[N * 4];
};

static void grads_make(float *grads, int step)
{
    for (int i = 0; i < N; i++)
        grads[i] = (float)(rng_hash((uint64_t)step, (uint64_t)i) % 1000) * 1e-3f - 0.4f;
}

static void compare(struct dev *dev, int64_t piece, enum dtype dtype, int threads)
{
    static struct side whole, passed;
    float grads[N];
    struct dev_queue *queue = NULL;
    struct stream *stream = NULL;
    bool masters = dtype != DTYPE_FP32;
    memset(&whole, 0, sizeof whole);
    for (int i = 0; i < N; i++)
        whole.master[i] = (float)i * 1e-3f - 0.5f;
    passed = whole;
    CHECK_OK(dev_threads_set(dev, threads));
    CHECK_OK(dev_queue_create(dev, &queue));
    CHECK_OK(stream_create(piece, masters, dev, &stream));
    for (int step = 1; step <= STEPS; step++) {
        struct nn_adamw how = {.lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 1, .step = step};
        grads_make(grads, step);
        CHECK_OK(nn_adamw(N, &how, dtype, whole.master, whole.m, whole.v, grads,
                          masters ? (void *)whole.weight : whole.master, queue));
        CHECK_OK(stream_begin(stream, queue));
        for (int from = 0; from < N; from += 501) { /* several tensors, the last of one element */
            int n = N - from < 501 ? N - from : 501;
            void *weight = masters ? (void *)(passed.weight + from * dtype_bytes(dtype)) : passed.master + from;
            CHECK_OK(stream_adamw(stream, n, &how, dtype, passed.master + from, passed.m + from, passed.v + from,
                                  grads + from, weight, queue));
        }
        CHECK_OK(stream_end(stream, queue));
    }
    CHECK_OK(dev_sync(queue, INT64_MAX));
    assert_true(whole.master[1] < -0.5f || whole.master[1] > -0.49f);
    assert_memory_equal(&passed, &whole, sizeof whole);
    stream_destroy(stream);
    dev_queue_destroy(queue);
}

static void pieces_are_the_whole(void **state)
{
    (void)state;
    static const int64_t pieces[] = {7, 64, 500, 501, 4096};
    struct dev *dev = NULL;
    CHECK_OK(dev_open(DEV_CPU, 0, &dev));
    for (int p = 0; p < CHECK_COUNT(pieces); p++)
        for (int threads = 1; threads <= 2; threads++) {
            compare(dev, pieces[p], DTYPE_FP32, threads);
            compare(dev, pieces[p], DTYPE_BF16, threads);
        }
    dev_close(dev);
}

static void buffers_are_counted(void **state)
{
    (void)state;
    assert_int_equal(stream_need_bytes(100, true), 2 * 3 * 400);
    assert_int_equal(stream_need_bytes(100, false), 2 * 2 * 400);
    stream_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pieces_are_the_whole), cmocka_unit_test(buffers_are_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
