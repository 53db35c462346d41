/* base/mem.c -- checked sizes and aligned host memory. */
#include "base/mem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Linux promises memory that it does not have and kills whoever touches it; from this size on we ask before we touch.
 */
static const size_t asked_from_bytes = (size_t)64 << 20;

enum { HUGE_PAGE_BYTES = 2 << 20 };

enum status mem_enough(size_t bytes, const char *what)
{
    int64_t available;
    if (bytes < asked_from_bytes)
        return STATUS_OK;
    if (mem_available(&available) != STATUS_OK) {
        status_clear(); /* no /proc here: the allocator's own answer has to do */
        return STATUS_OK;
    }
    if (bytes > (size_t)available)
        return FAIL(STATUS_NOMEM, "%s needs %zu bytes, %lld are available", what, bytes, (long long)available);
    return STATUS_OK;
}

/* *rounded: a multiple of `align`, and not 0. */
static enum status allocate(size_t bytes, size_t align, const char *what, void **out, size_t *rounded)
{
    TRY(mem_enough(bytes, what));
    *rounded = bytes > 0 ? (bytes + align - 1) & ~(align - 1) : align;
    void *memory = *rounded < bytes ? NULL : aligned_alloc(align, *rounded);
    if (!memory)
        return FAIL(STATUS_NOMEM, "no memory for %s (%zu bytes)", what, bytes);
    *out = memory;
    return STATUS_OK;
}

enum status mem_alloc(size_t bytes, const char *what, void **out)
{
    size_t rounded;
    TRY(allocate(bytes, MEM_ALIGN, what, out, &rounded));
    memset(*out, 0, rounded);
    return STATUS_OK;
}

/* Page faults are most of what a copy into new memory takes: of 256 MiB, on two virtual CPUs, 170 ms in pages of 4 KiB, 43 in huge ones. */
enum status mem_alloc_unset(size_t bytes, const char *what, void **out)
{
    bool large = bytes >= (size_t)4 * HUGE_PAGE_BYTES;
    size_t rounded;
    TRY(allocate(bytes, large ? HUGE_PAGE_BYTES : MEM_ALIGN, what, out, &rounded));
    if (large)
        (void)madvise(*out, rounded, MADV_HUGEPAGE); /* a kernel without them says so; then small ones have to do */
    return STATUS_OK;
}

/* `array` is the address of a typed pointer; memcpy reads it whatever its type. */
enum status mem_grow(void **array, size_t *cap, size_t need, size_t elem)
{
    void *old, *grown;
    if (need <= *cap)
        return STATUS_OK;
    size_t doubled = *cap > SIZE_MAX / 2 ? need : *cap * 2;
    size_t count = doubled < 8 ? 8 : doubled;
    if (count < need)
        count = need;
    if (elem == 0 || count > SIZE_MAX / 2 / elem)
        return FAIL(STATUS_NOMEM, "an array of %zu elements of %zu bytes is too large", need, elem);
    TRY(mem_enough(count * elem, "a growing array"));
    memcpy(&old, array, sizeof old);
    grown = realloc(old, count * elem);
    if (!grown)
        return FAIL(STATUS_NOMEM, "no memory for an array of %zu elements of %zu bytes", count, elem);
    memcpy(array, &grown, sizeof grown);
    *cap = count;
    return STATUS_OK;
}

enum status mem_mul(int64_t a, int64_t b, const char *what, int64_t *out)
{
    int64_t product;
    if (a < 0 || b < 0)
        return FAIL(STATUS_USAGE, "%s is negative: %lld times %lld", what, (long long)a, (long long)b);
    if (__builtin_mul_overflow(a, b, &product))
        return HINT(FAIL(STATUS_USAGE, "%s is too large: %lld times %lld does not fit in 63 bits", what, (long long)a,
                         (long long)b),
                    "use smaller sizes");
    *out = product;
    return STATUS_OK;
}
