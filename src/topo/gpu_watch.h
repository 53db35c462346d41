/* topo/gpu_watch.h -- what a GPU does meanwhile, as its driver tells it: clocks, heat, power, what holds the clocks down, who else
 * computes on it.
 *
 * Reading takes some tens of microseconds of the host and none of the GPU.
 *
 *     struct gpu_watch *watch = gpu_watch_open("0000:17:00.0");  // NULL: nobody can be asked
 *     gpu_watch_read(watch, &before);
 *     ...work...
 *     gpu_watch_read(watch, &after);
 *     gpu_watch_close(watch);
 */
#ifndef SPTUNE_TOPO_GPU_WATCH_H
#define SPTUNE_TOPO_GPU_WATCH_H

#include <stddef.h>
#include <stdint.h>

struct gpu_watch;

enum {
    GPU_HELD_POWER = 1,    /* the limit of its power */
    GPU_HELD_HEAT = 2,     /* its temperature, or its memory's */
    GPU_HELD_HARDWARE = 4, /* a slowdown by the board: power supply, brake */
};

struct gpu_facts {
    int sm_mhz, memory_mhz; /* now; -1 not told, as all of these */
    int celsius;
    double watts;
    int held;                            /* GPU_HELD_* now */
    int64_t power_held_ns, heat_held_ns; /* since the driver started */
    int others;                          /* processes that compute on it and came since the watch was settled */
};

struct gpu_watch *gpu_watch_open(const char *busid); /* as in struct topo_gpu */
void gpu_watch_close(struct gpu_watch *watch);       /* accepts NULL */
/* What computes on the GPU now is this job, or was there before and somebody has judged it (topo_ranks_together): a rank that has mapped a
 * peer's memory may count there too, and in a container nobody can tell which process is which. Opening settles too. Accepts NULL. */
void gpu_watch_settle(struct gpu_watch *watch);
void gpu_watch_driver(const struct gpu_watch *watch, char *buf,
                      size_t size);                                        /* "580.159.04"; "" not told. Of NULL too. */
void gpu_watch_read(const struct gpu_watch *watch, struct gpu_facts *out); /* of NULL: nothing is told */

#endif
