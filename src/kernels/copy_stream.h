/* kernels/copy_stream.h -- the layout-changing copy with stores that bypass the cache.
 *
 * For a destination that this core does not read soon, above all memory that another core holds in its cache: an
 * ordinary store first fetches the line from there, a bypassing one only tells the other cache to drop it. Jobs as in
 * copy.h. Complete when it returns, also for whoever sees a flag that is set afterwards.
 */
#ifndef SPTUNE_KERNELS_COPY_STREAM_H
#define SPTUNE_KERNELS_COPY_STREAM_H

#include "kernels/copy.h"

/* `bytes` by this thread, complete on return; for rates. The two halves of a line follow each other: EPYC, 4 MiB cold, best of 60:
 * memcpy 9.0 GB/s, quarter lines 11.7, half lines 13.9, half lines four lines at a time 11.2. */
void copy_stream_bytes(void *dst, const void *src, size_t bytes);
enum status copy_stream_run(enum dev_kind dev, const struct copy_job *jobs, int njobs, struct dev_queue *queue);

#endif
