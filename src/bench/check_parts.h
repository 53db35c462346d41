/* bench/check_parts.h -- what the checkers share, and their inner functions, so that a test can hand them a plug-in that is wrong. */
#ifndef SPTUNE_BENCH_CHECK_PARTS_H
#define SPTUNE_BENCH_CHECK_PARTS_H

#include "bench/check.h"
#include "kernels/attention.h"
#include "sp/exchange.h"

extern const struct check check_kernels, check_transport, check_exchange, check_plan, check_block;

/* Of one row, on one rank: how many problems, and the first thing that was wrong. */
struct tally {
    int cases;
    bool wrong, cannot; /* cannot: nothing was tried, for the reason in why */
    char why[256];
};
void tally_wrong(struct tally *tally, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tally_cannot(struct tally *tally, const char *why);
/* A status that is no reason to end the job becomes something wrong; the others are returned. */
enum status tally_status(struct tally *tally, enum status status);

/* NULL: any. */
const struct plan *check_only(const struct check_order *order);
/* Is a row of this text asked for? The same on all ranks: the text has to be. */
bool check_asked(const struct check_order *order, const char *what);
/* What runs now; report is NULL off rank 0. */
void check_begins(const struct check_report *report, const char *area, const char *what);
/* Collective: a row that passed on every rank, or what the first rank said that was wrong. cases: of this rank, or when `spread`
 * shared out among the ranks, so that they add. report is NULL off rank 0. */
enum status check_row_add(struct bench_env *env, struct check_report *report, const char *area, const char *what,
                          const struct tally *tally, bool spread);
/* Not collective: all ranks know. Nothing where it is not asked for. */
enum status check_row_waive(const struct check_order *order, struct check_report *report, const char *area,
                            const char *what, enum rule rule, const char *why);

/* ---- check_kernels.c ---- */
enum { CHECK_VARIANTS = 8 };
struct check_variant {
    const struct attention *attention;
    int isa; /* for attention_cpu_use; -1: does not apply */
    struct tally tally;
};
/* Every shape for each of n kernels, the shapes shared out among `ranks`. */
enum status check_attention(struct dev *dev, struct check_variant *variants, int n, uint64_t seed, int rank, int ranks);

/* ---- copy_check.c, part of check_kernels ---- */
/* Jobs and sums shared out among `ranks`. */
enum status check_copy(struct dev *dev, uint64_t seed, int rank, int ranks, struct tally *tally);

/* ---- gemm_check.c, part of check_kernels ---- */
/* Products shared out among `ranks`; those that a library has no kernel for are left out. */
enum status check_products(struct dev *dev, uint64_t seed, int rank, int ranks, struct tally *tally);

/* ---- check_transport.c ---- */
enum status check_collectives(struct comm *comm, uint64_t seed, struct tally *tally);

/* ---- check_exchange.c ---- */
struct group;
/* Every shape for one exchange on one group; all groups of the job do the same. */
enum status check_exchange_shapes(const struct exchange *exchange, const struct group *group, uint64_t seed,
                                  struct tally *tally);

/* ---- check_plan.c ---- */
/* A small problem for groups of sp ranks. `local` query heads per rank. */
enum { CHECK_PROBLEMS = 14 };
void check_problem(int index, int sp, int world, int local, struct problem *out);
/* One plan on one problem, forward and backward, middle layout included. */
enum status check_plan_run(struct bench_env *env, const struct group *group, const struct problem *problem,
                           const struct plan *plan, uint64_t seed, struct tally *tally);

#endif
