/* cli/train_run.h -- runs of `sptune train` in a second; for test_train*.c. */
#ifndef SPTUNE_TESTS_TRAIN_RUN_H
#define SPTUNE_TESTS_TRAIN_RUN_H

#include "cli/run.h"

#include <sys/stat.h>

/* On text of the tests' own: what trains without --data, the project's sources, is another text with every commit. */
#define TINY "train --data text.txt --seq 64 --micro-batch 2 --ranks 2 --progress none "

static inline void put(const char *name, const void *bytes, size_t n)
{
    FILE *file = fopen(temp_path(&run_temp, name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static inline int train_place(void **state)
{
    static const char *const words[] = {"every ", "rank ", "sends ", "its ", "rows ", "to ", "the ", "peers\n", "and ",
                                        "waits ", "for ", "theirs;\n", "then ", "a ", "head ", "attends.\n"};
    static char text[1 << 18];
    size_t n = 0;
    if (run_place(state) != 0)
        return -1;
    for (unsigned seed = 1; n + 16 < sizeof text; seed = seed * 1664525 + 1013904223)
        n += (size_t)sprintf(text + n, "%s", words[seed >> 28]);
    put("text.txt", text, n);
    return 0;
}

static inline int64_t train_text_bytes(void)
{
    struct stat about;
    assert_int_equal(stat(temp_path(&run_temp, "text.txt"), &about), 0);
    return about.st_size;
}

static inline bool exists(const char *name)
{
    return access(temp_path(&run_temp, name), F_OK) == 0;
}

/* losses[n] of the rows that --jsonl printed, behind which comes that of the run; the step of the first. */
static inline int64_t losses_of(const struct run *run, double *losses, int n)
{
    int64_t first = -1;
    const char *at = run->out;
    assert_int_equal(run_lines(run->out), n + 1);
    for (int i = 0; i < n; i++, at = strchr(at, '\n') + 1) {
        json_t *row = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(row);
        int64_t step = json_integer_value(json_object_get(row, "step"));
        first = i == 0 ? step : first;
        assert_int_equal(step, first + i);
        losses[i] = json_real_value(json_object_get(row, "loss"));
        json_decref(row);
    }
    assert_int_equal(strncmp(at, "{\"run\":{", 8), 0);
    return first;
}

static inline char *read_file(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *n = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*n);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n, file), *n);
    fclose(file);
    return bytes;
}

/* Where a tensor lies in a safetensors file. */
static inline char *tensor_in(char *bytes, const char *name, int64_t *out_size)
{
    uint64_t header;
    memcpy(&header, bytes, sizeof header);
    json_t *entries = json_loadb(bytes + 8, (size_t)header, 0, NULL);
    json_t *offsets = json_object_get(json_object_get(entries, name), "data_offsets");
    int64_t from = json_integer_value(json_array_get(offsets, 0)), to = json_integer_value(json_array_get(offsets, 1));
    assert_true(to > from);
    json_decref(entries);
    *out_size = to - from;
    return bytes + 8 + header + from;
}

/* A file like `source`, but for the elements of a tensor from byte `from` to byte `to` (-1: all), which are `value`. */
static inline void spoil(const char *source, const char *name, const char *tensor, int64_t from, int64_t to,
                         float value)
{
    size_t n;
    int64_t size;
    char *bytes = read_file(temp_path(&run_temp, source), &n);
    char *at = tensor_in(bytes, tensor, &size);
    to = to < 0 ? size : to;
    for (int64_t i = from; i < to; i += (int64_t)sizeof value)
        memcpy(at + i, &value, sizeof value);
    put(name, bytes, n);
    free(bytes);
}

/* A checkpoint of one step to begin from, the first time: seedling/step-1. */
static inline void plant(void)
{
    struct run run;
    if (exists("seedling/step-1"))
        return;
    run_do(&run, TINY "--steps 1 --save seedling");
    run_expect(&run, 0);
    run_free(&run);
}

#endif
