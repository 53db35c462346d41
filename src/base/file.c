/* base/file.c -- files in, whole or in parts; whole files out through a temporary file and rename. */
#include "base/file.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <sha2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether an errno means that the path given was wrong rather than that the machine failed. */
static enum status blame(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case ENAMETOOLONG:
    case ELOOP:
    case EINVAL:
    case ENXIO:
        return STATUS_USAGE;
    default:
        return STATUS_IO;
    }
}

static enum status fail_errno(const char *verb, const char *path, int error)
{
    return WHERE(FAIL(blame(error), "cannot %s: %s", verb, strerror(error)), "%s", path);
}

static enum status read_all(int fd, const char *path, size_t limit, char **out, size_t *out_len)
{
    struct text text = {0};
    char block[1 << 16];
    ssize_t got;
    while ((got = read(fd, block, sizeof block)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            text_free(&text);
            return fail_errno("read", path, errno);
        }
        if ((size_t)got > limit - text.len) {
            text_free(&text);
            return HINT(WHERE(FAIL(STATUS_USAGE, "the file is larger than %zu bytes", limit), "%s", path),
                        "is this the file you meant?");
        }
        text_add_raw(&text, block, (size_t)got);
    }
    text_add_raw(&text, "", 0);
    enum status status = text_status(&text);
    if (status != STATUS_OK) {
        text_free(&text);
        return status;
    }
    *out = text.s;
    *out_len = text.len;
    return STATUS_OK;
}

enum status file_read(const char *path, size_t limit, char **out, size_t *out_len)
{
    if (strcmp(path, "-") == 0)
        return read_all(STDIN_FILENO, "stdin", limit, out, out_len);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno("read", path, errno);
    enum status status = read_all(fd, path, limit, out, out_len);
    close(fd);
    return status;
}

enum status file_open(const char *path, int *out_fd, int64_t *out_bytes)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes is refused, not waited for */
    if (fd < 0)
        return fail_errno("read", path, errno);
    int error = fstat(fd, &info) != 0 ? errno : S_ISDIR(info.st_mode) ? EISDIR : 0;
    if (error || !S_ISREG(info.st_mode)) {
        close(fd);
        return error ? fail_errno("read", path, error)
                     : WHERE(FAIL(STATUS_USAGE, "not a regular file, so parts of it cannot be read"), "%s", path);
    }
    *out_fd = fd;
    *out_bytes = info.st_size;
    return STATUS_OK;
}

enum status file_read_at(int fd, const char *path, int64_t offset, void *bytes, size_t len)
{
    char *to = bytes;
    while (len) {
        ssize_t got = pread(fd, to, len, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno("read", path, errno);
        if (got == 0)
            return HINT(WHERE(FAIL(STATUS_IO, "the file has nothing from byte %lld on, %zu bytes are expected",
                                   (long long)offset, len),
                              "%s", path),
                        "was it cut while it was in use?");
        to += got;
        offset += got;
        len -= (size_t)got;
    }
    return STATUS_OK;
}

static int write_all(int fd, const char *bytes, size_t len)
{
    while (len) {
        ssize_t put = write(fd, bytes, len);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return errno;
        bytes += put;
        len -= (size_t)put;
    }
    return 0;
}

struct file_sink {
    int fd;
    const char *path;
};

enum status file_put(struct file_sink *sink, const void *bytes, size_t len)
{
    int error = write_all(sink->fd, bytes, len);
    return error ? fail_errno("write", sink->path, error) : STATUS_OK;
}

/* Devices and pipes (/dev/stdout, /dev/null) are written in place: a rename would replace them. */
static enum status write_special(const char *path, file_writer *writer, void *arg)
{
    struct file_sink sink = {.fd = open(path, O_WRONLY | O_CLOEXEC), .path = path};
    if (sink.fd < 0)
        return fail_errno("write", path, errno);
    enum status status = writer(arg, &sink);
    if (close(sink.fd) != 0 && status == STATUS_OK)
        status = fail_errno("write", path, errno);
    return status;
}

/* The directory of `path`, with the slash; "./" when it has none. */
static bool dir_of(const char *path, char dir[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    return text_print(dir, PATH_MAX, "%.*s", slash ? (int)(slash - path) + 1 : 2, slash ? path : "./");
}

/* The rename itself is on disk once the directory is. */
static int sync_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return 0; /* a directory may be writable and not readable; the file itself is already safe */
    int error = fsync(fd) != 0 && errno != EINVAL ? errno : 0;
    close(fd);
    return error;
}

/* A new file in `dir` under a name of its own, short so that any legal name can be written beside it. */
static int open_temp(const char *dir, char temp[PATH_MAX])
{
    for (uint64_t attempt = 0; attempt < 100; attempt++) {
        uint64_t unique = rng_hash((uint64_t)clock_ns(), (uint64_t)getpid() << 8 | attempt);
        if (!text_print(temp, PATH_MAX, "%s.sptune-%012llx.tmp", dir, (unsigned long long)(unique >> 16))) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

static enum status write_renamed(const char *path, mode_t mode, file_writer *writer, void *arg)
{
    char dir[PATH_MAX], temp[PATH_MAX];
    if (!dir_of(path, dir))
        return fail_errno("write", path, ENAMETOOLONG);
    struct file_sink sink = {.fd = open_temp(dir, temp), .path = path};
    if (sink.fd < 0)
        return fail_errno("write", path, errno);
    enum status status = writer(arg, &sink);
    int error = 0;
    if (status == STATUS_OK && mode && fchmod(sink.fd, mode) != 0)
        error = errno;
    if (status == STATUS_OK && !error && fsync(sink.fd) != 0)
        error = errno;
    if (close(sink.fd) != 0 && !error)
        error = errno;
    if (status == STATUS_OK && !error && rename(temp, path) != 0)
        error = errno;
    if (status != STATUS_OK || error) {
        unlink(temp);
        return status != STATUS_OK ? status : fail_errno("write", path, error);
    }
    error = sync_dir(dir);
    return error ? fail_errno("write", path, error) : STATUS_OK;
}

/* Nothing is at `path`, or a link that leads to nothing yet: then that is made. A loop of links is not ENOENT, so this
 * ends. */
static enum status write_new(const char *path, file_writer *writer, void *arg)
{
    char dir[PATH_MAX] = "", link[PATH_MAX], target[PATH_MAX];
    ssize_t size = readlink(path, link, sizeof link - 1);
    if (size < 0)
        return write_renamed(path, 0, writer, arg);
    link[size] = '\0';
    if ((link[0] != '/' && !dir_of(path, dir)) || !text_print(target, sizeof target, "%s%s", dir, link))
        return fail_errno("write", path, ENAMETOOLONG);
    return file_write_by(target, writer, arg);
}

enum status file_write_by(const char *path, file_writer *writer, void *arg)
{
    char target[PATH_MAX];
    struct stat info;
    if (stat(path, &info) != 0)
        return errno == ENOENT ? write_new(path, writer, arg) : fail_errno("write", path, errno);
    if (S_ISDIR(info.st_mode))
        return fail_errno("write", path, EISDIR);
    if (!S_ISREG(info.st_mode))
        return write_special(path, writer, arg);
    if (!realpath(path, target)) /* through a link: the file changes, the link stays */
        return fail_errno("write", path, errno);
    return write_renamed(target, info.st_mode & 07777, writer, arg);
}

struct whole {
    const char *bytes;
    size_t len;
};

static enum status write_whole(void *arg, struct file_sink *sink)
{
    const struct whole *whole = arg;
    return file_put(sink, whole->bytes, whole->len);
}

enum status file_write(const char *path, const char *bytes, size_t len)
{
    struct whole whole = {bytes, len};
    return file_write_by(path, write_whole, &whole);
}

enum status file_make_dirs(const char *path)
{
    char part[PATH_MAX];
    struct stat info;
    if (!text_print(part, sizeof part, "%s", path))
        return fail_errno("create the directory", path, ENAMETOOLONG);
    for (char *at = part + (part[0] == '/'); *part; at++) {
        at += strcspn(at, "/");
        char end = *at;
        *at = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return fail_errno("create the directory", part, errno);
        if (!end)
            break;
        *at = end;
    }
    if (stat(path, &info) != 0)
        return fail_errno("create the directory", path, errno);
    return S_ISDIR(info.st_mode) ? STATUS_OK : fail_errno("create the directory", path, ENOTDIR);
}

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

void file_sha256(const void *bytes, size_t len, char hex[65])
{
    SHA256Data(bytes, len, hex);
}

enum status file_data_dir(char *buf, size_t size)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    if (!home || home[0] != '/') {
        const struct passwd *user = getpwuid(getuid());
        home = user ? user->pw_dir : NULL;
    }
    bool fits;
    if (data && data[0] == '/') /* the XDG specification: a relative path is to be ignored */
        fits = text_print(buf, size, "%s/sptune", data);
    else if (home && home[0] == '/')
        fits = text_print(buf, size, "%s/.local/share/sptune", home);
    else
        return HINT(FAIL(STATUS_USAGE, "no home directory is known"),
                    "set HOME or XDG_DATA_HOME, or name the file yourself");
    return fits ? STATUS_OK : FAIL(STATUS_USAGE, "the path of the data directory is longer than %zu bytes", size);
}
