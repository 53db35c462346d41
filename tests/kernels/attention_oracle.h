/* tests/kernels/attention_oracle.h -- for tests: attention written a second time, by whole matrices, in one of two
 * precisions.
 *
 * EXACT is double throughout. PLAIN is what a straightforward program in the storage type does: every matrix (S, P, O,
 * dP, dS and the gradients) is rounded to the storage type, sums run in fp32 in order. Its error is the yardstick for
 * kernels.
 */
#ifndef SPTUNE_TESTS_KERNELS_ATTENTION_ORACLE_H
#define SPTUNE_TESTS_KERNELS_ATTENTION_ORACLE_H

#include "kernels/attention_fixture.h"

enum precision { EXACT, PLAIN };

/* Dense: o, dq, dk, dv [batch][seq][heads or kv_heads][dim], lse [batch][heads][seq_q]. *_terms: the same sums with
 * every term's magnitude, which is what one rounding of each term is worth: where terms cancel (a row with one key has
 * dS = 0) an error is measured against these, not against the result. */
struct oracle {
    double *o, *lse, *dq, *dk, *dv;
    double *dq_terms, *dk_terms, *dv_terms;
};

struct oracle *oracle_create(const struct inputs *in, enum precision precision);
void oracle_destroy(struct oracle *oracle);

/* Does query i of batch item b (all from the start of the tensor) see key j? The masks, told once more. */
bool oracle_sees(const struct attention_shape *shape, int64_t i, int64_t j);

#endif
