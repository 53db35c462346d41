/* bench/copy_check.c -- the layout-changing copy on jobs of random shape, and the sums that go with it. */
#include "bench/check_parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "bench/data.h"
#include "bench/mirror.h"
#include "kernels/copy.h"

#include <stdlib.h>
#include <string.h>

enum { COPY_JOBS = 24, COPY_ROW_MAX = 96, SYNC_US = 60 * 1000 * 1000 };

static int64_t copy_extent(const int64_t n[3], const int64_t stride[3], int64_t row)
{
    return (n[0] - 1) * stride[0] + (n[1] - 1) * stride[1] + (n[2] - 1) * stride[2] + row;
}

/* A job of random shape and its extents; dst rows are apart, so that what lies between them must stay. */
static void copy_draw(struct rng *rng, struct copy_job *job)
{
    int64_t row = 1 + rng_below(rng, COPY_ROW_MAX);
    *job = (struct copy_job){.row_bytes = (size_t)row};
    int64_t src = row + rng_below(rng, 9), dst = row + rng_below(rng, 9);
    for (int a = 2; a >= 0; a--) {
        job->n[a] = 1 + rng_below(rng, 6);
        job->src_stride[a] = src;
        job->dst_stride[a] = dst;
        src = src * job->n[a] + rng_below(rng, 5);
        dst = dst * job->n[a] + rng_below(rng, 5);
    }
}

static void copy_expect(const struct copy_job *job, char *want)
{
    for (int64_t i = 0; i < job->n[0]; i++)
        for (int64_t j = 0; j < job->n[1]; j++)
            for (int64_t l = 0; l < job->n[2]; l++)
                memcpy(want + i * job->dst_stride[0] + j * job->dst_stride[1] + l * job->dst_stride[2],
                       (const char *)job->src + i * job->src_stride[0] + j * job->src_stride[1] + l * job->src_stride[2],
                       job->row_bytes);
}

/* A job of host memory, by the device. */
static enum status copy_through(struct dev *dev, struct dev_queue *queue, struct copy_job job, int64_t from, int64_t to)
{
    struct mirror src = {0}, dst = {0};
    enum status status = mirror_of_host(dev, (void *)(uintptr_t)job.src, (size_t)from, &src);
    if (status == STATUS_OK)
        status = mirror_of_host(dev, job.dst, (size_t)to, &dst);
    job.src = src.device;
    job.dst = dst.device;
    if (status == STATUS_OK)
        status = copy_run(dev_kind_of(dev), &job, 1, queue);
    if (status == STATUS_OK && queue != NULL)
        status = dev_sync(queue, clock_deadline(SYNC_US));
    if (status == STATUS_OK)
        status = mirror_load(&dst);
    mirror_close(&src);
    mirror_close(&dst);
    return status;
}

static enum status copy_one(struct dev *dev, struct dev_queue *queue, uint64_t seed, int index, struct tally *tally)
{
    struct rng rng;
    struct copy_job job;
    char *src = NULL, *dst = NULL, *want = NULL;
    rng_seed(&rng, seed, 1000 + (uint64_t)index);
    copy_draw(&rng, &job);
    int64_t from = copy_extent(job.n, job.src_stride, (int64_t)job.row_bytes);
    int64_t to = copy_extent(job.n, job.dst_stride, (int64_t)job.row_bytes);
    enum status status = mem_alloc((size_t)from, "a copy", (void **)&src);
    if (status == STATUS_OK)
        status = mem_alloc((size_t)to, "a copy", (void **)&dst);
    if (status == STATUS_OK)
        status = mem_alloc((size_t)to, "a copy", (void **)&want);
    if (status == STATUS_OK) {
        data_bytes_fill(seed, index, 0, from, src);
        job.src = src;
        job.dst = dst;
        copy_expect(&job, want);
        status = copy_through(dev, queue, job, from, to);
        tally->cases++;
        if (status == STATUS_OK && memcmp(want, dst, (size_t)to) != 0)
            tally_wrong(tally, "rows of %zu bytes, %lld x %lld x %lld of them: wrong bytes", job.row_bytes, (long long)job.n[0],
                        (long long)job.n[1], (long long)job.n[2]);
    }
    free(src);
    free(dst);
    free(want);
    return status;
}

/* Sums of copies: in fp32, in order, rounded once. */
static enum status sum_through(struct dev *dev, struct dev_queue *queue, struct copy_sum job, size_t bytes)
{
    enum { COPIES = 4 };
    struct mirror src[COPIES] = {{0}}, dst = {0};
    const void *srcs[COPIES] = {NULL};
    enum status status = mirror_of_host(dev, job.dst, bytes, &dst);
    for (int c = 0; c < job.copies && status == STATUS_OK; c++) {
        status = mirror_of_host(dev, (void *)(uintptr_t)job.srcs[c], bytes, &src[c]);
        srcs[c] = src[c].device;
    }
    job.srcs = srcs;
    job.dst = dst.device;
    if (status == STATUS_OK)
        status = copy_sum_run(dev_kind_of(dev), &job, queue);
    if (status == STATUS_OK && queue != NULL)
        status = dev_sync(queue, clock_deadline(SYNC_US));
    if (status == STATUS_OK)
        status = mirror_load(&dst);
    for (int c = 0; c < COPIES; c++)
        mirror_close(&src[c]);
    mirror_close(&dst);
    return status;
}

static enum status sum_one(struct dev *dev, struct dev_queue *queue, uint64_t seed, int copies, enum dtype dtype, struct tally *tally)
{
    enum { TOKENS = 5, DIM = 13, ELEMS = TOKENS * DIM };
    uint32_t part[4][ELEMS], sum[ELEMS] = {0};
    const void *srcs[4];
    int64_t row = (int64_t)DIM * dtype_bytes(dtype);
    struct data_side side = {.dtype = dtype, .batch = 1, .seq = TOKENS, .heads = 1, .dim = DIM, .token_stride = DIM};
    for (int c = 0; c < copies; c++) {
        side.base = part[c];
        side.copy = c;
        srcs[c] = part[c];
        data_fill(seed, DATA_DK, &side);
    }
    struct copy_sum job = {.srcs = srcs, .copies = copies, .dst = sum, .n = {1, 1, TOKENS}, .src_stride = {0, 0, row},
                           .dst_stride = {0, 0, row}, .elems = DIM, .dtype = dtype};
    struct data_errors errors;
    char why[256];
    TRY(sum_through(dev, queue, job, (size_t)(TOKENS * row)));
    side.base = sum;
    side.copy = 0;
    data_compare(seed, DATA_DK, &side, copies, &errors);
    tally->cases++;
    if (!data_verdict(&errors, DATA_DK, "as a sum", why))
        tally_wrong(tally, "%d copies, %s: %.200s", copies, dtype_name(dtype), why);
    return STATUS_OK;
}

static enum status copies_run(struct dev *dev, struct dev_queue *queue, uint64_t seed, int rank, int ranks, struct tally *tally)
{
    for (int i = rank; i < COPY_JOBS; i += ranks)
        TRY(tally_status(tally, copy_one(dev, queue, seed, i, tally)));
    for (int i = rank; i < 4 * DTYPE_COUNT; i += ranks)
        TRY(tally_status(tally, sum_one(dev, queue, seed, 1 + i / DTYPE_COUNT, (enum dtype)(i % DTYPE_COUNT), tally)));
    return STATUS_OK;
}

enum status check_copy(struct dev *dev, uint64_t seed, int rank, int ranks, struct tally *tally)
{
    struct dev_queue *queue = NULL;
    if (dev_kind_of(dev) != DEV_CPU)
        TRY(dev_queue_create(dev, &queue));
    enum status status = copies_run(dev, queue, seed, rank, ranks, tally);
    dev_queue_destroy(queue);
    return status;
}
