/* bench/oracle.h -- attention a second time, row by row: in double, and plainly in the storage type.
 *
 * The double one is the truth. The plain one is what a straightforward program in the storage type gets: every matrix (S, P, O, dP, dS,
 * gradients) rounded to it, sums in fp32 in order. A kernel may be off by twice what the plain one is off, and a few roundings of fp32.
 * Inputs come row by row from a source, so that rows of tensors that no rank holds whole can be checked. Meant to be obviously right,
 * not fast.
 */
#ifndef SPTUNE_BENCH_ORACLE_H
#define SPTUNE_BENCH_ORACLE_H

#include "kernels/attention_mask.h"

enum oracle_tensor { ORACLE_Q, ORACLE_K, ORACLE_V, ORACLE_DO };

struct oracle_source {
    /* Row (token from the start of the tensor, head) as fp32. */
    void (*row)(void *arg, enum oracle_tensor tensor, int64_t token, int head, float *out);
    void *arg;
};

/* A query: i from the start of its segment (see kernels/attention_mask.h). o, dq: exact, then plain. */
struct oracle_query {
    int64_t i;
    int head;
    double lse, plain_lse;
    double *o, *dq; /* [2][head_dim_v], [2][head_dim]; dq NULL: forward only */
};

/* Of the keys of a segment: exact, then plain; what all queries asked for add, from zero. NULL: not wanted. */
struct oracle_keys {
    double *dk, *dv; /* [2][seq_k][head_dim], [2][seq_k][head_dim_v] */
};

struct oracle_scale {
    double k_max, v_max, q_max, do_max, s_max, dp_max; /* largest magnitudes met, for the tolerances */
    double v_norm, do_norm;                            /* largest 2-norms of a row */
    double weight;                                     /* largest sum of a key's weights over its queries */
};

void oracle_scale_join(struct oracle_scale *all, const struct oracle_scale *part);

/* n queries of one segment that use kv head `kv`. */
enum status oracle_run(const struct attention_shape *shape, const struct oracle_source *source, int64_t segment, int kv,
                       struct oracle_query *queries, int64_t n, struct oracle_keys *keys, struct oracle_scale *scale);

/* All queries of a segment that use kv head `kv`, and its keys: what a tensor must hold there. copies: ranks that share the kv head,
 * each with its part of the query heads; the plain gradients of k and v are then sums of parts that were each rounded, as they travel. */
struct oracle_truth {
    struct attention_segment segment;
    int kv;
    int64_t n;
    struct oracle_query *queries; /* [n] */
    struct oracle_keys keys;
    double *rows;
};
enum status oracle_truth_make(const struct attention_shape *shape, const struct oracle_source *source, int64_t segment, int kv,
                              int copies, struct oracle_truth *out, struct oracle_scale *scale);
void oracle_truth_free(struct oracle_truth *truth); /* also after a failure */

double oracle_roundoff(enum dtype dtype); /* largest relative error of one rounding */

/* One tensor of a comparison. */
struct oracle_error {
    const char *name;
    double error, plain;
    int64_t token; /* where the error is largest */
    int head;
    bool bad;      /* a NaN, or an infinity that does not belong there */
};
void oracle_compare(struct oracle_error *error, double got, double exact, double plain, int64_t token, int head);
/* Within twice the plain error and `floor`; else false, and why. */
bool oracle_agrees(const struct oracle_error *error, double floor, char why[256]);
enum { ORACLE_O, ORACLE_LSE, ORACLE_DQ, ORACLE_DK, ORACLE_DV, ORACLE_OUTPUTS };
void oracle_errors_init(struct oracle_error errors[ORACLE_OUTPUTS]);
/* All outputs, with the floors that fp32 accumulation needs. */
bool oracle_all_agree(const struct attention_shape *shape, const struct oracle_error errors[ORACLE_OUTPUTS],
                      const struct oracle_scale *scale, char why[256]);

#endif
