/* sp/exchange_direct_jobs.h -- what moves where when ranks reach each other's memory, as jobs of the layout-changing copy. For the
 * exchanges over windows; pure. */
#ifndef SPTUNE_SP_EXCHANGE_DIRECT_JOBS_H
#define SPTUNE_SP_EXCHANGE_DIRECT_JOBS_H

#include "kernels/copy.h"
#include "sp/exchange.h"
#include "sp/exchange_direct.h"

struct direct_call {
    const struct exchange_shape *shape;
    const struct direct_memory *memory;
    int rank, size;
    enum exchange_direction direction;
    const struct exchange_tensor *tensors;
    int n;
};

/* This rank's blocks into the memory of p; tensors whose copies meet are left out. Returns how many jobs. */
int direct_push_jobs(const struct direct_call *call, int p, struct copy_job jobs[EXCHANGE_TENSORS_MAX]);
/* The same movement seen from its end: p's blocks into the memory of this rank. */
int direct_pull_jobs(const struct direct_call *call, int p, struct copy_job jobs[EXCHANGE_TENSORS_MAX]);
bool direct_merges(const struct direct_call *call, int i);
bool direct_moves(const struct direct_call *call, int i); /* is there a row of tensor i? */
/* Head `head` of tensor i, for this rank's tokens, from the ranks that hold it. copies: room for size pointers, kept by *out. */
void direct_sum(const struct direct_call *call, int i, int head, const void **copies, struct copy_sum *out);
/* STATUS_USAGE for shapes that ranks cannot share and for memory that peers cannot reach. */
enum status direct_check(const struct direct_call *call);

#endif
