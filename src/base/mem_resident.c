/* base/mem_resident.c -- what this process has had of the machine's memory. */
#include "base/mem.h"

#include <stdio.h>
#include <sys/resource.h>

/* Resident bytes of what other processes map, too, that are theirs: as the kernel shares pages out. 0 where it does not tell. */
static int64_t of_others(void)
{
    char line[256];
    long long resident_kib = 0, part_kib = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "Rss: %lld", &resident_kib);
        (void)sscanf(line, "Pss: %lld", &part_kib);
    }
    if (file != NULL)
        fclose(file);
    return part_kib > 0 && part_kib < resident_kib ? (resident_kib - part_kib) * 1024 : 0;
}

int64_t mem_resident(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 - of_others() : 0;
}
