/* kernels/copy_cuda.cu -- the layout-changing copy on a CUDA GPU.
 *
 * Bytes are read once and written once, so the floor is 2 * bytes over the memory rate (4.2 TB/s on an H200: 64 MiB in 32 us).
 * To come near it a warp reads neighbouring 16-byte units of a row, and each thread has ROWS independent loads in flight. Two
 * 32-bit divisions find a row's place; they are hidden behind the loads as long as a unit costs under 200 instructions.
 * All jobs of a call go in one launch, one row of blocks each.
 */
#include "base/dev_cuda.h"
#include "kernels/copy_cuda.h"
#include "kernels/copy_index.h"
#include "kernels/dtype_cuda.cuh"

enum {
    THREADS = 256,
    ROWS = 4,           /* in flight per thread */
    JOBS = 32,          /* of a launch: they travel as its argument, at most 4 KiB */
    PIECE = 1 << 15,    /* longer rows are cut, so that one row fills more than one block */
    BLOCKS_PER_SM = 8,
};

struct job {
    const char *src;
    char *dst;
    struct copy_rows rows;
    uint32_t nrows, units, across;
};

struct batch {
    struct job job[JOBS];
};

template <typename unit> __device__ void rows_move(const struct job &job)
{
    const uint32_t rows_side = THREADS / job.across, x = threadIdx.x % job.across;
    const uint32_t step = gridDim.x * rows_side;
    for (uint64_t first = blockIdx.x * rows_side + threadIdx.x / job.across; first < job.nrows; first += (uint64_t)step * ROWS) {
        const char *src[ROWS];
        char *dst[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint64_t row = first + (uint64_t)r * step;
            struct copy_place place = copy_row_place(&job.rows, (uint32_t)(row < job.nrows ? row : first));
            src[r] = job.src + place.src;
            dst[r] = job.dst + place.dst;
        }
        for (uint32_t u = x; u < job.units; u += job.across) {
            unit value[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                value[r] = __ldg((const unit *)src[r] + u);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (first + (uint64_t)r * step < job.nrows)
                    ((unit *)dst[r])[u] = value[r];
        }
    }
}

template <typename unit> __global__ void __launch_bounds__(THREADS) copy_kernel(const __grid_constant__ struct batch batch)
{
    rows_move<unit>(batch.job[blockIdx.y]);
}

static uint64_t ored(const struct copy_job *job)
{
    uint64_t all = (uint64_t)(uintptr_t)job->src | (uint64_t)(uintptr_t)job->dst | job->row_bytes;
    for (int d = 0; d < 3; d++)
        if (job->n[d] > 1)
            all |= (uint64_t)job->src_stride[d] | (uint64_t)job->dst_stride[d];
    return all;
}

struct launcher {
    struct batch batch;
    int n;
    uint32_t unit;
    uint64_t most_blocks; /* that a job of the batch can use */
    struct dev_queue *queue;
};

static enum status launch(struct launcher *launcher)
{
    if (launcher->n == 0)
        return STATUS_OK;
    uint64_t fill = (uint64_t)dev_cuda_sms(dev_queue_dev(launcher->queue)) * BLOCKS_PER_SM / (uint64_t)launcher->n + 1;
    dim3 grid((unsigned)(launcher->most_blocks < fill ? launcher->most_blocks : fill), (unsigned)launcher->n);
    cudaStream_t stream = dev_cuda_stream(launcher->queue);
    switch (launcher->unit) {
    case 16: copy_kernel<uint4><<<grid, THREADS, 0, stream>>>(launcher->batch); break;
    case 8: copy_kernel<uint2><<<grid, THREADS, 0, stream>>>(launcher->batch); break;
    case 4: copy_kernel<uint32_t><<<grid, THREADS, 0, stream>>>(launcher->batch); break;
    case 2: copy_kernel<uint16_t><<<grid, THREADS, 0, stream>>>(launcher->batch); break;
    default: copy_kernel<uint8_t><<<grid, THREADS, 0, stream>>>(launcher->batch); break;
    }
    launcher->n = 0;
    launcher->most_blocks = 0;
    return dev_cuda_launched("the layout-changing copy");
}

static enum status add(struct launcher *launcher, const struct copy_job *from)
{
    uint32_t unit = copy_unit(ored(from));
    if (launcher->n == JOBS || (launcher->n > 0 && unit != launcher->unit))
        TRY(launch(launcher));
    launcher->unit = unit;
    struct job *job = &launcher->batch.job[launcher->n++];
    job->src = (const char *)from->src;
    job->dst = (char *)from->dst;
    job->rows.n1 = (uint32_t)from->n[1];
    job->rows.n2 = (uint32_t)from->n[2];
    for (int d = 0; d < 3; d++) {
        job->rows.src_stride[d] = from->src_stride[d];
        job->rows.dst_stride[d] = from->dst_stride[d];
    }
    job->nrows = (uint32_t)(from->n[0] * from->n[1] * from->n[2]);
    job->units = (uint32_t)(from->row_bytes / unit);
    job->across = copy_across(job->units, THREADS);
    uint64_t rows_block = (uint64_t)(THREADS / job->across) * ROWS, blocks = (job->nrows + rows_block - 1) / rows_block;
    launcher->most_blocks = blocks > launcher->most_blocks ? blocks : launcher->most_blocks;
    return STATUS_OK;
}

/* Rows are counted in 32 bits: more of them go slice by slice. */
static enum status add_rows(struct launcher *launcher, struct copy_job job)
{
    const int64_t most = INT32_MAX;
    int64_t inner = job.n[1] * job.n[2];
    if (job.n[1] > most || job.n[2] > most || inner > most)
        return FAIL(STATUS_UNSUPPORTED, "a copy of %lld x %lld rows in a slice", (long long)job.n[1], (long long)job.n[2]);
    int64_t together = most / inner;
    for (int64_t from = 0; from < job.n[0]; from += together) {
        struct copy_job part = job;
        part.n[0] = job.n[0] - from < together ? job.n[0] - from : together;
        part.src = (const char *)job.src + from * job.src_stride[0];
        part.dst = (char *)job.dst + from * job.dst_stride[0];
        TRY(add(launcher, &part));
    }
    return STATUS_OK;
}

/* Long rows in pieces: the pieces are a dimension of their own, and what is left a job of its own. */
static enum status add_pieces(struct launcher *launcher, const struct copy_job *whole)
{
    int64_t pieces = (int64_t)(whole->row_bytes / PIECE);
    if (pieces < 2)
        return add_rows(launcher, *whole);
    for (int64_t i = 0; i < whole->n[0]; i++) {
        struct copy_job job = *whole;
        job.src = (const char *)whole->src + i * whole->src_stride[0];
        job.dst = (char *)whole->dst + i * whole->dst_stride[0];
        for (int d = 0; d < 2; d++) {
            job.n[d] = whole->n[d + 1];
            job.src_stride[d] = whole->src_stride[d + 1];
            job.dst_stride[d] = whole->dst_stride[d + 1];
        }
        struct copy_job rest = job;
        job.n[2] = pieces;
        job.src_stride[2] = job.dst_stride[2] = PIECE;
        job.row_bytes = PIECE;
        TRY(add_rows(launcher, job));
        rest.n[2] = 1;
        rest.src = (const char *)job.src + pieces * PIECE;
        rest.dst = (char *)job.dst + pieces * PIECE;
        rest.row_bytes = whole->row_bytes % PIECE;
        if (rest.row_bytes > 0)
            TRY(add_rows(launcher, rest));
    }
    return STATUS_OK;
}

enum status copy_cuda_run(const struct copy_job *jobs, int njobs, struct dev_queue *queue)
{
    struct launcher launcher = {};
    launcher.queue = queue;
    for (int i = 0; i < njobs; i++)
        TRY(add_pieces(&launcher, &jobs[i]));
    return launch(&launcher);
}

/* ---- sums and roundings ---- */

enum { COPIES = 64 };

struct sum {
    const char *srcs[COPIES];
    char *dst;
    struct copy_rows rows;
    int copies;
    uint32_t nrows;
    int64_t elems;
};

template <typename T> __global__ void __launch_bounds__(THREADS) sum_kernel(const __grid_constant__ struct sum sum)
{
    for (uint32_t row = blockIdx.x; row < sum.nrows; row += gridDim.x) {
        struct copy_place place = copy_row_place(&sum.rows, row);
        for (int64_t e = threadIdx.x; e < sum.elems; e += THREADS) {
            float total = 0;
            for (int c = 0; c < sum.copies; c++) {
                float x = dtype_up(((const T *)(sum.srcs[c] + place.src))[e]);
                total = c == 0 ? x : total + x;
            }
            dtype_down(total, (T *)(sum.dst + place.dst) + e);
        }
    }
}

enum status copy_cuda_sum(const struct copy_sum *job, struct dev_queue *queue)
{
    struct sum sum = {};
    int64_t rows = job->n[0] * job->n[1] * job->n[2];
    if (job->copies > COPIES || rows > INT32_MAX)
        return FAIL(STATUS_UNSUPPORTED, "a sum of %d copies of %lld rows", job->copies, (long long)rows);
    for (int c = 0; c < job->copies; c++)
        sum.srcs[c] = (const char *)job->srcs[c];
    sum.dst = (char *)job->dst;
    sum.copies = job->copies;
    sum.nrows = (uint32_t)rows;
    sum.elems = job->elems;
    sum.rows.n1 = (uint32_t)job->n[1];
    sum.rows.n2 = (uint32_t)job->n[2];
    for (int d = 0; d < 3; d++) {
        sum.rows.src_stride[d] = job->src_stride[d];
        sum.rows.dst_stride[d] = job->dst_stride[d];
    }
    unsigned most = (unsigned)dev_cuda_sms(dev_queue_dev(queue)) * 16, grid = sum.nrows < most ? sum.nrows : most;
    cudaStream_t stream = dev_cuda_stream(queue);
    if (job->dtype == DTYPE_FP32)
        sum_kernel<float><<<grid, THREADS, 0, stream>>>(sum);
    else if (job->dtype == DTYPE_BF16)
        sum_kernel<__nv_bfloat16><<<grid, THREADS, 0, stream>>>(sum);
    else
        sum_kernel<__half><<<grid, THREADS, 0, stream>>>(sum);
    return dev_cuda_launched("the sum of copies");
}

template <typename T> __global__ void __launch_bounds__(THREADS) round_kernel(const float *src, T *dst, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS)
        dtype_down(src[i], dst + i);
}

enum status copy_cuda_round(enum dtype dtype, const float *src, void *dst, int64_t n, struct dev_queue *queue)
{
    int64_t blocks = (n + THREADS - 1) / THREADS, most = (int64_t)dev_cuda_sms(dev_queue_dev(queue)) * 16;
    unsigned grid = (unsigned)(blocks < most ? blocks : most);
    cudaStream_t stream = dev_cuda_stream(queue);
    if (dtype == DTYPE_FP32)
        return dev_copy(queue, dst, src, (size_t)n * sizeof(float));
    if (dtype == DTYPE_BF16)
        round_kernel<<<grid, THREADS, 0, stream>>>(src, (__nv_bfloat16 *)dst, n);
    else
        round_kernel<<<grid, THREADS, 0, stream>>>(src, (__half *)dst, n);
    return dev_cuda_launched("a rounding");
}
