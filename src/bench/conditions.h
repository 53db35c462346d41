/* bench/conditions.h -- what the machine did meanwhile: CPU time that the hypervisor stole, that other processes took, that the control
 * group forbade. */
#ifndef SPTUNE_BENCH_CONDITIONS_H
#define SPTUNE_BENCH_CONDITIONS_H

#include <stdint.h>

struct conditions {
    int64_t ns;
    double steal_ticks, ticks; /* /proc/stat, all CPUs */
    int64_t waited_ns;         /* this process could have run, but others did */
    int64_t throttled;         /* periods in which the group was stopped, over the group and its parents */
};

void conditions_read(struct conditions *out);
void conditions_read_at(const char *root, struct conditions *out); /* tests: a directory that holds proc/ and sys/ */

struct conditions_span {
    double elapsed_us;
    double steal_share; /* of all CPU time; 0 when below the clock's resolution of two ticks */
    double wait_share;  /* of the elapsed time */
    double throttled;
};
struct conditions_span conditions_between(const struct conditions *from, const struct conditions *to);
/* From `from` until now. */
struct conditions_span conditions_since(const struct conditions *from);

#endif
