/* tests/kernels/nn_fixture.h -- for tests of nn: tensors with random values, what a result may be off, every instruction set and dtype,
 * and the same bits on 1, 2 and 3 threads.
 */
#ifndef SPTUNE_TESTS_KERNELS_NN_FIXTURE_H
#define SPTUNE_TESTS_KERNELS_NN_FIXTURE_H

#include "base/check.h"
#include "base/rng.h"
#include "kernels/attention_cpu.h"
#include "kernels/nn.h"

#include <math.h>
#include <stdlib.h>

/* Exactly n elements, so that address sanitizers see what lies beyond; NaN: nothing may be left of it. */
static inline void *nn_blank(enum dtype dtype, int64_t n)
{
    size_t bytes = n > 0 ? (size_t)n * (size_t)dtype_bytes(dtype) : 1;
    void *out = malloc(bytes);
    assert_non_null(out);
    memset(out, 0xff, bytes);
    return out;
}

static inline void *nn_random(struct rng *rng, enum dtype dtype, int64_t n, double scale)
{
    void *out = nn_blank(dtype, n);
    for (int64_t i = 0; i < n; i++)
        dtype_set(dtype, out, i, (float)(scale * rng_normal(rng)));
    return out;
}

static inline void *nn_copy(const void *from, enum dtype dtype, int64_t n)
{
    void *out = nn_blank(dtype, n);
    if (n > 0)
        memcpy(out, from, (size_t)(n * dtype_bytes(dtype)));
    return out;
}

static inline double nn_get(enum dtype dtype, const void *base, int64_t i)
{
    return (double)dtype_get(dtype, base, i);
}

/* got[i] is `exact` rounded once to its type; before that it is off by at most `ulps` roundings of fp32 of terms as large as `size`. */
static inline void nn_near(const char *what, enum dtype dtype, const void *got, int64_t i, double exact, double size,
                           double ulps)
{
    static const double rounding[DTYPE_COUNT] = {0x1p-24, 0x1p-8, 0x1p-11}, least[DTYPE_COUNT] = {0x1p-149, 0, 0x1p-25};
    double is = nn_get(dtype, got, i), room = ulps * 0x1p-24 * (fabs(exact) + size);
    room += rounding[dtype] * (fabs(exact) + room) + least[dtype];
    if (!(fabs(is - exact) <= room))
        fail_msg("%s, %s, %s: [%lld] is %.9g, not %.9g +- %.2g", what, dtype_name(dtype), attention_cpu_isa_name(),
                 (long long)i, is, exact, room);
}

/* body(arg, dtype) for each instruction set and dtype. */
static inline void nn_everywhere(void (*body)(struct rng *rng, enum dtype dtype))
{
    for (int isa = 0; attention_cpu_isa(isa) != NULL; isa++) {
        struct rng rng;
        rng_seed(&rng, 1, (uint64_t)isa);
        attention_cpu_use(isa);
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
            body(&rng, (enum dtype)dtype);
    }
    attention_cpu_use(-1);
}

/* run(arg, queue) computes into `out` from what it starts with; `bytes` of it are the same for 1, 2 and 3 threads and for no queue. */
static inline void nn_same_on_threads(void (*run)(void *arg, void *out, struct dev_queue *queue), void *arg,
                                      const void *start, size_t bytes)
{
    struct dev *dev = NULL;
    struct dev_queue *queue = NULL;
    void *alone = malloc(bytes), *shared = malloc(bytes);
    CHECK_OK(dev_open(DEV_CPU, 0, &dev));
    CHECK_OK(dev_queue_create(dev, &queue));
    memcpy(alone, start, bytes);
    run(arg, alone, NULL);
    assert_true(memcmp(alone, start, bytes) != 0);
    for (int threads = 1; threads <= 3; threads++) {
        CHECK_OK(dev_threads_set(dev, threads));
        memcpy(shared, start, bytes);
        run(arg, shared, queue);
        assert_memory_equal(alone, shared, bytes);
    }
    free(alone);
    free(shared);
    dev_queue_destroy(queue);
    dev_close(dev);
}

#endif
