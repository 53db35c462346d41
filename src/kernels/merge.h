/* kernels/merge.h -- attention over parts of its keys, put together: outputs by their softmax statistics, gradients by adding.
 *
 *   lse = log(exp(lse_a) + exp(lse_b))      O = exp(lse_a - lse) O_a + exp(lse_b - lse) O_b
 *
 * Sums are fp32 and start from the first part. A row that no part has shown a key keeps O = 0, LSE = -inf. A NaN of either side
 * shows. The order of the calls is the order of the sums: the same bits on any number of threads.
 * Traffic of one call: the part once, the sums twice.
 */
#ifndef SPTUNE_KERNELS_MERGE_H
#define SPTUNE_KERNELS_MERGE_H

#include "base/dev.h"
#include "base/dtype.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct merge_part {
    int64_t tokens;
    int heads, dim;
    enum dtype dtype;
    const void *o;       /* [tokens][heads][dim] of dtype */
    const float *lse;    /* [heads][tokens] */
    float *o_sum;        /* [tokens][heads][dim] */
    float *lse_sum;      /* [heads], lse_stride elements apart, [tokens] */
    int64_t lse_stride;
    bool first;          /* what the sums hold does not count */
};
enum status merge_out(enum dev_kind dev, const struct merge_part *part, struct dev_queue *queue);
/* sum += part, n elements; first: sum = part. */
enum status merge_add(enum dev_kind dev, enum dtype dtype, const void *part, float *sum, int64_t n, bool first,
                      struct dev_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
