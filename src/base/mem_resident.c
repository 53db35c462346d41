/* base/mem_resident.c -- what this process has had of the machine's memory. */
#include "base/mem.h"

#include <malloc.h>
#include <stdio.h>
#include <sys/resource.h>

/* Resident bytes of memory made to be shared that are other processes' part, as the kernel shares pages out. Neither a program's text nor
 * what a fork left in common is such memory. 0 where the kernel does not tell. */
static int64_t of_others(void)
{
    char line[512], kind[5] = "";
    long long kib, all_kib = 0;
    FILE *file = fopen("/proc/self/smaps", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%*x-%*x %4s", kind) == 1 || kind[1] != 'w' || kind[3] != 's')
            continue;
        if (sscanf(line, "Rss: %lld", &kib) == 1)
            all_kib += kib;
        else if (sscanf(line, "Pss: %lld", &kib) == 1)
            all_kib -= kib;
    }
    if (file != NULL)
        fclose(file);
    return all_kib * 1024;
}

/* The most of any time since the process began, or since it was told to forget. */
static int64_t high_water(void)
{
    char line[512];
    long long kib = 0;
    struct rusage usage;
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL)
        (void)sscanf(line, "VmHWM: %lld", &kib);
    if (file != NULL)
        fclose(file);
    if (kib == 0 && getrusage(RUSAGE_SELF, &usage) == 0)
        kib = usage.ru_maxrss;
    return kib * 1024;
}

int64_t mem_resident(void)
{
    int64_t most = high_water();
    return most > 0 ? most - of_others() : 0;
}

void mem_resident_restart(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "we");
#ifdef __GLIBC__
    (void)malloc_trim(0); /* what was freed and kept for what comes */
#endif
    if (file == NULL)
        return;
    fputs("5", file); /* the high-water mark alone */
    fclose(file);
}
