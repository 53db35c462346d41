/* tuner/emit.c -- the table of emitters, and one directory written as a whole. */
#include "tuner/emit.h"

#include "base/file.h"
#include "tuner/emit_batch.h"
#include "tuner/emit_quote.h"

#include <stdlib.h>
#include <string.h>

extern const struct emit emit_accelerate;

const struct emit *const emits[] = {
    &emit_accelerate,
    NULL,
};

const struct emit *emit_find(const char *name)
{
    for (int i = 0; name != NULL && emits[i] != NULL; i++)
        if (strcmp(emits[i]->name, name) == 0)
            return emits[i];
    return NULL;
}

static enum status unknown(const char *name)
{
    struct text list = {0};
    for (int i = 0; emits[i] != NULL; i++)
        text_add(&list, "%s%s", i > 0 ? ", " : "", emits[i]->name);
    enum status status = HINT(FAIL(STATUS_USAGE, "nothing emits '%.40s'", name), "known: %s", text_get(&list));
    text_free(&list);
    return status;
}

/* As json_write writes it, so that a reader sees no difference. */
static enum status add_document(const struct recommendation *recommendation, const struct emit_context *context)
{
    struct text text = {0};
    char *bytes = NULL;
    json_t *document = recommend_to_json(recommendation, &context->envelope);
    if (document == NULL)
        return FAIL(STATUS_NOMEM, "no memory for the document");
    enum status status = json_format(document, true, &bytes);
    json_decref(document);
    TRY(status);
    text_add(&text, "%s\n", bytes);
    free(bytes);
    return emit_batch_add(context->batch, "recommendation.json", false, &text);
}

static enum status render(struct recommendation *recommendation, const char *const *names, int n,
                          const struct emit_context *context)
{
    for (int i = 0; i < n; i++) {
        const struct emit *emit = emit_find(names[i]);
        if (emit == NULL)
            return unknown(names[i]);
        TRY(emit->run(recommendation, context));
    }
    return add_document(recommendation, context);
}

enum status emit_all(struct recommendation *recommendation, const char *const *names, int n,
                     const struct emit_context *context)
{
    struct emit_batch batch = {0};
    struct emit_context with = *context;
    with.batch = &batch;
    recommendation->nfiles = 0;
    enum status status = render(recommendation, names, n, &with);
    if (status == STATUS_OK)
        status = file_make_dirs(context->dir);
    if (status == STATUS_OK)
        status = emit_batch_check(&batch, context->dir, context->force);
    if (status == STATUS_OK)
        status = emit_batch_write(&batch, context->dir);
    emit_batch_free(&batch);
    if (status != STATUS_OK)
        recommendation->nfiles = 0;
    return status;
}

static bool has_file(const struct recommendation *recommendation, const char *name)
{
    for (int i = 0; i < recommendation->nfiles; i++)
        if (strcmp(recommendation->files[i].path, name) == 0)
            return true;
    return false;
}

void emit_next(const struct recommendation *recommendation, const char *dir, char *buf, size_t size)
{
    struct text line = {0};
    for (int i = 0; emits[i] != NULL && line.len == 0; i++) {
        if (!has_file(recommendation, emits[i]->main_file))
            continue;
        text_add(&line, "cd %s", dir[0] == '-' ? "-- " : "");
        quote_shell(&line, dir);
        text_add(&line, " && %s", emits[i]->next(recommendation));
    }
    /* Half a command is worse than none. */
    if (text_status(&line) != STATUS_OK || !text_print(buf, size, "%s", text_get(&line)))
        text_print(buf, size, "%s", "");
    text_free(&line);
}
