/* tests/train/test_tensors.c -- safetensors as others write them, shards by an index, and what is written here. */
#include "train/tensors_test.h"

#include <stdlib.h>

/* Bytes as the format says them: 1.0 is 0x3f800000 in F32, 0x3f80 in BF16, 0x3c00 in F16. */
static void every_type_is_read_as_every_type(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"wide\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                                 "\"brain\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[8,12]},"
                                 "\"half\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[12,16]}}  ";
    static const unsigned char data[] = {0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0, 0x80, 0x3f, 0x20, 0xc0, 0, 0x3c, 0, 0xc1};
    static const char *const names[] = {"brain", "half", "wide"};
    put_tensors("a.safetensors", header, data, sizeof data);
    struct tensors *tensors = open_tensors("a.safetensors");
    assert_int_equal(tensors_count(tensors), 3);
    for (int i = 0; i < 3; i++) {
        const struct tensors_entry *entry = tensors_at(tensors, i);
        assert_string_equal(entry->name, names[i]); /* in order of names, without the metadata */
        assert_ptr_equal(entry, tensors_find(tensors, names[i]));
        assert_true(entry->readable);
        assert_int_equal(entry->elems, 2);
        assert_string_equal(tensors_path(tensors, entry), temp_path(&temp, "a.safetensors"));
        for (int to = 0; to < DTYPE_COUNT; to++) {
            char raw[8];
            float value[2], last;
            CHECK_OK(tensors_read(tensors, entry, 0, 2, (enum dtype)to, raw));
            dtype_load((enum dtype)to, raw, value, 2);
            assert_true(value[0] == 1 && value[1] == -2.5f); /* exact in all three */
            CHECK_OK(tensors_read(tensors, entry, 1, 1, DTYPE_FP32, &last));
            assert_true(last == -2.5f);
        }
        CHECK_FAILS(STATUS_USAGE, "elements 1 to 3", tensors_read(tensors, entry, 1, 2, DTYPE_FP32, NULL));
        CHECK_FAILS(STATUS_USAGE, "elements -1", tensors_read(tensors, entry, -1, 1, DTYPE_FP32, NULL));
    }
    assert_int_equal(tensors_at(tensors, 2)->dims, 2);
    assert_int_equal(tensors_at(tensors, 2)->shape[1], 2);
    assert_null(tensors_find(tensors, "__metadata__"));
    assert_null(tensors_find(tensors, "wid"));
    tensors_close(tensors);
}

static void what_is_needed_is_named(void **state)
{
    (void)state;
    static const char header[] = "{\"model.norm.weight\":{\"dtype\":\"F16\",\"shape\":[2,1],\"data_offsets\":[0,4]},"
                                 "\"ids\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[4,12]},"
                                 "\"new\":{\"dtype\":\"Q3\",\"shape\":[5],\"data_offsets\":[12,14]},"
                                 "\"one\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[14,16]},"
                                 "\"none\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[16,16]}}";
    static const char data[16] = {0};
    float value = 1;
    const struct tensors_entry *entry = NULL;
    put_tensors("a.safetensors", header, data, sizeof data);
    struct tensors *tensors = open_tensors("a.safetensors");
    CHECK_OK(tensors_need(tensors, "model.norm.weight", 2, (const int64_t[]){2, 1}, &entry));
    assert_string_equal(entry->name, "model.norm.weight");
    assert_string_equal(entry->type, "F16");
    CHECK_OK(tensors_need(tensors, "one", 0, NULL, &entry));
    assert_int_equal(entry->elems, 1);
    CHECK_OK(tensors_read(tensors, entry, 0, 1, DTYPE_FP32, &value));
    assert_true(value == 0);
    CHECK_OK(tensors_need(tensors, "none", 2, (const int64_t[]){3, 0}, &entry));
    CHECK_OK(tensors_read(tensors, entry, 0, 0, DTYPE_BF16, NULL));
    const struct tensors_entry *before = entry;
    CHECK_FAILS(STATUS_USAGE, "tensor 'model.norm.weight' of F16 is [2, 1], [1, 2] is expected",
                tensors_need(tensors, "model.norm.weight", 2, (const int64_t[]){1, 2}, &entry));
    assert_string_equal(status_last()->where, temp_path(&temp, "a.safetensors"));
    CHECK_FAILS(STATUS_USAGE, "is [2, 1], [2] is expected",
                tensors_need(tensors, "model.norm.weight", 1, (const int64_t[]){2}, &entry));
    CHECK_FAILS(STATUS_USAGE, "tensor 'model.norm.weigth' of shape [2, 1] is missing among 5",
                tensors_need(tensors, "model.norm.weigth", 2, (const int64_t[]){2, 1}, &entry));
    assert_non_null(strstr(status_last()->hint, "'model.norm.weight'"));
    CHECK_FAILS(STATUS_USAGE, "tensor 'ids' [1] is of type I64",
                tensors_need(tensors, "ids", 1, (const int64_t[]){1}, &entry));
    CHECK_FAILS(STATUS_USAGE, "'new' is of type Q3",
                tensors_read(tensors, tensors_find(tensors, "new"), 0, 1, DTYPE_FP32, &value));
    assert_ptr_equal(entry, before); /* set on success alone */
    tensors_close(tensors);
}

/* ---- writing ---- */

enum { LONG = 2 * TENSORS_FILL_MAX + 5 };

static enum status fill_counting(void *arg, int64_t first, int64_t count, float *out)
{
    int64_t *next = arg;
    assert_true(first == *next && count >= 1 && count <= TENSORS_FILL_MAX);
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)(first + i) + 0.25f;
    *next = first + count;
    return STATUS_OK;
}

static enum status fill_fails(void *arg, int64_t first, int64_t count, float *out)
{
    (void)arg;
    (void)count;
    (void)out;
    return first == 0 ? STATUS_OK : FAIL(STATUS_PEER, "rank 3 ended");
}

static void what_is_written_comes_back(void **state)
{
    (void)state;
    static const uint16_t narrow[] = {0x3f80, 0x7fc1, 0xff80}; /* 1, NaN with a payload, -inf: bits are kept */
    static const float wide[] = {1.5f, -0.0f};
    int64_t next = 0, next_narrow = 0;
    const struct tensors_item items[] = {
        {.name = "odd", .dtype = DTYPE_BF16, .dims = 1, .shape = {3}, .data = narrow},
        {.name = "quote \" and \xc3\xa9", .dtype = DTYPE_FP32, .dims = 2, .shape = {2, 1}, .data = wide},
        {.name = "long", .dtype = DTYPE_FP32, .dims = 1, .shape = {LONG}, .fill = fill_counting, .arg = &next},
        {.name = "half", .dtype = DTYPE_FP16, .dims = 1, .shape = {2000}, .fill = fill_counting, .arg = &next_narrow},
        {.name = "one", .dtype = DTYPE_FP32, .dims = 0, .data = wide},
        {.name = "none", .dtype = DTYPE_FP32, .dims = 1, .shape = {0}, .data = wide},
    };
    static const char *const metadata[][2] = {{"format", "pt"}, {"step", "12"}};
    CHECK_OK(tensors_write(temp_path(&temp, "b.safetensors"), items, CHECK_COUNT(items), metadata, 2));
    assert_int_equal(next, LONG);
    assert_int_equal(next_narrow, 2000);
    struct tensors *tensors = open_tensors("b.safetensors");
    assert_int_equal(tensors_count(tensors), CHECK_COUNT(items));
    const struct tensors_entry *entry = NULL;
    for (int i = 0; i < CHECK_COUNT(items); i++) {
        CHECK_OK(tensors_need(tensors, items[i].name, items[i].dims, items[i].shape, &entry));
        assert_int_equal(entry->dtype, items[i].dtype);
        assert_int_equal(entry->offset % dtype_bytes(entry->dtype), 0);
    }
    uint16_t bits[3];
    CHECK_OK(tensors_read(tensors, tensors_find(tensors, "odd"), 0, 3, DTYPE_BF16, bits));
    assert_memory_equal(bits, narrow, sizeof bits);
    float *values = malloc(LONG * sizeof *values), two[2];
    assert_non_null(values);
    CHECK_OK(tensors_read(tensors, tensors_find(tensors, items[1].name), 0, 2, DTYPE_FP32, two));
    assert_memory_equal(two, wide, sizeof wide);
    CHECK_OK(tensors_read(tensors, tensors_find(tensors, "long"), 0, LONG, DTYPE_FP32, values));
    for (int64_t i = 0; i < LONG; i++)
        assert_true(values[i] == (float)i + 0.25f);
    CHECK_OK(tensors_read(tensors, tensors_find(tensors, "long"), 3, LONG - 3, DTYPE_BF16, values)); /* in chunks */
    for (int64_t i = 3; i < LONG; i++)
        assert_int_equal(((uint16_t *)values)[i - 3], dtype_to_bf16((float)i + 0.25f));
    CHECK_OK(tensors_read(tensors, tensors_find(tensors, "half"), 0, 2000, DTYPE_FP32, values));
    for (int64_t i = 0; i < 2000; i++)
        assert_true(values[i] == dtype_from_fp16(dtype_to_fp16((float)i + 0.25f)));
    free(values);
    tensors_close(tensors);
}

/* The layout itself, so that a reader that shares a mistake of the writer does not hide it. */
static void the_bytes_are_the_formats(void **state)
{
    (void)state;
    static const float one = 1;
    static const char want[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    const struct tensors_item item = {.name = "a", .dtype = DTYPE_FP32, .dims = 1, .shape = {1}, .data = &one};
    char *bytes = NULL, padded[80];
    size_t len = 0;
    CHECK_OK(tensors_write(temp_path(&temp, "c.safetensors"), &item, 1, NULL, 0));
    CHECK_OK(file_read(temp_path(&temp, "c.safetensors"), 4096, &bytes, &len));
    snprintf(padded, sizeof padded, "%-56s", want);
    assert_int_equal(len, 8 + 56 + 4);
    assert_memory_equal(bytes, "\x38\0\0\0\0\0\0\0", 8);
    assert_memory_equal(bytes + 8, padded, 56);
    assert_memory_equal(bytes + 64, "\0\0\x80\x3f", 4);
    free(bytes);
}

static void what_cannot_be_written_leaves_the_old_file(void **state)
{
    (void)state;
    static const float one = 1;
    struct tensors_item items[] = {{.name = "a", .dtype = DTYPE_FP32, .dims = 1, .shape = {1}, .data = &one},
                                   {.name = "b", .dtype = DTYPE_FP32, .dims = 1, .shape = {LONG}, .fill = fill_fails}};
    char path[1024], *bytes = NULL;
    size_t len = 0;
    snprintf(path, sizeof path, "%s", temp_path(&temp, "d.safetensors"));
    temp_put(&temp, "d.safetensors", "old");
    CHECK_FAILS(STATUS_PEER, "rank 3 ended", tensors_write(path, items, 2, NULL, 0));
    assert_non_null(strstr(status_last()->where, "tensor 'b'"));
    items[1].name = "a";
    CHECK_FAILS(STATUS_USAGE, "two tensors have this name", tensors_write(path, items, 2, NULL, 0));
    items[1].name = "__metadata__";
    CHECK_FAILS(STATUS_USAGE, "no tensor may have this name", tensors_write(path, items, 2, NULL, 0));
    items[1].name = "\xff";
    CHECK_FAILS(STATUS_USAGE, "not UTF-8", tensors_write(path, items, 2, NULL, 0));
    items[1].name = "b";
    items[1].fill = NULL;
    CHECK_FAILS(STATUS_USAGE, "neither data nor a function", tensors_write(path, items, 2, NULL, 0));
    items[1].data = &one;
    items[1].shape[0] = -1;
    CHECK_FAILS(STATUS_USAGE, "negative", tensors_write(path, items, 2, NULL, 0));
    items[1].dims = 2;
    items[1].shape[0] = items[1].shape[1] = INT64_C(1) << 32;
    CHECK_FAILS(STATUS_USAGE, "too large", tensors_write(path, items, 2, NULL, 0));
    items[1].dims = TENSORS_DIMS_MAX + 1;
    CHECK_FAILS(STATUS_USAGE, "9 dimensions", tensors_write(path, items, 2, NULL, 0));
    CHECK_OK(file_read(path, 100, &bytes, &len));
    assert_string_equal(bytes, "old");
    free(bytes);
    assert_int_equal(temp_count(temp.dir), 1); /* nor a temporary one */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_TEMP(every_type_is_read_as_every_type),
        IN_TEMP(what_is_needed_is_named),
        IN_TEMP(what_is_written_comes_back),
        IN_TEMP(the_bytes_are_the_formats),
        IN_TEMP(what_cannot_be_written_leaves_the_old_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
