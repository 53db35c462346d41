/* base/cache.h -- how much the caches of this machine hold. */
#ifndef SPTUNE_BASE_CACHE_H
#define SPTUNE_BASE_CACHE_H

#include <stdint.h>

/* The last-level cache that one CPU reaches; 32 MiB when nobody tells. */
int64_t cache_bytes(void);
/* The second-level cache, which most CPUs have for themselves; 0 when nobody tells. */
int64_t cache_core_bytes(void);

#endif
