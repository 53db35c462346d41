/* tests/kernels/test_copy_split.c -- moves and planes of a copy job: together they are the job, whatever its strides, and store each
 * byte once. tests/sp/test_exchange_index.c does the same with the jobs of exchanges. */
#include "kernels/copy_split.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES = 1 << 13, POISON = 0x5a };

struct bench {
    char src[BYTES], dst[BYTES], want[BYTES];
    unsigned char stored[BYTES], once[BYTES];
};

static int64_t reach(const int64_t n[3], const int64_t stride[3])
{
    int64_t at = 0;
    for (int d = 0; d < 3; d++)
        at += n[d] > 0 ? (n[d] - 1) * stride[d] : 0;
    return at;
}

static void naive(struct bench *bench, const struct copy_job *job)
{
    memset(bench->want, POISON, BYTES);
    memset(bench->once, 0, BYTES);
    for (int64_t i = 0; i < job->n[0]; i++)
        for (int64_t j = 0; j < job->n[1]; j++)
            for (int64_t l = 0; l < job->n[2]; l++) {
                int64_t from = i * job->src_stride[0] + j * job->src_stride[1] + l * job->src_stride[2];
                int64_t to = (char *)job->dst - bench->dst + i * job->dst_stride[0] + j * job->dst_stride[1] +
                             l * job->dst_stride[2];
                memcpy(bench->want + to, (const char *)job->src + from, job->row_bytes);
                memset(bench->once + to, 1, job->row_bytes);
            }
}

static void run_all_ways(struct bench *bench, const struct copy_job *job)
{
    naive(bench, job);
    for (int way = 0; way < SPLIT_WAYS; way++) {
        struct split split = {.dst = bench->dst, .stored = bench->stored};
        memset(bench->dst, POISON, BYTES);
        memset(bench->stored, 0, BYTES);
        split_run(&split, job, way);
        assert_memory_equal(bench->dst, bench->want, BYTES);
        assert_memory_equal(bench->stored, bench->once, BYTES);
    }
}

static struct bench *bench_new(void)
{
    struct bench *bench = aligned_alloc(64, (sizeof *bench + 63) / 64 * 64);
    assert_non_null(bench);
    for (int i = 0; i < BYTES; i++)
        bench->src[i] = (char)(i * 131 + i / 251);
    return bench;
}

/* Strides for a nesting of dimensions, with a gap between rows and between what is outside of them. */
static void nest(const int64_t n[3], int64_t row, int order, int64_t gap, int64_t stride[3])
{
    static const int orders[6][3] = {{2, 1, 0}, {2, 0, 1}, {1, 2, 0}, {1, 0, 2}, {0, 1, 2}, {0, 2, 1}};
    int64_t extent = row;
    for (int d = 0; d < 3; d++) {
        stride[orders[order][d]] = extent + gap;
        extent = (extent + gap) * (n[orders[order][d]] > 0 ? n[orders[order][d]] : 1);
    }
}

static void every_small_job_is_done_once(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 2, 3, 4, 6, 8, 16, 24}, gaps[] = {0, 2, 8};
    struct bench *bench = bench_new();
    for (int shape = 0; shape < 4 * 4 * 4; shape++)
        for (int r = 0; r < CHECK_COUNT(rows); r++)
            for (int way = 0; way < 6 * 6 * 3 * 3; way++) {
                struct copy_job job = {.src = bench->src,
                                       .dst = bench->dst,
                                       .n = {shape / 16, shape / 4 % 4, shape % 4},
                                       .row_bytes = (size_t)rows[r]};
                nest(job.n, rows[r], way % 6, gaps[way / 36 % 3], job.src_stride);
                nest(job.n, rows[r], way / 6 % 6, gaps[way / 108], job.dst_stride);
                if (way % 7 != shape % 7) /* a seventh of them, each order and gap with each shape class */
                    continue;
                assert_true(reach(job.n, job.dst_stride) + rows[r] < BYTES &&
                            reach(job.n, job.src_stride) + rows[r] < BYTES);
                run_all_ways(bench, &job);
            }
    free(bench);
}

static void strides_may_go_backwards_or_stand(void **state)
{
    (void)state;
    struct bench *bench = bench_new();
    struct copy_job back = {bench->src + 512, bench->dst, {1, 2, 5}, {0, 40, -8}, {0, 48, 8}, 8};
    run_all_ways(bench, &back);
    struct copy_job same = {bench->src, bench->dst, {1, 3, 4}, {0, 16, 0}, {0, 64, 16}, 16};
    run_all_ways(bench, &same);
    struct copy_job odd = {bench->src + 1, bench->dst + 2, {2, 2, 3}, {300, 100, 20}, {400, 90, 17}, 13};
    run_all_ways(bench, &odd);
    free(bench);
}

/* As few as the strides allow: engines pay for each. */
static void planes_are_few(void **state)
{
    (void)state;
    struct bench *bench = bench_new();
    const struct {
        struct copy_job job;
        int planes;
    } cases[] = {
        {{bench->src, bench->dst, {1, 1, 20}, {0, 0, 64}, {0, 0, 16}, 16}, 1}, /* a strided block into a flat one */
        {{bench->src, bench->dst, {1, 2, 20}, {0, 1280, 64}, {0, 320, 16}, 16}, 2}, /* a batch of two */
        {{bench->src, bench->dst, {1, 2, 20}, {0, 320, 16}, {0, 320, 16}, 16}, 1},  /* flat on both sides */
        {{bench->src, bench->dst, {1, 20, 1}, {0, 64, 999}, {0, 16, 999}, 16},
         1}, /* one token each: the batch is the height */
        {{bench->src, bench->dst, {1, 1, 0}, {0, 0, 64}, {0, 0, 16}, 16}, 0},
        {{bench->src, bench->dst, {1, 1, 5}, {0, 0, 64}, {0, 0, 16}, 0}, 0},
    };
    for (int i = 0; i < CHECK_COUNT(cases); i++) {
        struct split split = {.dst = bench->dst, .stored = bench->stored};
        split_run(&split, &cases[i].job, SPLIT_PLANES);
        assert_int_equal(split.parts, cases[i].planes);
    }
    free(bench);
}

/* Rows longer than a piece are cut for kernels, and are still one row of a plane. */
static void long_rows_are_cut_for_threads(void **state)
{
    (void)state;
    const size_t row = 2 * MOVE_PIECE_BYTES + 12, bytes = 8 * row;
    char *src = malloc(bytes), *dst = calloc(1, bytes);
    unsigned char *stored = calloc(1, bytes);
    assert_true(src && dst && stored);
    for (size_t i = 0; i < bytes; i++)
        src[i] = (char)(i % 253);
    struct copy_job job = {src, dst, {1, 2, 1}, {0, (int64_t)row + 4, 0}, {0, (int64_t)row + 20, 0}, row};
    for (int way = 0; way <= SPLIT_PLANES; way++) {
        struct split split = {.dst = dst, .stored = stored};
        memset(stored, 0, bytes);
        memset(dst, 0, bytes);
        split_run(&split, &job, way);
        assert_int_equal(split.parts, way == SPLIT_PLANES ? 1 : 2);
        for (size_t i = 0; i < 2; i++)
            assert_memory_equal(dst + i * (row + 20), src + i * (row + 4), row);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(stored[i], i < row || (i >= row + 20 && i < 2 * row + 20));
    }
    free(src);
    free(dst);
    free(stored);
}

/* Rows so far, and where row i of the job is on either side. */
struct far {
    const char *src, *dst;
    int64_t rows, src_stride, dst_stride;
};

static void row_is_at(const struct far *far, int64_t row, const char *src, const char *dst)
{
    assert_int_equal(src - far->src, row * far->src_stride);
    assert_int_equal(dst - far->dst, row * far->dst_stride);
}

static enum status one_move(void *arg, const struct move *move, uint32_t unit)
{
    struct far *far = arg;
    const uint32_t rows[] = {0, 1, move->nrows / 2, move->nrows - 1};
    (void)unit;
    for (int i = 0; i < CHECK_COUNT(rows); i++) {
        struct move_place place = move_row(move, rows[i]);
        row_is_at(far, far->rows + rows[i], move->src + place.src, move->dst + place.dst);
    }
    far->rows += move->nrows;
    return STATUS_OK;
}

static enum status one_plane(void *arg, const struct copy_plane *plane)
{
    struct far *far = arg;
    row_is_at(far, far->rows, plane->src, plane->dst);
    assert_int_equal(plane->src_pitch, far->src_stride);
    assert_int_equal(plane->dst_pitch, far->dst_stride);
    far->rows += (int64_t)plane->height;
    return STATUS_OK;
}

/* More rows than 32 bits count, 192 GB of them: offsets alone, nothing is touched. */
static void more_than_32_bits_of_rows(void **state)
{
    (void)state;
    const int64_t n = INT64_C(3) << 30;
    static char somewhere[2];
    struct copy_job job = {somewhere, somewhere + 1, {4, 1, n / 4}, {n * 16, 0, 64}, {n * 8, 0, 32}, 16};
    struct far far = {somewhere, somewhere + 1, 0, 64, 32};
    CHECK_OK(move_split(&job, SPLIT_THREADS, one_move, &far));
    assert_int_equal(far.rows, n);
    far.rows = 0;
    CHECK_OK(copy_plane_split(&job, INT32_MAX, one_plane, &far));
    assert_int_equal(far.rows, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_job_is_done_once),
        cmocka_unit_test(strides_may_go_backwards_or_stand),
        cmocka_unit_test(planes_are_few),
        cmocka_unit_test(long_rows_are_cut_for_threads),
        cmocka_unit_test(more_than_32_bits_of_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
