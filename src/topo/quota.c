/* topo/quota.c -- what the control groups leave to this process: the tightest limit along the path counts. */
#include "topo/build.h"

#include "base/cgroup.h"

void topo_read_quota(const char *root, double *out_quota, int *out_version)
{
    *out_quota = cgroup_cpus(root, out_version);
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
