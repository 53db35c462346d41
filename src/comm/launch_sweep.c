/* comm/launch_sweep.c -- remove segments whose makers are dead.
 *
 * A segment is made, and a moment later marked to vanish with its last user; a rank that is killed in between leaves it
 * behind. System V segments carry their maker's process id. Files in /dev/shm do not: one that has the name UCX gives,
 * is ours, is new, and that nobody has open (a write lease says so) has no user and cannot get one.
 */
#include "comm/launch_sweep.h"
#include "base/text.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_one_of(pid_t pid, const pid_t *pids, int n)
{
    for (int i = 0; i < n; i++)
        if (pids[i] == pid)
            return true;
    return false;
}

/* Columns: key id mode size maker last users uid gid cuid cgid atime dtime ctime ... */
static void sweep_sysv(const pid_t *pids, int n, time_t since)
{
    char line[512];
    FILE *file = fopen("/proc/sysvipc/shm", "r");
    while (file && fgets(line, sizeof line, file)) {
        int id, maker;
        unsigned long users;
        long long changed;
        if (sscanf(line, "%*d %d %*o %*u %d %*d %lu %*u %*u %*u %*u %*d %*d %lld", &id, &maker, &users, &changed) ==
                4 &&
            users == 0 && changed >= since && is_one_of((pid_t)maker, pids, n))
            shmctl(id, IPC_RMID, NULL);
    }
    if (file)
        fclose(file);
}

static bool is_unused(const char *path, time_t since)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool unused = fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
                  about.st_ctime >= since && fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
    close(fd);
    return unused;
}

static void sweep_posix(time_t since)
{
    static const char prefix[] = "ucx_shm_posix_";
    DIR *dir = opendir("/dev/shm");
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char path[300];
        if (strncmp(entry->d_name, prefix, sizeof prefix - 1) == 0 &&
            text_print(path, sizeof path, "/dev/shm/%s", entry->d_name) && is_unused(path, since))
            unlink(path);
    }
    if (dir)
        closedir(dir);
}

void launch_sweep(const pid_t *pids, int n, time_t since)
{
    sweep_sysv(pids, n, since);
    sweep_posix(since);
}
