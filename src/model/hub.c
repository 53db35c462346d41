/* model/hub.c -- look a model id up in the local cache. */
#include "model/hub.h"
#include "base/file.h"

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { ID_MAX = 200, REVISION_MAX = 128, CACHES_MAX = 5 };

bool hub_is_id(const char *text)
{
    size_t len = strlen(text);
    int slashes = 0;
    if (len == 0 || len > ID_MAX || strstr(text, "..") != NULL || strstr(text, "--") != NULL)
        return false;
    for (size_t i = 0; i < len; i++) {
        bool edge = i == 0 || i == len - 1 || text[i - 1] == '/' || text[i + 1] == '/';
        if (text[i] == '/' && slashes++ > 0)
            return false;
        if (!isalnum((unsigned char)text[i]) && strchr(edge ? "_" : "_-./", text[i]) == NULL)
            return false;
    }
    return true;
}

/* The caches that the environment names, in the order in which the hub's own client prefers them. */
static void add_caches(struct text caches[CACHES_MAX], int *n)
{
    static const struct {
        const char *variable, *below;
    } places[CACHES_MAX] = {
        {"HF_HUB_CACHE", ""},
        {"HUGGINGFACE_HUB_CACHE", ""},
        {"HF_HOME", "/hub"},
        {"XDG_CACHE_HOME", "/huggingface/hub"},
        {"HOME", "/.cache/huggingface/hub"},
    };
    for (int i = 0; i < CACHES_MAX; i++) {
        const char *value = getenv(places[i].variable);
        if (value == NULL || value[0] == '\0')
            continue;
        text_add(&caches[*n], "%s%s", value, places[i].below);
        (*n)++;
    }
}

/* refs/main names the revision; whatever else the file holds is not followed. */
static bool read_revision(const char *repository, char revision[REVISION_MAX])
{
    struct text path = {0};
    char *text = NULL;
    size_t len = 0;
    text_add(&path, "%s/refs/main", repository);
    bool found = file_exists(text_get(&path)) && file_read(text_get(&path), 4096, &text, &len) == STATUS_OK;
    text_free(&path);
    if (!found)
        return false;
    len = strspn(text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-");
    if (len > 0 && len < REVISION_MAX) {
        memcpy(revision, text, len);
        revision[len] = '\0';
    }
    free(text);
    return len > 0 && len < REVISION_MAX;
}

/* Without refs/main (a revision was asked for by its hash) a single snapshot is meant. */
static bool single_snapshot(const char *repository, char revision[REVISION_MAX])
{
    struct text path = {0};
    int n = 0;
    text_add(&path, "%s/snapshots", repository);
    DIR *dir = opendir(text_get(&path));
    text_free(&path);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] != '.' && text_print(revision, REVISION_MAX, "%s", entry->d_name))
            n++;
    }
    if (dir != NULL)
        closedir(dir);
    return n == 1;
}

static enum status find_in(const char *repository, struct text *path)
{
    char revision[REVISION_MAX] = "";
    if (!read_revision(repository, revision) && !single_snapshot(repository, revision)) {
        enum status s = FAIL(STATUS_USAGE, "the cached model has neither refs/main nor a single snapshot");
        return HINT(WHERE(s, "%s", repository), "give the path of the snapshot's config.json");
    }
    text_add(path, "%s/snapshots/%s/config.json", repository, revision);
    TRY(text_status(path));
    if (file_exists(text_get(path)))
        return STATUS_OK;
    enum status s = FAIL(STATUS_USAGE, "the cached model has no config.json");
    s = WHERE(s, "%s/snapshots/%s", repository, revision);
    return HINT(s, "download it with the hub's client, or give the path of a config.json");
}

enum status hub_find(const char *id, struct text *path, struct text *tried)
{
    struct text caches[CACHES_MAX] = {{0}, {0}, {0}, {0}, {0}}, repository = {0};
    enum status status = STATUS_OK;
    int n = 0;
    add_caches(caches, &n);
    for (int i = 0; i < n && status == STATUS_OK && path->len == 0; i++) {
        text_free(&repository);
        text_add(&repository, "%s/models--", text_get(&caches[i]));
        for (const char *c = id; *c != '\0'; c++)
            text_add_raw(&repository, *c == '/' ? "--" : c, *c == '/' ? 2 : 1);
        if (file_exists(text_get(&repository)))
            status = find_in(text_get(&repository), path);
        else
            text_add(tried, "%s%s", tried->len > 0 ? ", " : "", text_get(&caches[i]));
    }
    for (int i = 0; i < n; i++)
        text_free(&caches[i]);
    text_free(&repository);
    return status;
}
