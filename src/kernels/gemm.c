/* kernels/gemm.c -- C = A B through OpenBLAS on the CPU; narrow operands are widened block by block.
 *
 * fp32 goes to sgemm as it is. bf16 and fp16 have no BLAS routine, so C is cut into blocks of at most ROWS x COLS, and
 * k into slices of DEPTH: both operand slices of a block are widened into workspace (at most 2 * 4096 * 512 floats, 16
 * MiB) and sgemm adds their product to C. A whole block is 2 * 4096 * 4096 * 512 = 17 GFLOP for 4.2 M widened elements:
 * at 100 GFLOP/s and 1 ns per element widening takes 2.4 % of the time; C is read and written once per slice, 8 bytes
 * for 1024 FLOP.
 */
#include "kernels/gemm.h"

#include "base/range.h"

#include <cblas.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 4096, COLS = 4096, DEPTH = 512 };

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

/* The configuration string starts with "OpenBLAS <version> ". */
static void name_make(void)
{
    const char *config = openblas_get_config();
    char version[32];
    if (sscanf(config, "OpenBLAS %31s", version) != 1)
        snprintf(version, sizeof version, "of unknown version");
    snprintf(name, sizeof name, "openblas %s %s", version, openblas_get_corename());
}

const char *gemm_name(enum dev_kind dev)
{
    if (dev != DEV_CPU)
        return "";
    pthread_once(&name_once, name_make);
    return name;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

size_t gemm_workspace(enum dev_kind dev, const struct gemm_shape *shape)
{
    if (dev != DEV_CPU || shape->dtype == DTYPE_FP32 || shape->m < 1 || shape->n < 1 || shape->k < 1)
        return 0;
    int64_t floats = (least(shape->m, ROWS) + least(shape->n, COLS)) * least(shape->k, DEPTH);
    return (size_t)floats * sizeof(float);
}

static enum status gemm_check(enum dev_kind dev, const struct gemm_shape *shape, const void *a, const void *b,
                              const float *c, const void *workspace)
{
    const int64_t sizes[3] = {shape->m, shape->n, shape->k};
    if (dev != DEV_CPU)
        return FAIL(STATUS_ABSENT, "gemm: no kernel for device %s in this build", dev_kind_name(dev));
    if ((int)shape->dtype < 0 || shape->dtype >= DTYPE_COUNT)
        return FAIL(STATUS_USAGE, "gemm: dtype %d does not exist", (int)shape->dtype);
    for (int i = 0; i < 3; i++) {
        if (sizes[i] < 0)
            return HINT(FAIL(STATUS_USAGE, "gemm: %c = %lld", "mnk"[i], (long long)sizes[i]), "sizes are 0 or more");
        if (sizes[i] > INT_MAX)
            return HINT(FAIL(STATUS_UNSUPPORTED, "gemm: %c = %lld is beyond what OpenBLAS can index", "mnk"[i],
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

/* [rows][cols] of a row-major matrix, from (row, col) on, to fp32 without gaps. */
static void widen(enum dtype dtype, const void *matrix, int64_t stride, int64_t row, int64_t col, int64_t rows,
                  int64_t cols, float *out)
{
    for (int64_t i = 0; i < rows; i++)
        dtype_load(dtype, (const char *)matrix + ((row + i) * stride + col) * dtype_bytes(dtype), out + i * cols, cols);
}

/* One block of C, rows from i on and columns from j on. */
static void block_run(const struct gemm_shape *shape, const void *a, const void *b, float *c, float *workspace,
                      int64_t i, int64_t j)
{
    int64_t rows = least(shape->m - i, ROWS), cols = least(shape->n - j, COLS);
    for (int64_t t = 0; t < shape->k; t += DEPTH) {
        int64_t depth = least(shape->k - t, DEPTH);
        float *wide_a = workspace, *wide_b = workspace + rows * depth;
        if (shape->trans_a)
            widen(shape->dtype, a, shape->m, t, i, depth, rows, wide_a);
        else
            widen(shape->dtype, a, shape->k, i, t, rows, depth, wide_a);
        if (shape->trans_b)
            widen(shape->dtype, b, shape->k, j, t, cols, depth, wide_b);
        else
            widen(shape->dtype, b, shape->n, t, j, depth, cols, wide_b);
        cblas_sgemm(CblasRowMajor, shape->trans_a ? CblasTrans : CblasNoTrans,
                    shape->trans_b ? CblasTrans : CblasNoTrans, (int)rows, (int)cols, (int)depth, 1.0f, wide_a,
                    (int)(shape->trans_a ? rows : depth), wide_b, (int)(shape->trans_b ? depth : cols),
                    t == 0 ? 0.0f : 1.0f, c + i * shape->n + j, (int)shape->n);
    }
}

static enum status run(enum dev_kind dev, const struct gemm_shape *shape, const void *a, const void *b, float *c,
                       void *workspace)
{
    TRY(gemm_check(dev, shape, a, b, c, workspace));
    pthread_once(&threads_once, threads_default);
    if (shape->m == 0 || shape->n == 0)
        return STATUS_OK;
    if (shape->k == 0) {
        memset(c, 0, (size_t)shape->m * (size_t)shape->n * sizeof *c);
        return STATUS_OK;
    }
    if (shape->dtype == DTYPE_FP32) {
        cblas_sgemm(CblasRowMajor, shape->trans_a ? CblasTrans : CblasNoTrans,
                    shape->trans_b ? CblasTrans : CblasNoTrans, (int)shape->m, (int)shape->n, (int)shape->k, 1.0f, a,
                    (int)(shape->trans_a ? shape->m : shape->k), b, (int)(shape->trans_b ? shape->k : shape->n), 0.0f,
                    c, (int)shape->n);
        return STATUS_OK;
    }
    for (int64_t i = 0; i < shape->m; i += ROWS)
        for (int64_t j = 0; j < shape->n; j += COLS)
            block_run(shape, a, b, c, workspace, i, j);
    return STATUS_OK;
}

enum status gemm_run(enum dev_kind dev, const struct gemm_shape *shape, const void *a, const void *b, float *c,
                     void *workspace, struct dev_queue *queue)
{
    (void)queue;
    return RANGE("gemm", run(dev, shape, a, b, c, workspace));
}
