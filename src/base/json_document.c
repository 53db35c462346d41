/* base/json_document.c -- the envelope that every document shares, and the document of a failure. */
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "base/version.h"

#include <stdlib.h>
#include <string.h>

/* A JSON string of any bytes: what is not UTF-8 (a command line may hold anything) becomes '?'. */
static json_t *clean_string(const char *text)
{
    char *copy = strdup(text ? text : "");
    if (!copy)
        return NULL;
    text_clean(copy);
    json_t *string = json_string(copy);
    free(copy);
    return string;
}

static json_t *all_warnings(void)
{
    json_t *list = json_array();
    for (int i = 0; list && i < log_warning_count(); i++) {
        if (json_array_append_new(list, clean_string(log_warning(i))) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

json_t *json_document(const char *noun, const struct json_envelope *envelope)
{
    static const struct json_envelope empty = {0};
    const struct json_envelope *from = envelope ? envelope : &empty;
    char schema[96];
    text_print(schema, sizeof schema, "sptune.%s/1", noun);
    json_t *root = json_object();
    int failed = json_object_set_new(root, "schema", clean_string(schema));
    failed |= json_object_set_new(root, "version", json_string(SPTUNE_VERSION));
    failed |= json_object_set_new(root, "command", clean_string(from->command));
    failed |= json_object_set_new(root, "started", clean_string(from->started));
    failed |= json_object_set_new(root, "seed", json_integer(from->seed));
    failed |= json_object_set_new(root, "machine", clean_string(from->machine));
    failed |= json_object_set_new(root, "warnings", all_warnings());
    if (failed) {
        json_decref(root);
        return NULL;
    }
    return root;
}

json_t *json_error(const struct json_envelope *envelope, const struct status_message *message)
{
    json_t *root = json_document("error", envelope);
    int failed = json_object_set_new(root, "status", json_string(status_name(message->code)));
    failed |= json_object_set_new(root, "what", clean_string(message->what));
    failed |= json_object_set_new(root, "where", clean_string(message->where));
    failed |= json_object_set_new(root, "hint", clean_string(message->hint));
    failed |= json_object_set_new(root, "rank", message->rank < 0 ? json_null() : json_integer(message->rank));
    if (failed) {
        json_decref(root);
        return NULL;
    }
    return root;
}
