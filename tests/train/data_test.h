/* tests/train/data_test.h -- for tests: a file of tokens that tell their own position, and options that need nothing. */
#ifndef SPTUNE_TESTS_TRAIN_DATA_TEST_H
#define SPTUNE_TESTS_TRAIN_DATA_TEST_H

#include "base/check.h"
#include "base/file.h"
#include "base/temp.h"
#include "train/data.h"

static struct temp temp;
static char data_path[1024];

static int open_temp(void **state)
{
    (void)state;
    temp_open(&temp);
    snprintf(data_path, sizeof data_path, "%s", temp_path(&temp, "tokens"));
    return 0;
}

static int close_temp(void **state)
{
    (void)state;
    temp_close(&temp);
    return 0;
}

#define IN_TEMP(test) cmocka_unit_test_setup_teardown(test, open_temp, close_temp)

static inline void put_bytes(const void *bytes, size_t n)
{
    CHECK_OK(file_write(data_path, bytes, n));
}

/* Token i is i: what was read says where it stood. */
static inline void put_counting(int64_t n)
{
    unsigned char *bytes = calloc((size_t)n, 4);
    assert_non_null(bytes);
    for (int64_t i = 0; i < n; i++)
        for (int b = 0; b < 4; b++)
            bytes[4 * i + b] = (unsigned char)(i >> 8 * b);
    put_bytes(bytes, (size_t)n * 4);
    free(bytes);
}

/* One row of `seq` per step on one rank. */
static inline struct data_options options_of(enum data_form form, const int64_t *seq)
{
    return (struct data_options){.path = data_path,
                                 .form = form,
                                 .vocab = form == DATA_BYTES ? 256 : 1 << 20,
                                 .seqs = seq,
                                 .n_seqs = 1,
                                 .pad_to = 1,
                                 .micro_batch = 1,
                                 .accumulate = 1,
                                 .groups = 1,
                                 .epochs = 1,
                                 .seed = 7};
}

static inline struct shard share_of(int64_t padded, int sp, int index)
{
    return (struct shard){.n = 1, .range = {{.first = padded / sp * index, .count = padded / sp}}};
}

#endif
