/* sp/problem.h -- what one attention layer has to do, for all ranks together. A plain value without pointers.
 *
 * Lengths are global tokens of one sequence, before padding. sp_size P is not part of the problem: a searched P is evaluated
 * at problem_padded(problem, P). Documents are the packed lengths inside each row, in order; padding becomes a document of
 * its own at the end. RoPE and positions are applied before the exchange and are not seen here.
 */
#ifndef SPTUNE_SP_PROBLEM_H
#define SPTUNE_SP_PROBLEM_H

#include "base/dtype.h"
#include "base/status.h"
#include "model/model.h"

#include <stdbool.h>
#include <stdint.h>

enum { PROBLEM_MAX_DOCS = 1024 };

enum problem_direction { PROBLEM_FORWARD = 1, PROBLEM_BACKWARD = 2, PROBLEM_BOTH = 3 };

struct problem {
    int64_t batch;         /* sequences per micro-batch of one sp group */
    int64_t seq;           /* tokens of one sequence, >= 0 */
    bool seq_fixed;        /* the user fixed both S and P: never pad, refuse */
    int heads, kv_heads;
    int head_dim;
    int head_dim_v;        /* 0: head_dim */
    int64_t hidden, ffn;   /* 0: attention only */
    enum dtype dtype;
    bool causal;           /* aligned bottom-right; both ends agree because seq_q = seq_k */
    int64_t window;        /* 0: none */
    int docs;              /* 0: not packed */
    int64_t doc_len[PROBLEM_MAX_DOCS]; /* sum = seq */
    enum problem_direction direction;
    int world;             /* processes of the job */
};

/* From a model's shapes: batch 1, both directions. */
void problem_from_model(const struct model *model, int64_t seq, int world, struct problem *out);
/* Positive sizes, products within int64, document lengths that sum to seq: STATUS_USAGE naming the field. */
enum status problem_check(const struct problem *problem);
int64_t problem_padded(const struct problem *problem, int sp); /* ceil(seq / sp) * sp */
int64_t problem_local(const struct problem *problem, int sp);  /* its share of one rank */
int problem_dim_v(const struct problem *problem);
/* Of ranks that cut a layer's heads `ways` ways, what one of them has of it: its heads and kv heads, of rows of `padded` tokens. Padding is then
 * a part of the sequence, and a document of its own where a mask would see it; STATUS_UNSUPPORTED: that is one too many. */
enum status problem_cut(struct problem *problem, int ways, int64_t padded);
/* Do they differ in nothing but documents? */
bool problem_alike(const struct problem *a, const struct problem *b);
/* `none`, `fixed:8k`, or a file of lengths (one per line): fills docs and doc_len for this seq. Lengths that sum to less are
 * repeated, those that sum to more are cut at seq; both with a warning. Nothing changes on failure. */
enum status problem_set_docs(struct problem *problem, const char *docs);
/* cu[*out_docs + 1] offsets of every document of `batch` rows of `padded` tokens each; padding and row ends are boundaries.
 * For an unpacked problem *out_docs is 0 and cu is NULL, unless its mask is full and it has padding, which then is a document of
 * its own (a causal mask hides padding by itself). free() cu. */
enum status problem_offsets(const struct problem *problem, int64_t padded, int64_t **cu, int *out_docs);

#endif
