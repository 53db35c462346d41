/* topo/quota.c -- what the control groups leave to this process: the tightest limit along the path counts. */
#include "topo/build.h"

#include "base/cgroup.h"
#include "base/text.h"

#include <stdio.h>

/* "max 100000" or "150000 100000". */
static bool quota_v2(const struct cgroup *group, double *out)
{
    char path[1100];
    long long quota, period;
    FILE *file = text_print(path, sizeof path, "%s/cpu.max", group->dir) ? fopen(path, "re") : NULL;
    if (!file)
        return false;
    int got = fscanf(file, "%lld %lld", &quota, &period);
    fclose(file);
    if (got != 2 || quota < 0 || period < 1)
        return false;
    *out = (double)quota / (double)period;
    return true;
}

static bool quota_v1(const struct cgroup *group, double *out)
{
    int64_t quota, period;
    if (!cgroup_int(group, "cpu.cfs_quota_us", &quota) || !cgroup_int(group, "cpu.cfs_period_us", &period))
        return false;
    if (quota < 0 || period < 1) /* -1 is no limit */
        return false;
    *out = (double)quota / (double)period;
    return true;
}

void topo_read_quota(const char *root, double *out_quota, int *out_version)
{
    struct cgroup group;
    *out_quota = -1.0;
    *out_version = 0;
    for (bool more = cgroup_find(root, "cpu", &group); more; more = cgroup_up(&group)) {
        double quota;
        if (!(group.version == 2 ? quota_v2(&group, &quota) : quota_v1(&group, &quota)))
            continue;
        if (*out_quota < 0 || quota < *out_quota) {
            *out_quota = quota;
            *out_version = group.version;
        }
    }
}

int64_t topo_read_memory_limit(const char *root)
{
    struct cgroup group;
    int64_t least = -1;
    for (bool more = cgroup_find(root, "memory", &group); more; more = cgroup_up(&group)) {
        int64_t limit;
        const char *file = group.version == 2 ? "memory.max" : "memory.limit_in_bytes";
        if (cgroup_int(&group, file, &limit) && limit >= 0 && (least < 0 || limit < least))
            least = limit;
    }
    /* Version 1 writes "no limit" as the largest number of whole pages. */
    return least > INT64_MAX / 2 ? -1 : least;
}
