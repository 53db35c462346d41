/* kernels/gemm.h -- C = A B or C += A B on one device, for the linear layers of a block and their rate. OpenBLAS on the CPU,
 * cuBLASLt on CUDA GPUs (loaded at run time: libcublasLt.so.13 or .12, or the file SPTUNE_CUBLAS names).
 *
 * Row-major: a [m][k], b [k][n] (or [n][k] when trans_b, as weights are stored), c [m][n] fp32 for every dtype of a and b, or of that
 * dtype when narrow. Sums are fp32 and rounded once; added to a narrow c, a product may have been rounded before. On the CPU bf16 and
 * fp16 operands are widened panel by panel into workspace
 * (gemm_workspace bytes). FLOPs: 2 m n k.
 */
#ifndef SPTUNE_KERNELS_GEMM_H
#define SPTUNE_KERNELS_GEMM_H

#include "base/dev.h"
#include "base/dtype.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gemm_shape {
    int64_t m, n, k;
    enum dtype dtype;
    bool trans_a, trans_b; /* a is [k][m]; b is [n][k] */
    bool add;              /* c is added to; else overwritten */
    bool narrow;           /* c has the dtype of a and b */
};

size_t gemm_workspace(enum dev_kind dev, const struct gemm_shape *shape);
enum status gemm_run(enum dev_kind dev, const struct gemm_shape *shape, const void *a, const void *b, void *c,
                     void *workspace, struct dev_queue *queue);
enum status gemm_ready(enum dev_kind dev); /* STATUS_ABSENT: nothing computes products there, saying what is missing */
/* What computes: "openblas 0.3.21 <core>"; "" when nothing does. */
const char *gemm_name(enum dev_kind dev);
/* Before anything else. STATUS_NOMEM where a limit of the process's addresses leaves none to the threads that OpenBLAS has started as it was
 * loaded: they try again without end, and the process is to end by _exit, for its own exit waits for them. */
enum status gemm_room(void);
/* Threads of OpenBLAS itself, 1 unless set: they multiply with those of the queue. To be set before the first call, and 1 before ranks
 * are forked. */
void gemm_set_threads(int n);

#endif
