/* tuner/explain_answer.h -- the questions that explain answers; each in words, and as fields of a JSON object. */
#ifndef SPTUNE_TUNER_EXPLAIN_ANSWER_H
#define SPTUNE_TUNER_EXPLAIN_ANSWER_H

#include "tuner/explain_document.h"

struct explain_answer {
    struct text text;
    json_t *body; /* owned object */
};

/* Conditions on a plan: "sp=4 loss=fused", in the words of the options and of the document. */
enum { EXPLAIN_CONDITIONS = 12 };
struct explain_condition {
    char key[24], value[64];
};
enum status explain_conditions(const char *text, const char *option, const char *const *keys, int nkeys,
                               struct explain_condition out[EXPLAIN_CONDITIONS], int *out_n);
/* Does the plan meet it? STATUS_USAGE for a value that cannot be. */
enum status explain_meets(const struct explain_condition *condition, const struct plan *plan, const char *class,
                          bool *out);
extern const char *const explain_plan_keys[]; /* what explain_meets knows; NULL-terminated */

enum status explain_whole(const struct explain_document *document, struct explain_answer *out);
enum status explain_term(const struct explain_document *document, const char *term, struct explain_answer *out);
enum status explain_why_not(const struct explain_document *document, const char *which, struct explain_answer *out);
enum status explain_what_if(const struct explain_document *document, const char *change, struct explain_answer *out);

#endif
