/* topo/together.c -- may these ranks run together on these GPUs, and be timed? */
#include "topo/topo.h"

static struct verdict split(const struct topo *topo, int gpu)
{
    return verdict_no(
        RULE_EXCHANGE_CANNOT,
        "GPU %d (%s) is in MIG mode: its instances reach no other GPU's memory; turn MIG off, or use one rank", gpu,
        topo->gpus[gpu].busid);
}

static struct verdict shared(const struct topo *topo, int gpu)
{
    const struct topo_gpu *one = &topo->gpus[gpu];
    return verdict_no(
        RULE_TAINTED,
        "GPU %d (%s) is shared: %d other process%s on it (pid %d), and a rank that waits for it delays all", gpu,
        one->busid, one->others, one->others > 1 ? "es compute" : " computes", one->other_pid);
}

struct verdict topo_ranks_together(const struct topo *topo, const int *order, int n)
{
    if (topo->ngpus == 0 || n < 2)
        return VERDICT_YES;
    for (int i = 0; i < n; i++)
        if (topo->gpus[order[i]].mig)
            return split(topo, order[i]);
    for (int i = 0; i < n; i++)
        if (topo->gpus[order[i]].others > 0)
            return shared(topo, order[i]);
    return VERDICT_YES;
}
