/* tests/train/trainer_test.h -- for tests: a text to train on, and checkpoints that are to be the same byte for byte. */
#ifndef SPTUNE_TESTS_TRAIN_TRAINER_TEST_H
#define SPTUNE_TESTS_TRAIN_TRAINER_TEST_H

#include "base/check.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char text_path[] = "/tmp/sptune-test-XXXXXX";

/* Lines of uneven length, so that ranks have different numbers of valid labels when they are packed. */
static int text_make(void **state)
{
    (void)state;
    int fd = mkstemp(text_path);
    assert_true(fd >= 0);
    char text[6000];
    for (int i = 0; i < (int)sizeof text; i++)
        text[i] = (char)(i % 7 == 0 && i / 7 % 5 < 2 ? '\n' : 'a' + (i * i + i / 11) % 26);
    assert_int_equal(write(fd, text, sizeof text), (ssize_t)sizeof text);
    close(fd);
    return 0;
}

static int text_remove(void **state)
{
    (void)state;
    return unlink(text_path);
}

static const char *const checkpoint_files[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                               "train.json"};

/* Tensors of the step that `save_a` kept and of that of `save_b`. */
static inline bool checkpoint_same(const char *save_a, int step_a, const char *save_b, int step_b)
{
    bool same = true;
    for (int f = 0; f < 2 && same; f++) {
        char path_a[1100], path_b[1100], *a = NULL, *b = NULL;
        size_t n_a = 0, n_b = 0;
        snprintf(path_a, sizeof path_a, "%s/step-%d/%s", save_a, step_a, checkpoint_files[f]);
        snprintf(path_b, sizeof path_b, "%s/step-%d/%s", save_b, step_b, checkpoint_files[f]);
        same = file_read(path_a, 1 << 24, &a, &n_a) == STATUS_OK && file_read(path_b, 1 << 24, &b, &n_b) == STATUS_OK &&
               n_a == n_b && n_a > 1000 && memcmp(a, b, n_a) == 0;
        if (!same)
            fprintf(stderr, "%s and %s differ\n", path_a, path_b);
        free(a);
        free(b);
    }
    return same;
}

static inline void checkpoint_remove(const char *save, int step)
{
    char name[128];
    for (int f = 0; f < CHECK_COUNT(checkpoint_files); f++) {
        snprintf(name, sizeof name, "%s/step-%d/%s", save, step, checkpoint_files[f]);
        assert_int_equal(unlink(name), 0);
    }
    snprintf(name, sizeof name, "%s/step-%d", save, step);
    assert_int_equal(rmdir(name), 0);
}

#endif
