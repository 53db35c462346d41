/* kernels/copy.c -- the layout-changing copy on the CPU, and the sums that go with it.
 *
 * A copy moves every byte twice (read, write): at 10 GB/s of copying one core, a row of 256 bytes (head_dim 128 in
 * bf16) costs 26 ns, and a call of memcpy about 5 ns of it. So dimensions that lie next to each other on both sides are
 * merged first, and short rows of the usual head widths are copied by a memcpy of constant size, which the compiler
 * turns into a few vector moves. Copies that do not stay in the cache go in bands (copy_rows.c).
 *
 * Picking rows for 4 destinations on one Zen 3 core, share of memcpy: 64 MiB, rows of 128 bytes 80 %, 256 89, 512 81, 1 KiB 91,
 * 4 KiB 120; in the cache (1 to 4 MiB) rows of 128 bytes 62 to 70 %, 256 72 to 82, from 512 on 80 and more.
 */
#if SPTUNE_CUDA
#include "kernels/copy_cuda.h"
#endif
#include "kernels/copy_rows.h"

#include <stdbool.h>
#include <string.h>

enum { DIMS = 3, CHUNK = 512 /* fp32 elements summed at a time: 2 KiB, twice, in L1 */ };

static enum status device_check(enum dev_kind dev, const char *what, const struct dev_queue *queue)
{
#if SPTUNE_CUDA
    if (dev == DEV_CUDA && queue == NULL)
        return FAIL(STATUS_USAGE, "%s: a cuda kernel needs a queue", what);
    if (dev == DEV_CUDA)
        return STATUS_OK;
#endif
    (void)queue;
    if (dev != DEV_CPU)
        return FAIL(STATUS_ABSENT, "%s: no kernel for device %s in this build", what, dev_kind_name(dev));
    return STATUS_OK;
}

/* *out_some: there is something to move. */
static enum status rows_check(const char *what, const int64_t n[DIMS], bool pointers, bool *out_some)
{
    if (n[0] < 0 || n[1] < 0 || n[2] < 0)
        return HINT(
            FAIL(STATUS_USAGE, "%s: %lld x %lld x %lld rows", what, (long long)n[0], (long long)n[1], (long long)n[2]),
            "counts are 0 or more");
    *out_some = n[0] > 0 && n[1] > 0 && n[2] > 0;
    if (*out_some && !pointers)
        return FAIL(STATUS_USAGE, "%s: no source or no destination was given", what);
    return STATUS_OK;
}

/* Rows do not overlap, so their order is free: the source is read in the order of its addresses, which lets rows join
 * below and is what the prefetchers follow (64-byte rows: 5.6 GB/s instead of 3.6). A dimension 1 long goes outermost.
 */
static int64_t reach(const struct copy_job *job, int d)
{
    int64_t stride = job->src_stride[d];
    return job->n[d] == 1 || stride == INT64_MIN ? INT64_MAX : stride < 0 ? -stride : stride;
}

static void dims_swap(struct copy_job *job, int d, int e)
{
    struct copy_job was = *job;
    job->n[d] = was.n[e], job->n[e] = was.n[d];
    job->src_stride[d] = was.src_stride[e], job->src_stride[e] = was.src_stride[d];
    job->dst_stride[d] = was.dst_stride[e], job->dst_stride[e] = was.dst_stride[d];
}

/* Longest reach outermost; then the innermost dimension joins the row when it continues it on both sides (or is 1
 * long), and the outer ones move in. */
struct copy_job copy_rows_merge(struct copy_job job)
{
    for (int pass = 0; pass < DIMS; pass++)
        for (int d = 0; d + 1 < DIMS; d++)
            if (reach(&job, d) < reach(&job, d + 1))
                dims_swap(&job, d, d + 1);
    for (int merged = 0; merged < DIMS; merged++) {
        int64_t bytes = (int64_t)job.row_bytes;
        if (job.n[2] != 1 && (job.src_stride[2] != bytes || job.dst_stride[2] != bytes))
            break;
        job.row_bytes *= (size_t)job.n[2];
        dims_swap(&job, 1, 2);
        dims_swap(&job, 0, 1);
        job.n[0] = 1;
    }
    return job;
}

/* n rows of constant size; inlined once per size below. */
static inline void rows_fixed(const char *src, char *dst, const struct copy_job *job, size_t bytes)
{
    for (int64_t l = 0; l < job->n[2]; l++)
        memcpy(dst + l * job->dst_stride[2], src + l * job->src_stride[2], bytes);
}

static void line_copy(const char *src, char *dst, const struct copy_job *job)
{
    switch (job->row_bytes) {
    case 4:
        rows_fixed(src, dst, job, 4);
        break;
    case 64:
        rows_fixed(src, dst, job, 64);
        break;
    case 128:
        rows_fixed(src, dst, job, 128);
        break;
    case 256:
        rows_fixed(src, dst, job, 256);
        break;
    default:
        rows_fixed(src, dst, job, job->row_bytes);
        break;
    }
}

void copy_rows(const struct copy_job *given)
{
    struct copy_job job = copy_rows_merge(*given);
    if (job.row_bytes == 0 || job.n[2] == 0) /* no pointer arithmetic where there may be no pointer */
        return;
    for (int64_t a = 0; a < job.n[0]; a++)
        for (int64_t b = 0; b < job.n[1]; b++)
            line_copy((const char *)job.src + a * job.src_stride[0] + b * job.src_stride[1],
                      (char *)job.dst + a * job.dst_stride[0] + b * job.dst_stride[1], &job);
}

/* More than a large cache has for one of the many cores that share it. Two ranks of a Xeon with 260 MiB for all of its cores, the way in of
 * exchange packed, ms stored past the cache and not: calls of 6 MiB 2.4 and 2.0; the whole with its passes of 24 and 16 MiB 23.0 and 26.2 with
 * buffers used, 22.9 and 29.7 hot. */
static bool leaves_cache(int64_t bytes)
{
    enum { SHARE_BYTES = 8 << 20 };
    return bytes > SHARE_BYTES || copy_rows_beyond_cache(bytes);
}

/* Storing past the cache pays where nothing of the copy stays there, for rows that the write-combining buffers see whole. */
static void rows_beyond(const struct copy_job *job)
{
    enum { LEAST_BYTES = 1024 };
    struct copy_job merged = copy_rows_merge(*job);
    if (merged.row_bytes < LEAST_BYTES) {
        copy_rows(&merged);
        return;
    }
    copy_rows_stream(&merged);
    copy_rows_fence();
}

enum status copy_run(enum dev_kind dev, const struct copy_job *jobs, int njobs, struct dev_queue *queue)
{
    int64_t bytes = 0;
    TRY(device_check(dev, "copy", queue));
    TRY(copy_rows_check("copy", jobs, njobs, &bytes));
#if SPTUNE_CUDA
    if (dev == DEV_CUDA)
        return copy_cuda_run(jobs, njobs, queue);
#endif
    copy_rows_share(jobs, njobs, bytes, queue, leaves_cache(bytes) ? rows_beyond : copy_rows);
    return STATUS_OK;
}

static void row_sum(const struct copy_sum *job, int64_t src_at, char *dst)
{
    float sum[CHUNK], next[CHUNK];
    int64_t elem_bytes = dtype_bytes(job->dtype);
    for (int64_t first = 0; first < job->elems; first += CHUNK) {
        int64_t n = job->elems - first < CHUNK ? job->elems - first : CHUNK;
        int64_t at = src_at + first * elem_bytes;
        dtype_load(job->dtype, (const char *)job->srcs[0] + at, sum, n);
        for (int c = 1; c < job->copies; c++) {
            dtype_load(job->dtype, (const char *)job->srcs[c] + at, next, n);
            for (int64_t i = 0; i < n; i++)
                sum[i] += next[i];
        }
        dtype_store(job->dtype, sum, dst + first * elem_bytes, n);
    }
}

/* Equal parts of the rows of a sum, for threads. */
struct pieces {
    const struct copy_sum *job;
    int64_t rows, count;
};

/* Where part `piece` begins. */
static int64_t piece_at(const struct pieces *pieces, int64_t piece)
{
    int64_t over = pieces->rows % pieces->count;
    return piece * (pieces->rows / pieces->count) + (piece < over ? piece : over);
}

static void sum_piece(void *arg, int64_t piece, int thread)
{
    const struct pieces *pieces = arg;
    const struct copy_sum *job = pieces->job;
    (void)thread;
    for (int64_t row = piece_at(pieces, piece); row < piece_at(pieces, piece + 1); row++) {
        int64_t at[DIMS] = {row / (job->n[1] * job->n[2]), row / job->n[2] % job->n[1], row % job->n[2]}, from = 0,
                to = 0;
        for (int d = 0; d < DIMS; d++) {
            from += at[d] * job->src_stride[d];
            to += at[d] * job->dst_stride[d];
        }
        row_sum(job, from, (char *)job->dst + to);
    }
}

static void sum_share(const struct copy_sum *job, struct dev_queue *queue)
{
    enum { PIECE_BYTES = 1 << 20, PIECES_PER_THREAD = 4 };
    int64_t rows = job->n[0] * job->n[1] * job->n[2], most = (int64_t)dev_queue_threads(queue) * PIECES_PER_THREAD;
    int64_t count = rows * job->elems * job->copies * dtype_bytes(job->dtype) / PIECE_BYTES;
    count = count < most ? count : most;
    count = count < rows ? count : rows;
    struct pieces pieces = {job, rows, dev_queue_threads(queue) == 1 || count < 2 ? 1 : count};
    dev_parallel(queue, pieces.count, sum_piece, &pieces);
}

static enum status dtype_check(const char *what, enum dtype dtype)
{
    if ((int)dtype < 0 || dtype >= DTYPE_COUNT)
        return FAIL(STATUS_USAGE, "%s: dtype %d does not exist", what, (int)dtype);
    return STATUS_OK;
}

enum status copy_sum_run(enum dev_kind dev, const struct copy_sum *job, struct dev_queue *queue)
{
    bool some = false, pointers = job->srcs != NULL && job->dst != NULL && job->copies > 0;
    TRY(device_check(dev, "copy_sum", queue));
    TRY(dtype_check("copy_sum", job->dtype));
    if (job->elems < 0)
        return FAIL(STATUS_USAGE, "copy_sum: rows of %lld elements", (long long)job->elems);
    for (int c = 0; pointers && c < job->copies; c++)
        pointers = job->srcs[c] != NULL;
    TRY(rows_check("copy_sum", job->n, pointers, &some));
    if (!some)
        return STATUS_OK;
#if SPTUNE_CUDA
    if (dev == DEV_CUDA)
        return copy_cuda_sum(job, queue);
#endif
    sum_share(job, queue);
    return STATUS_OK;
}
