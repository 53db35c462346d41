/* train/tensors.h -- weights in safetensors files: one file, or the shards of a HuggingFace index.
 *
 *     TRY(tensors_open("model.safetensors", &file));       // or model.safetensors.index.json, or the directory of either
 *     TRY(tensors_need(file, "lm_head.weight", 2, (int64_t[]){vocab, hidden}, &tensor));
 *     TRY(tensors_read(file, tensor, 0, tensor->elems, DTYPE_BF16, out));
 *     tensors_close(file);
 *
 * Numbers are stored as fp32, bf16 or fp16 and read as any of them, rounded once. Other types are listed and not read. A file that lies
 * about itself is STATUS_USAGE naming file and tensor; one that became shorter is STATUS_IO.
 */
#ifndef SPTUNE_TRAIN_TENSORS_H
#define SPTUNE_TRAIN_TENSORS_H

#include "base/dtype.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { TENSORS_DIMS_MAX = 8, TENSORS_NAME_MAX = 512 };

struct tensors_entry {
    const char *name;   /* lives as long as what it was found in */
    const char *type;   /* as the file says it: "BF16" */
    bool readable;      /* type is one of dtype's */
    enum dtype dtype;   /* if readable */
    int dims;           /* 0: one element */
    int64_t shape[TENSORS_DIMS_MAX]; /* row-major */
    int64_t elems, bytes;
    int file;           /* which shard, */
    int64_t offset;     /* and where in it, from its first byte */
};

struct tensors; /* owned */
enum status tensors_open(const char *path, struct tensors **out);
void tensors_close(struct tensors *tensors); /* accepts NULL */
int tensors_count(const struct tensors *tensors);
const struct tensors_entry *tensors_at(const struct tensors *tensors, int index); /* by name, in byte order */
const char *tensors_path(const struct tensors *tensors, const struct tensors_entry *entry); /* of its file */
const struct tensors_entry *tensors_find(const struct tensors *tensors, const char *name);  /* NULL: there is none */
/* A readable one of this shape. STATUS_USAGE: it is missing (the nearest name there is), of another shape or type. */
enum status tensors_need(const struct tensors *tensors, const char *name, int dims, const int64_t *shape,
                         const struct tensors_entry **out);
/* Elements [first, first + count), converted to `dtype`. */
enum status tensors_read(const struct tensors *tensors, const struct tensors_entry *entry, int64_t first, int64_t count,
                         enum dtype dtype, void *out);

/* What is to be written: `data` (elements of `dtype`), or, where that is NULL, what `fill` gives for [first, first + count). */
struct tensors_item {
    const char *name;
    enum dtype dtype;
    int dims;
    int64_t shape[TENSORS_DIMS_MAX];
    const void *data;
    enum status (*fill)(void *arg, int64_t first, int64_t count, float *out);
    void *arg;
};
/* All of fp32 first, so that every element is aligned, else in the order given; `fill` is called in that order, each with rising `first` and
 * at most TENSORS_FILL_MAX elements, so ranks that gather in it do so alike. The old file or the new one, never a half. metadata: n pairs
 * of key and value. */
enum { TENSORS_FILL_MAX = 1 << 16 };
enum status tensors_write(const char *path, const struct tensors_item *items, int n, const char *const (*metadata)[2],
                          int n_metadata);

#endif
