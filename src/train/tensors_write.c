/* train/tensors_write.c -- a safetensors file from tensors that may not fit in memory together. */
#include "train/tensors_private.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN_BYTES = 8 /* of the data in the file: readers map it */ };

struct writing {
    const struct tensors_item *items;
    int n;
    char *header; /* padded */
    size_t header_bytes;
    void *wide, *narrow; /* one chunk of what `fill` gives, and converted */
};

/* Items of one width keep their order; the wide ones stand first. */
static const int widths[] = {4, 2};
enum { WIDTHS = sizeof widths / sizeof widths[0] };

/* ---- header ---- */

static enum status add_item(json_t *header, const struct tensors_item *item, int64_t *at)
{
    int64_t elems = 0, bytes = 0, end = 0;
    if (!item->name[0] || strcmp(item->name, TENSORS_METADATA) == 0 || strlen(item->name) > TENSORS_NAME_MAX)
        return FAIL(STATUS_USAGE, "no tensor may have this name");
    if (json_object_get(header, item->name))
        return FAIL(STATUS_USAGE, "two tensors have this name");
    if (item->dims < 0 || item->dims > TENSORS_DIMS_MAX)
        return FAIL(STATUS_USAGE, "%d dimensions, 0 to %d are expected", item->dims, TENSORS_DIMS_MAX);
    if (!item->data && !item->fill)
        return FAIL(STATUS_USAGE, "neither data nor a function that gives them");
    TRY(tensors_elems(item->dims, item->shape, &elems));
    TRY(mem_mul(elems, dtype_bytes(item->dtype), "its size", &bytes));
    if (__builtin_add_overflow(*at, bytes, &end))
        return FAIL(STATUS_USAGE, "the file is too large");
    json_t *shape = json_array(), *offsets = json_array(), *entry = json_object();
    int failed = 0;
    for (int i = 0; i < item->dims; i++)
        failed |= json_array_append_new(shape, json_integer(item->shape[i]));
    failed |= json_array_append_new(offsets, json_integer(*at));
    failed |= json_array_append_new(offsets, json_integer(end));
    failed |= json_object_set_new(entry, "dtype", json_string(tensors_type_name(item->dtype)));
    failed |= json_object_set_new(entry, "shape", shape); /* takes them, also when it fails */
    failed |= json_object_set_new(entry, "data_offsets", offsets);
    failed |= json_object_set_new(header, item->name, entry);
    *at = end;
    return failed ? FAIL(STATUS_USAGE, "a name that is not UTF-8, or no memory for the header") : STATUS_OK;
}

static enum status add_metadata(json_t *header, const char *const (*metadata)[2], int n)
{
    json_t *object = n > 0 ? json_object() : NULL;
    int failed = n > 0 && !object;
    for (int i = 0; i < n; i++)
        failed |= json_object_set_new(object, metadata[i][0], json_string(metadata[i][1]));
    if (n > 0)
        failed |= json_object_set_new(header, TENSORS_METADATA, object);
    return failed ? FAIL(STATUS_USAGE, "metadata that are not UTF-8, or no memory for them") : STATUS_OK;
}

/* Spaces at its end bring the data to a multiple of ALIGN_BYTES. */
static enum status format_header(const json_t *header, struct writing *w)
{
    char *text = json_dumps(header, JSON_COMPACT);
    size_t len = text ? strlen(text) : 0, padded = (len + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    w->header = text ? realloc(text, padded + 1) : NULL;
    if (!w->header) {
        free(text);
        return FAIL(STATUS_NOMEM, "no memory for the header");
    }
    memset(w->header + len, ' ', padded - len);
    w->header_bytes = padded;
    return STATUS_OK;
}

static enum status make_header(struct writing *w, const char *const (*metadata)[2], int n_metadata)
{
    int64_t at = 0;
    json_t *header = json_object();
    enum status status = header ? STATUS_OK : FAIL(STATUS_NOMEM, "no memory for the header");
    if (status == STATUS_OK)
        status = add_metadata(header, metadata, n_metadata);
    for (int width = 0; width < WIDTHS; width++)
        for (int i = 0; i < w->n && status == STATUS_OK; i++)
            if (dtype_bytes(w->items[i].dtype) == widths[width])
                status = WHERE(add_item(header, &w->items[i], &at), "tensor '%.120s'", w->items[i].name);
    if (status == STATUS_OK)
        status = format_header(header, w);
    json_decref(header);
    return status;
}

/* ---- data ---- */

static enum status put_filled(const struct writing *w, const struct tensors_item *item, int64_t elems,
                              struct file_sink *sink)
{
    for (int64_t first = 0; first < elems; first += TENSORS_FILL_MAX) {
        int64_t n = elems - first < TENSORS_FILL_MAX ? elems - first : TENSORS_FILL_MAX;
        TRY(item->fill(item->arg, first, n, w->wide));
        dtype_store(item->dtype, w->wide, w->narrow, n);
        TRY(file_put(sink, w->narrow, (size_t)(n * dtype_bytes(item->dtype))));
    }
    return STATUS_OK;
}

static enum status put_item(const struct writing *w, const struct tensors_item *item, struct file_sink *sink)
{
    int64_t elems = 0;
    TRY(tensors_elems(item->dims, item->shape, &elems));
    if (!item->data)
        return put_filled(w, item, elems, sink);
    return file_put(sink, item->data, (size_t)(elems * dtype_bytes(item->dtype)));
}

static enum status put_all(void *arg, struct file_sink *sink)
{
    const struct writing *w = arg;
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(w->header_bytes >> 8 * i);
    TRY(file_put(sink, length, sizeof length));
    TRY(file_put(sink, w->header, w->header_bytes));
    for (int width = 0; width < WIDTHS; width++)
        for (int i = 0; i < w->n; i++)
            if (dtype_bytes(w->items[i].dtype) == widths[width])
                TRY(WHERE(put_item(w, &w->items[i], sink), "tensor '%.120s'", w->items[i].name));
    return STATUS_OK;
}

enum status tensors_write(const char *path, const struct tensors_item *items, int n, const char *const (*metadata)[2],
                          int n_metadata)
{
    struct writing w = {.items = items, .n = n};
    enum status status = STATUS_OK;
    TRY_OUT(WHERE(make_header(&w, metadata, n_metadata), "%s", path));
    TRY_OUT(mem_alloc(TENSORS_FILL_MAX * sizeof(float), "numbers to write", &w.wide));
    TRY_OUT(mem_alloc(TENSORS_FILL_MAX * sizeof(float), "numbers to write", &w.narrow));
    TRY_OUT(file_write_by(path, put_all, &w));
out:
    free(w.narrow);
    free(w.wide);
    free(w.header);
    return status;
}
