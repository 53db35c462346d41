/* topo/topo.h -- which machine: hosts, NUMA nodes, devices, NICs, and what joins them.
 *
 * A topo is read-only once built and owned by the caller (topo_free). It comes from a source: "hwloc" (this machine, with
 * what the NVIDIA driver tells of its GPUs) or
 * "synth:..." (one line of text); a source is one file exporting one const struct topo_source, plus one row in
 * topo_sources (topo.c). Units: bytes; GB/s = 10^9 bytes per second, one direction. -1 is unknown everywhere.
 *
 * Devices are what ranks run on: the GPUs when the machine has any, else none, and ranks then get sets of CPUs
 * (topo_cpu_slots). Device indices are ours, in PCI bus order, host by host; joins with other sources go by bus id.
 *
 *     struct topo topo;
 *     TRY(topo_open("local", &topo));            // or "synth:2x8xH200,nvlink=18,nic=8x400G"
 *     int order[16];
 *     TRY(topo_rank_order(&topo, 16, 4, order)); // rank r runs on device order[r]; groups of 4 stay inside an island
 *     topo_free(&topo);
 */
#ifndef SPTUNE_TOPO_TOPO_H
#define SPTUNE_TOPO_TOPO_H

#include "base/json.h"
#include "base/status.h"
#include "base/verdict.h"

#include <stdbool.h>
#include <stdint.h>

/* Nearest first. NVSWITCH: every pair through switches; NVLINK: direct links between this pair only. */
#define TOPO_LINK_LIST(X)                                                                                              \
    X(SELF, "self")                                                                                                    \
    X(NVSWITCH, "nvswitch")                                                                                            \
    X(NVLINK, "nvlink")                                                                                                \
    X(PIX, "pix")   /* one PCIe switch */                                                                              \
    X(PXB, "pxb")   /* several PCIe switches */                                                                        \
    X(PHB, "phb")   /* through one host bridge */                                                                      \
    X(NODE, "node") /* one NUMA node */                                                                                \
    X(SYS, "sys")   /* between NUMA nodes of one host */                                                               \
    X(NET, "net")   /* between hosts */
enum topo_link_class {
#define TOPO_LINK_ENUM(name, code) TOPO_LINK_##name,
    TOPO_LINK_LIST(TOPO_LINK_ENUM)
#undef TOPO_LINK_ENUM
        TOPO_LINK_COUNT
};

struct topo_host {
    char name[64];
    char boot_id[40]; /* identity: (boot id, name, namespaces, launcher's node id) */
    int64_t memory_bytes;
    int64_t memory_limit_bytes; /* cgroup, -1 when none */
    int packages, cores, pus;
    int pus_allowed;                       /* cpuset of this process */
    double cpu_quota;                      /* CPUs per wall second from cgroup v1 or v2, -1 when none */
    int quota_version;                     /* cgroup version that set it: 1, 2, 0 when none */
    int64_t l1d_bytes, l2_bytes, l3_bytes; /* per instance; -1 unknown */
    int l3_count;
    char cpu_model[96];
};

struct topo_numa {
    int host, os_index;
    int64_t memory_bytes;
    char cpus[256]; /* allowed PUs of this node as a list, "0-15,32" */
};

/* A physical core. Sources list cores host by host, neighbours together (package, NUMA node, last-level cache). */
struct topo_core {
    int host, numa;  /* numa: index into numas, -1 unknown */
    int package, l3; /* index within the host; l3 -1 when none is known */
    int pus;         /* hardware threads, allowed or not */
    char cpus[48];   /* those that this process may use, "3,67"; "" when none */
};

struct topo_gpu {
    int host, numa;       /* numa: index into numas, -1 unknown */
    char busid[16];       /* 0000:17:00.0, lower case; joins go by this only */
    char name[64];        /* "NVIDIA H200", or vendor:device when only PCI is known */
    char uuid[64];        /* "" unknown */
    char cpus[256];       /* allowed PUs near it, where PCI tells more than its NUMA node; else "" */
    int64_t memory_bytes; /* -1 when no driver told */
    int nvlinks;          /* links with another end known, -1 unknown */
    bool driver;          /* a driver answers for it */
    bool mig;             /* split into instances; name, uuid and memory are then those of the one in use */
    int cuda;             /* index under which CUDA opens it in this process, -1 unknown */
    int others;           /* processes that compute on it, this one not counted; -1 unknown */
    int other_pid;        /* one of them, as the driver numbers it */
};

struct topo_nic {
    int host, numa;
    char name[32];
    char busid[16];
    double GBps; /* nominal, one direction; -1 unknown */
};

struct topo_link {
    enum topo_link_class link;
    int count;        /* NVLinks, else 1 */
    double GBps;      /* one direction: nominal, of NVLinks what NCCL counts on (gpu_kinds.c); -1 unknown */
    const char *from; /* where this fact came from: "synth", "hwloc", "nvml" ... static */
};

struct topo {
    char source[256]; /* what was asked for, and which source answered */
    int nhosts, nnumas, ncores, ngpus, nnics;
    struct topo_host *hosts;
    struct topo_numa *numas;
    struct topo_core *cores;
    struct topo_gpu *gpus;
    struct topo_nic *nics;
    struct topo_link *links; /* [ngpus][ngpus] */
    signed char *p2p;        /* [ngpus][ngpus] may each read and write the other's memory? 1, 0, -1 unknown; or NULL */
    char fingerprint[33];    /* 32 hex digits over names, counts, links; never names of hosts, clocks, UUIDs */
    char (*warnings)[256];   /* what is odd, in sentences; topo logs nothing, the document and the table repeat them */
    int nwarnings;
};

struct topo_source {
    const char *name;
    /* Does `from` belong to this source? "local" to hwloc, "synth:" to synth. */
    bool (*accepts)(const char *from);
    enum status (*read)(const char *from, struct topo *out);
};
extern const struct topo_source *const topo_sources[]; /* NULL-terminated */

enum status topo_open(const char *from, struct topo *out); /* STATUS_USAGE for malformed text, with the position */
void topo_free(struct topo *topo);

/* The usable CPUs here: min(allowed PUs, cgroup quota rounded down, at least 1). */
int topo_usable_cpus(const struct topo *topo);
/* CPU lists ("0,1") for n ranks of host 0: whole cores, spread over NUMA nodes, neighbours stay in one node. With more
 * ranks than CPUs lists repeat. Caller frees each and the array with topo_free_slots. */
enum status topo_cpu_slots(const struct topo *topo, int n, char ***out);
void topo_free_slots(char **slots, int n);

/* Islands: maximal sets of devices joined by the best link class among themselves (NVLink when there is any, else
 * the NUMA node, else the host). island_of[ngpus]; *count islands, numbered by lowest device. */
enum status topo_islands(const struct topo *topo, int *island_of, int *out_count);
/* order[n]: device of each rank so that consecutive groups of sp ranks stay inside the best-joined sets: island, pair,
 * NUMA node, host. Deterministic. n <= ngpus, or any n (identity) when there are no GPUs. */
enum status topo_rank_order(const struct topo *topo, int n, int sp, int *order);
/* Worst link class among the consecutive groups of sp ranks in that order; TOPO_LINK_SELF when there are no GPUs. */
enum topo_link_class topo_group_link(const struct topo *topo, const int *order, int n, int sp);

/* May n ranks, on devices order[n], work together and be timed? Not on GPUs in MIG mode or shared with other processes;
 * one rank alone may. */
struct verdict topo_ranks_together(const struct topo *topo, const int *order, int n);

const char *topo_link_name(enum topo_link_class link);
json_t *topo_to_json(const struct topo *topo, const struct json_envelope *envelope); /* sptune.topo/1 */
enum status topo_to_svg(const struct topo *topo, char **out);                        /* whole document; free() */
enum status topo_to_table(const struct topo *topo, char **out); /* for a terminal, 80 columns; free() */

#endif
