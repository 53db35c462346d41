/* model/name.c -- name a model after where it was read. */
#include "model/name.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

void name_set(struct model *model, const char *name)
{
    text_print(model->name, sizeof model->name, "%s", name);
    text_clean(model->name);
}

/* ".../models--org--name/snapshots/<revision>" is org/name. */
static bool name_hub(struct model *model, const char *directory)
{
    static const char repository[] = "/models--", snapshots[] = "/snapshots/";
    const char *start = strstr(directory, repository);
    const char *end = start != NULL ? strstr(start, snapshots) : NULL;
    if (end == NULL || strchr(end + strlen(snapshots), '/') != NULL)
        return false;
    struct text id = {0};
    for (const char *c = start + strlen(repository); c < end; c++) {
        bool split = c[0] == '-' && c[1] == '-';
        text_add_raw(&id, split ? "/" : c, 1);
        c += split;
    }
    name_set(model, text_get(&id));
    text_free(&id);
    return true;
}

static void name_from_directory(struct model *model, const char *path)
{
    char *real = realpath(path, NULL); /* ".", ".." and links have the name of what they lead to */
    struct text directory = {0};
    text_add(&directory, "%s", real != NULL ? real : path);
    while (directory.len > 1 && directory.s[directory.len - 1] == '/')
        directory.s[--directory.len] = '\0';
    const char *whole = text_get(&directory), *last = strrchr(whole, '/');
    if (!name_hub(model, whole))
        name_set(model, last != NULL && last[1] != '\0' ? last + 1 : whole);
    text_free(&directory);
    free(real);
}

void name_from_path(struct model *model, const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *file = slash != NULL ? slash + 1 : path;
    size_t len = strlen(file);
    struct text part = {0};
    if (strcmp(file, "config.json") == 0) {
        text_add_raw(&part, path, slash != NULL ? (size_t)(slash - path) + 1 : 0);
        name_from_directory(model, part.len > 0 ? text_get(&part) : ".");
    } else {
        text_add_raw(&part, file, len > 5 && strcmp(file + len - 5, ".json") == 0 ? len - 5 : len);
        name_set(model, text_get(&part));
    }
    text_free(&part);
}
