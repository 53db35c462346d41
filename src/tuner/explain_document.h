/* tuner/explain_document.h -- a stored recommendation, read back into values that sp/work takes. Nothing in it is
 * trusted. */
#ifndef SPTUNE_TUNER_EXPLAIN_DOCUMENT_H
#define SPTUNE_TUNER_EXPLAIN_DOCUMENT_H

#include "base/json.h"
#include "base/text.h"
#include "sp/work.h"

/* The breakdown of a step; explain_part_names names them as the document does. */
enum explain_part {
    PART_EXCHANGE_IN,
    PART_ATTENTION,
    PART_EXCHANGE_OUT,
    PART_EXPOSED,
    PART_GEMM,
    PART_ZERO,
    PART_OPTIMIZER,
    PART_LOGITS,
    PART_ELEMENTWISE, /* 0 in documents that had none */
    PART_COUNT
};
extern const char *const explain_part_names[PART_COUNT];

/* Strings are borrowed from the document. */
struct explain_candidate {
    struct plan plan;
    char class[PLAN_NAME];
    double step_us, lo_us, hi_us, part_us[PART_COUNT];
    double speed; /* tokens per second and device */
    int64_t peak_bytes, host_bytes;
    double loses_by;
    const char *tied_with; /* text of a plan, NULL */
    const char *source, *rule, *why;
    bool chosen;
};

struct explain_refused {
    struct plan plan;
    char class[PLAN_NAME];
    const char *rule, *why;
};

struct explain_document {
    const json_t *root;
    const struct target *target;
    struct model model;
    struct problem problem;
    enum dev_kind measured;
    enum dev_kind planned; /* the kind of device whose memory is meant; documents that do not say: the one measured */
    int ranks, ranks_per_host;
    int64_t global_batch_tokens, device_memory_bytes, host_memory_bytes;
    const char *device_memory_from, *verdict;
    bool step_time; /* objective */
    int chosen;     /* index of candidate[], -1: nothing is legal */
    int n, nrefused;
    struct explain_candidate *candidate; /* owned */
    struct explain_refused *refused;     /* owned */
};

/* Another schema, a newer one, fields that are missing or cannot be: STATUS_USAGE, *out empty. */
enum status explain_document_read(const json_t *root, struct explain_document *out);
void explain_document_free(struct explain_document *document);

/* The chosen plan's problem has its micro-batch. */
void explain_problem(const struct explain_document *document, const struct plan *plan, struct problem *out);
double explain_share(int64_t bytes, int64_t limit); /* of memory, in percent */
/* Of this candidate, or of one derived from it: as the screen of `tune` writes them, no digit that its interval does not
 * carry. Buffers of UNITS_BUF bytes. */
char *explain_step(const struct explain_candidate *candidate, double step_us, char *buf);
char *explain_speed(const struct explain_candidate *candidate, double speed, char *buf);
/* "sp 4", "sp 4 loss=tiled": what tells this plan from the others of the document. */
void explain_plan_name(const struct explain_document *document, const struct plan *plan, const char *class,
                       struct text *out);

/* A paragraph of at most 80 columns; lines after the first are indented. Any bytes are made printable. */
void explain_say(struct text *out, int indent, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
