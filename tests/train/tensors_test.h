/* tests/train/tensors_test.h -- for tests: safetensors files as they should and should not be, byte for byte. */
#ifndef SPTUNE_TESTS_TRAIN_TENSORS_TEST_H
#define SPTUNE_TESTS_TRAIN_TENSORS_TEST_H

#include "base/check.h"
#include "base/file.h"
#include "base/temp.h"
#include "train/tensors.h"

#include <math.h>

static struct temp temp;

static int open_temp(void **state)
{
    (void)state;
    temp_open(&temp);
    return 0;
}

static int close_temp(void **state)
{
    (void)state;
    temp_close(&temp);
    return 0;
}

#define IN_TEMP(test) cmocka_unit_test_setup_teardown(test, open_temp, close_temp)

/* A file of this header, said to be `length` bytes long, and n bytes of data. */
static inline void put_raw(const char *name, uint64_t length, const char *header, const void *data, size_t n)
{
    char bytes[4096];
    size_t len = strlen(header);
    assert_true(8 + len + n <= sizeof bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(length >> 8 * i);
    memcpy(bytes + 8, header, len);
    if (n > 0)
        memcpy(bytes + 8 + len, data, n);
    CHECK_OK(file_write(temp_path(&temp, name), bytes, 8 + len + n));
}

static inline void put_tensors(const char *name, const char *header, const void *data, size_t n)
{
    put_raw(name, strlen(header), header, data, n);
}

static inline struct tensors *open_tensors(const char *name)
{
    struct tensors *tensors = NULL;
    CHECK_OK(tensors_open(temp_path(&temp, name), &tensors));
    return tensors;
}

#endif
