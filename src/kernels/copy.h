/* kernels/copy.h -- the layout-changing copy: blocks of rows from one set of strides to another.
 *
 * One job moves n[0] x n[1] x n[2] rows of row_bytes; row (i, j, l) is at base + i*s[0] + j*s[1] + l*s[2] bytes on each side. Jobs
 * of one call may have different destinations; they write different bytes, because the threads of the queue share them (with a NULL
 * queue they run in order). Rows do not overlap. A call that moves more than 8 MiB, or a quarter of the last-level cache,
 * stores past it.
 */
#ifndef SPTUNE_KERNELS_COPY_H
#define SPTUNE_KERNELS_COPY_H

#include "base/dev.h"
#include "base/dtype.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct copy_job {
    const void *src;
    void *dst;
    int64_t n[3];
    int64_t src_stride[3], dst_stride[3]; /* bytes */
    size_t row_bytes;
};

enum status copy_run(enum dev_kind dev, const struct copy_job *jobs, int njobs, struct dev_queue *queue);

/* dst[row] = round(sum over c < copies, in order, of src_c[row]) : copies of a tensor summed in fp32, rounded once. Rows as in
 * copy_job with src taken from srcs[c]; elems per row. */
struct copy_sum {
    const void *const *srcs; /* [copies] */
    int copies;
    void *dst;
    int64_t n[3];
    int64_t src_stride[3], dst_stride[3]; /* bytes */
    int64_t elems;
    enum dtype dtype;
};
enum status copy_sum_run(enum dev_kind dev, const struct copy_sum *job, struct dev_queue *queue);

#endif
