/* cli/place.c -- where a command will write, looked at before it starts. */
#include "cli/place.h"

#include "base/text.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status refuse(const char *path, const char *problem, const char *option)
{
    return HINT(WHERE(FAIL(STATUS_USAGE, "%s cannot be written: %s", path, problem), "%s", option),
                "give a place that can be written");
}

/* An existing directory in which entries can be made. */
static enum status check_parent(const char *dir, const char *path, const char *option)
{
    struct stat info;
    if (stat(dir, &info) != 0)
        return refuse(path, strerror(errno), option);
    if (!S_ISDIR(info.st_mode))
        return refuse(path, strerror(ENOTDIR), option);
    return access(dir, W_OK | X_OK) == 0 ? STATUS_OK : refuse(path, strerror(errno), option);
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

enum status place_check_dir(const char *path, const char *option)
{
    char copy[PATH_MAX];
    struct stat info;
    if (path[0] == '\0')
        return WHERE(FAIL(STATUS_USAGE, "a directory is missing"), "%s", option);
    if (!text_print(copy, sizeof copy, "%s", path))
        return refuse("this path", strerror(ENAMETOOLONG), option);
    char *dir = copy; /* the nearest parent that exists: what is missing is made in it */
    while (stat(dir, &info) != 0 && errno == ENOENT)
        dir = dirname(dir);
    return check_parent(dir, path, option);
}
