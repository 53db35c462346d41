/* bench/conditions.c -- /proc/stat, /proc/self/schedstat and cpu.stat of the control group. */
#include "bench/conditions.h"

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/text.h"

#include <stdio.h>

static FILE *open_below(const char *root, const char *name)
{
    char path[1024];
    return text_print(path, sizeof path, "%s/%s", root, name) ? fopen(path, "re") : NULL;
}

/* "cpu  user nice system idle iowait irq softirq steal guest guest_nice"; guest time is in user time already. */
static void read_ticks(const char *root, struct conditions *out)
{
    enum { FIELDS = 8, STEAL = 7 };
    double ticks[FIELDS] = {0};
    FILE *file = open_below(root, "proc/stat");
    if (file == NULL)
        return;
    int n = fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &ticks[0], &ticks[1], &ticks[2], &ticks[3], &ticks[4], &ticks[5],
                   &ticks[6], &ticks[7]);
    fclose(file);
    for (int i = 0; i < n; i++)
        out->ticks += ticks[i];
    out->steal_ticks = n > STEAL ? ticks[STEAL] : 0;
}

/* "time on a CPU, time runnable without one, slices", of the main thread; when a helper loses its CPU the
 * probe of a block or stolen time shows it. */
static void read_waited(const char *root, struct conditions *out)
{
    long long ran = 0, waited = 0;
    FILE *file = open_below(root, "proc/self/schedstat");
    if (file != NULL && fscanf(file, "%lld %lld", &ran, &waited) == 2)
        out->waited_ns = waited;
    if (file != NULL)
        fclose(file);
}

static void read_throttled(const char *root, struct conditions *out)
{
    struct cgroup group;
    int64_t value;
    if (!cgroup_find(root, "cpu", &group))
        return;
    do
        if (cgroup_stat(&group, "cpu.stat", "nr_throttled", &value))
            out->throttled += value;
    while (cgroup_up(&group));
}

void conditions_read_at(const char *root, struct conditions *out)
{
    *out = (struct conditions){.ns = clock_ns()};
    read_ticks(root, out);
    read_waited(root, out);
    read_throttled(root, out);
}

void conditions_read(struct conditions *out)
{
    conditions_read_at("", out);
}

struct conditions_span conditions_between(const struct conditions *from, const struct conditions *to)
{
    double steal = to->steal_ticks - from->steal_ticks, ticks = to->ticks - from->ticks;
    double elapsed_ns = (double)(to->ns - from->ns);
    return (struct conditions_span){
        .elapsed_us = elapsed_ns * 1e-3,
        .wait_share = elapsed_ns > 0 ? (double)(to->waited_ns - from->waited_ns) / elapsed_ns : 0,
        .steal_share = steal >= 2 && ticks > 0 ? steal / ticks : 0,
        .throttled = (double)(to->throttled - from->throttled),
    };
}

struct conditions_span conditions_since(const struct conditions *from)
{
    struct conditions now;
    conditions_read(&now);
    return conditions_between(from, &now);
}
