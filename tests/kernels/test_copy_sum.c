/* tests/kernels/test_copy_sum.c -- sums of copies as GPU threads take them: every small shape gives the bits of the CPU's sum, each element
 * stored once by a unit that lies where vectors may, and nothing beside.
 */
#include "kernels/copy_sum.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES = 1 << 12, COPIES = 3, POISON = 0x5a };

struct bench {
    char src[COPIES][BYTES], dst[BYTES], want[BYTES];
    unsigned char stored[BYTES];
};

static void element_sum(struct bench *bench, const struct sum *sum, int64_t from, int64_t to)
{
    enum dtype dtype = (enum dtype)sum->dtype;
    float total = 0;
    for (int c = 0; c < sum->copies; c++)
        total += dtype_get(dtype, sum->srcs[c] + from, 0);
    dtype_set(dtype, sum->dst + to, 0, total);
    for (int b = 0; b < dtype_bytes(dtype); b++)
        bench->stored[sum->dst + to + b - bench->dst]++;
}

/* The loop of copy_sum.cuh, whatever thread takes which unit. */
static void units_sum(struct bench *bench, const struct sum *sum)
{
    int64_t elem = dtype_bytes((enum dtype)sum->dtype), bytes = sum->vectors ? SUM_VECTOR_BYTES : elem;
    for (uint64_t at = 0; at < sum_units(sum); at++) {
        uint32_t unit = UINT32_MAX;
        struct move_place place = sum_place(sum, at, &unit);
        assert_true(unit < sum->rows.units);
        for (int c = 0; c < sum->copies; c++)
            assert_int_equal((uintptr_t)(sum->srcs[c] + place.src + unit * bytes) % (uintptr_t)bytes, 0);
        assert_int_equal((uintptr_t)(sum->dst + place.dst + unit * bytes) % (uintptr_t)bytes, 0);
        for (int64_t b = 0; b < bytes; b += elem)
            element_sum(bench, sum, place.src + unit * bytes + b, place.dst + unit * bytes + b);
    }
}

/* Strides of the dimensions in an order, `gap` bytes behind each row and what is outside of it. */
static void nest(const int64_t n[3], int64_t row, bool turned, int64_t gap, int64_t stride[3])
{
    int64_t extent = row;
    for (int i = 0; i < 3; i++) {
        int d = turned ? i : 2 - i;
        stride[d] = extent + gap;
        extent = (extent + gap) * (n[d] > 0 ? n[d] : 1);
    }
}

static int run(struct bench *bench, const struct copy_sum *job)
{
    struct sum sum = {.copies = -1};
    struct copy_sum plain = *job;
    int64_t elems = job->n[0] * job->n[1] * job->n[2] * job->elems, stored = 0;
    unsigned char most = 0;
    memset(bench->dst, POISON, BYTES);
    memset(bench->want, POISON, BYTES);
    memset(bench->stored, 0, BYTES);
    plain.dst = bench->want + ((char *)job->dst - bench->dst);
    CHECK_OK(copy_sum_run(DEV_CPU, &plain, NULL));
    CHECK_OK(sum_fill(job, &sum));
    units_sum(bench, &sum);
    assert_memory_equal(bench->dst, bench->want, BYTES);
    for (int i = 0; i < BYTES; i++) {
        most |= bench->stored[i];
        stored += bench->stored[i];
    }
    assert_true(most <= 1);
    assert_int_equal(stored, elems * dtype_bytes(job->dtype));
    return sum.vectors;
}

static void fill(struct bench *bench, enum dtype dtype, const void *srcs[COPIES])
{
    for (int c = 0; c < COPIES; c++) {
        srcs[c] = bench->src[c];
        for (int64_t i = 0; i < BYTES / dtype_bytes(dtype); i++)
            dtype_set(dtype, bench->src[c], i, (float)((i * 37 + c * 101) % 251) / 7.0f);
    }
}

static void every_small_sum(void **state)
{
    (void)state;
    static const int64_t elems[] = {1, 2, 3, 4, 8, 12, 16}, gaps[] = {0, 4, 16};
    struct bench *bench = aligned_alloc(64, (sizeof *bench + 63) / 64 * 64);
    const void *srcs[COPIES];
    int vectors = 0, single = 0;
    assert_non_null(bench);
    for (int way = 0; way < 3 * 7 * 3 * 3 * 2 * 2; way++) {
        enum dtype dtype = (enum dtype)(way % 3);
        int64_t bytes = dtype_bytes(dtype), row = elems[way / 3 % 7] * bytes, shift = way / 378 * 4;
        fill(bench, dtype, srcs);
        for (int shape = 0; shape < 4 * 4 * 4; shape++) {
            struct copy_sum job = {.srcs = srcs,
                                   .copies = 1 + shape % COPIES,
                                   .dst = bench->dst + shift,
                                   .n = {shape / 16, shape / 4 % 4, shape % 4},
                                   .elems = elems[way / 3 % 7],
                                   .dtype = dtype};
            nest(job.n, row, way / 189 % 2, gaps[way / 21 % 3], job.src_stride);
            nest(job.n, row, false, gaps[way / 63 % 3], job.dst_stride);
            if (run(bench, &job))
                vectors++;
            else
                single++;
        }
    }
    assert_true(vectors > 1000 && single > 1000);
    free(bench);
}

/* Offsets are 64 bits: nothing is touched here. */
static void far_rows(void **state)
{
    (void)state;
    static char somewhere[16];
    const void *srcs[] = {somewhere};
    const int64_t n = INT64_C(1) << 30, row = 512;
    struct copy_sum job = {srcs, 1, somewhere, {1, 1, n}, {0, 0, row}, {0, 0, 2 * row}, 256, DTYPE_BF16};
    struct sum sum;
    uint32_t unit = 0;
    CHECK_OK(sum_fill(&job, &sum));
    struct move_place place = sum_place(&sum, sum_units(&sum) - 1, &unit);
    assert_int_equal(place.src, (n - 1) * row);
    assert_int_equal(place.dst, (n - 1) * 2 * row);
    assert_int_equal(unit, sum.rows.units - 1);
    job.n[2] = INT64_C(1) << 31;
    CHECK_FAILS(STATUS_UNSUPPORTED, "2147483648 rows", sum_fill(&job, &sum));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_sum),
        cmocka_unit_test(far_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
