/* bench/conditions.c -- /proc/stat, /proc/self/schedstat and cpu.stat of the control group. */
#include "bench/conditions.h"

#include "base/cgroup.h"
#include "base/clock.h"

#include <stdio.h>

/* "cpu  user nice system idle iowait irq softirq steal guest guest_nice"; guest time is in user time already. */
static void read_ticks(struct conditions *out)
{
    enum { FIELDS = 8, STEAL = 7 };
    double ticks[FIELDS] = {0};
    FILE *file = fopen("/proc/stat", "r");
    if (file == NULL)
        return;
    int n = fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &ticks[0], &ticks[1], &ticks[2], &ticks[3], &ticks[4], &ticks[5],
                   &ticks[6], &ticks[7]);
    fclose(file);
    for (int i = 0; i < n; i++)
        out->ticks += ticks[i];
    out->steal_ticks = n > STEAL ? ticks[STEAL] : 0;
}

/* "time on a CPU, time runnable without one, slices", of the main thread, which is the rank. */
static void read_waited(struct conditions *out)
{
    long long ran = 0, waited = 0;
    FILE *file = fopen("/proc/self/schedstat", "r");
    if (file != NULL && fscanf(file, "%lld %lld", &ran, &waited) == 2)
        out->waited_ns = waited;
    if (file != NULL)
        fclose(file);
}

static void read_throttled(struct conditions *out)
{
    struct cgroup group;
    int64_t value;
    if (!cgroup_find("", "cpu", &group))
        return;
    do
        if (cgroup_stat(&group, "cpu.stat", "nr_throttled", &value))
            out->throttled += value;
    while (cgroup_up(&group));
}

void conditions_read(struct conditions *out)
{
    *out = (struct conditions){.ns = clock_ns()};
    read_ticks(out);
    read_waited(out);
    read_throttled(out);
}

struct conditions_span conditions_since(const struct conditions *from)
{
    struct conditions now;
    conditions_read(&now);
    double steal = now.steal_ticks - from->steal_ticks, ticks = now.ticks - from->ticks;
    double elapsed_ns = (double)(now.ns - from->ns);
    return (struct conditions_span){
        .elapsed_us = elapsed_ns * 1e-3,
        .wait_share = elapsed_ns > 0 ? (double)(now.waited_ns - from->waited_ns) / elapsed_ns : 0,
        .steal_share = steal >= 2 && ticks > 0 ? steal / ticks : 0,
        .throttled = (double)(now.throttled - from->throttled),
    };
}
