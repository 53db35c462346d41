/* bench/subject.h -- what the subjects share: rules, keys, and the part of a problem that is really timed. For bench/subject_*.c. */
#ifndef SPTUNE_BENCH_SUBJECT_H
#define SPTUNE_BENCH_SUBJECT_H

#include "bench/bench.h"
#include "bench/data.h"
#include "bench/group.h"
#include "bench/rotation.h"
#include "kernels/attention.h"

enum { SUBJECT_SYNC_US = 600 * 1000 * 1000 };

extern const struct bench_subject subject_link;
extern const struct bench_subject subject_collective;
extern const struct bench_subject subject_exchange;
extern const struct bench_subject subject_attention;
extern const struct bench_subject subject_gemm;
extern const struct bench_subject subject_layer;
extern const struct bench_subject span_block; /* subject layer, span block */

/* What a case is timed as: the subject itself, or its span. */
const struct bench_subject *subject_span(const struct bench_subject *subject, const struct bench_case *c);

/* The world is the job's, and sp divides it. */
struct verdict subject_check_world(const struct bench_case *c, const struct bench_env *env);
/* That, sane sizes, and heads that sp can split. */
struct verdict subject_check_heads(const struct bench_case *c, const struct bench_env *env);
/* Do these ranks have the paths that the plan's exchange needs? */
struct verdict subject_check_paths(const struct bench_case *c, const struct bench_env *env);
/* Is device memory summed over ranks on the device? Where the transport has no sums of its own they wait for their queue, and a gate would
 * wait for them. */
struct verdict subject_check_sums(const struct bench_env *env);
/* Does an operation of the case wait for its queue, since the host drives its exchange? Then it is not behind a gate, nor in a graph. */
bool subject_host_driven(const struct bench_subject *subject, const struct bench_case *c);
enum dev_kind subject_dev(const struct bench_env *env); /* the CPU when there is no env */

void subject_key_common(const struct bench_case *c, struct sample *out); /* subject, ranks, dtype, timing, buffers */
void subject_key_heads(const struct bench_case *c, struct sample *out);  /* sp, heads, seq, batch, direction */
void subject_key_mask(const struct bench_case *c, struct sample *out);   /* causal, window, docs */
void subject_key_plan(const struct bench_case *c, struct sample *out);   /* method, exchange, attention, chunks */
/* The plan of a layer, which does not depend on how the rest of the job is split. */
struct plan subject_plan(const struct bench_case *c);
/* "none", "fixed:8k" or "12docs-1a2b3c4d". */
void subject_docs_text(const struct problem *problem, char buf[SAMPLE_NAME]);

/* The case with as many heads as are really timed per rank (c->heads_timed; 0, or more than there are: all), legal by itself: part of a
 * group of query heads that share a kv head, or whole groups (rounded down to them). scale = whole / timed. */
struct verdict subject_timed(const struct bench_case *c, struct bench_case *out, double *scale);

/* The attention that one rank of the group computes; *cu is owned by the caller and borrowed by the shape. */
enum status subject_attention_shape(const struct problem *problem, int sp, int rank, struct attention_shape *out, int64_t **cu);
/* The attention that all of them compute together, of rows padded to `padded` tokens. */
enum status subject_whole_shape(const struct problem *problem, int64_t padded, struct attention_shape *out, int64_t **cu);
/* "cpu avx2" */
void subject_kernel_name(const struct attention *attention, char buf[64]);

#endif
