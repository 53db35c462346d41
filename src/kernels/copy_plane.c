/* kernels/copy_plane.c -- the innermost dimension of a merged job is the height of its planes, the outer two count them. */
#include "kernels/copy_plane.h"
#include "kernels/copy_rows.h"

#include <stdbool.h>

static bool is_pitch(int64_t stride, size_t width, int64_t pitch_max)
{
    return stride >= (int64_t)width && stride <= pitch_max;
}

/* Rows (i, j, *). */
static enum status line(const struct copy_job *job, int64_t i, int64_t j, int64_t pitch_max, copy_plane_visit *visit,
                        void *arg)
{
    struct copy_plane plane = {(const char *)job->src + i * job->src_stride[0] + j * job->src_stride[1],
                               (char *)job->dst + i * job->dst_stride[0] + j * job->dst_stride[1],
                               job->row_bytes,
                               1,
                               job->row_bytes,
                               job->row_bytes};
    if (job->n[2] > 1 && is_pitch(job->src_stride[2], job->row_bytes, pitch_max) &&
        is_pitch(job->dst_stride[2], job->row_bytes, pitch_max)) {
        plane.height = (size_t)job->n[2];
        plane.src_pitch = (size_t)job->src_stride[2];
        plane.dst_pitch = (size_t)job->dst_stride[2];
        return visit(arg, &plane);
    }
    const struct copy_plane first = plane;
    for (int64_t l = 0; l < job->n[2]; l++) {
        plane.src = first.src + l * job->src_stride[2];
        plane.dst = first.dst + l * job->dst_stride[2];
        TRY(visit(arg, &plane));
    }
    return STATUS_OK;
}

enum status copy_plane_split(const struct copy_job *job, int64_t pitch_max, copy_plane_visit *visit, void *arg)
{
    if (job->n[0] < 1 || job->n[1] < 1 || job->n[2] < 1 || job->row_bytes == 0)
        return STATUS_OK;
    const struct copy_job merged = copy_rows_merge(*job);
    for (int64_t i = 0; i < merged.n[0]; i++)
        for (int64_t j = 0; j < merged.n[1]; j++)
            TRY(line(&merged, i, j, pitch_max, visit, arg));
    return STATUS_OK;
}
