/* tuner/explain.h -- derives any number of a stored recommendation, without measuring: from its document alone. */
#ifndef SPTUNE_TUNER_EXPLAIN_H
#define SPTUNE_TUNER_EXPLAIN_H

#include "base/json.h"
#include "base/status.h"

struct explain_options {
    const char *term;    /* a memory term, breakdown entry or assumption by name; NULL: the whole answer in words */
    const char *why_not; /* "sp=4": why this candidate lost */
    const char *what_if; /* "loss=fused", "device-memory=141GiB": decide again on the stored numbers */
};
enum status explain_run(const json_t *recommendation, const struct explain_options *options, char **out); /* free() */
json_t *explain_to_json(const json_t *recommendation, const struct explain_options *options);

#endif
