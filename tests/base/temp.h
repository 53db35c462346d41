/* tests/base/temp.h -- for tests: a directory that goes away, files in it, and what a function wrote to a descriptor. */
#ifndef SPTUNE_TESTS_BASE_TEMP_H
#define SPTUNE_TESTS_BASE_TEMP_H

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct temp {
    char dir[64];
    char path[1024]; /* the last temp_path */
};

static inline void temp_open(struct temp *temp)
{
    strcpy(temp->dir, "/tmp/sptune-test-XXXXXX");
    if (!mkdtemp(temp->dir))
        abort();
}

static inline int temp_remove_one(const char *path, const struct stat *info, int flag, struct FTW *ftw)
{
    (void)info;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static inline void temp_close(struct temp *temp)
{
    nftw(temp->dir, temp_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The absolute path of `name` inside; valid until the next call. */
static inline const char *temp_path(struct temp *temp, const char *name)
{
    snprintf(temp->path, sizeof temp->path, "%s/%s", temp->dir, name);
    return temp->path;
}

/* Write a file, making its directories. */
static inline void temp_put(struct temp *temp, const char *name, const char *content)
{
    char path[1024];
    snprintf(path, sizeof path, "%s", temp_path(temp, name));
    for (char *slash = path + strlen(temp->dir) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(path, 0777);
    }
    FILE *file = fopen(path, "w");
    if (!file || fputs(content, file) == EOF || fclose(file) != 0)
        abort();
}

/* Entries of a directory, hidden ones included, without . and .. */
static inline int temp_count(const char *dir)
{
    int n = -2;
    DIR *stream = opendir(dir);
    while (stream && readdir(stream))
        n++;
    if (stream)
        closedir(stream);
    return n;
}

/* Send descriptor `fd` to a file until capture_end, which gives back the text (static storage). */
struct capture {
    int fd, saved;
    FILE *file;
};

static inline void capture_begin(struct capture *capture, int fd)
{
    fflush(NULL);
    capture->fd = fd;
    capture->saved = dup(fd);
    capture->file = tmpfile();
    if (!capture->file || dup2(fileno(capture->file), fd) < 0)
        abort();
}

static inline const char *capture_end(struct capture *capture)
{
    static char text[65536];
    fflush(NULL);
    dup2(capture->saved, capture->fd);
    close(capture->saved);
    rewind(capture->file);
    text[fread(text, 1, sizeof text - 1, capture->file)] = '\0';
    fclose(capture->file);
    return text;
}

#endif
