/* bench/transformer_state.h -- inside bench/transformer*.c: what a block at work has. */
#ifndef SPTUNE_BENCH_TRANSFORMER_STATE_H
#define SPTUNE_BENCH_TRANSFORMER_STATE_H

#include "bench/transformer.h"
#include "sp/block.h"
#include "sp/shard.h"

struct transformer {
    struct dev *dev;
    struct comm *group;
    struct problem problem;
    struct plan plan;
    struct block_shape shape; /* whole */
    bool backward;
    int rank, ways;
    struct shard shard; /* tokens of its rows */
    int64_t rows;
    uint64_t seed;
    int64_t batch_first;
    struct exec *exec;
    struct block *block;
    struct block_kept *kept;
    void *weight[BLOCK_TENSORS];  /* these, gradients and rows: memory of the device, owned */
    struct block_weights weights; /* the same */
    struct block_grads grads;
    void *x, *y, *dy, *dx; /* [rows][hidden]; backward makes dx of what was copied from dy */
    int32_t *positions;
    float *inv_freq;
    int64_t bytes;
};

/* This rank's part of a tensor, and where it lies in the whole. */
struct piece {
    bool there; /* a block has such a tensor */
    int64_t whole_rows, whole_cols, rows, cols, first_row, first_col;
};
struct piece transformer_piece(const struct transformer *t, enum block_tensor tensor);

#endif
