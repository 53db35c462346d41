/* tuner/emit_batch.c -- a directory changes as a whole: render, check what is there, write beside, rename, tidy up.
 *
 * The record of what we wrote is the recommendation.json beside the files: {files: [{path, sha256}]}.
 */
#include "tuner/emit_batch.h"

#include "base/file.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_LIMIT_BYTES = 64 << 20 };
static const char document_name[] = "recommendation.json";
static const char staging_name[] = ".sptune-emit";

void emit_batch_free(struct emit_batch *batch)
{
    for (int i = 0; i < batch->n; i++)
        free(batch->file[i].bytes);
    *batch = (struct emit_batch){0};
}

enum status emit_batch_add(struct emit_batch *batch, const char *name, bool executable, struct text *text)
{
    enum status status = text_status(text);
    if (status == STATUS_OK && batch->n == RECOMMEND_FILES + 1)
        status = FAIL(STATUS_UNSUPPORTED, "more than %d files to emit", RECOMMEND_FILES);
    if (status != STATUS_OK) {
        text_free(text);
        return status;
    }
    struct emit_staged *file = &batch->file[batch->n++];
    *file = (struct emit_staged){.bytes = text->s, .len = text->len, .executable = executable};
    text_print(file->name, sizeof file->name, "%s", name);
    file_sha256(file->bytes, file->len, file->sha256);
    *text = (struct text){0};
    return STATUS_OK;
}

enum status emit_file(struct recommendation *recommendation, const struct emit_context *context, const char *name,
                      const char *kind, bool executable, struct text *text)
{
    if (recommendation->nfiles >= RECOMMEND_FILES) {
        text_free(text);
        return FAIL(STATUS_UNSUPPORTED, "more than %d files to emit", RECOMMEND_FILES);
    }
    TRY(emit_batch_add(context->batch, name, executable, text));
    struct recommend_file *row = &recommendation->files[recommendation->nfiles++];
    *row = (struct recommend_file){0};
    text_print(row->path, sizeof row->path, "%s", name);
    text_print(row->kind, sizeof row->kind, "%s", kind);
    memcpy(row->sha256, context->batch->file[context->batch->n - 1].sha256, sizeof row->sha256);
    return STATUS_OK;
}

static enum status path_in(const char *dir, const char *name, char path[PATH_MAX])
{
    return text_print(path, PATH_MAX, "%s/%s", dir, name)
               ? STATUS_OK
               : WHERE(FAIL(STATUS_USAGE, "the path of %s is too long", name), "%.200s", dir);
}

/* The files of the record beside, NULL when there is none; not ours: STATUS_USAGE. Caller releases *document. */
static enum status record_read(const char *dir, json_t **document)
{
    char path[PATH_MAX];
    struct stat info;
    *document = NULL;
    TRY(path_in(dir, document_name, path));
    if (stat(path, &info) != 0 && errno == ENOENT)
        return STATUS_OK;
    TRY(json_read(path, document));
    const char *schema = json_string_value(json_object_get(*document, "schema"));
    if (schema != NULL && strncmp(schema, "sptune.recommendation/", 22) == 0)
        return STATUS_OK;
    json_decref(*document);
    *document = NULL;
    return WHERE(FAIL(STATUS_USAGE, "this file was not written by sptune and would be replaced"), "%s", path);
}

/* The digest that the record has for `name`, NULL when it has none. */
static const char *record_sha256(const json_t *document, const char *name)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(document, "files"), i, row)
    {
        const char *path = json_string_value(json_object_get(row, "path"));
        if (path != NULL && strcmp(path, name) == 0)
            return json_string_value(json_object_get(row, "sha256"));
    }
    return NULL;
}

/* What is at `path` now: "" when nothing is. */
static enum status digest(const char *path, char hex[65])
{
    struct stat info;
    char *bytes = NULL;
    size_t len = 0;
    hex[0] = '\0';
    if (lstat(path, &info) != 0 && errno == ENOENT)
        return STATUS_OK;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return HINT(WHERE(FAIL(STATUS_USAGE, "a file is to be written here, and there is something else"), "%s", path),
                    "move it away, or use another --out");
    TRY(file_read(path, FILE_LIMIT_BYTES, &bytes, &len));
    file_sha256(bytes, len, hex);
    free(bytes);
    return STATUS_OK;
}

static enum status check_one(const struct emit_staged *file, const char *dir, const json_t *record)
{
    char path[PATH_MAX], now[65];
    TRY(path_in(dir, file->name, path));
    TRY(digest(path, now));
    const char *ours = record_sha256(record, file->name);
    if (now[0] == '\0' || strcmp(now, file->sha256) == 0 || (ours != NULL && strcmp(now, ours) == 0))
        return STATUS_OK;
    if (strcmp(file->name, document_name) == 0) /* record_read looked at it */
        return STATUS_OK;
    return HINT(
        WHERE(FAIL(STATUS_USAGE,
                   ours != NULL ? "%s was edited since sptune wrote it" : "%s is there and has no record of sptune",
                   file->name),
              "%s", path),
        "nothing was changed; --force replaces it, --out names another directory");
}

static enum status check_kind(const struct emit_staged *file, const char *dir)
{
    char path[PATH_MAX];
    struct stat info;
    TRY(path_in(dir, file->name, path));
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return WHERE(FAIL(STATUS_USAGE, "a file is to be written here, and there is something else"), "%s", path);
    return STATUS_OK;
}

enum status emit_batch_check(const struct emit_batch *batch, const char *dir, bool force)
{
    json_t *record = NULL;
    enum status status = STATUS_OK;
    if (!force)
        status =
            HINT(record_read(dir, &record), "nothing was changed; --force replaces it, --out names another directory");
    for (int i = 0; i < batch->n && status == STATUS_OK; i++)
        status = force ? check_kind(&batch->file[i], dir) : check_one(&batch->file[i], dir, record);
    json_decref(record);
    return status;
}

/* Staged copies and their directory; none of them needs to be there. */
static void staging_remove(const struct emit_batch *batch, const char *staging)
{
    char path[PATH_MAX];
    for (int i = 0; i < batch->n; i++)
        if (path_in(staging, batch->file[i].name, path) == STATUS_OK)
            unlink(path);
    rmdir(staging);
}

static enum status stage(const struct emit_batch *batch, const char *staging)
{
    char path[PATH_MAX];
    TRY(file_make_dirs(staging));
    for (int i = 0; i < batch->n; i++) {
        const struct emit_staged *file = &batch->file[i];
        struct stat info;
        TRY(path_in(staging, file->name, path));
        unlink(path); /* of a run that was killed: its mode is not ours */
        TRY(file_write(path, file->bytes, file->len));
        if (file->executable && (stat(path, &info) != 0 || chmod(path, info.st_mode | (info.st_mode & 0444) >> 2) != 0))
            return WHERE(FAIL(STATUS_IO, "cannot make it executable: %s", strerror(errno)), "%s", path);
    }
    return STATUS_OK;
}

/* A link stays a link: the file that it names is replaced. */
static enum status move_in(const struct emit_staged *file, const char *staging, const char *dir)
{
    char from[PATH_MAX], to[PATH_MAX];
    struct stat info;
    TRY(path_in(staging, file->name, from));
    TRY(path_in(dir, file->name, to));
    if (lstat(to, &info) == 0 && S_ISLNK(info.st_mode))
        return file_write(to, file->bytes, file->len);
    if (rename(from, to) != 0)
        return WHERE(FAIL(STATUS_IO, "cannot put the file in its place: %s", strerror(errno)), "%s", to);
    return STATUS_OK;
}

static bool in_batch(const struct emit_batch *batch, const char *name)
{
    for (int i = 0; i < batch->n; i++)
        if (strcmp(batch->file[i].name, name) == 0)
            return true;
    return false;
}

/* Files of the earlier answer that this one does not have would describe a plan that nobody recommends. */
static void remove_stale(const struct emit_batch *batch, const char *dir, const json_t *record)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(record, "files"), i, row)
    {
        char path[PATH_MAX], now[65];
        const char *name = json_string_value(json_object_get(row, "path"));
        const char *ours = json_string_value(json_object_get(row, "sha256"));
        if (name == NULL || ours == NULL || strchr(name, '/') != NULL || in_batch(batch, name) ||
            path_in(dir, name, path) != STATUS_OK || digest(path, now) != STATUS_OK || now[0] == '\0')
            continue;
        if (strcmp(now, ours) == 0)
            unlink(path);
        else
            log_warn("%s belongs to an earlier answer and was edited: it stays", path);
    }
}

/* The names are on disk once the directory is; a directory that cannot be opened is not worth failing for. */
static void sync_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

enum status emit_batch_write(const struct emit_batch *batch, const char *dir)
{
    char staging[PATH_MAX];
    json_t *record = NULL;
    TRY(path_in(dir, staging_name, staging));
    if (record_read(dir, &record) != STATUS_OK)
        status_clear(); /* under force a foreign document is replaced; it records nothing of ours */
    enum status status = stage(batch, staging);
    for (int i = 0; i < batch->n && status == STATUS_OK; i++)
        status = move_in(&batch->file[i], staging, dir);
    if (status == STATUS_OK) {
        remove_stale(batch, dir, record);
        sync_dir(dir);
    }
    staging_remove(batch, staging);
    json_decref(record);
    return status;
}
