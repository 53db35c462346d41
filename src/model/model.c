/* model/model.c -- find the config.json that a word means, and read it. */
#include "model/model.h"
#include "base/file.h"
#include "base/text.h"
#include "model/hub.h"
#include "model/name.h"
#include "model/reader.h"
#include "model/shipped.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum status model_parse(const char *text, size_t len, const char *where, struct model *out)
{
    json_t *root = NULL;
    TRY(json_parse(text, len, where, &root));
    enum status status = reader_run(root, where, out);
    json_decref(root);
    if (status == STATUS_OK)
        name_from_path(out, where);
    return status;
}

static enum status load_file(const char *path, struct model *out)
{
    json_t *root = NULL;
    TRY(json_read(path, &root));
    enum status status = reader_run(root, strcmp(path, "-") == 0 ? "stdin" : path, out);
    json_decref(root);
    if (status == STATUS_OK)
        name_from_path(out, strcmp(path, "-") == 0 ? "stdin" : path);
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

/* "Meta-Llama-3-8B-Instruct" holds the shipped name llama-3-8b; the longest such name, else one a slip away. */
static const char *nearest_shipped(const char *config, size_t n)
{
    const char *const *names = model_shipped();
    const char *slash = strrchr(config, '/'), *word = slash != NULL ? slash + 1 : config, *best = NULL;
    for (size_t i = 0; i < n; i++) {
        const char *at = strcasestr(word, names[i]);
        size_t len = strlen(names[i]);
        if (at != NULL && !isalnum((unsigned char)at[len]) && (best == NULL || len > strlen(best)))
            best = names[i];
    }
    return best != NULL ? best : text_nearest(word, names, n);
}

static enum status refuse_absent(const char *config, const char *tried)
{
    size_t n = 0;
    while (model_shipped()[n] != NULL)
        n++;
    const char *near = nearest_shipped(config, n);
    enum status s = FAIL(STATUS_USAGE, "no model \"%.120s\"", config);
    s = WHERE(s, "tried: a file or directory, %zu shipped names%s%s", n, tried[0] != '\0' ? ", the hub caches " : "",
              tried);
    if (near != NULL)
        return HINT(s, "did you mean %s? `sptune model list` shows the shipped names", near);
    return HINT(s,
                "give a config.json, its directory, a shipped name (`sptune model list`) or a model id that the local "
                "cache holds");
}

static enum status load_shipped(const char *name, struct model *out)
{
    const char *text = shipped_find(name);
    char where[160];
    text_print(where, sizeof where, "shipped %s", name);
    TRY(model_parse(text, strlen(text), where, out));
    name_set(out, name);
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
        name_set(out, config);
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

static const char heads_type[] = "heads";

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
    text_print(model.type, sizeof model.type, "%s", heads_type);
    *out = model;
    return STATUS_OK;
}

bool model_is_heads(const struct model *model)
{
    return strcmp(model->type, heads_type) == 0;
}
