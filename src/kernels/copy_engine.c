/* kernels/copy_engine.c -- planes handed to the driver. Two H200s, 1 GiB of a rank: 621 GB/s, where stores of a kernel reach 724; below
 * that each plane costs a start, so a job is as few of them as its strides allow. */
#include "kernels/copy_engine.h"

#include "base/dev_cuda.h"
#include "kernels/copy_plane.h"

enum { PITCH_MAX = INT32_MAX }; /* cudaDeviceProp.memPitch of every GPU so far */

static enum status put(void *arg, const struct copy_plane *plane)
{
    cudaStream_t stream = arg;
    cudaError_t error = plane->height == 1
                            ? cudaMemcpyAsync(plane->dst, plane->src, plane->width, cudaMemcpyDefault, stream)
                            : cudaMemcpy2DAsync(plane->dst, plane->dst_pitch, plane->src, plane->src_pitch,
                                                plane->width, plane->height, cudaMemcpyDefault, stream);
    return dev_cuda_status(error, "a copy by copy engine");
}

enum status copy_engine_run(const struct copy_job *jobs, int njobs, struct dev_queue *queue)
{
    for (int i = 0; i < njobs; i++)
        TRY(copy_plane_split(&jobs[i], PITCH_MAX, put, dev_cuda_stream(queue)));
    return STATUS_OK;
}
