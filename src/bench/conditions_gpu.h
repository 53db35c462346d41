/* bench/conditions_gpu.h -- what the ranks' GPUs did meanwhile: clocks, heat, power, what held the clocks down, other processes.
 *
 * Numbers of which the largest over ranks and blocks counts, so that they go through one maximum: clocks with their sign turned.
 */
#ifndef SPTUNE_BENCH_CONDITIONS_GPU_H
#define SPTUNE_BENCH_CONDITIONS_GPU_H

#include "topo/gpu_watch.h"

#include <jansson.h>
#include <stdbool.h>

enum conditions_gpu {
    GPU_SM_MHZ, /* turned; 0 not told, as all of these */
    GPU_MEMORY_MHZ,
    GPU_CELSIUS,
    GPU_WATTS,
    GPU_POWER, /* share of the time in which its power limit held the clocks down; of these three all of it when it does at
                  the end and nobody counts how long */
    GPU_HEAT,
    GPU_HARDWARE,
    GPU_OTHERS,
    CONDITIONS_GPU
};

/* Of one block on this rank. */
void conditions_gpu_between(const struct gpu_facts *from, const struct gpu_facts *to, double elapsed_us,
                            double out[CONDITIONS_GPU]);
/* Was the GPU not as it usually is? Heat or the board slowed it down, or another process computed on it. A power limit is its usual
 * state under full load. */
bool conditions_gpu_disturbed(const double gpu[CONDITIONS_GPU]);
/* A block more; the first one of a row is taken as it is. */
void conditions_gpu_add(double row[CONDITIONS_GPU], const double block[CONDITIONS_GPU], bool first);
/* sm_mhz, memory_mhz, gpu_celsius, gpu_watts, held_by_power, held_by_heat, held_by_board, gpu_others: those that were told, and not 0. */
void conditions_gpu_note(const double gpu[CONDITIONS_GPU], json_t *conditions);

#endif
