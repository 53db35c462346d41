/* train/tensors_header.c -- the header of a safetensors file, checked until nothing in it can mislead a reader.
 *
 *     0        8                8 + n            end
 *     +--------+----------------+----------------+
 *     | n      | header         | data           |      n: 64 bits, little-endian
 *     +--------+----------------+----------------+
 *
 * The header is JSON in UTF-8, begins with '{' and may end in spaces. It maps the name of each tensor to
 *
 *     {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}
 *
 * where offsets count from the first byte of the data, and `__metadata__`, if it is there, to an object of strings. Elements are
 * little-endian and row-major; shape [] is one element. Together the tensors cover the data: no byte belongs to two, none to nobody.
 * (https://huggingface.co/docs/safetensors, "Format".) A name that is there twice leaves bytes that belong to nobody.
 */
#include "train/tensors_private.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_MAX_BYTES = 100000000 /* as the reference implementation */, LENGTH_BYTES = 8 };

/* Bits, because some types of newer files are narrower than a byte. */
static const struct {
    const char *name;
    int bits;
    int dtype; /* -1: not read here */
} types[] = {
    {"F32", 32, DTYPE_FP32}, {"BF16", 16, DTYPE_BF16}, {"F16", 16, DTYPE_FP16}, {"F64", 64, -1},
    {"I64", 64, -1},         {"U64", 64, -1},          {"I32", 32, -1},         {"U32", 32, -1},
    {"I16", 16, -1},         {"U16", 16, -1},          {"I8", 8, -1},           {"U8", 8, -1},
    {"BOOL", 8, -1},         {"F8_E4M3", 8, -1},       {"F8_E5M2", 8, -1},      {"F8_E8M0", 8, -1},
    {"F6_E2M3", 6, -1},      {"F6_E3M2", 6, -1},       {"F4", 4, -1},           {"C64", 64, -1},
};
enum { TYPES = sizeof types / sizeof types[0] };

const char *tensors_type_name(enum dtype dtype)
{
    for (int i = 0; i < TYPES; i++)
        if (types[i].dtype == (int)dtype)
            return types[i].name;
    return "unknown";
}

/* ---- one tensor ---- */

static enum status read_type(const json_t *value, struct tensors_entry *out, int *out_bits)
{
    const char *name = json_string_value(json_object_get(value, "dtype"));
    if (!name)
        return FAIL(STATUS_USAGE, "\"dtype\" is not a string");
    out->type = name;
    *out_bits = 0; /* of a type that is not known the size cannot be checked */
    for (int i = 0; i < TYPES; i++) {
        if (strcmp(name, types[i].name) == 0) {
            *out_bits = types[i].bits;
            out->readable = types[i].dtype >= 0;
            if (out->readable)
                out->dtype = (enum dtype)types[i].dtype;
        }
    }
    return STATUS_OK;
}

static enum status read_shape(const json_t *value, struct tensors_entry *out)
{
    const json_t *shape = json_object_get(value, "shape");
    if (!json_is_array(shape))
        return FAIL(STATUS_USAGE, "\"shape\" is not an array");
    if (json_array_size(shape) > TENSORS_DIMS_MAX)
        return FAIL(STATUS_USAGE, "%zu dimensions, at most %d are expected", json_array_size(shape), TENSORS_DIMS_MAX);
    out->dims = (int)json_array_size(shape);
    for (int i = 0; i < out->dims; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size))
            return FAIL(STATUS_USAGE, "dimension %d of \"shape\" is not an integer", i);
        out->shape[i] = json_integer_value(size);
    }
    return tensors_elems(out->dims, out->shape, &out->elems);
}

static enum status read_offsets(const json_t *value, int64_t data_bytes, struct tensors_entry *out)
{
    const json_t *offsets = json_object_get(value, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return FAIL(STATUS_USAGE, "\"data_offsets\" are not two integers");
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin || end > data_bytes)
        return HINT(FAIL(STATUS_USAGE, "data at [%lld, %lld) of %lld bytes", (long long)begin, (long long)end,
                         (long long)data_bytes),
                    "%s", end > data_bytes ? "was the file cut?" : "is the file damaged?");
    out->offset = begin;
    out->bytes = end - begin;
    return STATUS_OK;
}

static enum status read_entry(const json_t *value, int64_t data_bytes, struct tensors_entry *out)
{
    char shape[TENSORS_SHAPE_BUF];
    int bits = 0;
    int64_t all_bits = 0;
    if (!json_is_object(value))
        return FAIL(STATUS_USAGE, "not an object with dtype, shape and data_offsets");
    TRY(read_type(value, out, &bits));
    TRY(read_shape(value, out));
    TRY(read_offsets(value, data_bytes, out));
    TRY(mem_mul(out->elems, bits, "its size", &all_bits));
    if (bits > 0 && (all_bits % 8 != 0 || all_bits / 8 != out->bytes))
        return FAIL(STATUS_USAGE, "%lld bytes for %s of %s, which takes %lld", (long long)out->bytes,
                    tensors_shape_text(out->dims, out->shape, shape), out->type, (long long)((all_bits + 7) / 8));
    return STATUS_OK;
}

/* ---- all of them ---- */

static int by_offset(const void *left, const void *right)
{
    const struct tensors_entry *a = left, *b = right;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes; /* an empty one before the one that begins there */
}

/* Entries of one file cover its data without a gap. */
static enum status check_cover(struct tensors_entry *entry, size_t n, int64_t data_bytes)
{
    int64_t at = 0;
    const char *before = "the header";
    if (n > 0)
        qsort(entry, n, sizeof *entry, by_offset);
    for (size_t i = 0; i < n; i++) {
        if (entry[i].offset < at)
            return FAIL(STATUS_USAGE, "tensor '%.120s' begins at byte %lld, inside '%.120s'", entry[i].name,
                        (long long)entry[i].offset, before);
        if (entry[i].offset > at)
            return FAIL(STATUS_USAGE, "%lld bytes between '%.120s' and '%.120s' belong to no tensor",
                        (long long)(entry[i].offset - at), before, entry[i].name);
        at += entry[i].bytes;
        before = entry[i].name;
    }
    if (at != data_bytes)
        return FAIL(STATUS_USAGE, "%lld bytes after '%.120s' belong to no tensor", (long long)(data_bytes - at),
                    before);
    return STATUS_OK;
}

static enum status check_metadata(json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return FAIL(STATUS_USAGE, "\"" TENSORS_METADATA "\" is not an object");
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return FAIL(STATUS_USAGE, "\"%.120s\" of \"" TENSORS_METADATA "\" is not a string", key);
    }
    return STATUS_OK;
}

static enum status read_entries(struct tensors *tensors, json_t *header, int64_t data_first, int64_t data_bytes)
{
    size_t n = tensors->n;
    const char *name;
    json_t *value;
    TRY(mem_grow((void **)&tensors->entry, &tensors->entry_cap, n + json_object_size(header), sizeof *tensors->entry));
    json_object_foreach(header, name, value)
    {
        if (strcmp(name, TENSORS_METADATA) == 0) {
            TRY(check_metadata(value));
            continue;
        }
        if (strlen(name) > TENSORS_NAME_MAX)
            return FAIL(STATUS_USAGE, "a tensor with a name of %zu bytes, '%.40s...'", strlen(name), name);
        tensors->entry[n] = (struct tensors_entry){.name = name, .file = (int)tensors->n_files - 1};
        TRY(WHERE(read_entry(value, data_bytes, &tensors->entry[n]), "tensor '%.120s'", name));
        n++;
    }
    TRY(check_cover(tensors->entry + tensors->n, n - tensors->n, data_bytes));
    for (; tensors->n < n; tensors->n++)
        tensors->entry[tensors->n].offset += data_first;
    return STATUS_OK;
}

/* ---- the file ---- */

static enum status read_length(const struct tensors_file *file, int64_t *out)
{
    unsigned char raw[LENGTH_BYTES];
    uint64_t length = 0;
    if (file->bytes < LENGTH_BYTES)
        return FAIL(STATUS_USAGE, "%lld bytes, a safetensors file begins with a header", (long long)file->bytes);
    TRY(file_read_at(file->fd, file->path, 0, raw, sizeof raw));
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        length = length << 8 | raw[i];
    if (length > HEADER_MAX_BYTES)
        return HINT(
            FAIL(STATUS_USAGE, "a header of %llu bytes, %d are the most", (unsigned long long)length, HEADER_MAX_BYTES),
            "is it a safetensors file?");
    if ((int64_t)length > file->bytes - LENGTH_BYTES)
        return HINT(FAIL(STATUS_USAGE, "a header of %llu bytes in a file of %lld", (unsigned long long)length,
                         (long long)file->bytes),
                    "was the file cut?");
    *out = (int64_t)length;
    return STATUS_OK;
}

static enum status read_header(struct tensors_file *file, int64_t *out_data)
{
    int64_t length = 0;
    void *text = NULL;
    TRY(read_length(file, &length));
    TRY(mem_alloc((size_t)length, "the header of a safetensors file", &text));
    enum status status = file_read_at(file->fd, file->path, LENGTH_BYTES, text, (size_t)length);
    if (status == STATUS_OK && (length == 0 || *(const char *)text != '{'))
        status = HINT(FAIL(STATUS_USAGE, "a header that does not begin with '{'"), "is it a safetensors file?");
    if (status == STATUS_OK)
        status = json_parse(text, (size_t)length, "header", &file->header);
    free(text);
    *out_data = LENGTH_BYTES + length;
    return status;
}

enum status tensors_add_file(struct tensors *tensors, const char *path)
{
    int64_t data = 0;
    TRY(mem_grow((void **)&tensors->file, &tensors->file_cap, tensors->n_files + 1, sizeof *tensors->file));
    struct tensors_file *file = &tensors->file[tensors->n_files];
    *file = (struct tensors_file){.fd = -1, .path = strdup(path)};
    if (!file->path)
        return FAIL(STATUS_NOMEM, "no memory for a path");
    tensors->n_files++;
    TRY(file_open(path, &file->fd, &file->bytes));
    TRY(WHERE(read_header(file, &data), "%s", path));
    return WHERE(read_entries(tensors, file->header, data, file->bytes - data), "%s", path);
}
