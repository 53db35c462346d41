/* tests/kernels/test_copy_threads.c -- threads that share a copy store the bytes that one alone does, and no others. */
#include "base/cache.h"
#include "base/check.h"
#include "base/rng.h"
#include "kernels/copy_rows.h"
#include "kernels/copy_stream.h"

#include <stdlib.h>

enum { BUFFER = 12 << 20, PATTERN = 0xa5, JOBS = 6 };

static const int counts[] = {1, 2, 3, 5};

struct copier {
    struct dev *dev;
    struct dev_queue *queue;
    unsigned char *src, *alone, *shared;
};

static struct copier copier_open(void)
{
    struct copier c = {.src = malloc(BUFFER), .alone = malloc(BUFFER), .shared = malloc(BUFFER)};
    struct rng rng;
    assert_true(c.src && c.alone && c.shared);
    rng_seed(&rng, 3, 0);
    for (size_t i = 0; i < BUFFER / 8; i++) {
        uint64_t word = rng_u64(&rng);
        memcpy(c.src + 8 * i, &word, 8);
    }
    CHECK_OK(dev_open(DEV_CPU, 0, &c.dev));
    CHECK_OK(dev_queue_create(c.dev, &c.queue));
    return c;
}

static void copier_close(struct copier *c)
{
    dev_queue_destroy(c->queue);
    dev_close(c->dev);
    free(c->src);
    free(c->alone);
    free(c->shared);
}

/* One after the other in both buffers: long rows that end inside a page, rows with gaps on either side, a transposition, one whole
 * row, and jobs without anything. */
static int jobs_make(const struct copier *c, unsigned char *dst, struct copy_job jobs[JOBS])
{
    const struct copy_job shapes[JOBS] = {
        {.n = {1, 1, 5}, .src_stride = {0, 0, 401111}, .dst_stride = {0, 0, 401234}, .row_bytes = 400001},
        {.n = {3, 0, 7}, .row_bytes = 64},
        {.n = {7, 113, 11}, .src_stride = {321024, 2816, 256}, .dst_stride = {2816, 19712, 256}, .row_bytes = 250},
        {.n = {2, 3, 1000}, .src_stride = {300000, 100000, 100}, .dst_stride = {297000, 99000, 99}, .row_bytes = 99},
        {.n = {9, 9, 0}, .row_bytes = 8},
        {.n = {1, 1, 1}, .row_bytes = 4100007},
    };
    int64_t src = 1, to = 3;
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = shapes[i];
        if (jobs[i].n[1] == 0 || jobs[i].n[2] == 0)
            continue; /* without memory, too */
        jobs[i].src = c->src + src;
        jobs[i].dst = dst + to;
        int64_t src_end = (int64_t)jobs[i].row_bytes, dst_end = src_end;
        for (int d = 0; d < 3; d++) {
            src_end += (jobs[i].n[d] - 1) * jobs[i].src_stride[d];
            dst_end += (jobs[i].n[d] - 1) * jobs[i].dst_stride[d];
        }
        src += src_end + 5;
        to += dst_end + 7;
    }
    assert_true(src <= BUFFER && to <= BUFFER);
    return JOBS;
}

typedef enum status copy_fn(enum dev_kind dev, const struct copy_job *jobs, int njobs, struct dev_queue *queue);

static void same_bytes(copy_fn *copy)
{
    struct copier c = copier_open();
    struct copy_job jobs[JOBS];
    memset(c.alone, PATTERN, BUFFER);
    CHECK_OK(copy(DEV_CPU, jobs, jobs_make(&c, c.alone, jobs), NULL));
    for (int i = 0; i < CHECK_COUNT(counts); i++) {
        CHECK_OK(dev_threads_set(c.dev, counts[i]));
        memset(c.shared, PATTERN, BUFFER);
        CHECK_OK(copy(DEV_CPU, jobs, jobs_make(&c, c.shared, jobs), c.queue));
        assert_true(memcmp(c.alone, c.shared, BUFFER) == 0);
    }
    copier_close(&c);
}

static void copies_are_the_same(void **state)
{
    (void)state;
    same_bytes(copy_run);
}

static void copies_past_the_cache_are_the_same(void **state)
{
    (void)state;
    same_bytes(copy_stream_run);
}

/* As if it were more than the cache holds, whatever this machine's is: in many small bands. */
static enum status in_bands(enum dev_kind dev, const struct copy_job *jobs, int njobs, struct dev_queue *queue)
{
    (void)dev;
    copy_rows_share(jobs, njobs, cache_bytes(), queue, copy_rows_stream);
    copy_rows_fence();
    return STATUS_OK;
}

static void bands_are_the_same(void **state)
{
    (void)state;
    assert_true(cache_bytes() > 0 && copy_rows_beyond_cache(cache_bytes()));
    same_bytes(in_bands);
}

/* The byte that a piece stores is the byte that a loop over elements stores. */
static void bands_are_the_jobs(void **state)
{
    (void)state;
    struct copier c = copier_open();
    struct copy_job jobs[JOBS];
    memset(c.alone, PATTERN, BUFFER);
    for (int i = 0, n = jobs_make(&c, c.alone, jobs); i < n; i++)
        for (int64_t row = 0; row < jobs[i].n[0] * jobs[i].n[1] * jobs[i].n[2]; row++) {
            const int64_t *n3 = jobs[i].n;
            int64_t at[3] = {row / n3[2] / n3[1], row / n3[2] % n3[1], row % n3[2]}, from = 0, to = 0;
            for (int d = 0; d < 3; d++) {
                from += at[d] * jobs[i].src_stride[d];
                to += at[d] * jobs[i].dst_stride[d];
            }
            memcpy((char *)jobs[i].dst + to, (const char *)jobs[i].src + from, jobs[i].row_bytes);
        }
    memset(c.shared, PATTERN, BUFFER);
    CHECK_OK(in_bands(DEV_CPU, jobs, jobs_make(&c, c.shared, jobs), c.queue));
    assert_true(memcmp(c.alone, c.shared, BUFFER) == 0);
    copier_close(&c);
}

static void sums_are_the_same(void **state)
{
    (void)state;
    struct copier c = copier_open();
    float *wide = calloc(BUFFER / 4, sizeof *wide);
    assert_non_null(wide);
    for (int i = 0; i < BUFFER / 4; i++)
        wide[i] = (float)((i % 1009) * 7919 % 1001) * 0.37f - 100.0f;
    dtype_store(DTYPE_BF16, wide, c.src, BUFFER / 4);
    const void *srcs[3] = {c.src, c.src + 2, c.src + (1 << 20)};
    struct copy_sum sum = {.srcs = srcs,
                           .copies = 3,
                           .n = {2, 500, 33},
                           .src_stride = {2500000, 4900, 148},
                           .dst_stride = {146, 292, 146000},
                           .elems = 73,
                           .dtype = DTYPE_BF16};
    memset(c.alone, PATTERN, BUFFER);
    sum.dst = c.alone;
    CHECK_OK(copy_sum_run(DEV_CPU, &sum, NULL));
    for (int i = 0; i < CHECK_COUNT(counts); i++) {
        CHECK_OK(dev_threads_set(c.dev, counts[i]));
        memset(c.shared, PATTERN, BUFFER);
        sum.dst = c.shared;
        CHECK_OK(copy_sum_run(DEV_CPU, &sum, c.queue));
        assert_true(memcmp(c.alone, c.shared, BUFFER) == 0);
    }
    free(wide);
    copier_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_are_the_same), cmocka_unit_test(copies_past_the_cache_are_the_same),
        cmocka_unit_test(bands_are_the_same),  cmocka_unit_test(bands_are_the_jobs),
        cmocka_unit_test(sums_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
