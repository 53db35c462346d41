/* train/layout.h -- the parameters of a decoder: their names, shapes and places. Pure.
 *
 * A unit is what is gathered, reduced and freed together: unit 0 the embedding, 1 to L the layers, L + 1 the final norm, with lm_head where
 * it is not tied to the embedding. Within a unit tensors follow each other, each beginning at a multiple of LAYOUT_ALIGN elements; what lies
 * between is 0 and stays 0. Names are HuggingFace's.
 *
 * Where a layer's weights are cut among `ways` ranks (sp/block.h) a layout is that of one of them. In the unit of a layer come first the
 * tensors that all these ranks have, then those that some of them have, then its own tensor-parallel shards:
 *
 *     | norms: alike on all | k, v of replicated KV heads: copied | shards |
 */
#ifndef SPTUNE_TRAIN_LAYOUT_H
#define SPTUNE_TRAIN_LAYOUT_H

#include "base/verdict.h"
#include "model/model.h"
#include "sp/block.h"

#include <stdint.h>

enum { LAYOUT_ALIGN = 16 /* elements: 64 bytes in fp32 */, LAYOUT_NAME = 64 };

struct layout_tensor {
    char name[LAYOUT_NAME];
    int unit;
    int kind;           /* enum block_tensor of a layer's, -1 of the others */
    int64_t rows, cols; /* here; a vector has rows 1 */
    int64_t whole_rows, whole_cols;
    struct block_cut cut;
    bool matrix;    /* decays; drawn from a normal distribution at first, vectors are 0 (biases) or 1 (norms) */
    int64_t offset; /* elements from the beginning of its unit */
};

struct layout_unit {
    int first, n; /* tensors */
    int64_t elems;
    int64_t alike;   /* elements at its start shared by all ways, whose gradients are sums over all of them */
    int64_t copied;  /* behind those, of replicated KV heads: sums over the ranks that have the same */
    int64_t counted; /* those before are also on a rank in front of this one */
};

struct layout {
    struct model model;
    struct block_shape block; /* of whole layers */
    int ways, place;          /* ranks that a layer is cut among; which of them this is */
    int copies;               /* of them, ranks with the same kv heads */
    int units, tensors;
    struct layout_unit *unit;
    struct layout_tensor *tensor;
    int64_t params; /* elements of all whole tensors */
};

/* STATUS_UNSUPPORTED: its layers are not those of sp/block.h, saying why. */
enum status layout_create(const struct model *model, enum dtype dtype, struct layout *out);
/* That of one of the ranks that layers are cut among. STATUS_USAGE: they cannot be. */
enum status layout_create_cut(const struct model *model, enum dtype dtype, int ways, int place, struct layout *out);
void layout_free(struct layout *layout);
int layout_head_unit(const struct layout *layout);       /* whose weights the logits are made with */
int64_t layout_head_offset(const struct layout *layout); /* of those, in that unit */
int64_t layout_norm_offset(const struct layout *layout); /* of the final norm, in the last unit */
/* Of a tensor's elements [from, from + n) here, how many follow each other in the whole tensor too, and from where on. */
int64_t layout_run(const struct layout *layout, const struct layout_tensor *tensor, int64_t from, int64_t n,
                   int64_t *whole);
/* The other way: of the whole tensor's [from, from + n), how many are in a row at *at of a rank's, and the first that has them. */
int64_t layout_piece(const struct layout_tensor *tensor, int64_t from, int64_t n, int *place, int64_t *at);
/* Where the tensors of a layer begin in its unit, in elements; -1: there is no such tensor. */
void layout_layer(const struct layout *layout, int layer, int64_t offset[BLOCK_TENSORS]);

#endif
