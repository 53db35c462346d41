/* kernels/copy_plane.h -- a copy job as planes, what a copy engine moves at once: rows of the same length, a pitch apart on either side.
 *
 *   row 0  [width]....      src_pitch or dst_pitch from the start of one row to that of the next; a plane of one row has none
 *   row 1  [width]....
 *
 * Pure: index arithmetic alone, the same with and without a GPU.
 */
#ifndef SPTUNE_KERNELS_COPY_PLANE_H
#define SPTUNE_KERNELS_COPY_PLANE_H

#include "kernels/copy.h"

#ifdef __cplusplus
extern "C" {
#endif

struct copy_plane {
    const char *src;
    char *dst;
    size_t width, height;        /* bytes of a row, rows; neither is 0 */
    size_t src_pitch, dst_pitch; /* width to pitch_max; width where height is 1 */
};

/* Calls visit for planes that together are the job, as few as its strides allow: rows that touch join, and the innermost dimension is a
 * plane where its pitches are at least a row and at most pitch_max; else every row is a plane of its own. */
typedef enum status copy_plane_visit(void *arg, const struct copy_plane *plane);
enum status copy_plane_split(const struct copy_job *job, int64_t pitch_max, copy_plane_visit *visit, void *arg);

#ifdef __cplusplus
}
#endif
#endif
