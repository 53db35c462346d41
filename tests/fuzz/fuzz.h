/* fuzz/fuzz.h -- one target per parser: fuzz_<parser>.c defines LLVMFuzzerTestOneInput, as libFuzzer calls it.
 *
 * With clang and -DSPTUNE_FUZZ=ON the targets are libFuzzer programs; else driver.c replays corpus/<parser>/ and then
 * seeded mutations of it. A target must take any bytes: what the parser accepts is checked to be sound, what it refuses
 * must carry a message, and nothing leaks.
 */
#ifndef SPTUNE_TESTS_FUZZ_H
#define SPTUNE_TESTS_FUZZ_H

#include "base/log.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Not assert: it holds in every build. */
#define FUZZ_MUST(condition)                                                                                           \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                    \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* A refusal says why, and is never a fault of the machine but one of `a` and `b`. */
static inline void fuzz_refused(enum status status, enum status a, enum status b)
{
    FUZZ_MUST(status == a || status == b);
    FUZZ_MUST(status_last()->code == status && status_last()->what[0] != '\0');
}

/* A NUL-terminated copy without a byte behind it, so that a read beyond the end is seen; free(). */
static inline char *fuzz_text(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    FUZZ_MUST(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

/* The first line of the input, taken off it; free(). */
static inline char *fuzz_line(const uint8_t **data, size_t *size)
{
    const uint8_t *end = *size > 0 ? memchr(*data, '\n', *size) : NULL;
    size_t n = end != NULL ? (size_t)(end - *data) : *size;
    char *line = fuzz_text(*data, n);
    n += end != NULL;
    *data += n;
    *size -= n;
    return line;
}

/* Warnings are not what is looked for, and a million of them would be kept. */
static inline void fuzz_quiet(void)
{
    log_reset();
    log_setup(LOG_QUIET, false);
    status_clear();
}
#endif
