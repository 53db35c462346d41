/* model/family.h -- how one model_type is read: a row of the table, and the reader that its function works with.
 *
 * A family is one row of a family_<group>.c and one line in family.c. Its `read` takes the keys it knows from the
 * reader, fills reader->model, and leaves what a layer weighs in reader->counts; reader_run then checks and sums.
 * Keys absent from a nested text_config have the value of the family's `defaults` (published files leave out what
 * equals them); at the top level a missing size is an error.
 */
#ifndef SPTUNE_MODEL_FAMILY_H
#define SPTUNE_MODEL_FAMILY_H

#include "model/count.h"
#include "model/model.h"

#include <jansson.h>

/* Sizes that every decoder has; families may call them by older names. */
enum role { ROLE_LAYERS, ROLE_HIDDEN, ROLE_HEADS, ROLE_KV_HEADS, ROLE_FFN, ROLE_POSITIONS, ROLE_COUNT };

struct reader;

struct model_family {
    const char *type;              /* model_type */
    const char *architecture;      /* architectures[0] where model_type is missing; NULL: never without model_type */
    const char *alias[ROLE_COUNT]; /* the family's own name of a role, NULL: the usual one only */
    bool tied;                     /* tie_word_embeddings when absent */
    bool decoder;                  /* its layers compute what those of Llama do (sp/block.h) */
    int64_t kv_heads;              /* num_key_value_heads when absent; 0: as many as heads */
    int64_t head_dim;              /* head_dim when absent; 0: hidden / heads */
    int64_t defaults[ROLE_COUNT];  /* for text_config only; 0: required there too */
    int64_t default_vocab;         /* likewise */
    const char *text_type;         /* not NULL: a wrapper whose text_config is of this type unless it says another */
    const char *const *reads;      /* keys of `unmodelled` that this family does model; NULL-terminated, or NULL */
    enum status (*read)(struct reader *reader);
};

struct reader {
    const json_t *object; /* holds the keys of the text model */
    const json_t *outer;  /* the wrapper around it, NULL when there is none */
    const char *where;    /* file, for messages */
    const struct model_family *family;
    struct model *model;
    struct counts counts;
};

/* NULL-terminated rows of one group of families. */
extern const struct model_family family_llama[], family_qwen[], family_gemma[], family_gpt[], family_falcon[],
    family_moe[], family_deepseek[], family_wrapper[];

const struct model_family *family_find(const char *type);
const struct model_family *family_by_architecture(const char *architecture);
/* STATUS_USAGE: `type` is not read; with the reason where it is a known one, and a suggestion. */
enum status family_unknown(const char *type, const char *where);
int family_count(void);
const struct model_family *family_at(int index);

#endif
