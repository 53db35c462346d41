/* bench/ceiling.h -- what a row could reach at most, measured beside it: bytes by plain copies, FLOPs by multiply-adds in registers.
 *
 * A row that moves bytes is compared with the copies that its subject names (struct bench_subject.traffic): as many bytes, in the same
 * directions at once, in the same cache state. They are taken in the same rounds as the row itself, just before its blocks, so that a
 * machine that changes its mood changes it for both. Rows of one call with equal traffic share a ceiling.
 */
#ifndef SPTUNE_BENCH_CEILING_H
#define SPTUNE_BENCH_CEILING_H

#include "bench/traffic.h"

struct ceiling; /* owned by its run, borrowed by rows */

/* Is this the ceiling of that case, whose ranks move `bytes` each? */
bool ceiling_is_of(const struct ceiling *ceiling, const struct bench_case *c, enum bench_traffic traffic,
                   int64_t bytes);
/* Collective. Copies within each rank stand in where peers cannot be stored to; NULL when there is no memory for it. */
enum status ceiling_open(struct bench_env *env, const struct bench_case *c, enum bench_traffic traffic, int64_t bytes,
                         struct ceiling **out);
void ceiling_close(struct ceiling *ceiling);
/* Collective: a few copies of each kind of store. */
enum status ceiling_take(struct ceiling *ceiling, struct dev_queue *queue);
/* What was taken was taken in another state of the machine. */
void ceiling_restart(struct ceiling *ceiling);

struct ceiling_result {
    double GBps; /* of the fastest copy; 0: none was taken */
    char by[64]; /* "stores to all ranks, memcpy" */
    int samples;
};
struct ceiling_result ceiling_result(const struct ceiling *ceiling);

/* The best rate of bench/spin.h so far. */
double ceiling_tflops(const struct bench_env *env);

#endif
