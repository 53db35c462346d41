/* tests/kernels/test_copy.c -- strided copies against a loop over elements; sums and roundings; what is refused. */
#include "base/check.h"
#include "base/rng.h"
#include "kernels/copy.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { BUFFER = 1 << 16, PATTERN = 0xa5 };

/* Strides for n[0] x n[1] x n[2] rows in a random order of dimensions, with random gaps; sometimes none, so that rows
 * join. */
static void strides_draw(struct rng *rng, const int64_t n[3], int64_t row_bytes, int64_t stride[3])
{
    int order[3] = {0, 1, 2};
    int64_t extent = row_bytes;
    rng_shuffle(rng, order, 3);
    if (rng_below(rng, 3) == 0)
        order[0] = 2, order[1] = 1, order[2] = 0;
    for (int i = 0; i < 3; i++) {
        stride[order[i]] = extent + (rng_below(rng, 2) == 0 ? 0 : rng_below(rng, 9));
        extent = stride[order[i]] * n[order[i]];
    }
    assert_true(extent < BUFFER);
}

static void naive(const struct copy_job *job)
{
    for (int64_t a = 0; a < job->n[0]; a++)
        for (int64_t b = 0; b < job->n[1]; b++)
            for (int64_t c = 0; c < job->n[2]; c++)
                for (int64_t t = 0; t < (int64_t)job->row_bytes; t++)
                    ((char *)job->dst)[a * job->dst_stride[0] + b * job->dst_stride[1] + c * job->dst_stride[2] + t] =
                        ((const char *)
                             job->src)[a * job->src_stride[0] + b * job->src_stride[1] + c * job->src_stride[2] + t];
}

static void random_strides_equal_a_loop(void **state)
{
    (void)state;
    static const int64_t rows[] = {0, 1, 2, 3, 4, 8, 16, 31, 64, 128, 256, 300};
    struct rng rng;
    unsigned char *src = malloc(BUFFER), *dst = malloc(BUFFER), *want = malloc(BUFFER);
    assert_true(src && dst && want);
    rng_seed(&rng, 1, 0);
    for (int i = 0; i < BUFFER; i++)
        src[i] = (unsigned char)rng_u64(&rng);
    for (int at = 0; at < 600; at++) {
        struct copy_job jobs[2];
        memset(dst, PATTERN, BUFFER);
        memset(want, PATTERN, BUFFER);
        for (int j = 0; j < 2; j++) { /* the second may overwrite what the first wrote: jobs run in order */
            jobs[j] = (struct copy_job){
                .src = src, .dst = dst, .row_bytes = (size_t)rows[rng_below(&rng, CHECK_COUNT(rows))]};
            for (int d = 0; d < 3; d++)
                jobs[j].n[d] = rng_below(&rng, 5);
            strides_draw(&rng, jobs[j].n, (int64_t)jobs[j].row_bytes, jobs[j].src_stride);
            strides_draw(&rng, jobs[j].n, (int64_t)jobs[j].row_bytes, jobs[j].dst_stride);
            struct copy_job expected = jobs[j];
            expected.dst = want;
            naive(&expected);
        }
        CHECK_OK(copy_run(DEV_CPU, jobs, 2, NULL));
        assert_memory_equal(dst, want, BUFFER);
    }
    free(src);
    free(dst);
    free(want);
}

/* [seq][P][heads][dim] to [P][seq][heads][dim]: the middle step of an exchange, and back. */
static void there_and_back_is_the_identity(void **state)
{
    (void)state;
    enum { SEQ = 6, P = 4, LANES = 24 };
    int32_t start[SEQ][P][LANES], middle[P][SEQ][LANES], end[SEQ][P][LANES];
    for (int i = 0; i < SEQ * P * LANES; i++)
        (&start[0][0][0])[i] = i;
    int64_t row = LANES * 4;
    struct copy_job there = {start, middle, {1, P, SEQ}, {0, row, P * row}, {0, SEQ * row, row}, (size_t)row};
    struct copy_job back = {middle, end, {1, P, SEQ}, {0, SEQ * row, row}, {0, row, P * row}, (size_t)row};
    CHECK_OK(copy_run(DEV_CPU, &there, 1, NULL));
    for (int p = 0; p < P; p++)
        for (int s = 0; s < SEQ; s++)
            assert_int_equal(middle[p][s][5], (s * P + p) * LANES + 5);
    CHECK_OK(copy_run(DEV_CPU, &back, 1, NULL));
    assert_memory_equal(start, end, sizeof start);
}

/* More than stays in any cache, in rows that are stored past it and in rows that are too short for that. */
static void large_calls_equal_a_loop(void **state)
{
    (void)state;
    enum { ROWS = 2100, LONG = 4200, SHORT = 700, GAP = 60, SRC = ROWS * (LONG + SHORT), DST = SRC + ROWS * GAP };
    unsigned char *src = malloc(SRC), *dst = malloc(DST), *want = malloc(DST);
    struct rng rng;
    assert_true(src && dst && want && SRC > 9 << 20);
    rng_seed(&rng, 1, 0);
    for (int i = 0; i < SRC; i++)
        src[i] = (unsigned char)rng_u64(&rng);
    memset(dst, PATTERN, DST);
    memset(want, PATTERN, DST);
    struct copy_job jobs[2] = {
        {src, dst, {1, 1, ROWS}, {0, 0, LONG + SHORT}, {0, 0, LONG + GAP}, LONG},
        {src + LONG, dst + ROWS * (LONG + GAP), {1, 1, ROWS}, {0, 0, LONG + SHORT}, {0, 0, SHORT}, SHORT}};
    for (int j = 0; j < 2; j++) {
        struct copy_job expected = jobs[j];
        expected.dst = want + ((unsigned char *)jobs[j].dst - dst);
        naive(&expected);
    }
    CHECK_OK(copy_run(DEV_CPU, jobs, 2, NULL));
    assert_memory_equal(dst, want, DST);
    free(src);
    free(dst);
    free(want);
}

static void strides_may_be_negative_or_zero(void **state)
{
    (void)state;
    const char src[] = "aabbccdd";
    char reversed[9] = {0}, repeated[9] = {0};
    struct copy_job back = {src + 6, reversed, {1, 4, 1}, {9, -2, 99}, {-9, 2, -99}, 2};
    struct copy_job fill = {src + 2, repeated, {4, 1, 1}, {0, 0, 0}, {2, 0, 0}, 2};
    CHECK_OK(copy_run(DEV_CPU, &back, 1, NULL));
    CHECK_OK(copy_run(DEV_CPU, &fill, 1, NULL));
    assert_string_equal(reversed, "ddccbbaa");
    assert_string_equal(repeated, "bbbbbbbb");
}

static void strides_beyond_four_gigabytes(void **state)
{
    (void)state;
    const int64_t stride = (INT64_C(1) << 32) + 4096;
    const size_t bytes = (size_t)stride * 2 + 64;
    char *wide = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
         packed[3 * 64];
    if (wide == MAP_FAILED) {
        print_message("[  SKIPPED ] no %zu bytes of address space\n", bytes);
        skip();
    }
    for (int i = 0; i < 3 * 64; i++)
        packed[i] = (char)i;
    struct copy_job out = {packed, wide, {3, 1, 1}, {64, 0, 0}, {stride, 0, 0}, 64};
    CHECK_OK(copy_run(DEV_CPU, &out, 1, NULL));
    assert_memory_equal(wide + 2 * stride, packed + 128, 64);
    munmap(wide, bytes);
}

static void sums_are_fp32_in_order_and_round_once(void **state)
{
    (void)state;
    enum { COPIES = 4, ROWS = 5, ELEMS = 700 }; /* more than one chunk */
    struct rng rng;
    rng_seed(&rng, 2, 0);
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        float *buffers[COPIES];
        const void *srcs[COPIES];
        int64_t elem = dtype_bytes((enum dtype)dtype), src_row = (ELEMS + 3) * elem, dst_row = (ELEMS + 8) * elem;
        float dst[ROWS * (ELEMS + 8)];
        memset(dst, PATTERN, sizeof dst);
        for (int c = 0; c < COPIES; c++) {
            srcs[c] = buffers[c] = malloc((size_t)(ROWS * src_row));
            for (int64_t i = 0; i < ROWS * (ELEMS + 3); i++)
                dtype_set((enum dtype)dtype, buffers[c], i, (float)rng_normal(&rng));
        }
        struct copy_sum job = {srcs,  COPIES,           dst, {1, 1, ROWS}, {0, 0, src_row}, {0, 0, dst_row},
                               ELEMS, (enum dtype)dtype};
        CHECK_OK(copy_sum_run(DEV_CPU, &job, NULL));
        for (int64_t r = 0; r < ROWS; r++) {
            for (int64_t t = 0; t < ELEMS; t++) {
                float sum = dtype_get((enum dtype)dtype, srcs[0], r * (ELEMS + 3) + t), rounded;
                for (int c = 1; c < COPIES; c++)
                    sum += dtype_get((enum dtype)dtype, srcs[c], r * (ELEMS + 3) + t);
                dtype_set((enum dtype)dtype, &rounded, 0, sum);
                assert_true(dtype_get((enum dtype)dtype, &rounded, 0) ==
                            dtype_get((enum dtype)dtype, dst, r * (ELEMS + 8) + t));
            }
            for (int64_t at = r * dst_row + ELEMS * elem; at < (r + 1) * dst_row; at++)
                assert_int_equal(((unsigned char *)dst)[at], PATTERN);
        }
        for (int c = 0; c < COPIES; c++)
            free(buffers[c]);
    }
}

/* 2^8 copies of 1 + 2^-8 (bf16): summed in bf16 they would stick at 256. */
static void sums_do_not_stick(void **state)
{
    (void)state;
    enum { COPIES = 512 };
    uint16_t one = dtype_to_bf16(1.0f), out = 0;
    const void *srcs[COPIES];
    for (int c = 0; c < COPIES; c++)
        srcs[c] = &one;
    struct copy_sum job = {srcs, COPIES, &out, {1, 1, 1}, {0}, {0}, 1, DTYPE_BF16};
    CHECK_OK(copy_sum_run(DEV_CPU, &job, NULL));
    assert_true(dtype_from_bf16(out) == 512.0f);
}

#if SPTUNE_CUDA
#define NO_CUDA STATUS_USAGE /* it wants a queue */
#else
#define NO_CUDA STATUS_ABSENT
#endif

static void bad_jobs_are_refused(void **state)
{
    (void)state;
    char bytes[64] = {0};
    const void *srcs[] = {bytes, NULL};
    struct copy_job job = {bytes, bytes + 32, {1, 1, 1}, {0}, {0}, 8};
    struct copy_sum sum = {srcs, 1, bytes, {1, 1, 1}, {0}, {0}, 1, DTYPE_FP32};
    CHECK_OK(copy_run(DEV_CPU, &job, 1, NULL));
    CHECK_OK(copy_run(DEV_CPU, NULL, 0, NULL));
    CHECK_FAILS(STATUS_USAGE, "jobs", copy_run(DEV_CPU, NULL, 1, NULL));
    CHECK_FAILS(STATUS_USAGE, "jobs", copy_run(DEV_CPU, &job, -1, NULL));
    CHECK_FAILS(NO_CUDA, "cuda", copy_run(DEV_CUDA, &job, 1, NULL));
    job.n[1] = -1;
    CHECK_FAILS(STATUS_USAGE, "-1", copy_run(DEV_CPU, &job, 1, NULL));
    job.n[1] = 1;
    job.src = NULL;
    CHECK_FAILS(STATUS_USAGE, "no source", copy_run(DEV_CPU, &job, 1, NULL));
    assert_non_null(strstr(status_last()->where, "job 0"));
    job.n[2] = 0; /* nothing to move: nothing needed */
    CHECK_OK(copy_run(DEV_CPU, &job, 1, NULL));
    CHECK_OK(copy_sum_run(DEV_CPU, &sum, NULL));
    sum.copies = 2;
    CHECK_FAILS(STATUS_USAGE, "no source", copy_sum_run(DEV_CPU, &sum, NULL));
    sum.copies = 0;
    CHECK_FAILS(STATUS_USAGE, "no source", copy_sum_run(DEV_CPU, &sum, NULL));
    sum.copies = 1;
    sum.elems = -1;
    CHECK_FAILS(STATUS_USAGE, "-1", copy_sum_run(DEV_CPU, &sum, NULL));
    sum.elems = 1;
    sum.dtype = DTYPE_COUNT;
    CHECK_FAILS(STATUS_USAGE, "dtype", copy_sum_run(DEV_CPU, &sum, NULL));
    CHECK_FAILS(NO_CUDA, "cuda", copy_sum_run(DEV_CUDA, &sum, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_strides_equal_a_loop),
        cmocka_unit_test(there_and_back_is_the_identity),
        cmocka_unit_test(large_calls_equal_a_loop),
        cmocka_unit_test(strides_beyond_four_gigabytes),
        cmocka_unit_test(strides_may_be_negative_or_zero),
        cmocka_unit_test(sums_are_fp32_in_order_and_round_once),
        cmocka_unit_test(sums_do_not_stick),
        cmocka_unit_test(bad_jobs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
