/* tests/kernels/attention_fixture.h -- for tests: tensors for a shape, a run of a kernel, and an oracle of its own to compare
 * with.
 *
 * Inputs sit in poisoned buffers of exactly the size the strides say: what a kernel must not read is NaN, what it must
 * not write is a pattern that is checked, and the workspace is NaN and ends where it was said to end.
 *
 *     struct attention_shape shape = fixture_shape(2, 113, 57, 4, 2, 24, DTYPE_BF16);
 *     struct inputs *in = inputs_create(&shape, seed, 1.0);
 *     struct outputs *out = outputs_create(&shape, false);
 *     CHECK_OK(fixture_forward(kernel, in, out, 0xff));
 *     fixture_agrees(in, out, true, "name of the case");
 */
#ifndef SPTUNE_TESTS_KERNELS_ATTENTION_FIXTURE_H
#define SPTUNE_TESTS_KERNELS_ATTENTION_FIXTURE_H

#include "base/check.h"
#include "kernels/attention.h"

#include <stdbool.h>

/* A kernel in each variant this machine runs: the reference, and cpu once per instruction set. */
struct variant {
    const struct attention *kernel;
    int isa; /* for attention_cpu_use; -1 does not apply */
    const char *label;
};
enum { VARIANTS_MAX = 8 };
int fixture_variants(struct variant out[VARIANTS_MAX]);
void fixture_use(const struct variant *variant);

struct oracle;

struct inputs {
    struct attention_shape shape; /* cu_q and cu_k are borrowed from the caller */
    void *q, *k, *v, *d_o;
    struct oracle *exact, *plain; /* made by the first fixture_agrees */
};

struct outputs {
    struct attention_shape shape;
    bool dkv_fp32, dkv_accumulate;
    void *o, *dq, *dk, *dv;
    float *lse;
};

struct attention_shape fixture_shape(int64_t batch, int64_t seq_q, int64_t seq_k, int heads, int kv_heads, int head_dim,
                                     enum dtype dtype);

/* Normal numbers times amplitude. */
struct inputs *inputs_create(const struct attention_shape *shape, uint64_t seed, double amplitude);
void inputs_destroy(struct inputs *inputs);
struct outputs *outputs_create(const struct attention_shape *shape, bool dkv_fp32);
void outputs_destroy(struct outputs *outputs);

/* Run on this queue, and with its threads, from now on; NULL, the default, is one thread. */
void fixture_on(struct dev_queue *queue);
/* Runs with a workspace filled with `fill`. */
enum status fixture_forward(const struct attention *kernel, const struct inputs *in, struct outputs *out, int fill);
enum status fixture_backward(const struct attention *kernel, const struct inputs *in, struct outputs *out, int fill);

/* From now on also grant what tensor cores cost: P and dS are rounded to the storage type, and rowsum(dO * O) is made from the
 * stored O. Few large terms can be rounded worse than the plain computation happened to round them. */
void fixture_rounds_terms(bool rounds);

/* Outputs against the oracle by the rule of the project: error <= 2 * error of the plain computation in the same
 * precision + a few roundings of fp32; lanes between the heads untouched. Fails the test naming `label`. */
void fixture_agrees(struct inputs *in, const struct outputs *out, bool backward, const char *label);
/* Every byte of the outputs is the same. */
void fixture_same(const struct outputs *a, const struct outputs *b, bool backward, const char *label);
/* No NaN where the kernel writes. */
void fixture_no_nan(const struct outputs *out, bool backward, const char *label);

#endif
