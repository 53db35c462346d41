/* cli/place.c -- where a command will write, looked at before it starts. */
#include "cli/place.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status refuse(const char *path, const char *problem, const char *option)
{
    return HINT(WHERE(FAIL(STATUS_USAGE, "%s cannot be written: %s", path, problem), "%s", option),
                "give a place that can be written");
}

/* Permission bits say yes to root everywhere, and a file system may know better (/proc, a read-only mount): so an entry
 * is made, and taken away. */
static enum status try_parent(const char *dir, const char *path, const char *option)
{
    char probe[PATH_MAX];
    if (!text_print(probe, sizeof probe, "%s/.sptune-XXXXXX", dir))
        return refuse(path, strerror(ENAMETOOLONG), option);
    int fd = mkostemp(probe, O_CLOEXEC);
    if (fd >= 0) {
        close(fd);
        unlink(probe);
        return STATUS_OK;
    }
    switch (errno) { /* the place is right, the machine is not */
    case EMFILE:
    case ENFILE:
    case ENOMEM:
        return FAIL(STATUS_MACHINE, "cannot look whether %s can be written: %s", path, strerror(errno));
    case ENOSPC:
    case EDQUOT:
    case EIO:
        return WHERE(FAIL(STATUS_IO, "%s cannot be written: %s", path, strerror(errno)), "%s", option);
    default:
        return refuse(path, strerror(errno), option);
    }
}

/* An existing directory in which entries can be made. */
static enum status check_parent(const char *dir, const char *path, const char *option)
{
    struct stat info;
    if (stat(dir, &info) != 0)
        return refuse(path, strerror(errno), option);
    if (!S_ISDIR(info.st_mode))
        return refuse(path, strerror(ENOTDIR), option);
    return try_parent(dir, path, option);
}

enum status place_check_file(const char *path, const char *option)
{
    char copy[PATH_MAX];
    struct stat info;
    if (path[0] == '\0')
        return WHERE(FAIL(STATUS_USAGE, "a file name is missing"), "%s", option);
    if (!text_print(copy, sizeof copy, "%s", path))
        return refuse("this path", strerror(ENAMETOOLONG), option);
    if (stat(path, &info) == 0) {
        if (S_ISDIR(info.st_mode))
            return refuse(path, strerror(EISDIR), option);
        if (!S_ISREG(info.st_mode)) /* a device or pipe is written in place */
            return access(path, W_OK) == 0 ? STATUS_OK : refuse(path, strerror(errno), option);
    } else if (errno != ENOENT) {
        return refuse(path, strerror(errno), option);
    }
    return check_parent(dirname(copy), path, option);
}

/* The nearest parent that exists: what is missing is made in it. Changes `dir`. */
static enum status check_nearest(char *dir, const char *path, const char *option)
{
    struct stat info;
    while (stat(dir, &info) != 0 && errno == ENOENT) {
        if (lstat(dir, &info) == 0)
            return refuse(path, "a link on its way leads nowhere", option);
        dir = dirname(dir);
    }
    return check_parent(dir, path, option);
}

enum status place_check_dir(const char *path, const char *option)
{
    char copy[PATH_MAX];
    if (path[0] == '\0')
        return WHERE(FAIL(STATUS_USAGE, "a directory is missing"), "%s", option);
    if (!text_print(copy, sizeof copy, "%s", path))
        return refuse("this path", strerror(ENAMETOOLONG), option);
    return check_nearest(copy, path, option);
}

enum status place_check_new_file(const char *path, const char *option)
{
    char copy[PATH_MAX];
    if (!text_print(copy, sizeof copy, "%s", path))
        return refuse("this path", strerror(ENAMETOOLONG), option);
    return check_nearest(dirname(copy), path, option);
}

/* The directory's identity and the name in it; through links when the file is there. */
static bool locate(const char *path, char real[PATH_MAX])
{
    char copy[PATH_MAX], dir[PATH_MAX];
    if (realpath(path, real) != NULL)
        return true;
    if (!text_print(copy, sizeof copy, "%s", path) || realpath(dirname(copy), dir) == NULL)
        return false;
    text_print(copy, sizeof copy, "%s", path);
    return text_print(real, PATH_MAX, "%s/%s", dir, basename(copy));
}

bool place_same_file(const char *a, const char *b)
{
    char real[2][PATH_MAX];
    struct stat info;
    if (!locate(a, real[0]) || !locate(b, real[1]) || strcmp(real[0], real[1]) != 0)
        return false;
    return stat(a, &info) != 0 || S_ISREG(info.st_mode);
}
