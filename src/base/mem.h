/* base/mem.h -- checked sizes and aligned host memory.
 *
 * Sizes that come from a user are multiplied with mem_mul: an absurd product is STATUS_USAGE, never a wrap-around.
 */
#ifndef SPTUNE_BASE_MEM_H
#define SPTUNE_BASE_MEM_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MEM_ALIGN = 64 }; /* one cache line, one AVX-512 register */

/* `what` names the thing for the message ("attention workspace"). Zeroed. free() releases it. bytes 0 gives a
 * valid pointer. Large sizes are held against mem_available first, so that the kernel never has to kill us. */
enum status mem_alloc(size_t bytes, const char *what, void **out);
/* The same, not zeroed, and in huge pages where it is large: for what is written whole before it is read. */
enum status mem_alloc_unset(size_t bytes, const char *what, void **out);
/* Grow an array of `elem` bytes to hold at least `need` elements; *cap and *array are updated. */
enum status mem_grow(void **array, size_t *cap, size_t need, size_t elem);
/* STATUS_NOMEM where `bytes` are more than the machine has left; small sizes are not asked for. */
enum status mem_enough(size_t bytes, const char *what);
/* a * b for non-negative values; STATUS_USAGE naming `what` beyond INT64_MAX. */
enum status mem_mul(int64_t a, int64_t b, const char *what, int64_t *out);
/* Bytes that can still be allocated here: min(cgroup v1 or v2 limit minus use, MemAvailable). */
enum status mem_available(int64_t *out_bytes);
/* Which memory that is about: the same number in processes that share machine and control group. Below 2^53, for a double to hold; 0
 * where it cannot be told. */
int64_t mem_where(void);
/* Which machine this is, as booted, in the same manner. */
int64_t mem_machine(void);
enum status mem_total(int64_t *out_bytes); /* min(cgroup limit, memory of the machine) */
/* Both, for the machine whose proc/ and sys/ lie under `root` ("" is this one). */
enum status mem_limits_at(const char *root, int64_t *out_available, int64_t *out_total);
/* What was resident of this process at most; of shared memory that several processes map now, as ranks do each other's windows, its part alone.
 * Right while what was mapped at the peak is still mapped, by all of them. 0: the kernel does not say. */
int64_t mem_resident(void);
/* From here on at most, where the kernel forgets what was before. */
void mem_resident_restart(void);

#ifdef __cplusplus
}
#endif
#endif
