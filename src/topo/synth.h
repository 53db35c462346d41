/* topo/synth.h -- a machine described in one line. Inside this room only.
 *
 *     synth:[HOSTSx]COUNTxNAME[,key=value]...
 *
 * COUNT devices of kind NAME on each of HOSTS equal hosts. NAME "cpu" is a machine without GPUs: COUNT is then its
 * cores.
 *
 *     nvlink=N          NVLinks of each GPU; every pair is joined through switches
 *     pairs=A-B,C-D     ... or only these pairs of each host are joined, directly, by N links
 *     mem=141GiB        memory of a GPU (known names have it), of a host when NAME is cpu
 *     hostmem=2TiB      memory of a host with GPUs
 *     numa=K            NUMA nodes of a host: 2 from 4 GPUs on, else 1
 *     cpus=N            cores of a host with GPUs: 16 per GPU
 *     nic=COUNTxRATE    NICs of a host and their network rate in Gbit/s: 8x400G is 8 of 50 GB/s
 */
#ifndef SPTUNE_TOPO_SYNTH_H
#define SPTUNE_TOPO_SYNTH_H

#include "topo/topo.h"

enum {
    SYNTH_HOSTS_MAX = 1024,
    SYNTH_PER_HOST_MAX = 64,
    SYNTH_GPUS_MAX = 1024,
    SYNTH_CORES_MAX = 4096,       /* of one host */
    SYNTH_ALL_CORES_MAX = 262144, /* of all hosts */
    SYNTH_NVLINKS_MAX = 64,
    SYNTH_NICS_MAX = 64,
    SYNTH_NUMAS_MAX = 64,
    SYNTH_TEXT_MAX = 65536,
};

struct synth_pair {
    int a, b;
};

struct synth {
    int hosts, gpus, cores, numas;               /* per host from here on */
    char name[64];                               /* "" without GPUs */
    int64_t gpu_memory_bytes, host_memory_bytes; /* -1 unknown */
    int nvlinks;                                 /* -1 not given */
    double nvlink_GBps;                          /* per link, -1 unknown */
    struct synth_pair *pairs;                    /* owned; none: all pairs */
    int npairs;
    int nics;
    double nic_GBps;
};

enum status synth_parse(const char *text, struct synth *out); /* release with synth_free, after failure too */
void synth_free(struct synth *synth);

#endif
