/* base/file.h -- whole files, in and out, never half-written. */
#ifndef SPTUNE_BASE_FILE_H
#define SPTUNE_BASE_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Read all of `path` ("-" is stdin), at most `limit` bytes; NUL-terminated, free() releases. Missing, a directory,
 * unreadable, too large: STATUS_USAGE naming the path. */
enum status file_read(const char *path, size_t limit, char **out, size_t *out_len);
/* Write to a temporary file beside it, fsync, rename: the old file or the new one, never a half. A link is followed; a
 * device or pipe is written in place. A path that cannot be is STATUS_USAGE, a full disk STATUS_IO. */
enum status file_write(const char *path, const char *bytes, size_t len);
/* The same for what is too large to be held at once: `writer` calls file_put as often as it likes. When it fails, so does this, and
 * the old file stays. */
struct file_sink;
typedef enum status file_writer(void *arg, struct file_sink *sink);
enum status file_put(struct file_sink *sink, const void *bytes, size_t len);
enum status file_write_by(const char *path, file_writer *writer, void *arg);
/* A regular file to read parts of; close() it. A file that became shorter meanwhile is STATUS_IO, where a mapping of it would end the
 * program. */
enum status file_open(const char *path, int *out_fd, int64_t *out_bytes);
enum status file_read_at(int fd, const char *path, int64_t offset, void *bytes, size_t len);
enum status file_make_dirs(const char *path);
bool file_exists(const char *path);
/* Lower-case hex SHA-256 of bytes into hex[65]. */
void file_sha256(const void *bytes, size_t len, char hex[65]);
/* $XDG_DATA_HOME/sptune, else ~/.local/share/sptune. */
enum status file_data_dir(char *buf, size_t size);

#endif
