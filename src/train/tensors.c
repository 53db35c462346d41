/* train/tensors.c -- open what a path means, find a tensor, read numbers of it. */
#include "train/tensors_private.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_ELEMS = 1 << 16 };

/* ---- open ---- */

static int by_name(const void *left, const void *right)
{
    const struct tensors_entry *a = left, *b = right;
    int order = strcmp(a->name, b->name);
    return order ? order : (a->file > b->file) - (a->file < b->file);
}

void tensors_sort(struct tensors *tensors)
{
    if (tensors->n > 0)
        qsort(tensors->entry, tensors->n, sizeof *tensors->entry, by_name);
}

static bool ends_in(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

/* A directory stands for the one file in it that has a customary name. */
static enum status find_in(const char *dir, char path[PATH_MAX])
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (text_print(path, PATH_MAX, "%s/%s", dir, names[i]) && file_exists(path))
            return STATUS_OK;
    return HINT(WHERE(FAIL(STATUS_USAGE, "neither %s nor %s is here", names[0], names[1]), "%s", dir),
                "name the file itself");
}

static enum status add_path(struct tensors *tensors, const char *path)
{
    char found[PATH_MAX];
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        TRY(find_in(path, found));
        path = found;
    }
    if (ends_in(path, ".json"))
        return tensors_add_index(tensors, path);
    TRY(tensors_add_file(tensors, path));
    tensors_sort(tensors);
    return STATUS_OK;
}

enum status tensors_open(const char *path, struct tensors **out)
{
    struct tensors *tensors = calloc(1, sizeof *tensors);
    if (!tensors)
        return FAIL(STATUS_NOMEM, "no memory for a file of tensors");
    enum status status = add_path(tensors, path);
    if (status == STATUS_OK)
        *out = tensors;
    else
        tensors_close(tensors);
    return status;
}

void tensors_close(struct tensors *tensors)
{
    if (!tensors)
        return;
    for (size_t i = 0; i < tensors->n_files; i++) {
        if (tensors->file[i].fd >= 0)
            close(tensors->file[i].fd);
        json_decref(tensors->file[i].header);
        free(tensors->file[i].path);
    }
    free(tensors->entry);
    free(tensors->file);
    free(tensors);
}

/* ---- look ---- */

int tensors_count(const struct tensors *tensors)
{
    return (int)tensors->n;
}

const struct tensors_entry *tensors_at(const struct tensors *tensors, int index)
{
    return &tensors->entry[index];
}

const char *tensors_path(const struct tensors *tensors, const struct tensors_entry *entry)
{
    return tensors->file[entry->file].path;
}

static int is_named(const void *name, const void *entry)
{
    return strcmp(name, ((const struct tensors_entry *)entry)->name);
}

const struct tensors_entry *tensors_find(const struct tensors *tensors, const char *name)
{
    if (tensors->n == 0)
        return NULL;
    return bsearch(name, tensors->entry, tensors->n, sizeof *tensors->entry, is_named);
}

const char *tensors_shape_text(int dims, const int64_t *shape, char buf[TENSORS_SHAPE_BUF])
{
    size_t at = 0;
    buf[at++] = '[';
    for (int i = 0; i < dims; i++) {
        text_print(buf + at, TENSORS_SHAPE_BUF - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
        at += strlen(buf + at);
    }
    text_print(buf + at, TENSORS_SHAPE_BUF - at, "]");
    return buf;
}

enum status tensors_elems(int dims, const int64_t *shape, int64_t *out)
{
    int64_t elems = 1;
    for (int i = 0; i < dims; i++)
        TRY(mem_mul(elems, shape[i], "the number of its elements", &elems));
    *out = elems;
    return STATUS_OK;
}

static enum status missing(const struct tensors *tensors, const char *name, const char *shape)
{
    const char *nearest = NULL, *path = tensors->n_files > 0 ? tensors->file[0].path : "no file";
    void *names = NULL;
    TRY(mem_alloc(tensors->n * sizeof(char *), "names of tensors", &names));
    for (size_t i = 0; i < tensors->n; i++)
        ((const char **)names)[i] = tensors->entry[i].name;
    nearest = text_nearest(name, names, tensors->n);
    free(names);
    enum status status =
        WHERE(FAIL(STATUS_USAGE, "tensor '%.120s' of shape %s is missing among %zu", name, shape, tensors->n), "%s%s",
              path, tensors->n_files > 1 ? " and the other shards" : "");
    return nearest ? HINT(status, "there is '%.120s'; are these the weights of this model?", nearest)
                   : HINT(status, "are these the weights of this model?");
}

enum status tensors_need(const struct tensors *tensors, const char *name, int dims, const int64_t *shape,
                         const struct tensors_entry **out)
{
    char want[TENSORS_SHAPE_BUF], have[TENSORS_SHAPE_BUF];
    const struct tensors_entry *entry = tensors_find(tensors, name);
    tensors_shape_text(dims, shape, want);
    if (!entry)
        return missing(tensors, name, want);
    tensors_shape_text(entry->dims, entry->shape, have);
    if (!entry->readable)
        return HINT(WHERE(FAIL(STATUS_USAGE, "tensor '%.120s' %s is of type %.20s", name, have, entry->type), "%s",
                          tensors_path(tensors, entry)),
                    "F32, BF16 or F16 can be read");
    if (strcmp(have, want) != 0)
        return HINT(
            WHERE(FAIL(STATUS_USAGE, "tensor '%.120s' of %s is %s, %s is expected", name, entry->type, have, want),
                  "%s", tensors_path(tensors, entry)),
            "are these the weights of this model?");
    *out = entry;
    return STATUS_OK;
}

/* ---- read ---- */

/* Elements of another type by way of fp32, which holds them exactly: rounded once. */
static enum status read_converted(const struct tensors_file *file, const struct tensors_entry *entry, int64_t first,
                                  int64_t count, enum dtype dtype, char *out)
{
    int from = dtype_bytes(entry->dtype), to = dtype_bytes(dtype);
    size_t most = (size_t)(count < CHUNK_ELEMS ? count : CHUNK_ELEMS);
    enum status status = STATUS_OK;
    void *raw = NULL, *wide = NULL;
    TRY(mem_alloc(most * (size_t)from, "numbers of a file", &raw));
    TRY_OUT(mem_alloc(most * sizeof(float), "numbers of a file", &wide));
    for (int64_t at = 0; at < count; at += CHUNK_ELEMS) {
        int64_t n = count - at < CHUNK_ELEMS ? count - at : CHUNK_ELEMS;
        TRY_OUT(file_read_at(file->fd, file->path, entry->offset + (first + at) * from, raw, (size_t)(n * from)));
        dtype_load(entry->dtype, raw, wide, n);
        dtype_store(dtype, wide, out + at * to, n);
    }
out:
    free(wide);
    free(raw);
    return status;
}

enum status tensors_read(const struct tensors *tensors, const struct tensors_entry *entry, int64_t first, int64_t count,
                         enum dtype dtype, void *out)
{
    const struct tensors_file *file = &tensors->file[entry->file];
    if (!entry->readable)
        return WHERE(FAIL(STATUS_USAGE, "tensor '%.120s' is of type %.20s, F32, BF16 or F16 can be read", entry->name,
                          entry->type),
                     "%s", file->path);
    if (first < 0 || count < 0 || first > entry->elems || count > entry->elems - first)
        return WHERE(FAIL(STATUS_USAGE, "elements %lld to %lld of tensor '%.120s', which has %lld", (long long)first,
                          (long long)(first + count), entry->name, (long long)entry->elems),
                     "%s", file->path);
    if (dtype != entry->dtype)
        return WHERE(read_converted(file, entry, first, count, dtype, out), "tensor '%.120s'", entry->name);
    int bytes = dtype_bytes(dtype);
    return WHERE(file_read_at(file->fd, file->path, entry->offset + first * bytes, out, (size_t)(count * bytes)),
                 "tensor '%.120s'", entry->name);
}
