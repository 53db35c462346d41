/* base/mem_available.c -- what can still be allocated: the machine's answer, or a tighter one of a control group. */
#include "base/cgroup.h"
#include "base/mem.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool meminfo(const char *root, const char *key, int64_t *out_bytes)
{
    char path[1024], line[256];
    long long kib;
    size_t len = strlen(key);
    bool found = false;
    FILE *file = text_print(path, sizeof path, "%s/proc/meminfo", root) ? fopen(path, "re") : NULL;
    while (file && !found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, len) == 0 && line[len] == ':' && sscanf(line + len + 1, "%lld", &kib) == 1) {
            *out_bytes = kib < 0 || kib > INT64_MAX / 1024 ? INT64_MAX : kib * 1024;
            found = true;
        }
    }
    if (file)
        fclose(file);
    return found;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The limit of one group; memory.high counts because above it a process is slowed until it is no measurement. */
static bool group_limit(const struct cgroup *group, int64_t *out)
{
    int64_t limit = INT64_MAX, value;
    if (group->version == 1)
        return cgroup_int(group, "memory.limit_in_bytes", out);
    if (cgroup_int(group, "memory.max", &value))
        limit = least(limit, value);
    if (cgroup_int(group, "memory.high", &value))
        limit = least(limit, value);
    *out = limit;
    return limit != INT64_MAX;
}

/* Use counts the page cache; its inactive part is given back before anything fails. */
static int64_t group_use(const struct cgroup *group)
{
    int64_t used = 0, inactive = 0;
    bool v1 = group->version == 1;
    cgroup_int(group, v1 ? "memory.usage_in_bytes" : "memory.current", &used);
    cgroup_stat(group, "memory.stat", v1 ? "total_inactive_file" : "inactive_file", &inactive);
    return used > inactive ? used - inactive : 0;
}

enum status mem_limits_at(const char *root, int64_t *out_available, int64_t *out_total)
{
    int64_t available, total, limit;
    struct cgroup group;
    if (!meminfo(root, "MemTotal", &total))
        return FAIL(STATUS_MACHINE, "cannot read how much memory there is from %s/proc/meminfo", root);
    if (!meminfo(root, "MemAvailable", &available) && !meminfo(root, "MemFree", &available))
        available = total;
    bool more = cgroup_find(root, "memory", &group);
    while (more) {
        if (group_limit(&group, &limit)) {
            int64_t left = limit - group_use(&group);
            available = least(available, left > 0 ? left : 0);
            total = least(total, limit);
        }
        more = cgroup_up(&group);
    }
    *out_available = available;
    *out_total = total;
    return STATUS_OK;
}

enum status mem_available(int64_t *out_bytes)
{
    int64_t total;
    return mem_limits_at("", out_bytes, &total);
}

int64_t mem_machine(void)
{
    unsigned long long high, low;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    bool told = file != NULL && fscanf(file, "%8llx-%4llx", &high, &low) == 2;
    if (file != NULL)
        fclose(file);
    return told ? (int64_t)(high << 16 | low) : 0;
}

int64_t mem_where(void)
{
    struct cgroup group;
    struct stat dir = {0};
    int64_t machine = mem_machine();
    /* the group's directory, not its name: each container calls its own / */
    if (machine == 0 || (cgroup_find("", "memory", &group) && stat(group.dir, &dir) != 0))
        return 0;
    return (int64_t)(((uint64_t)machine + dir.st_ino + ((uint64_t)dir.st_dev << 32)) & ((UINT64_C(1) << 53) - 1));
}

enum status mem_total(int64_t *out_bytes)
{
    int64_t available;
    return mem_limits_at("", &available, out_bytes);
}
