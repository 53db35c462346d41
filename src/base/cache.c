/* base/cache.c -- of CPU 0, from sysfs ("32768K"), else from the C library, which on some processors adds up the caches of a package. */
#include "base/cache.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int64_t found;

static void find(void)
{
    static const char *const files[] = {"/sys/devices/system/cpu/cpu0/cache/index3/size",
                                        "/sys/devices/system/cpu/cpu0/cache/index2/size"};
    long long kib = 0;
    for (int i = 0; i < 2 && kib <= 0; i++) {
        FILE *file = fopen(files[i], "re");
        if (file != NULL && fscanf(file, "%lld", &kib) != 1)
            kib = 0;
        if (file != NULL)
            fclose(file);
    }
    long bytes = kib > 0 ? 0 : sysconf(_SC_LEVEL3_CACHE_SIZE);
    found = kib > 0 ? (int64_t)kib * 1024 : bytes > 0 ? bytes : (int64_t)32 * 1024 * 1024;
}

int64_t cache_bytes(void)
{
    pthread_once(&once, find);
    return found;
}
