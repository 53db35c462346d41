/* kernels/copy_sum.h -- a sum of copies as GPU threads share it: the index arithmetic, for host and device alike.
 *
 * Rows are those of a move (kernels/copy_move.h) with the sources' strides; a row is `units` vectors of 16 bytes where all addresses
 * allow that, else single elements. Units of all rows are counted 0 .. sum_units - 1, those of a row next to each other.
 */
#ifndef SPTUNE_KERNELS_COPY_SUM_H
#define SPTUNE_KERNELS_COPY_SUM_H

#include "kernels/copy_move.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SUM_COPIES = 64, SUM_VECTOR_BYTES = 16 };

struct sum {
    const char *srcs[SUM_COPIES];
    char *dst;
    struct move rows; /* strides and counts; units: vectors or elements of a row */
    int copies, dtype;
    bool vectors;
};

MOVE_BOTH uint64_t sum_units(const struct sum *sum)
{
    return (uint64_t)sum->rows.nrows * sum->rows.units;
}

/* Where the row of a unit lies on both sides, and which of the row's units it is. */
MOVE_BOTH struct move_place sum_place(const struct sum *sum, uint64_t at, uint32_t *unit)
{
    const uint32_t row = (uint32_t)(at / sum->rows.units);
    *unit = (uint32_t)(at - (uint64_t)row * sum->rows.units);
    return move_row(&sum->rows, row);
}

/* Of a job that copy_sum_run has checked. STATUS_UNSUPPORTED beyond SUM_COPIES copies or 2^31 rows. */
static inline enum status sum_fill(const struct copy_sum *job, struct sum *out)
{
    int64_t rows = job->n[0] * job->n[1] * job->n[2], wide = SUM_VECTOR_BYTES / dtype_bytes(job->dtype);
    uint64_t all = (uint64_t)(uintptr_t)job->dst;
    if (job->copies > SUM_COPIES || rows > INT32_MAX || job->elems > INT32_MAX)
        return FAIL(STATUS_UNSUPPORTED, "a sum of %d copies of %lld rows", job->copies, (long long)rows);
    for (int c = 0; c < job->copies; c++) {
        out->srcs[c] = (const char *)job->srcs[c];
        all |= (uint64_t)(uintptr_t)job->srcs[c];
    }
    out->dst = (char *)job->dst;
    out->copies = job->copies;
    out->dtype = (int)job->dtype;
    out->rows.n1 = (uint32_t)job->n[1];
    out->rows.n2 = (uint32_t)job->n[2];
    out->rows.nrows = (uint32_t)rows;
    for (int d = 0; d < 3; d++) {
        out->rows.src_stride[d] = job->src_stride[d];
        out->rows.dst_stride[d] = job->dst_stride[d];
        if (job->n[d] > 1)
            all |= (uint64_t)job->src_stride[d] | (uint64_t)job->dst_stride[d];
    }
    out->vectors = all % SUM_VECTOR_BYTES == 0 && job->elems % wide == 0;
    out->rows.units = (uint32_t)(out->vectors ? job->elems / wide : job->elems);
    return STATUS_OK;
}

#ifdef __cplusplus
}
#endif
#endif
