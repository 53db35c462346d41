/* base/cgroup.c -- finds a group through /proc/self/cgroup and /proc/self/mountinfo (cgroups(7), proc(5)). */
#include "base/cgroup.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 4096 };

static FILE *open_under(const char *root, const char *path)
{
    char full[LINE_BYTES];
    return text_print(full, sizeof full, "%s%s", root, path) ? fopen(full, "re") : NULL;
}

/* Is `word` one of the comma-separated `words`? */
static bool listed(const char *words, const char *word)
{
    size_t len = strlen(word);
    for (const char *at = words; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, len) == 0 && (at[len] == ',' || at[len] == '\0'))
            return true;
    }
    return false;
}

/* Lines are "4:memory:/path" (version 1) and "0::/path" (version 2). An empty controller asks for version 2. */
static bool own_path(const char *root, const char *controller, char *out, size_t size)
{
    FILE *file = open_under(root, "/proc/self/cgroup");
    char line[LINE_BYTES];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        controllers++;
        if (*controller ? listed(controllers, controller) : !*controllers)
            found = text_print(out, size, "%s", path);
    }
    if (file)
        fclose(file);
    return found;
}

/* Mount: "31 23 0:31 MOUNT_ROOT MOUNT_POINT options [tags] - TYPE SOURCE SUPER_OPTIONS". */
static bool mounted(const char *root, const char *controller, char mount_root[], char mount_point[])
{
    FILE *file = open_under(root, "/proc/self/mountinfo");
    char line[LINE_BYTES], type[32], options[1024];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *tail = strstr(line, " - ");
        if (!tail || sscanf(line, "%*s %*s %*s %1023s %1023s", mount_root, mount_point) != 2 ||
            sscanf(tail, " - %31s %*s %1023s", type, options) != 2)
            continue;
        found = *controller ? strcmp(type, "cgroup") == 0 && listed(options, controller) : strcmp(type, "cgroup2") == 0;
    }
    if (file)
        fclose(file);
    return found;
}

static bool find_version(const char *root, const char *controller, int version, struct cgroup *out)
{
    char path[1024], mount_root[1024], mount_point[1024];
    if (!own_path(root, controller, path, sizeof path) || !mounted(root, controller, mount_root, mount_point))
        return false;
    /* In a container the mount shows a part of the tree: what is above mount_root cannot be seen. */
    size_t hidden = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    const char *below = strncmp(path, mount_root, hidden) == 0 ? path + hidden : "";
    if (strcmp(below, "/") == 0 || strncmp(below, "/..", 3) == 0 || (*below && *below != '/'))
        below = "";
    out->version = version;
    out->mount_len = strlen(root) + strlen(mount_point);
    return text_print(out->dir, sizeof out->dir, "%s%s%s", root, mount_point, below);
}

bool cgroup_find(const char *root, const char *controller, struct cgroup *out)
{
    return find_version(root, controller, 1, out) || find_version(root, "", 2, out);
}

bool cgroup_up(struct cgroup *group)
{
    char *slash = strrchr(group->dir + group->mount_len, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

static FILE *open_in(const struct cgroup *group, const char *file)
{
    char path[LINE_BYTES];
    return text_print(path, sizeof path, "%s/%s", group->dir, file) ? fopen(path, "re") : NULL;
}

bool cgroup_text(const struct cgroup *group, const char *file, char *buf, size_t size)
{
    FILE *stream = open_in(group, file);
    char *line = stream ? fgets(buf, (int)size, stream) : NULL;
    if (stream)
        fclose(stream);
    if (line)
        line[strcspn(line, " \n")] = '\0';
    return line != NULL;
}

bool cgroup_int(const struct cgroup *group, const char *file, int64_t *out)
{
    char word[64], *end;
    if (!cgroup_text(group, file, word, sizeof word))
        return false;
    errno = 0;
    long long value = strtoll(word, &end, 10);
    if (end == word || *end)
        return false;
    *out = value; /* what does not fit is "no limit", and strtoll's INT64_MAX says that */
    return true;
}

bool cgroup_stat(const struct cgroup *group, const char *file, const char *key, int64_t *out)
{
    FILE *stream = open_in(group, file);
    char line[256];
    size_t len = strlen(key);
    bool found = false;
    while (stream && !found && fgets(line, sizeof line, stream)) {
        if (strncmp(line, key, len) == 0 && line[len] == ' ') {
            *out = strtoll(line + len + 1, NULL, 10);
            found = true;
        }
    }
    if (stream)
        fclose(stream);
    return found;
}

/* "max 100000" or "150000 100000". */
static bool quota_v2(const struct cgroup *group, double *out)
{
    FILE *file = open_in(group, "cpu.max");
    long long quota, period;
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

double cgroup_cpus(const char *root, int *out_version)
{
    struct cgroup group;
    double least = -1, quota;
    int version = 0;
    for (bool more = cgroup_find(root, "cpu", &group); more; more = cgroup_up(&group))
        if ((group.version == 2 ? quota_v2(&group, &quota) : quota_v1(&group, &quota)) && (least < 0 || quota < least)) {
            least = quota;
            version = group.version;
        }
    if (out_version)
        *out_version = version;
    return least;
}
