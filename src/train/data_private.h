/* train/data_private.h -- for data*.c alone: what an open data is, and the parts that one row is made of. */
#ifndef SPTUNE_TRAIN_DATA_PRIVATE_H
#define SPTUNE_TRAIN_DATA_PRIVATE_H

#include "train/data.h"

struct data {
    struct data_options o; /* name and seqs are the two below; path is not kept */
    char *name;
    int64_t *seqs;
    int fd;
    int64_t tokens;  /* of the file */
    int64_t stride;  /* tokens of a window: the longest row */
    int64_t windows; /* of an epoch */
    int64_t rows_per_step, steps_per_epoch, steps;
    void *raw;       /* a row as it is in the file */
    int32_t *tokens_of_row; /* DATA_SEPARATOR_MAX before it, the row, one after it */
    int32_t *labels, *positions; /* of a whole row, `stride` each */
};

/* One whole row before padding. `at` has `before` tokens of the file in front of it and, if `ahead`, one behind it. */
struct data_row {
    const int32_t *at;
    int64_t seq, before;
    bool ahead;
};

int data_token_bytes(enum data_form form);
/* The i-th of n windows in the order of `epoch`: for each epoch a permutation of 0 .. n - 1. */
int64_t data_order(uint64_t seed, int64_t epoch, int64_t n, int64_t i);
/* Into data->tokens_of_row. */
enum status data_load(struct data *data, int64_t first, int64_t seq, struct data_row *out);
/* labels[seq], positions[seq]; doc_len[PROBLEM_MAX_DOCS] unless separator is empty. Gives the number of documents, 0 if not packed. */
int data_label(const struct data_row *row, const struct data_separator *separator, int32_t *labels, int32_t *positions,
               int64_t *doc_len, int64_t *out_valid);

#endif
