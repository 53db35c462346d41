/* model/model.c -- find the config.json that a word means, and read it. */
#include "model/model.h"
#include "base/file.h"
#include "base/text.h"
#include "model/hub.h"
#include "model/reader.h"
#include "model/shipped.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

/* "/x/qwen/config.json" and "/x/qwen/" are called qwen, "/x/tiny.json" tiny. */
static void name_from_path(const char *path, struct model *model)
{
    char *real = realpath(path, NULL);
    const char *whole = real != NULL ? real : path;
    size_t len = strlen(whole);
    const char *file = strrchr(whole, '/');
    if (file != NULL && file > whole && strcmp(file, "/config.json") == 0)
        len = (size_t)(file - whole);
    else if (len > 5 && strcmp(whole + len - 5, ".json") == 0)
        len -= 5;
    size_t start = len;
    while (start > 0 && whole[start - 1] != '/')
        start--;
    text_print(model->name, sizeof model->name, "%.*s", (int)(len - start), whole + start);
    text_clean(model->name);
    free(real);
}

static void set_name(struct model *model, const char *name)
{
    text_print(model->name, sizeof model->name, "%s", name);
    text_clean(model->name);
}

enum status model_parse(const char *text, size_t len, const char *where, struct model *out)
{
    json_t *root = NULL;
    TRY(json_parse(text, len, where, &root));
    enum status status = reader_run(root, where, out);
    json_decref(root);
    if (status == STATUS_OK)
        name_from_path(where, out);
    return status;
}

static enum status load_file(const char *path, struct model *out)
{
    json_t *root = NULL;
    TRY(json_read(path, &root));
    enum status status = reader_run(root, strcmp(path, "-") == 0 ? "stdin" : path, out);
    json_decref(root);
    if (status == STATUS_OK)
        name_from_path(strcmp(path, "-") == 0 ? "stdin" : path, out);
    return status;
}

static enum status refuse_directory(const char *path)
{
    struct text other = {0};
    text_add(&other, "%s/adapter_config.json", path);
    bool adapter = file_exists(text_get(&other));
    text_free(&other);
    enum status s = WHERE(FAIL(STATUS_USAGE, "the directory has no config.json"), "%s", path);
    if (adapter)
        return HINT(s, "adapter_config.json there names a base model: give that one");
    return HINT(s, "give the directory of a model as it is saved or downloaded, or the file itself");
}

static enum status load_directory(const char *path, struct model *out)
{
    struct text file = {0};
    text_add(&file, "%s%sconfig.json", path, path[strlen(path) - 1] == '/' ? "" : "/");
    enum status status = text_status(&file);
    if (status == STATUS_OK)
        status = file_exists(text_get(&file)) ? load_file(text_get(&file), out) : refuse_directory(path);
    text_free(&file);
    return status;
}

static enum status refuse_absent(const char *config, const char *tried)
{
    size_t n = 0;
    const char *const *names = model_shipped();
    while (names[n] != NULL)
        n++;
    const char *slash = strrchr(config, '/');
    const char *near = text_nearest(slash != NULL ? slash + 1 : config, names, n);
    enum status s = FAIL(STATUS_USAGE, "no model \"%.120s\"", config);
    s = WHERE(s, "tried: a file or directory, %zu shipped names%s%s", n, tried[0] != '\0' ? ", the hub caches " : "",
              tried);
    if (near != NULL)
        return HINT(s, "did you mean %s? `sptune model list` shows the shipped names", near);
    return HINT(s, "give a config.json, its directory, a shipped name (`sptune model list`) or a model id that the local "
                   "cache holds");
}

static enum status load_shipped(const char *name, struct model *out)
{
    const char *text = shipped_find(name);
    char where[160];
    text_print(where, sizeof where, "shipped %s", name);
    TRY(model_parse(text, strlen(text), where, out));
    set_name(out, name);
    for (char *c = out->name; *c != '\0'; c++)
        *c = (char)(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c);
    return STATUS_OK;
}

static enum status load_id(const char *config, struct model *out)
{
    struct text path = {0}, tried = {0};
    enum status status = hub_is_id(config) ? hub_find(config, &path, &tried) : STATUS_OK;
    if (status == STATUS_OK && path.len == 0)
        status = refuse_absent(config, text_get(&tried));
    else if (status == STATUS_OK)
        status = load_file(text_get(&path), out);
    if (status == STATUS_OK)
        set_name(out, config);
    text_free(&path);
    text_free(&tried);
    return status;
}

enum status model_load(const char *config, struct model *out)
{
    struct stat st;
    if (config == NULL || config[0] == '\0')
        return HINT(FAIL(STATUS_USAGE, "no model is named"), "give a config.json, a directory or a shipped name");
    if (strcmp(config, "-") == 0)
        return load_file(config, out);
    bool there = stat(config, &st) == 0;
    bool directory = there && S_ISDIR(st.st_mode);
    /* A folder may bear a shipped name by chance; only one with a config.json is a model. */
    if (directory && strchr(config, '/') == NULL && shipped_find(config) != NULL) {
        struct text file = {0};
        text_add(&file, "%s/config.json", config);
        directory = file_exists(text_get(&file));
        there = directory;
        text_free(&file);
    }
    if (directory)
        return load_directory(config, out);
    if (there)
        return load_file(config, out);
    if (shipped_find(config) != NULL)
        return load_shipped(config, out);
    return load_id(config, out);
}

static enum status check_head_count(int value, const char *what, int max)
{
    if (value >= 1 && value <= max)
        return STATUS_OK;
    return HINT(FAIL(STATUS_USAGE, "%d %s", value, what), "it must be from 1 to %d", max);
}

enum status model_from_heads(int heads, int kv_heads, int head_dim, struct model *out)
{
    TRY(check_head_count(heads, "query heads", READER_HEADS_MAX));
    TRY(check_head_count(kv_heads, "KV heads", READER_HEADS_MAX));
    TRY(check_head_count(head_dim, "is not a head dimension", READER_HEAD_DIM_MAX));
    if (heads % kv_heads != 0)
        return HINT(FAIL(STATUS_USAGE, "%d query heads cannot share %d KV heads evenly", heads, kv_heads),
                    "the first must be a multiple of the second");
    struct model model = {
        .layers = 1,
        .dense_layers = 1,
        .hidden = (int64_t)heads * head_dim,
        .heads = heads,
        .kv_heads = kv_heads,
        .head_dim = head_dim,
        .head_dim_v = head_dim,
        .params_exact = true,
    };
    text_print(model.name, sizeof model.name, "%d/%d heads of %d", heads, kv_heads, head_dim);
    text_print(model.type, sizeof model.type, "heads");
    *out = model;
    return STATUS_OK;
}
