/* kernels/gemm.c -- C = A B or C += A B through OpenBLAS on the CPU; narrow operands are widened block by block. On GPUs: gemm_cublas.c.
 *
 * fp32 goes to sgemm as it is. bf16 and fp16 have no BLAS routine, so C is cut into blocks of at most ROWS x COLS, and
 * k into slices of DEPTH: both operand slices of a block are widened into workspace (at most 2 * 4096 * 512 floats, 16
 * MiB) and sgemm adds their product to C. A whole block is 2 * 4096 * 4096 * 512 = 17 GFLOP for 4.2 M widened elements:
 * at 100 GFLOP/s and 1 ns per element widening takes 2.4 % of the time; C is read and written once per slice, 8 bytes
 * for 1024 FLOP. A narrow C is summed in workspace, in blocks of a quarter (16 MiB), for which operands are widened twice as often.
 *
 * Threads are those of the queue: each computes a tile of C, by a call of its own to an OpenBLAS that uses one. OpenBLAS's own threads
 * would be as many as the machine has CPUs in every rank (it starts its whole pool on first use), wait for work at full load, and be
 * a second set beside those of attention. What tiles cost: an operand is packed once per tile that needs it; with a grid of r x c tiles
 * (m / r + n / c) * k elements per thread, which the grid keeps small.
 */
#include "kernels/gemm.h"

#include "base/range.h"
#if SPTUNE_CUDA
#include "kernels/gemm_cublas.h"
#endif

#include <cblas.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { ROWS = 4096, COLS = 4096, DEPTH = 512, NARROW_ROWS = 2048, NARROW_COLS = 2048 };

static pthread_once_t threads_once = PTHREAD_ONCE_INIT;
static pthread_once_t name_once = PTHREAD_ONCE_INIT;
static char name[96];

static void threads_default(void)
{
    openblas_set_num_threads(1);
}

void gemm_set_threads(int n)
{
    pthread_once(&threads_once, threads_default);
    openblas_set_num_threads(n < 1 ? 1 : n);
}

enum status gemm_room(void)
{
    enum { BUFFER_MB = 128 }; /* of each thread: OpenBLAS's largest on x86-64 and Arm servers */
    struct rlimit limit;
    int n = openblas_get_num_threads();
    unsigned long long need = (unsigned long long)(n + 1) * BUFFER_MB << 20;
    if (n < 2 || getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= need)
        return STATUS_OK;
    return HINT(FAIL(STATUS_NOMEM,
                     "%llu MiB of addresses are allowed (ulimit -v); OpenBLAS takes %d MiB for each of its %d threads",
                     (unsigned long long)limit.rlim_cur >> 20, BUFFER_MB, n),
                "ulimit -v %llu or more, or OPENBLAS_NUM_THREADS=1 in the environment", need >> 10);
}

/* The configuration string starts with "OpenBLAS <version> ". */
static void name_make(void)
{
    const char *config = openblas_get_config();
    char version[32];
    if (sscanf(config, "OpenBLAS %31s", version) != 1)
        snprintf(version, sizeof version, "of unknown version");
    snprintf(name, sizeof name, "openblas %s %s", version, openblas_get_corename());
}

enum status gemm_ready(enum dev_kind dev)
{
    if (dev == DEV_CPU)
        return STATUS_OK;
#if SPTUNE_CUDA
    return gemm_cublas_load();
#else
    return FAIL(STATUS_ABSENT, "gemm: no kernel for device %s in this build", dev_kind_name(dev));
#endif
}

const char *gemm_name(enum dev_kind dev)
{
#if SPTUNE_CUDA
    if (dev == DEV_CUDA)
        return gemm_cublas_name();
#endif
    if (dev != DEV_CPU)
        return "";
    pthread_once(&name_once, name_make);
    return name;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Is C other than the fp32 that its sums are? Then these lie in workspace. */
static bool narrow_c(const struct gemm_shape *shape)
{
    return shape->narrow && shape->dtype != DTYPE_FP32;
}

static int64_t block_rows(const struct gemm_shape *shape)
{
    return least(shape->m, narrow_c(shape) ? NARROW_ROWS : ROWS);
}

static int64_t block_cols(const struct gemm_shape *shape)
{
    return least(shape->n, narrow_c(shape) ? NARROW_COLS : COLS);
}

static size_t c_bytes(const struct gemm_shape *shape)
{
    return (size_t)shape->m * (size_t)shape->n * (narrow_c(shape) ? 2 : sizeof(float));
}

size_t gemm_workspace(enum dev_kind dev, const struct gemm_shape *shape)
{
#if SPTUNE_CUDA
    if (dev == DEV_CUDA)
        return GEMM_CUBLAS_WORKSPACE;
#endif
    if (dev != DEV_CPU || shape->dtype == DTYPE_FP32 || shape->m < 1 || shape->n < 1 || shape->k < 1)
        return 0;
    int64_t rows = block_rows(shape), cols = block_cols(shape);
    int64_t floats = (rows + cols) * least(shape->k, DEPTH) + (narrow_c(shape) ? rows * cols : 0);
    return (size_t)floats * sizeof(float);
}

static enum status gemm_check(enum dev_kind dev, const struct gemm_shape *shape, const void *a, const void *b,
                              const void *c, const void *workspace)
{
    const int64_t sizes[3] = {shape->m, shape->n, shape->k};
    TRY(gemm_ready(dev));
    if ((int)shape->dtype < 0 || shape->dtype >= DTYPE_COUNT)
        return FAIL(STATUS_USAGE, "gemm: dtype %d does not exist", (int)shape->dtype);
    for (int i = 0; i < 3; i++) { /* the limit is OpenBLAS's; nobody has asked a GPU for more yet */
        if (sizes[i] < 0)
            return HINT(FAIL(STATUS_USAGE, "gemm: %c = %lld", "mnk"[i], (long long)sizes[i]), "sizes are 0 or more");
        if (sizes[i] > INT_MAX)
            return HINT(FAIL(STATUS_UNSUPPORTED, "gemm: %c = %lld is beyond what can be indexed", "mnk"[i],
                             (long long)sizes[i]),
                        "at most %d", INT_MAX);
    }
    bool some = shape->m > 0 && shape->n > 0;
    if ((some && c == NULL) || (some && shape->k > 0 && (a == NULL || b == NULL)))
        return FAIL(STATUS_USAGE, "gemm: an operand or the result is missing");
    if (workspace == NULL && gemm_workspace(dev, shape) > 0)
        return FAIL(STATUS_USAGE, "gemm: no workspace was given");
    return STATUS_OK;
}

/* ---- one product of fp32 matrices, on tiles of C ---- */

struct product {
    bool trans_a, trans_b;
    int64_t m, n, k;
    const float *a, *b;
    int64_t a_step, b_step; /* elements between rows as they lie */
    float beta, *c;
    int64_t c_step;
    int64_t rows, cols; /* the grid */
};

/* Where part i of n equal ones begins, in whole vectors. */
static int64_t part_at(int64_t whole, int64_t n, int64_t i)
{
    enum { STEP = 16 };
    int64_t steps = (whole + STEP - 1) / STEP;
    return least((i * (steps / n) + least(i, steps % n)) * STEP, whole);
}

static void tile_task(void *arg, int64_t task, int thread)
{
    const struct product *p = arg;
    int64_t i = part_at(p->m, p->rows, task / p->cols), m = part_at(p->m, p->rows, task / p->cols + 1) - i;
    int64_t j = part_at(p->n, p->cols, task % p->cols), n = part_at(p->n, p->cols, task % p->cols + 1) - j;
    (void)thread;
    if (m > 0 && n > 0)
        cblas_sgemm(CblasRowMajor, p->trans_a ? CblasTrans : CblasNoTrans, p->trans_b ? CblasTrans : CblasNoTrans,
                    (int)m, (int)n, (int)p->k, 1.0f, p->a + (p->trans_a ? i : i * p->a_step), (int)p->a_step,
                    p->b + (p->trans_b ? j * p->b_step : j), (int)p->b_step, p->beta, p->c + i * p->c_step + j,
                    (int)p->c_step);
}

/* Of all ways to write the threads as rows x cols the one that packs least. */
static void grid_pick(struct product *p, int threads)
{
    p->rows = 1;
    p->cols = threads;
    for (int rows = 2; rows <= threads; rows++)
        if (threads % rows == 0 && p->m / rows + p->n / (threads / rows) < p->m / p->rows + p->n / p->cols) {
            p->rows = rows;
            p->cols = threads / rows;
        }
}

static void product_run(struct product *p, struct dev_queue *queue)
{
    static const double least_flops = 4e6; /* less takes no longer than waking a thread */
    int threads = dev_queue_threads(queue);
    grid_pick(p, 2.0 * (double)p->m * (double)p->n * (double)p->k < least_flops ? 1 : threads);
    dev_parallel(queue, p->rows * p->cols, tile_task, p);
}

/* ---- operands that are not fp32 ---- */

/* [rows][cols] of a row-major matrix, from (row, col) on, to fp32 without gaps. */
struct widening {
    enum dtype dtype;
    const void *matrix;
    int64_t stride, row, col, rows, cols;
    float *out;
};

/* The way back: from `out` into c, a matrix that lies like the other. */
struct rounding {
    struct widening from;
    void *c;
};

enum { WIDEN_ROWS = 64 }; /* per task: 32 k elements of a slice, some 30 us */

static void widen_task(void *arg, int64_t task, int thread)
{
    const struct widening *w = arg;
    int64_t end = least((task + 1) * WIDEN_ROWS, w->rows);
    (void)thread;
    for (int64_t i = task * WIDEN_ROWS; i < end; i++)
        dtype_load(w->dtype, (const char *)w->matrix + ((w->row + i) * w->stride + w->col) * dtype_bytes(w->dtype),
                   w->out + i * w->cols, w->cols);
}

static void round_task(void *arg, int64_t task, int thread)
{
    const struct rounding *r = arg;
    const struct widening *w = &r->from;
    int64_t end = least((task + 1) * WIDEN_ROWS, w->rows);
    (void)thread;
    for (int64_t i = task * WIDEN_ROWS; i < end; i++)
        dtype_store(w->dtype, w->out + i * w->cols,
                    (char *)r->c + ((w->row + i) * w->stride + w->col) * dtype_bytes(w->dtype), w->cols);
}

static void share(const struct widening *w, void (*task)(void *arg, int64_t task, int thread), void *arg,
                  struct dev_queue *queue)
{
    dev_parallel(w->rows * w->cols < 4 * WIDEN_ROWS * DEPTH ? NULL : queue, (w->rows + WIDEN_ROWS - 1) / WIDEN_ROWS,
                 task, arg);
}

static void widen(struct widening w, struct dev_queue *queue)
{
    share(&w, widen_task, &w, queue);
}

/* One block of C, rows from i on and columns from j on; its sums go to `sums`, `step` floats between rows. */
static void block_sum(const struct gemm_shape *shape, const void *a, const void *b, float *sums, int64_t step,
                      float *workspace, int64_t i, int64_t j, struct dev_queue *queue)
{
    int64_t rows = least(shape->m - i, block_rows(shape)), cols = least(shape->n - j, block_cols(shape));
    for (int64_t t = 0; t < shape->k; t += DEPTH) {
        int64_t depth = least(shape->k - t, DEPTH);
        float *wide_a = workspace, *wide_b = workspace + rows * depth;
        widen(shape->trans_a ? (struct widening){shape->dtype, a, shape->m, t, i, depth, rows, wide_a}
                             : (struct widening){shape->dtype, a, shape->k, i, t, rows, depth, wide_a},
              queue);
        widen(shape->trans_b ? (struct widening){shape->dtype, b, shape->k, j, t, cols, depth, wide_b}
                             : (struct widening){shape->dtype, b, shape->n, t, j, depth, cols, wide_b},
              queue);
        product_run(&(struct product){.trans_a = shape->trans_a,
                                      .trans_b = shape->trans_b,
                                      .m = rows,
                                      .n = cols,
                                      .k = depth,
                                      .a = wide_a,
                                      .a_step = shape->trans_a ? rows : depth,
                                      .b = wide_b,
                                      .b_step = shape->trans_b ? depth : cols,
                                      .beta = t == 0 && !shape->add ? 0.0f : 1.0f,
                                      .c = sums,
                                      .c_step = step},
                    queue);
    }
}

static void block_run(const struct gemm_shape *shape, const void *a, const void *b, void *c, float *workspace,
                      int64_t i, int64_t j, struct dev_queue *queue)
{
    if (!narrow_c(shape)) {
        block_sum(shape, a, b, (float *)c + i * shape->n + j, shape->n, workspace, i, j, queue);
        return;
    }
    int64_t rows = least(shape->m - i, block_rows(shape)), cols = least(shape->n - j, block_cols(shape));
    struct rounding back = {{shape->dtype, c, shape->n, i, j, rows, cols, workspace}, c};
    if (shape->add)
        widen(back.from, queue);
    block_sum(shape, a, b, workspace, cols, workspace + rows * cols, i, j, queue);
    share(&back.from, round_task, &back, queue);
}

static enum status run(enum dev_kind dev, const struct gemm_shape *shape, const void *a, const void *b, void *c,
                       void *workspace, struct dev_queue *queue)
{
    TRY(gemm_check(dev, shape, a, b, c, workspace));
    if (shape->m == 0 || shape->n == 0)
        return STATUS_OK;
    if (shape->k == 0 && shape->add)
        return STATUS_OK;
#if SPTUNE_CUDA
    if (dev == DEV_CUDA && shape->k == 0)
        return dev_fill(queue, c, 0, c_bytes(shape));
    if (dev == DEV_CUDA)
        return gemm_cublas_run(shape, a, b, c, workspace, queue);
#endif
    pthread_once(&threads_once, threads_default);
    if (shape->k == 0) {
        memset(c, 0, c_bytes(shape));
        return STATUS_OK;
    }
    if (shape->dtype == DTYPE_FP32) {
        product_run(&(struct product){.trans_a = shape->trans_a,
                                      .trans_b = shape->trans_b,
                                      .m = shape->m,
                                      .n = shape->n,
                                      .k = shape->k,
                                      .a = a,
                                      .a_step = shape->trans_a ? shape->m : shape->k,
                                      .b = b,
                                      .b_step = shape->trans_b ? shape->k : shape->n,
                                      .beta = shape->add ? 1.0f : 0.0f,
                                      .c = c,
                                      .c_step = shape->n},
                    queue);
        return STATUS_OK;
    }
    for (int64_t i = 0; i < shape->m; i += block_rows(shape))
        for (int64_t j = 0; j < shape->n; j += block_cols(shape))
            block_run(shape, a, b, c, workspace, i, j, queue);
    return STATUS_OK;
}

enum status gemm_run(enum dev_kind dev, const struct gemm_shape *shape, const void *a, const void *b, void *c,
                     void *workspace, struct dev_queue *queue)
{
    return RANGE("gemm", run(dev, shape, a, b, c, workspace, queue));
}
