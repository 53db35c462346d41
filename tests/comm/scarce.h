/* comm/scarce.h -- for tests that are linked with --wrap=mem_alloc and --wrap=free: a rank that has no memory for one thing, and a count
 * of what a rank has taken and not given back.
 */
#ifndef SPTUNE_TESTS_COMM_SCARCE_H
#define SPTUNE_TESTS_COMM_SCARCE_H

#include "base/mem.h"

#include <stdbool.h>
#include <string.h>

enum { SCARCE_KEPT_MAX = 4096 };
static struct {
    const char *what; /* that there is no memory for, the `at`-th time, from 1; NULL: there is for everything */
    int at, asked;
    void *kept[SCARCE_KEPT_MAX]; /* since scarce_begin */
    int n;
} scarce;

static inline void scarce_begin(const char *what, int at)
{
    scarce.what = what;
    scarce.at = at;
    scarce.asked = scarce.n = 0;
}

/* How many pieces of memory are kept. `happened`: it was asked for, or was not to be. */
static inline int scarce_end(bool *happened)
{
    *happened = scarce.what == NULL || scarce.asked >= scarce.at;
    scarce.what = NULL;
    return scarce.n;
}

enum status __real_mem_alloc(size_t bytes, const char *what, void **out);
enum status __wrap_mem_alloc(size_t bytes, const char *what, void **out);
void __real_free(void *memory);
void __wrap_free(void *memory);

enum status __wrap_mem_alloc(size_t bytes, const char *what, void **out)
{
    if (scarce.what != NULL && strcmp(what, scarce.what) == 0 && ++scarce.asked == scarce.at)
        return FAIL(STATUS_NOMEM, "no memory for %s", what);
    TRY(__real_mem_alloc(bytes, what, out));
    if (scarce.n < SCARCE_KEPT_MAX)
        scarce.kept[scarce.n++] = *out;
    return STATUS_OK;
}

void __wrap_free(void *memory)
{
    for (int i = scarce.n - 1; i >= 0 && memory != NULL; i--)
        if (scarce.kept[i] == memory) {
            scarce.kept[i] = scarce.kept[--scarce.n];
            break;
        }
    __real_free(memory);
}

#endif
