/* model/family.c -- the table of families, and what is known about types that are refused. */
#include "model/family.h"
#include "base/text.h"

#include <string.h>

/* Every family_<group>.c has its line here; a test fails otherwise. */
static const struct model_family *const model_families[] = {
    family_llama, family_qwen, family_gemma, family_gpt, family_falcon, family_moe, family_deepseek, family_wrapper,
};

enum { GROUPS = sizeof model_families / sizeof model_families[0] };

/* Known types whose attention has shapes that are not modelled, so that the refusal can say why. */
static const struct {
    const char *type, *why;
} refused[] = {
    {"qwen3_next", "it mixes linear attention layers in"},
    {"qwen3_5", "it mixes linear attention layers in"},
    {"qwen3_5_moe", "it mixes linear attention layers in"},
    {"kimi_linear", "it mixes linear attention layers in"},
    {"minimax", "it mixes linear attention layers in"},
    {"jamba", "it mixes state-space layers in"},
    {"bamba", "it mixes state-space layers in"},
    {"zamba2", "it mixes state-space layers in"},
    {"falcon_h1", "it mixes state-space layers in"},
    {"nemotron_h", "it mixes state-space layers in"},
    {"granitemoehybrid", "it mixes state-space layers in"},
    {"lfm2", "it mixes convolution layers in"},
    {"mamba", "it has no attention"},
    {"mamba2", "it has no attention"},
    {"falcon_mamba", "it has no attention"},
    {"openelm", "its heads differ from layer to layer"},
    {"nemotron-nas", "its heads differ from layer to layer"},
    {"gemma3n", "its layers share K and V and have their own embeddings"},
    {"gemma4", "its heads differ between window and full layers"},
    {"mllama", "it has cross-attention layers"},
    {"llama4", "it has chunked attention and experts in some layers"},
    {"deepseek_v32", "its attention picks keys with an indexer"},
    {"t5", "it is an encoder-decoder"},
    {"bart", "it is an encoder-decoder"},
    {"whisper", "it is an encoder-decoder"},
    {"bert", "it is an encoder"},
    {"roberta", "it is an encoder"},
};

static const struct model_family *next(const struct model_family *row, int *group)
{
    if (row != NULL)
        row++;
    while (row == NULL || row->type == NULL) {
        if (*group == GROUPS)
            return NULL;
        row = model_families[(*group)++];
    }
    return row;
}

int family_count(void)
{
    int n = 0, group = 0;
    for (const struct model_family *row = next(NULL, &group); row != NULL; row = next(row, &group))
        n++;
    return n;
}

const struct model_family *family_at(int index)
{
    int group = 0;
    const struct model_family *row = next(NULL, &group);
    while (row != NULL && index-- > 0)
        row = next(row, &group);
    return row;
}

const struct model_family *family_find(const char *type)
{
    int group = 0;
    const struct model_family *row = next(NULL, &group);
    while (row != NULL && strcmp(row->type, type) != 0)
        row = next(row, &group);
    return row;
}

const struct model_family *family_by_architecture(const char *architecture)
{
    int group = 0;
    const struct model_family *row = next(NULL, &group);
    while (row != NULL && (row->architecture == NULL || strcmp(row->architecture, architecture) != 0))
        row = next(row, &group);
    return row;
}

static const char *why_refused(const char *type)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        size_t len = strlen(refused[i].type);
        if (strncmp(type, refused[i].type, len) == 0 && (type[len] == '\0' || strcmp(type + len, "_text") == 0))
            return refused[i].why;
    }
    return NULL;
}

/* Types that a person would write; those of nested parts are left out. */
static enum status hint_types(enum status status, const char *type)
{
    enum { MOST = 128 };
    const char *names[MOST];
    struct text list = {0};
    size_t n = 0;
    for (int i = 0; i < family_count() && n < MOST; i++) {
        const struct model_family *row = family_at(i);
        if (row->architecture == NULL)
            continue;
        names[n++] = row->type;
        text_add(&list, "%s%s", n > 1 ? " " : "", row->type);
    }
    const char *near = text_nearest(type, names, n);
    if (near != NULL)
        status = HINT(status, "did you mean %s? read are: %s", near, text_get(&list));
    else
        status = HINT(status, "read are: %s", text_get(&list));
    text_free(&list);
    return status;
}

enum status family_unknown(const char *type, const char *where)
{
    const char *why = why_refused(type);
    enum status status = why != NULL ? FAIL(STATUS_USAGE, "model_type \"%s\" is not modelled: %s", type, why)
                                     : FAIL(STATUS_USAGE, "model_type \"%.60s\" is not one that is read here", type);
    return hint_types(WHERE(status, "%s, key model_type", where), type);
}
