/* cli/threads.c -- ranks tell each other their machine and binding, whoever started them, and share what they have in common. */
#include "cli/threads.h"

#include "base/clock.h"
#include "base/cgroup.h"
#include "base/mem.h"
#include "base/text.h"
#include "comm/boot.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { CPUS_MAX = 4096, MASK_BYTES = CPUS_MAX / 8 };

struct place {
    char machine[64]; /* boot id: containers of one machine number its CPUs alike */
    unsigned char mask[MASK_BYTES];
};

static bool has(const unsigned char *mask, int cpu)
{
    return (mask[cpu / 8] >> cpu % 8 & 1) != 0;
}

int threads_of(const unsigned char *masks, const unsigned char *here, int n, int bytes, int mine, double quota)
{
    double share = 0;
    int local = 0;
    for (int r = 0; r < n; r++)
        local += here[r];
    for (int cpu = 0; cpu < bytes * 8; cpu++) {
        int sharers = 0;
        if (!has(masks + (size_t)mine * (size_t)bytes, cpu))
            continue;
        for (int r = 0; r < n; r++)
            sharers += here[r] && has(masks + (size_t)r * (size_t)bytes, cpu);
        share += 1.0 / sharers;
    }
    if (quota >= 0 && local > 0 && quota / local < share)
        share = quota / local;
    share += 1e-6; /* thirds add up */
    return share < 1 ? 1 : share > DEV_THREADS_MAX ? DEV_THREADS_MAX : (int)share;
}

/* How many CPUs it has; 0 when that cannot be read. */
static int read_place(const struct topo *topo, struct place *out)
{
    cpu_set_t set[MASK_BYTES / sizeof(cpu_set_t)];
    int n = 0;
    memset(out, 0, sizeof *out);
    if (topo->nhosts > 0)
        text_print(out->machine, sizeof out->machine, "%s", topo->hosts[0].boot_id);
    if (sched_getaffinity(0, sizeof set, set) != 0)
        return 0;
    for (int cpu = 0; cpu < CPUS_MAX; cpu++)
        if (CPU_ISSET_S((size_t)cpu, sizeof set, set)) {
            out->mask[cpu / 8] = (unsigned char)(out->mask[cpu / 8] | 1 << cpu % 8);
            n++;
        }
    return n;
}

static int share_of(const struct place *places, int n, int mine, double quota, unsigned char *masks, unsigned char *here)
{
    for (int r = 0; r < n; r++) {
        here[r] = strcmp(places[r].machine, places[mine].machine) == 0;
        memcpy(masks + (size_t)r * MASK_BYTES, places[r].mask, MASK_BYTES);
    }
    return threads_of(masks, here, n, MASK_BYTES, mine, quota);
}

static enum status check_wanted(int64_t wanted, int cpus)
{
    if (wanted <= cpus || cpus < 1)
        return STATUS_OK;
    return HINT(WHERE(FAIL(STATUS_USAGE, "%lld threads, but a rank has %d CPU%s here", (long long)wanted, cpus, cpus == 1 ? "" : "s"),
                      "--threads"),
                "at most the CPUs of a rank; fewer ranks have more");
}

/* All ranks get as many as the one with the fewest: of ranks of unequal speed only the slowest would be measured. */
static enum status fewest(struct boot *boot, int32_t mine, int32_t *all, int *out)
{
    TRY(boot_allgather(boot, &mine, sizeof mine, all, clock_deadline(BOOT_DEADLINE_US)));
    *out = all[0];
    for (int r = 1; r < boot_size(boot); r++)
        *out = all[r] < *out ? all[r] : *out;
    return STATUS_OK;
}

enum status threads_share(struct ranks *ranks, int64_t wanted)
{
    int n = boot_size(ranks->boot), threads = (int)wanted;
    int64_t deadline = clock_deadline(BOOT_DEADLINE_US);
    struct place own, *places = NULL;
    unsigned char *masks = NULL;
    int32_t *counts = NULL;
    int cpus = read_place(ranks->topo, &own);
    enum status status = check_wanted(wanted, cpus);
    if (status == STATUS_OK)
        status = mem_alloc((size_t)n * sizeof *places, "the ranks' CPUs", (void **)&places);
    if (status == STATUS_OK)
        status = mem_alloc((size_t)n * (MASK_BYTES + 1), "the ranks' CPUs", (void **)&masks);
    if (status == STATUS_OK)
        status = mem_alloc((size_t)n * sizeof *counts, "the ranks' threads", (void **)&counts);
    TRY_OUT(boot_agree(ranks->boot, status, deadline));
    TRY_OUT(boot_allgather(ranks->boot, &own, sizeof own, places, deadline));
    if (wanted == 0)
        threads = share_of(places, n, boot_rank(ranks->boot), cgroup_cpus("", NULL), masks, masks + (size_t)n * MASK_BYTES);
    TRY_OUT(fewest(ranks->boot, threads, counts, &threads));
    status = dev_threads_set(ranks->env.dev, threads);
out:
    free(counts);
    free(masks);
    free(places);
    return status;
}
