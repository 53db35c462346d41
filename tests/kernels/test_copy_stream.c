/* tests/kernels/test_copy_stream.c -- copies that bypass the cache store the same bytes, and no others, as copy_run. */
#include "base/rng.h"
#include "kernels/copy_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROUNDS = 300, POISON = 0xee };

/* A job of random sizes, gaps and misalignment on both sides. */
struct sides {
    struct copy_job job;
    size_t src_bytes, dst_bytes;
};

static int64_t up_to(struct rng *rng, int64_t most)
{
    return (int64_t)rng_below(rng, most + 1);
}

static size_t lay_out(struct rng *rng, const struct copy_job *job, int64_t stride[3])
{
    stride[2] = (int64_t)job->row_bytes + up_to(rng, 2) * up_to(rng, 100);
    stride[1] = stride[2] * job->n[2] + up_to(rng, 1) * 36;
    stride[0] = stride[1] * job->n[1] + up_to(rng, 1) * 52;
    return (size_t)(stride[0] * job->n[0]) + 1;
}

static struct sides sides_make(struct rng *rng)
{
    static const size_t rows[] = {0, 1, 63, 64, 255, 256, 257, 320, 512, 1000, 4096};
    struct sides sides = {.job = {.n = {1 + up_to(rng, 2), up_to(rng, 3), 1 + up_to(rng, 7)},
                                  .row_bytes = rows[(size_t)up_to(rng, sizeof rows / sizeof rows[0] - 1)]}};
    sides.src_bytes = lay_out(rng, &sides.job, sides.job.src_stride);
    sides.dst_bytes = lay_out(rng, &sides.job, sides.job.dst_stride);
    return sides;
}

static void same_bytes_as_copy_run(void **state)
{
    (void)state;
    struct rng rng;
    rng_seed(&rng, 20261129, 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct sides sides = sides_make(&rng);
        size_t src_shift = (size_t)up_to(&rng, 70), dst_shift = (size_t)up_to(&rng, 70);
        unsigned char *src = malloc(sides.src_bytes + src_shift), *want = malloc(sides.dst_bytes + dst_shift);
        unsigned char *got = malloc(sides.dst_bytes + dst_shift);
        assert_true(src && want && got);
        for (size_t i = 0; i < sides.src_bytes + src_shift; i++)
            src[i] = (unsigned char)rng_u64(&rng);
        memset(want, POISON, sides.dst_bytes + dst_shift);
        memset(got, POISON, sides.dst_bytes + dst_shift);
        struct copy_job jobs[2] = {sides.job, sides.job};
        jobs[0].src = src + src_shift;
        jobs[0].dst = want + dst_shift;
        assert_int_equal(copy_run(DEV_CPU, jobs, 1, NULL), STATUS_OK);
        jobs[0].dst = got + dst_shift;
        jobs[1].n[0] = 0; /* nothing to do, and no memory given */
        assert_int_equal(copy_stream_run(DEV_CPU, jobs, 2, NULL), STATUS_OK);
        assert_memory_equal(got, want, sides.dst_bytes + dst_shift);
        free(src);
        free(want);
        free(got);
    }
}

#if SPTUNE_CUDA
#define NO_CUDA STATUS_USAGE /* it wants a queue */
#else
#define NO_CUDA STATUS_ABSENT
#endif

static void bad_jobs_are_refused_alike(void **state)
{
    (void)state;
    char byte[300] = {0};
    struct copy_job job = {.src = byte, .dst = NULL, .n = {1, 1, 1}, .row_bytes = sizeof byte};
    assert_int_equal(copy_stream_run(DEV_CPU, &job, 1, NULL), STATUS_USAGE);
    job.dst = byte;
    job.n[1] = -1;
    assert_int_equal(copy_stream_run(DEV_CPU, &job, 1, NULL), STATUS_USAGE);
    assert_int_equal(copy_stream_run(DEV_CPU, NULL, 1, NULL), STATUS_USAGE);
    assert_int_equal(copy_stream_run(DEV_CPU, NULL, 0, NULL), STATUS_OK);
    assert_int_equal(copy_stream_run(DEV_CUDA, &job, 1, NULL), NO_CUDA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bytes_as_copy_run),
        cmocka_unit_test(bad_jobs_are_refused_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
