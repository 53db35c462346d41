/* model/count.h -- how many parameters the parts of a layer have. Sums saturate at INT64_MAX, which the reader refuses.
 */
#ifndef SPTUNE_MODEL_COUNT_H
#define SPTUNE_MODEL_COUNT_H

#include "model/model.h"

#include <stdbool.h>
#include <stdint.h>

/* Parameters by part. A layer is attention + norms + one of the two MLP kinds. */
struct counts {
    int64_t attention, norms;
    int64_t mlp_dense;
    int64_t mlp_sparse, mlp_sparse_active; /* all experts and router; what one token uses of them */
    int dense_layers, sparse_layers;
    int64_t outside; /* final norm, position table, lm_head bias: once per model, neither layer nor embedding */
};

int64_t count_add(int64_t a, int64_t b);
int64_t count_mul(int64_t a, int64_t b);
int64_t count_linear(int64_t in, int64_t out, bool bias);
/* Query, key, value and output projections with the model's biases, and per-head q and k norms. */
int64_t count_attention(const struct model *model);
int64_t count_mlp(const struct model *model, int64_t width);
/* A dense model with `norms` RMS norms per layer and one at the end. */
void count_dense(const struct model *model, int norms, struct counts *counts);
/* Every layer's MLP becomes a router and model->experts experts of width model->ffn. */
void count_experts(const struct model *model, int sparse_layers, struct counts *counts);
/* Fills the params_ fields; STATUS_USAGE when they go beyond an int64. */
enum status count_finish(const struct counts *counts, struct model *model);

#endif
