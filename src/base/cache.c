/* base/cache.c -- of CPU 0, from sysfs ("32768K"), else from the C library, which on some processors adds up the caches of a package. */
#include "base/cache.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int64_t last, core;

/* 0: not told. index: 2 and 3 are the levels of data caches. */
static int64_t told(int index, int name)
{
    char path[64];
    long long kib = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
    FILE *file = fopen(path, "re");
    if (file != NULL && fscanf(file, "%lld", &kib) != 1)
        kib = 0;
    if (file != NULL)
        fclose(file);
    long bytes = kib > 0 ? 0 : sysconf(name);
    return kib > 0 ? (int64_t)kib * 1024 : bytes > 0 ? bytes : 0;
}

static void find(void)
{
    core = told(2, _SC_LEVEL2_CACHE_SIZE);
    last = told(3, _SC_LEVEL3_CACHE_SIZE);
    if (last == 0)
        last = core > 0 ? core : (int64_t)32 * 1024 * 1024;
}

int64_t cache_bytes(void)
{
    pthread_once(&once, find);
    return last;
}

int64_t cache_core_bytes(void)
{
    pthread_once(&once, find);
    return core;
}
