/* train/tensors_index.c -- weights in several files: HuggingFace's model.safetensors.index.json.
 *
 *     {"metadata": {"total_size": 16060522496},
 *      "weight_map": {"lm_head.weight": "model-00004-of-00004.safetensors", ...}}
 *
 * Files lie beside the index. Of what they hold, only what the map names is there; total_size is not relied on.
 */
#include "train/tensors_private.h"

#include "base/text.h"

#include <limits.h>
#include <string.h>

/* What follows the last slash, and what stands before and with it. */
static int dir_len(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash - path) + 1 : 0;
}

static const char *file_name(const struct tensors *tensors, int file)
{
    const char *path = tensors->file[file].path;
    return path + dir_len(path);
}

static enum status add_named(struct tensors *tensors, const char *index, const char *name)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < tensors->n_files; i++)
        if (strcmp(file_name(tensors, (int)i), name) == 0)
            return STATUS_OK;
    if (name[0] == '\0' || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return FAIL(STATUS_USAGE, "'%.120s' is not the name of a file beside the index", name);
    if (!text_print(path, sizeof path, "%.*s%s", dir_len(index), index, name))
        return FAIL(STATUS_USAGE, "the path of '%.120s' is too long", name);
    return tensors_add_file(tensors, path);
}

/* Where the map says that `entry` is. */
static bool is_mapped(const struct tensors *tensors, const json_t *map, const struct tensors_entry *entry)
{
    const char *name = json_string_value(json_object_get(map, entry->name));
    return name && strcmp(name, file_name(tensors, entry->file)) == 0;
}

static void keep_mapped(struct tensors *tensors, const json_t *map)
{
    size_t kept = 0;
    for (size_t i = 0; i < tensors->n; i++)
        if (is_mapped(tensors, map, &tensors->entry[i]))
            tensors->entry[kept++] = tensors->entry[i];
    tensors->n = kept;
}

static enum status add_files(struct tensors *tensors, json_t *map, const char *path)
{
    const char *name;
    json_t *value;
    if (!json_is_object(map))
        return FAIL(STATUS_USAGE, "\"weight_map\" is not an object");
    json_object_foreach(map, name, value)
    {
        if (!json_is_string(value))
            return FAIL(STATUS_USAGE, "the file of tensor '%.120s' is not a string", name);
        TRY(WHERE(add_named(tensors, path, json_string_value(value)), "tensor '%.120s'", name));
    }
    tensors_sort(tensors);
    keep_mapped(tensors, map);
    json_object_foreach(map, name, value)
    {
        if (tensors->n < json_object_size(map) && !tensors_find(tensors, name))
            return FAIL(STATUS_USAGE, "tensor '%.120s' is not in '%.120s', where the index says it is", name,
                        json_string_value(value));
    }
    return STATUS_OK;
}

enum status tensors_add_index(struct tensors *tensors, const char *path)
{
    json_t *root = NULL, *map = NULL;
    TRY(json_read(path, &root));
    enum status status = json_need(root, "weight_map", path, &map);
    if (status == STATUS_OK)
        status = WHERE(add_files(tensors, map, path), "%s", path);
    json_decref(root);
    return status;
}
