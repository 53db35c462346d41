/* base/cgroup.h -- the control groups this process is in, version 1 and 2 alike.
 *
 * A limit may sit on the group itself or on any of its parents, so callers walk:
 *
 *     struct cgroup group;
 *     if (cgroup_find("", "memory", &group))
 *         do
 *             ... cgroup_int(&group, group.version == 2 ? "memory.max" : "memory.limit_in_bytes", &value) ...
 *         while (cgroup_up(&group));
 *
 * `root` is "" for this machine; tests give a directory that holds proc/ and sys/.
 */
#ifndef SPTUNE_BASE_CGROUP_H
#define SPTUNE_BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cgroup {
    int version;      /* 1 or 2 */
    char dir[1024];   /* the group's directory */
    size_t mount_len; /* dir's first bytes that are the mount point */
};

/* The group of `controller` ("memory", "cpu"): version 1 where that controller is mounted so, else version 2. */
bool cgroup_find(const char *root, const char *controller, struct cgroup *out);
bool cgroup_up(struct cgroup *group); /* to the parent; false at the mount point */
/* First word of a file of the group. */
bool cgroup_text(const struct cgroup *group, const char *file, char *buf, size_t size);
/* As a number; false when absent or "max". */
bool cgroup_int(const struct cgroup *group, const char *file, int64_t *out);
/* CPUs per wall second by the tightest quota along the path; -1 when there is none. *out_version (may be NULL): which version set it, 0
 * for none. */
double cgroup_cpus(const char *root, int *out_version);
/* The value beside `key` in a file of "key value" lines, such as memory.stat. */
bool cgroup_stat(const struct cgroup *group, const char *file, const char *key, int64_t *out);

#endif
