/* train/tensors_private.h -- for tensors*.c alone: what an open set of files is. */
#ifndef SPTUNE_TRAIN_TENSORS_PRIVATE_H
#define SPTUNE_TRAIN_TENSORS_PRIVATE_H

#include "base/json.h"
#include "train/tensors.h"

#include <stddef.h>

/* An element is read as it lies in the file. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors are little-endian");

#define TENSORS_METADATA "__metadata__" /* the one key of a header that is no tensor */

struct tensors_file {
    int fd;
    char *path;
    int64_t bytes;
    json_t *header; /* entries borrow names and types from it */
};

struct tensors {
    struct tensors_file *file;
    struct tensors_entry *entry; /* by name, then file, once tensors_sort was called */
    size_t n_files, n, file_cap, entry_cap;
};

/* Opens one more file and appends what its header lists. */
enum status tensors_add_file(struct tensors *tensors, const char *path);
/* The files that an index names, and of their tensors those that it names. */
enum status tensors_add_index(struct tensors *tensors, const char *path);
void tensors_sort(struct tensors *tensors);
const char *tensors_type_name(enum dtype dtype); /* "BF16" */
/* "[2, 3]" */
enum { TENSORS_SHAPE_BUF = TENSORS_DIMS_MAX * 22 + 3 };
const char *tensors_shape_text(int dims, const int64_t *shape, char buf[TENSORS_SHAPE_BUF]);
/* Their product; STATUS_USAGE, without a place, where one is negative or the product is too large. */
enum status tensors_elems(int dims, const int64_t *shape, int64_t *out);

#endif
