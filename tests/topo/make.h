/* tests/topo/make.h -- for tests: topologies from synth text, and with links put in by hand. */
#ifndef SPTUNE_TESTS_TOPO_MAKE_H
#define SPTUNE_TESTS_TOPO_MAKE_H

#include "base/check.h"
#include "topo/build.h"
#include "topo/topo.h"

#include <stdio.h>
#include <stdlib.h>

static inline struct topo make_topo(const char *text)
{
    struct topo topo = {0};
    CHECK_OK(topo_open(text, &topo));
    return topo;
}

/* One host of n GPUs, all SYS, NUMA nodes as given; links follow by make_link and make_done. */
static inline struct topo make_gpus(int n, const int *numa)
{
    struct topo topo = {0};
    int numas = 0;
    for (int i = 0; i < n; i++)
        numas = numa && numa[i] >= numas ? numa[i] + 1 : numas;
    CHECK_OK(topo_reserve(&topo, (struct topo_sizes){.hosts = 1, .numas = numas, .gpus = n}));
    topo.hosts[0] = (struct topo_host){.name = "made",
                                       .cpu_quota = -1.0,
                                       .memory_bytes = -1,
                                       .memory_limit_bytes = -1,
                                       .l1d_bytes = -1,
                                       .l2_bytes = -1,
                                       .l3_bytes = -1};
    for (int i = 0; i < numas; i++)
        topo.numas[i] = (struct topo_numa){.os_index = i, .memory_bytes = -1};
    for (int i = 0; i < n; i++) {
        topo.gpus[i] = (struct topo_gpu){.numa = numa ? numa[i] : -1, .memory_bytes = -1, .name = "GPU"};
        snprintf(topo.gpus[i].busid, sizeof topo.gpus[i].busid, "0000:%02x:00.0", (unsigned)(0x10 + i) & 0xffu);
    }
    return topo;
}

static inline void make_link(struct topo *topo, int a, int b, enum topo_link_class link, int count)
{
    topo_join(topo, a, b, (struct topo_link){link, count, -1.0, "made"});
    if (link == TOPO_LINK_NVSWITCH) {
        topo->gpus[a].nvlinks = topo->gpus[b].nvlinks = count;
    } else if (link == TOPO_LINK_NVLINK) {
        topo->gpus[a].nvlinks += count;
        topo->gpus[b].nvlinks += count;
    }
}

#endif
