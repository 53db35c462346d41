/* base/mem_resident.c -- what this process has had of the machine's memory. */
#include "base/mem.h"

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

int64_t mem_resident(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 - of_others() : 0;
}
