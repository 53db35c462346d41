/* kernels/copy_rows.h -- inside the copies of this room: one job by one thread, and jobs shared by the threads of a queue. */
#ifndef SPTUNE_KERNELS_COPY_ROWS_H
#define SPTUNE_KERNELS_COPY_ROWS_H

#include "kernels/copy.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Neither checks; a job without rows or bytes is nothing. */
void copy_rows(const struct copy_job *job);
void copy_rows_stream(const struct copy_job *job); /* past the cache where rows are long enough; then copy_rows_fence */
void copy_rows_fence(void); /* what this thread stored so far is seen by whoever sees a later flag */
/* The longest reach outermost, and rows that continue each other on both sides joined. */
struct copy_job copy_rows_merge(struct copy_job job);

/* Counts and pointers of all jobs. STATUS_USAGE. *out_bytes: in all. */
enum status copy_rows_check(const char *what, const struct copy_job *jobs, int njobs, int64_t *out_bytes);
/* More than a quarter of the last-level cache: source and destination together take half of it, and others use it, too. */
bool copy_rows_beyond_cache(int64_t bytes);
/* All jobs, cut into bands that threads share: `run` sees jobs that together are `jobs`. */
void copy_rows_share(const struct copy_job *jobs, int njobs, int64_t bytes, struct dev_queue *queue,
                     void (*run)(const struct copy_job *job));

#ifdef __cplusplus
}
#endif
#endif
