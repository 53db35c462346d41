/* bench/data.h -- test data as a function of where it belongs: any rank can make any element again.
 *
 *   element = f(seed, tensor, batch, position, global head, copy, lane), rounded to the storage type
 *
 * Uniform in (-sqrt 3, sqrt 3), so mean 0 and variance 1, never 0, never NaN: an element that is missing, doubled or at a neighbour's
 * place differs. A side is a rank's part of a tensor, by tokens or by heads; comparing is exact.
 */
#ifndef SPTUNE_BENCH_DATA_H
#define SPTUNE_BENCH_DATA_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

enum data_tensor {
    DATA_Q,
    DATA_K,
    DATA_V,
    DATA_O,
    DATA_DO,
    DATA_DQ,
    DATA_DK,
    DATA_DV,
    DATA_A,
    DATA_B,
    DATA_X,
    DATA_DY
};
const char *data_tensor_name(enum data_tensor tensor);
#define DATA_MAX 1.7320509f /* no element is larger */

struct data_side {
    void *base;
    enum dtype dtype;
    int64_t batch, seq;   /* tokens here: batch x seq */
    int heads, dim;       /* heads here, contiguous */
    int64_t token_stride; /* elements between tokens; batch item b starts seq tokens after item b - 1 */
    int64_t batch_first, position_first; /* of token 0, in the whole */
    int head_first;       /* of head 0, in the whole */
    int copy;             /* which of several ranks that hold this head */
};

/* One row of `dim` elements. */
void data_row(uint64_t seed, enum data_tensor tensor, int64_t batch, int64_t position, int head, int copy, enum dtype dtype,
              int dim, float *out);
void data_fill(uint64_t seed, enum data_tensor tensor, const struct data_side *side);

struct data_errors {
    int64_t wrong, elements;
    int64_t batch, position; /* of the first wrong one, in the whole */
    int head, lane;
    float got, want;
};
/* Does the side hold what belongs there: each element, or the sum of `copies` of them in fp32, in order, rounded once. */
void data_compare(uint64_t seed, enum data_tensor tensor, const struct data_side *side, int copies, struct data_errors *out);
/* False, and "12 of 4,096 elements of q by heads are wrong, first at ..." when there are any; `where` completes it. */
bool data_verdict(const struct data_errors *errors, enum data_tensor tensor, const char *where, char why[256]);

/* The same bytes again and again, for buffers whose contents are bare bytes: byte i of a block that `from` sends to `to`. */
void data_bytes_fill(uint64_t seed, int from, int to, int64_t bytes, void *out);
bool data_bytes_verify(uint64_t seed, int from, int to, int64_t bytes, const void *in, const char *where, char why[256]);
/* `bytes` of a block from byte `first` on, a multiple of 8. *first_wrong: in the block. */
void data_bytes_fill_part(uint64_t seed, int from, int to, int64_t first, int64_t bytes, void *out);
int64_t data_bytes_wrong(uint64_t seed, int from, int to, int64_t first, int64_t bytes, const void *in, int64_t *first_wrong);
/* False, and a sentence, when there are any. */
bool data_bytes_verdict(int64_t wrong, int64_t first_wrong, int from, int to, int64_t bytes, const char *where, char why[256]);

#endif
