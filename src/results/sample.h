/* results/sample.h -- one measured row: its key, raw times, conditions, outcome. Statistics are functions of it (stats.h).
 *
 * A key says what was measured, nothing of how fast. It lists only the fields that apply to its subject: "" and -1 are absent.
 * Times are microseconds per iteration, the maximum over ranks. GB/s = 10^9 bytes per second. Everything a sample owns is released
 * by sample_free.
 *
 *     struct sample sample;
 *     sample_init(&sample);
 *     snprintf(sample.key.subject, SAMPLE_NAME, "gemm");
 *     TRY(store_put(store, run, &sample));
 *     sample_free(&sample);
 */
#ifndef SPTUNE_RESULTS_SAMPLE_H
#define SPTUNE_RESULTS_SAMPLE_H

#include "base/json.h"
#include "base/status.h"
#include "base/verdict.h"
#include "results/stats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SAMPLE_NAME = 32 };

/* kind, name: the order of JSON keys, table columns and the canonical text. */
#define SAMPLE_KEY_LIST(T, I)                                                            \
    T(subject) I(ranks) I(sp) T(op) I(bytes) I(heads) I(kv_heads) I(head_dim) I(head_dim_v) I(hidden) I(ffn) I(seq)      \
    I(batch) I(m) I(n) I(k) T(dtype) T(attention) T(exchange) T(method) I(chunks) T(direction) I(causal) I(window)      \
    T(docs) T(span) T(timing) T(buffers)
struct sample_key {
#define SAMPLE_KEY_TEXT(name) char name[SAMPLE_NAME];
#define SAMPLE_KEY_INT(name) int64_t name;
    SAMPLE_KEY_LIST(SAMPLE_KEY_TEXT, SAMPLE_KEY_INT)
#undef SAMPLE_KEY_TEXT
#undef SAMPLE_KEY_INT
};

enum sample_outcome { SAMPLE_OK, SAMPLE_WAIVED, SAMPLE_FAILED };
const char *sample_outcome_name(enum sample_outcome outcome); /* "ok" "waived" "failed" */

struct sample {
    struct sample_key key;
    enum sample_outcome outcome;
    enum rule rule;      /* waived: which rule */
    char why[256];       /* waived or failed: reason */
    double *times_us;    /* n of them, in the order measured; owned */
    int n;
    int64_t bytes;       /* per rank, send side, own block included; -1 when bytes do not apply. As nccl-tests' size: of an
                          * allgather what was gathered, of a reduce_scatter what is scattered */
    double flops;        /* per rank and iteration, 0 when they do not apply */
    int group;           /* ranks of one exchange (busbw factor); 1 when it does not apply */
    double ceiling_GBps; /* same bytes, same directions busy, same buffers; 0 when not measured */
    double ceiling_tflops;
    char transport[48];  /* what really carried data, "" when none */
    char kernel[64];     /* what really computed: "cpu avx2", "openblas 0.3.21 Zen" */
    bool verified;       /* buffers of timed iterations were verified */
    bool scaled;         /* a head group was timed and times_us are scaled to the whole */
    double scale;        /* whole / timed, 1 otherwise */
    char *conditions;    /* JSON object text: steal, scaling probe, oversubscribed ...; owned, NULL when none */
    char *versions;      /* JSON object text: sptune, ucx, openblas, kernel release, NCCL_* and UCX_* set; owned */
    char machine[33];    /* topo fingerprint */
    char measured_at[32];
};

void sample_key_init(struct sample_key *key); /* every field absent */
/* "subject=exchange ranks=2 ..." in list order, absent fields left out: equal keys have equal texts. Blanks, control
 * characters, '=' and '%' of a name are written %XX. free(); NULL when memory ran out. */
char *sample_key_text(const struct sample_key *key);
/* Fields in any order, each once. */
enum status sample_key_parse(const char *text, struct sample_key *out);
bool sample_key_equal(const struct sample_key *a, const struct sample_key *b);

/* The fields as a table, for whoever walks them all: columns, axes, JSON. */
struct sample_field {
    const char *name;
    bool text;
    size_t offset;
};
enum {
#define SAMPLE_KEY_ENUM(name) SAMPLE_FIELD_##name,
    SAMPLE_KEY_LIST(SAMPLE_KEY_ENUM, SAMPLE_KEY_ENUM)
#undef SAMPLE_KEY_ENUM
        SAMPLE_FIELDS
};
extern const struct sample_field sample_fields[SAMPLE_FIELDS];
const char *sample_field_text(const struct sample_key *key, const struct sample_field *field); /* "" when absent */
int64_t sample_field_int(const struct sample_key *key, const struct sample_field *field);     /* -1 when absent */
bool sample_field_present(const struct sample_key *key, const struct sample_field *field);
const struct sample_field *sample_field_find(const char *name);

void sample_init(struct sample *sample);
void sample_free(struct sample *sample);
enum status sample_copy(const struct sample *from, struct sample *out);

/* What the times and bytes amount to; NAN where it does not apply or nothing was measured. */
struct sample_summary {
    double median_us, p95_us;
    struct stats_interval ci95_us; /* of the median, wider by sample_predicted_within */
    double algbw_GBps;     /* bytes / median: link, collective, exchange */
    double busbw_GBps;     /* collective alone: algbw times what the operation sends over the wire, as nccl-tests does */
    double effective_GBps; /* exchange: bytes / median, the change of layout included; not a link rate */
    double tflops;
    double ceiling_share;  /* (busbw, effective or tflops) / ceiling */
};
/* Of a row that was scaled to more ranks (tuner/predict.h): the relative 95 % half-width of that; NAN of others. */
double sample_predicted_within(const struct sample *sample);
void sample_summarize(const struct sample *sample, struct sample_summary *out);

json_t *sample_to_json(const struct sample *sample); /* an element of sptune.samples/1, statistics included */
/* `where` is the path of the document. Statistics in the document are not believed: times_us is what counts. */
enum status sample_from_json(const json_t *json, const char *where, struct sample *out);

/* Add the variables that may be recorded (NCCL_* UCX_* CUDA_VISIBLE_DEVICES OMP_* SPTUNE_*) to `object`, by name. Where results are
 * kept (SPTUNE_STORE) and names that look like secrets are left out. */
enum status sample_environment(json_t *object);

#endif
