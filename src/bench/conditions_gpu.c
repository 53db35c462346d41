/* bench/conditions_gpu.c -- facts about a GPU before and after a block become the block's conditions. */
#include "bench/conditions_gpu.h"

#include "base/json.h"

#include <math.h>
#include <string.h>

static const double heat_most = 0.05; /* of the time; a time may be off by as much */

static double told(double value)
{
    return value >= 0 ? value : 0;
}

static double share_of(int64_t from_ns, int64_t to_ns, double elapsed_us, bool held_now)
{
    if (from_ns < 0 || to_ns <= from_ns || elapsed_us <= 0) /* nobody counts, or not yet: its end stands for all of it */
        return held_now ? 1 : 0;
    return fmin((double)(to_ns - from_ns) * 1e-3 / elapsed_us, 1);
}

void conditions_gpu_between(const struct gpu_facts *from, const struct gpu_facts *to, double elapsed_us,
                            double out[CONDITIONS_GPU])
{
    int held = to->held >= 0 ? to->held : 0;
    out[GPU_SM_MHZ] = -told(to->sm_mhz);
    out[GPU_MEMORY_MHZ] = -told(to->memory_mhz);
    out[GPU_CELSIUS] = told(to->celsius);
    out[GPU_WATTS] = told(to->watts);
    out[GPU_POWER] = share_of(from->power_held_ns, to->power_held_ns, elapsed_us, (held & GPU_HELD_POWER) != 0);
    out[GPU_HEAT] = share_of(from->heat_held_ns, to->heat_held_ns, elapsed_us, (held & GPU_HELD_HEAT) != 0);
    out[GPU_HARDWARE] = (held & GPU_HELD_HARDWARE) != 0 ? 1 : 0;
    out[GPU_OTHERS] = told(to->others);
}

bool conditions_gpu_disturbed(const double gpu[CONDITIONS_GPU])
{
    return gpu[GPU_HEAT] > heat_most || gpu[GPU_HARDWARE] > 0 || gpu[GPU_OTHERS] > 0;
}

void conditions_gpu_add(double row[CONDITIONS_GPU], const double block[CONDITIONS_GPU], bool first)
{
    for (int i = 0; i < CONDITIONS_GPU; i++)
        row[i] = first ? block[i] : fmax(row[i], block[i]);
}

static void put(json_t *conditions, const char *name, double value)
{
    if (value > 0)
        json_object_set_new(conditions, name, json_num(value, 5));
}

void conditions_gpu_note(const double gpu[CONDITIONS_GPU], json_t *conditions)
{
    put(conditions, "sm_mhz", -gpu[GPU_SM_MHZ]);
    put(conditions, "memory_mhz", -gpu[GPU_MEMORY_MHZ]);
    put(conditions, "gpu_celsius", gpu[GPU_CELSIUS]);
    put(conditions, "gpu_watts", gpu[GPU_WATTS]);
    put(conditions, "held_by_power", gpu[GPU_POWER]);
    put(conditions, "held_by_heat", gpu[GPU_HEAT]);
    put(conditions, "held_by_board", gpu[GPU_HARDWARE]);
    put(conditions, "gpu_others", gpu[GPU_OTHERS]);
}
